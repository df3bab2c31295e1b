"""Switch a SQLite file to its write-ahead log while other processes do the same."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sqlite3

PAUSE = 0.005
BUSY = 5
"""SQLITE_BUSY."""


def begin_log(database: sqlite3.Connection, patience: float) -> None:
    """Switch to the write-ahead log, so that readers and the writer do not block each other.

    When several processes open a new file at once, SQLite refuses all but one immediately, whatever the connection's timeout.
    Raises sqlite3.Error if the file is still in use after `patience` seconds.
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
