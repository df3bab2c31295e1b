"""A spill: a private temporary database for what memory should not hold. Its tables are data; it is gone when closed."""

from __future__ import annotations

import sqlite3
from types import TracebackType
from typing import ClassVar, Self


def open_spill(tables: str, cache_kib: int = 2_000) -> sqlite3.Connection:
    """An empty database with these tables, in one transaction that never ends: nothing in it has to survive a crash."""
    # An empty name is SQLite's own temporary file: in memory while it is small, deleted when closed.
    database = sqlite3.connect("", isolation_level=None)
    for setting in ("journal_mode = OFF", "synchronous = OFF", f"cache_size = -{cache_kib}"):
        database.execute(f"PRAGMA {setting}")
    database.executescript(tables)
    database.execute("BEGIN")
    return database


class Spill:
    """Base of what keeps its rows in a spill of its own, with `TABLES` in it."""

    TABLES: ClassVar[str]
    CACHE_KIB: ClassVar[int] = 2_000

    def __init__(self) -> None:
        self._db = open_spill(self.TABLES, self.CACHE_KIB)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._db.close()
