"""The tables of a mirror, and filling them from a full read."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from crmctl.bulk_context import Progress
from crmctl.clock import Clock
from crmctl.frozen import frozen
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
    wire_text,
)
from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.models.resources import Activity, Attribute, Member, Object, Record
from crmctl.read.export_passes import Staging, remove_staging, reopen_staging
from crmctl.read.records import CountedReads, Sweep, SweepState
from crmctl.read.stable_pages import Listing, PassStatistics, Position
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


class ObjectTable:
    """The table of one object. `loose` grows when a number appears that SQLite cannot hold exactly; `rebuild` then changes the column."""

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
                pairs = ((record.id, row[1], wire_text(record.wire)) for row, record in zip(rows, records, strict=True))
                log_updates(self._db, self.name, (pair for pair in pairs if pair[1] != pair[2]))
        self._db.execute(f"DROP TABLE {old}")
        if is_logged:
            create_triggers(self._db, self.name)

    def write(self, records: Iterable[Record]) -> Written:
        done = Written()
        for record in records:
            row = self._row(record, wire_text(record.wire))
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

    def holds(self, record: Record) -> bool:
        """Whether every column of this record holds what the record puts there."""
        stored = self._db.execute(self._compare, [*self._row(record, wire_text(record.wire)), record.id]).fetchone()
        return stored is not None and bool(stored[2])

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

    def ids(self) -> Iterator[str]:
        return (row[0] for row in self._db.execute(f"SELECT id FROM {self._table}"))


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
        of.updated_at, wire_text(of.wire),
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
            attribute.created_at, attribute.updated_at, wire_text(attribute.wire),
        )  # fmt: skip
        _insert(file, "attributes", fields)


def write_members(file: MirrorFile, members: Iterable[Member]) -> None:
    file.db.execute("DELETE FROM members")
    for member in members:
        user = member.user
        person = (user.id, user.name, user.email, user.image) if user is not None else (None,) * 4
        _insert(file, "members", (member.id, member.role, *person, member.created_at, wire_text(member.wire)))


def _activity_row(activity: Activity) -> list[SqlValue]:
    by = activity.created_by
    person = (by.id, by.name, by.email) if by is not None else (None,) * 3
    participants = activity.wire.get("participants")
    row = [
        activity.id, activity.title, activity.summary, activity.activity_date,
        None if participants is None else jsontext.dumps(participants),
        *person, activity.created_at, activity.updated_at, wire_text(activity.wire),
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


@frozen
class FullRead:
    """A full read. `begun`: when, by the service's clock and this machine's; `newest`: the newest change then; in microseconds.

    `is_stable`: every group of equal creation times is known to be complete.
    """

    begun: tuple[int, int]
    newest: int | None
    is_stable: bool = True


@contextmanager
def staged(mirror: Path, object_id: str, request: Mapping[str, Any], clock: Clock, *, resumes: bool = True) -> Iterator[Staging]:
    """Open the file of a full read: the remains of an interrupted read with the same `request` if `resumes`, else an empty one.

    The file is deleted when the block ends without an error.
    """
    place = _place(mirror, object_id)
    staging, _ = reopen_staging(place, dict(request), clock, resumes=resumes)
    with staging:
        yield staging
    remove_staging(place)


def discard_scan(mirror: Path, object_id: str) -> None:
    """Delete the remains of an interrupted full read, which the mirror has overtaken."""
    remove_staging(_place(mirror, object_id))


def scan_into(staging: Staging, lister: CountedReads, object_id: str, begun: FullRead, progress: Progress) -> FullRead:
    """Read every record that exists from beginning to end, as of some moment in between. Raises what a sweep raises."""
    noted = staging.noted("scan")
    if noted is not None:
        *began, newest = noted["begin"]
        begun = FullRead((began[0], began[1]), newest)
        state, statistics = SweepState.from_document(noted["sweep"]), PassStatistics(**noted["statistics"])
    else:
        state, statistics = SweepState(Position()), PassStatistics()
    sweep = Sweep(lister, Listing(object_id), statistics, state)
    for page in sweep.pages():
        with staging.step():
            new = staging.merge(page)
            document = {"begin": [*begun.begun, begun.newest], "sweep": asdict(sweep.state), "statistics": vars(statistics)}
            staging.note("scan", document)
        progress.advance(new)
    return replace(begun, is_stable=statistics.unstable == 0)


def _place(mirror: Path, object_id: str) -> Path:
    return mirror.with_name(f"{mirror.name}.{object_id}.reading")
