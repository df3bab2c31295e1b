"""The ids met so far, on disk: memory stays flat however many there are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from crmctl.bulk.spill import Spill


class SeenIds(Spill):
    """An ordered set of ids."""

    TABLES = """
CREATE TABLE seen (id TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE line (no INTEGER PRIMARY KEY, id TEXT NOT NULL);
"""

    def __init__(self) -> None:
        super().__init__()
        self._count = 0

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
