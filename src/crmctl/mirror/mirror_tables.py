"""The tables of a mirror, and filling them from a full read."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from crmctl.mirror.changes import create_triggers, log_updates
from crmctl.mirror.file import (
    MirrorFile,
    SqlValue,
    SyncState,
    TableColumn,
    clean_text,
    quoted,
    search_table,
    searched_text,
    table_columns,
)
from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.models.resources import Activity, Attribute, Member, Object, Record
from crmctl.values.moments import micros_of

CHUNK = 500


class KnownRecord(NamedTuple):
    """A record in the mirror: times in microseconds, and its JSON."""

    id: str
    created: int
    updated: int
    wire: str


@dataclass
class Written:
    created: int = 0
    updated: int = 0
    deleted_ids: list[str] = field(default_factory=list)

    @property
    def deleted(self) -> int:
        return len(self.deleted_ids)

    def add(self, other: Written) -> None:
        self.created += other.created
        self.updated += other.updated
        self.deleted_ids += other.deleted_ids


OnDifference = Callable[[str, str | None, str | None], object]
"""Hears of a difference: the id of a record, what the mirror held, and what the service lists, None for a deleted one."""


def overlook(_record_id: str, _held: str | None, _listed: str | None) -> None:
    """Ignore a difference."""


class ObjectTable:
    """The table of one object. `loose` grows when a number appears that SQLite cannot hold exactly; `rebuild` then changes the column."""

    def __init__(self, db: sqlite3.Connection, name: str, attributes: Sequence[Attribute], loose: Iterable[str] = ()) -> None:
        self.name = name
        self.attributes = list(attributes)
        self.loose = set(loose)
        self.grown = False
        self._db = db
        self._table = quoted(name)
        self._search = quoted(search_table(name))
        self._has_search = has_full_text(db)
        self._plan()

    def _plan(self) -> None:
        self.columns: list[TableColumn] = table_columns(self.attributes, self.loose)
        names = ["id", "created_at", "updated_at", "_created", "_updated", "_data", *(column.name for column in self.columns)]
        self._insert = f"INSERT INTO {self._table} ({', '.join(map(quoted, names))}) VALUES ({', '.join('?' * len(names))})"
        values = ", ".join(map(quoted, names))
        self._compare = f"SELECT _no, _data, ({values}) IS ({', '.join('?' * len(names))}) FROM {self._table} WHERE id = ?"
        self._update = f"UPDATE {self._table} SET {', '.join(f'{quoted(name)} = ?' for name in names)} WHERE _no = ?"

    def create(self) -> None:
        """Create the table with its indexes, replacing one of this name."""
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
        """Recreate the table from its own records with the columns of the present attributes; drop the values of `without`."""
        old = quoted(f"_old_{self.name}")
        is_logged = self._db.execute("SELECT 1 FROM sqlite_master WHERE type = 'trigger' AND tbl_name = ?", (self.name,)).fetchone()
        self._db.execute(f"ALTER TABLE {self._table} RENAME TO {old}")
        for column in ("_created", "_updated"):
            self._db.execute(f"DROP INDEX IF EXISTS {quoted(f'_by_{self.name}{column}')}")
        self._plan()
        self.create()
        last = 0
        while rows := self._db.execute(f"SELECT _no, _data FROM {old} WHERE _no > ? ORDER BY _no LIMIT ?", (last, CHUNK)).fetchall():
            last = rows[-1][0]
            records = [without_values(Record.parse(jsontext.loads(row[1])), without) for row in rows]
            self.write(records)
            if is_logged and without:
                pairs = ((record.id, row[1], jsontext.dumps(record.wire)) for row, record in zip(rows, records, strict=True))
                log_updates(self._db, self.name, (pair for pair in pairs if pair[1] != pair[2]))
        self._db.execute(f"DROP TABLE {old}")
        if is_logged:
            create_triggers(self._db, self.name)

    def write(self, records: Iterable[Record], see: OnDifference = overlook) -> Written:
        """Write the records that differ. `see` hears of each."""
        done = Written()
        for record in records:
            text = jsontext.dumps(record.wire)
            row = self._row(record, text)
            stored = self._db.execute(self._compare, [*row, record.id]).fetchone()
            if stored is None:
                number = self._db.execute(self._insert, row).lastrowid
                done.created += 1
            elif stored[2]:
                continue
            else:
                number = stored[0]
                self._unsearch(number, stored[1])
                self._db.execute(self._update, [*row, number])
                done.updated += 1
            see(record.id, stored and stored[1], text)
            if self._has_search:
                self._db.execute(f"INSERT INTO {self._search} (rowid, text) VALUES (?, ?)", (number, searched_text(record.data)))
        return done

    def delete(self, ids: Iterable[str]) -> None:
        for record_id in ids:
            stored = self._db.execute(f"SELECT _no, _data FROM {self._table} WHERE id = ?", (record_id,)).fetchone()
            if stored is not None:
                self._unsearch(*stored)
                self._db.execute(f"DELETE FROM {self._table} WHERE _no = ?", (stored[0],))

    def _unsearch(self, number: int, wire: str) -> None:
        if self._has_search:
            text = searched_text(Record.parse(jsontext.loads(wire)).data)
            self._db.execute(f"INSERT INTO {self._search} ({self._search}, rowid, text) VALUES ('delete', ?, ?)", (number, text))

    def _row(self, record: Record, text: str) -> list[SqlValue]:
        values = [column.value(record.data) for column in self.columns]
        # A text must stay one in a column that would turn it into a number.
        numeric = (pair for pair in zip(self.columns, values, strict=True) if pair[0].declared == "NUMERIC")
        loose = {column.attribute.slug for column, value in numeric if isinstance(value, str)}
        if loose:
            self.loose |= loose
            self.grown = True
        created, updated = micros_of(record.created_at) or 0, micros_of(record.updated_at) or 0
        return [record.id, record.created_at, record.updated_at, created, updated, text, *values]

    def count(self) -> int:
        return int(self._db.execute(f"SELECT count(*) FROM {self._table}").fetchone()[0])

    def known(self, record_id: str) -> KnownRecord | None:
        row = self._db.execute(f"SELECT id, _created, _updated, _data FROM {self._table} WHERE id = ?", (record_id,)).fetchone()
        return None if row is None else KnownRecord(*row)

    def count_between(self, first: int, end: int) -> int:
        """Return how many records were created from `first` until before `end`."""
        statement = f"SELECT count(*) FROM {self._table} WHERE _created >= ? AND _created < ?"
        return int(self._db.execute(statement, (first, end)).fetchone()[0])

    def created_between(self, first: int, end: int) -> set[str]:
        """Return the ids of records created from `first` until before `end`."""
        return {row[0] for row in self._db.execute(f"SELECT id FROM {self._table} WHERE _created >= ? AND _created < ?", (first, end))}

    def count_changed_after(self, moment: int) -> int:
        return int(self._db.execute(f"SELECT count(*) FROM {self._table} WHERE _updated > ?", (moment,)).fetchone()[0])

    def wires(self) -> Iterator[str]:
        return (row[0] for row in self._db.execute(f"SELECT _data FROM {self._table} ORDER BY _created, _no"))


def begin_list(db: sqlite3.Connection) -> None:
    """Begin to note the ids of a list. They are in a temporary table, one for each connection."""
    db.execute("CREATE TEMP TABLE IF NOT EXISTS _seen (id TEXT PRIMARY KEY) WITHOUT ROWID")
    db.execute("DELETE FROM temp._seen")


def note_listed(db: sqlite3.Connection, record_id: str) -> bool:
    """Note an id of the list; return whether it is new."""
    return db.execute("INSERT OR IGNORE INTO temp._seen VALUES (?)", (record_id,)).rowcount == 1


def unlisted(db: sqlite3.Connection, table: str, lowest: int | None = None) -> list[str]:
    """Return the ids in a table that the list lacks; with `lowest`, those of records changed since."""
    where, values = ("", ()) if lowest is None else (" AND _updated >= ?", (lowest,))
    statement = f"SELECT id FROM {quoted(table)} WHERE id NOT IN (SELECT id FROM temp._seen){where}"
    return [row[0] for row in db.execute(statement, values)]


def without_values(record: Record, slugs: Collection[str]) -> Record:
    data = record.wire.get("data")
    if not slugs or not isinstance(data, dict) or data.keys().isdisjoint(slugs):
        return record
    return Record.parse({**record.wire, "data": {slug: value for slug, value in data.items() if slug not in slugs}})


def create_search(db: sqlite3.Connection, name: str) -> None:
    db.execute(f"CREATE VIRTUAL TABLE {quoted(name)} USING fts5(text, content='', tokenize='unicode61 remove_diacritics 2')")


def has_full_text(db: sqlite3.Connection) -> bool:
    return bool(db.execute("SELECT sqlite_compileoption_used('ENABLE_FTS5')").fetchone()[0])


def write_object(file: MirrorFile, of: Object, attributes: Sequence[Attribute], state: SyncState) -> None:
    """Write an object and its attributes; `column_name` is NULL for one without its own column."""
    row = (
        of.id, of.slug, state.table_name, of.type, of.plural_name, of.singular_name, of.description, of.is_active, of.created_at,
        of.updated_at, jsontext.dumps(of.wire),
    )  # fmt: skip
    _insert(file, "objects", row)
    file.db.execute("DELETE FROM attributes WHERE object_id = ?", (of.id,))
    kept = [attribute for attribute in attributes if attribute.slug not in state.excluded]
    columns = {column.attribute.id for column in table_columns(kept, state.loose) if column.part is None}
    for attribute in attributes:
        fields = (
            attribute.id, of.id, attribute.slug, attribute.name, attribute.type, attribute.slug if attribute.id in columns else None,
            attribute.is_required, attribute.is_unique, attribute.is_list, attribute.is_active, attribute.display_order,
            None if attribute.config is None else jsontext.dumps(attribute.config),
            attribute.created_at, attribute.updated_at, jsontext.dumps(attribute.wire),
        )  # fmt: skip
        _insert(file, "attributes", fields)


def write_members(file: MirrorFile, members: Iterable[Member]) -> None:
    file.db.execute("DELETE FROM members")
    for member in members:
        user = member.user
        person = (user.id, user.name, user.email, user.image) if user is not None else (None,) * 4
        _insert(file, "members", (member.id, member.role, *person, member.created_at, jsontext.dumps(member.wire)))


def _activity_row(activity: Activity) -> list[SqlValue]:
    by = activity.created_by
    person = (by.id, by.name, by.email) if by is not None else (None,) * 3
    participants = activity.wire.get("participants")
    row = [
        activity.id, activity.title, activity.summary, activity.activity_date,
        None if participants is None else jsontext.dumps(participants),
        *person, activity.created_at, activity.updated_at, jsontext.dumps(activity.wire),
    ]  # fmt: skip
    return [clean_text(value) if isinstance(value, str) else value for value in row]


def _links(activity: Activity) -> list[tuple[str | None, str | None]]:
    return sorted({(link.object_id, link.record_id) for link in activity.linked_records or ()}, key=str)


def holds_activity(file: MirrorFile, activity: Activity) -> bool:
    """Whether every column and link of an activity holds what the activity puts there."""
    row = file.db.execute("SELECT * FROM activities WHERE id = ?", (activity.id,)).fetchone()
    links = file.db.execute("SELECT object_id, record_id FROM activity_links WHERE activity_id = ?", (activity.id,)).fetchall()
    return row is not None and list(row) == _activity_row(activity) and sorted(links, key=str) == _links(activity)


def write_activity(file: MirrorFile, activity: Activity) -> None:
    _insert(file, "activities", _activity_row(activity))
    file.db.execute("DELETE FROM activity_links WHERE activity_id = ?", (activity.id,))
    file.db.executemany("INSERT INTO activity_links VALUES (?, ?, ?)", ((activity.id, *link) for link in _links(activity)))


def activity_texts(wire: Mapping[str, Any]) -> Json:
    """Return the texts of an activity that full-text search covers."""
    return {name: wire[name] for name in ("title", "summary", "participants", "activityDate") if wire.get(name) is not None}


def _insert(file: MirrorFile, table: str, row: Sequence[Any]) -> None:
    values = [clean_text(value) if isinstance(value, str) else value for value in row]
    file.db.execute(f"INSERT OR REPLACE INTO {table} VALUES ({', '.join('?' * len(row))})", values)
