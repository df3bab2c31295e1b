"""SQLite's write-ahead log, begun by many at once."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sqlite3

PAUSE = 0.005
BUSY = 5
"""SQLITE_BUSY."""


def begin_log(database: sqlite3.Connection, patience: float) -> None:
    """Readers and a writer of a file do not wait for each other from here on. Raises sqlite3.Error, for a file that is in use after
    `patience` seconds.

    Of several that open a new file at the same moment SQLite refuses all but one: at once, however long the connection may wait.
    """
    until = time.monotonic() + patience
    while True:
        try:
            database.execute("PRAGMA journal_mode = WAL")
            return
        except Exception as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF != BUSY or time.monotonic() >= until:
                raise
        time.sleep(PAUSE)
