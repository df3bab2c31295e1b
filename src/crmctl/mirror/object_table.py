"""One object's table in the mirror: its rows are written from records, and asked for by id, rank of creation, and time of change."""
# ruff: noqa: S608 - names in statements are quoted, values are parameters

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from crmctl.mirror.columns import SqlValue, TableColumn, is_loose, quoted, searched_text, table_columns, wire_text
from crmctl.mirror.file import search_table
from crmctl.models import jsontext
from crmctl.models.attributes import Attribute
from crmctl.models.records import Record
from crmctl.models.timestamps import micros_of

CHUNK = 500


class KnownRecord(NamedTuple):
    """What the mirror holds of a record: times in microseconds, the record as it came."""

    id: str
    created: int
    updated: int
    wire: str


@dataclass
class Written:
    """What writing did."""

    created: int = 0
    updated: int = 0
    deleted: int = 0
    deleted_ids: list[str] = field(default_factory=list)

    def add(self, other: Written) -> None:
        """What another writing did as well."""
        self.created += other.created
        self.updated += other.updated
        self.deleted += other.deleted
        self.deleted_ids += other.deleted_ids


class ObjectTable:
    """`loose` grows where a number turns up that SQLite does not hold exactly; `rebuild` then makes room for it."""

    def __init__(self, db: sqlite3.Connection, name: str, attributes: Sequence[Attribute], loose: Iterable[str] = ()) -> None:
        self.name = name
        self.attributes = list(attributes)
        self.loose = set(loose)
        self.grown = False
        self._db = db
        self.quoted_name = self._table = quoted(name)
        self._search = quoted(search_table(name))
        self._has_search = has_full_text(db)
        self._plan()

    def _plan(self) -> None:
        self.columns: list[TableColumn] = table_columns(self.attributes, self.loose)
        names = ["id", "created_at", "updated_at", "_created", "_updated", "_data", *(column.name for column in self.columns)]
        self._insert = f"INSERT INTO {self._table} ({', '.join(map(quoted, names))}) VALUES ({', '.join('?' * len(names))})"
        self._update = f"UPDATE {self._table} SET {', '.join(f'{quoted(name)} = ?' for name in names)} WHERE _no = ?"

    # -- writing ---------------------------------------------------------------------------------------------------------------------

    def create(self) -> None:
        """Make the table with its indexes; one of this name goes."""
        columns = [
            "_no INTEGER PRIMARY KEY", "id TEXT NOT NULL UNIQUE", "created_at TEXT", "updated_at TEXT",
            *(f"{quoted(column.name)} {column.declared}".rstrip() for column in self.columns),
            "_created INTEGER NOT NULL", "_updated INTEGER NOT NULL", "_data TEXT NOT NULL",
        ]  # fmt: skip
        self._db.execute(f"DROP TABLE IF EXISTS {self._table}")
        self._db.execute(f"DROP TABLE IF EXISTS {self._search}")
        self._db.execute(f"CREATE TABLE {self._table} ({', '.join(columns)})")
        for column in ("_created", "_updated"):
            self._db.execute(f"CREATE INDEX {quoted(f'_by_{self.name}{column}')} ON {self._table} ({column})")
        if self._has_search:
            create_search(self._db, search_table(self.name))

    def rebuild(self, without: Collection[str] = ()) -> None:
        """Make the table anew from its own records, with the columns of the present attributes; `without` values of some of them."""
        old = quoted(f"_old_{self.name}")
        self._db.execute(f"ALTER TABLE {self._table} RENAME TO {old}")
        for column in ("_created", "_updated"):
            for index in (f"_by_{self.name}{column}", f"{self.name}{column}"):  # the latter as mirrors had it before
                self._db.execute(f"DROP INDEX IF EXISTS {quoted(index)}")
        self._plan()
        self.create()
        last = 0
        while rows := self._db.execute(f"SELECT _no, _data FROM {old} WHERE _no > ? ORDER BY _no LIMIT ?", (last, CHUNK)).fetchall():
            last = rows[-1][0]
            self.write(without_values(Record.parse(jsontext.loads(row[1])), without) for row in rows)
        self._db.execute(f"DROP TABLE {old}")

    def write(self, records: Iterable[Record]) -> Written:
        """Take records in as they are now."""
        done = Written()
        for record in records:
            text = wire_text(record.wire)
            known = self._db.execute(f"SELECT _no, _data FROM {self._table} WHERE id = ?", (record.id,)).fetchone()
            if known is None:
                number = self._db.execute(self._insert, self._row(record, text)).lastrowid
                done.created += 1
            elif known[1] == text:
                continue
            else:
                number = known[0]
                self._unsearch(number, known[1])
                self._db.execute(self._update, [*self._row(record, text), number])
                done.updated += 1
            if self._has_search:
                self._db.execute(f"INSERT INTO {self._search} (rowid, text) VALUES (?, ?)", (number, searched_text(record.data)))
        return done

    def delete(self, ids: Iterable[str]) -> int:
        """Take records out; how many there were."""
        count = 0
        for record_id in ids:
            known = self._db.execute(f"SELECT _no, _data FROM {self._table} WHERE id = ?", (record_id,)).fetchone()
            if known is not None:
                self._unsearch(*known)
                self._db.execute(f"DELETE FROM {self._table} WHERE _no = ?", (known[0],))
                count += 1
        return count

    def _unsearch(self, number: int, wire: str) -> None:
        if self._has_search:
            text = searched_text(Record.parse(jsontext.loads(wire)).data)
            self._db.execute(f"INSERT INTO {self._search} ({self._search}, rowid, text) VALUES ('delete', ?, ?)", (number, text))

    def _row(self, record: Record, text: str) -> list[SqlValue]:
        values = [column.value(record.data) for column in self.columns]
        loose = {column.attribute.slug for column, value in zip(self.columns, values, strict=True) if is_loose(column, value)}
        if loose:
            self.loose |= loose
            self.grown = True
        return [record.id, record.created_at, record.updated_at, _micros(record.created_at), _micros(record.updated_at), text, *values]

    # -- asking ----------------------------------------------------------------------------------------------------------------------

    def count(self) -> int:
        return int(self._db.execute(f"SELECT count(*) FROM {self._table}").fetchone()[0])

    def known(self, record_id: str) -> KnownRecord | None:
        row = self._db.execute(f"SELECT id, _created, _updated, _data FROM {self._table} WHERE id = ?", (record_id,)).fetchone()
        return None if row is None else KnownRecord(*row)

    def count_between(self, first: int, end: int) -> int:
        """How many records were created from the first moment on, before the other one."""
        statement = f"SELECT count(*) FROM {self._table} WHERE _created >= ? AND _created < ?"
        return int(self._db.execute(statement, (first, end)).fetchone()[0])

    def created_between(self, first: int, end: int) -> set[str]:
        """The ids of records created from the first moment on, before the other one."""
        return {row[0] for row in self._db.execute(f"SELECT id FROM {self._table} WHERE _created >= ? AND _created < ?", (first, end))}

    def count_changed_after(self, moment: int) -> int:
        """How many records were changed after this moment."""
        return int(self._db.execute(f"SELECT count(*) FROM {self._table} WHERE _updated > ?", (moment,)).fetchone()[0])

    def wires(self) -> Iterator[str]:
        """Every record as it came, oldest first."""
        return (row[0] for row in self._db.execute(f"SELECT _data FROM {self._table} ORDER BY _created, _no"))

    def ids(self) -> Iterator[str]:
        return (row[0] for row in self._db.execute(f"SELECT id FROM {self._table}"))


def without_values(record: Record, slugs: Collection[str]) -> Record:
    """A record without the values of some attributes."""
    data = record.wire.get("data")
    if not slugs or not isinstance(data, dict) or data.keys().isdisjoint(slugs):
        return record
    return Record.parse({**record.wire, "data": {slug: value for slug, value in data.items() if slug not in slugs}})


def create_search(db: sqlite3.Connection, name: str) -> None:
    """Make an empty full-text index."""
    db.execute(f"CREATE VIRTUAL TABLE {quoted(name)} USING fts5(text, content='', tokenize='unicode61 remove_diacritics 2')")


def has_full_text(db: sqlite3.Connection) -> bool:
    """Whether this SQLite has full-text search."""
    return bool(db.execute("SELECT sqlite_compileoption_used('ENABLE_FTS5')").fetchone()[0])


def _micros(timestamp: Any) -> int:
    return micros_of(timestamp) or 0
