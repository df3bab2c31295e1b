"""The ids met so far, on disk: memory stays flat however many there are."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self


class SeenIds:
    """An ordered set of ids in a temporary database that vanishes with the process."""

    def __init__(self) -> None:
        # An empty name is SQLite's own temporary file: in memory while it is small, deleted when closed.
        self._db = sqlite3.connect("", isolation_level=None)
        self._db.execute("PRAGMA journal_mode = OFF")
        self._db.execute("PRAGMA synchronous = OFF")
        self._db.execute("CREATE TABLE seen (id TEXT PRIMARY KEY) WITHOUT ROWID")
        self._db.execute("CREATE TABLE line (no INTEGER PRIMARY KEY, id TEXT NOT NULL)")
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._db.close()

    def __len__(self) -> int:
        return self._count

    def __contains__(self, id: str) -> bool:
        return self._db.execute("SELECT 1 FROM seen WHERE id = ?", (id,)).fetchone() is not None

    def add(self, id: str) -> bool:
        """Whether the id is new."""
        if self._db.execute("INSERT OR IGNORE INTO seen VALUES (?)", (id,)).rowcount == 0:
            return False
        self._db.execute("INSERT INTO line (id) VALUES (?)", (id,))
        self._count += 1
        return True

    def chunks(self, size: int) -> Iterator[Sequence[str]]:
        """All ids in the order they were added, `size` at a time."""
        last = 0
        while rows := self._db.execute("SELECT no, id FROM line WHERE no > ? ORDER BY no LIMIT ?", (last, size)).fetchall():
            last = rows[-1][0]
            yield [row[1] for row in rows]
