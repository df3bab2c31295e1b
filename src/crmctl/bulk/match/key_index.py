"""Rows waiting for their record, and the records that have their keys: a private temporary database, so that memory stays flat."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from crmctl.bulk.match.keys import KeyRule
from crmctl.bulk.rows.validation import Payload
from crmctl.bulk.spill import Spill
from crmctl.models import jsontext
from crmctl.models.composites import NO_PARTS, Parts
from crmctl.models.records import Record

CHUNK_ROWS = 500

_TABLES = """
CREATE TABLE wanted (ordinal INTEGER PRIMARY KEY, line INTEGER NOT NULL, last_line INTEGER NOT NULL, key TEXT, data TEXT NOT NULL,
    parts TEXT
);
CREATE INDEX wanted_key ON wanted (key, ordinal);
CREATE TABLE found (id TEXT PRIMARY KEY, key TEXT NOT NULL, data TEXT NOT NULL) WITHOUT ROWID;
CREATE INDEX found_key ON found (key);
"""


class Wanted(NamedTuple):
    """A row with its place, its key (None when blank) and the record it would write; of some values it may say only `parts`."""

    ordinal: int
    line: int
    last_line: int
    key: str | None
    data: dict[str, Any]
    id: str | None = None
    parts: Mapping[str, Parts] = NO_PARTS


class KeyIndex(Spill):
    """Of one key rule."""

    TABLES = _TABLES
    CACHE_KIB = 16_000

    def __init__(self, rule: KeyRule) -> None:
        super().__init__()
        self.rule = rule

    # -- rows ------------------------------------------------------------------------------------------------------------------------

    def want(self, ordinal: int, data: dict[str, Any], parts: Mapping[str, Parts] = NO_PARTS, lines: tuple[int, int] = (0, 0)) -> None:
        """`lines`: the first and the last one of the row."""
        row = (ordinal, *lines, self.rule.key(data), jsontext.dumps(data), jsontext.dumps(parts) if parts else None)
        self._db.execute("INSERT INTO wanted VALUES (?, ?, ?, ?, ?, ?)", row)

    def want_all(self, payloads: Iterable[Payload]) -> None:
        for payload in payloads:
            self.want(payload.ordinal, payload.data, payload.parts, (payload.first_line, payload.last_line))

    @property
    def key_count(self) -> int:
        """How many different keys the rows have."""
        return int(self._db.execute("SELECT COUNT(DISTINCT key) FROM wanted").fetchone()[0])

    def distinct(self) -> Iterator[str]:
        """All different keys."""
        last = ""
        statement = "SELECT DISTINCT key FROM wanted WHERE key > ? ORDER BY key LIMIT ?"
        while found := self._db.execute(statement, (last, CHUNK_ROWS)).fetchall():
            for (last,) in found:
                yield last

    def rows(self) -> Iterator[Wanted]:
        """All rows in input order."""
        last = -1
        statement = "SELECT ordinal, line, last_line, key, data, parts FROM wanted WHERE ordinal > ? ORDER BY ordinal LIMIT ?"
        while found := self._db.execute(statement, (last, CHUNK_ROWS)).fetchall():
            for ordinal, line, last_line, key, data, parts in found:
                last = ordinal
                said = jsontext.loads(parts) if parts is not None else NO_PARTS
                yield Wanted(ordinal, line, last_line, key, jsontext.loads(data), parts=said)

    def first(self, key: str) -> Wanted:
        """The first row of a key."""
        return self._edge(key, "ASC")

    def last(self, key: str) -> Wanted:
        """The last row of a key."""
        return self._edge(key, "DESC")

    def _edge(self, key: str, order: str) -> Wanted:
        statement = f"SELECT ordinal, line, last_line, key FROM wanted WHERE key = ? ORDER BY ordinal {order} LIMIT 1"  # noqa: S608
        ordinal, line, last_line, key = self._db.execute(statement, (key,)).fetchone()
        return Wanted(ordinal, line, last_line, key, {})

    # -- records ---------------------------------------------------------------------------------------------------------------------

    def see(self, records: Iterable[Record]) -> None:
        """Keep the records that have a wanted key. What is seen later is how a record is now."""
        for record in records:
            key = self.rule.key(record.data)
            if key is not None and self._db.execute("SELECT 1 FROM wanted WHERE key = ? LIMIT 1", (key,)).fetchone():
                row = (record.id, key, jsontext.dumps(record.data))
                self._db.execute("INSERT OR REPLACE INTO found VALUES (?, ?, ?)", row)
            else:
                self._db.execute("DELETE FROM found WHERE id = ?", (record.id,))

    def found(self, key: str) -> list[tuple[str, dict[str, Any]]]:
        """The ids and data of all records of a key."""
        rows = self._db.execute("SELECT id, data FROM found WHERE key = ? ORDER BY id", (key,))
        return [(record_id, jsontext.loads(data)) for record_id, data in rows]

    def matches(self) -> Iterator[tuple[int, str]]:
        """Each row whose key a record has, in input order, and that record: of several the one with the first id."""
        last = -1
        statement = "SELECT ordinal, MIN(id) FROM wanted JOIN found USING (key) WHERE ordinal > ? GROUP BY ordinal ORDER BY ordinal LIMIT ?"
        while rows := self._db.execute(statement, (last, CHUNK_ROWS)).fetchall():
            yield from rows
            last = rows[-1][0]
