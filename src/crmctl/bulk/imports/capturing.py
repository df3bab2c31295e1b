"""Learning which record each created row became: one pass over the records, against the rows of the job. Memory stays flat."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import islice
from typing import NamedTuple

from crmctl.bulk.journal.journal import Journal
from crmctl.bulk.journal.states import RowState
from crmctl.bulk.payloads.batches import Entry
from crmctl.bulk.payloads.markers import Marker
from crmctl.bulk.records.reading import Baseline, Reader, Unusable, Walk, is_after
from crmctl.bulk.records.recognising import Recognition, by_content, data_of
from crmctl.models import jsontext
from crmctl.models.filters import Condition, Operator
from crmctl.models.records import Record

CHUNK_ROWS = 500

_TABLES = """
CREATE TABLE wanted (ordinal INTEGER PRIMARY KEY, key TEXT NOT NULL, sent TEXT);
CREATE INDEX wanted_key ON wanted (key);
CREATE TABLE seen (key TEXT NOT NULL, id TEXT NOT NULL, created TEXT, edited INTEGER NOT NULL, PRIMARY KEY (key, id)) WITHOUT ROWID;
"""


class Named(NamedTuple):
    """A created row and its record. `id` is None where nobody can say which one it is; `extra` are further records of a unique row."""

    ordinal: int
    id: str | None
    edited: bool = False
    extra: Sequence[str] = ()


def name_records(journal: Journal, reader: Reader, again: Callable[[], Iterable[Entry]]) -> Iterator[Named]:
    """Every created row of the job in input order, with its record as it is found now.

    `edited`: somebody changed what the job wrote. Raises what reading raises, and Unusable when the service's lists cannot be read through.
    """
    recognition = _recognition(journal)
    # An empty name is SQLite's own temporary file: in memory while it is small, deleted when closed.
    with closing(sqlite3.connect("", isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = OFF")
        db.executescript(_TABLES)
        db.execute("BEGIN")
        _gather(db, journal, again, recognition)
        if db.execute("SELECT EXISTS (SELECT 1 FROM wanted)").fetchone()[0]:
            _see(db, journal, reader, recognition)
        yield from _named(db, unique=recognition is not None and recognition.unique)


def capture_ids(journal: Journal, reader: Reader, again: Callable[[], Iterable[Entry]]) -> int:
    """Write the ids of created rows into the journal; returns how many rows stay without one."""
    unnamed = 0
    found = name_records(journal, reader, again)
    while chunk := list(islice(found, CHUNK_ROWS)):
        journal.name_rows({row.ordinal: row.id for row in chunk if row.id is not None})
        if extra := {row.ordinal: [str(row.id), *row.extra] for row in chunk if row.extra}:
            journal.record_duplicates(extra)
        unnamed += sum(row.id is None for row in chunk)
    return unnamed


def _recognition(journal: Journal) -> Recognition | None:
    """By marker, else by a unique attribute; None is by content."""
    slug = journal.header.marker or journal.header.unique
    return Recognition(frozenset({slug}), unique=True) if slug is not None else None


def _gather(db: sqlite3.Connection, journal: Journal, again: Callable[[], Iterable[Entry]], recognition: Recognition | None) -> None:
    entries = iter(again())
    while chunk := list(islice(entries, CHUNK_ROWS)):
        known = journal.rows(chunk[0].ordinal, chunk[-1].ordinal)
        for entry in chunk:
            if entry.id is None and (row := known.get(entry.ordinal)) is not None and row.state is RowState.CREATED:
                sent = by_content([entry])
                key = (recognition or sent).key(data_of(entry)) or ""
                slugs = jsontext.dumps(sorted(sent.slugs))
                db.execute(
                    "INSERT OR IGNORE INTO wanted VALUES (?, ?, ?)",
                    (entry.ordinal, _keyed(slugs, key, recognition), sent.key(data_of(entry))),
                )


def _keyed(slugs: str, key: str, recognition: Recognition | None) -> str:
    """Rows that give different attributes are told apart by those as well, where content is all there is."""
    return key if recognition is not None else f"{slugs}\n{key}"


def _see(db: sqlite3.Connection, journal: Journal, reader: Reader, recognition: Recognition | None) -> None:
    slug_sets = {key.split("\n", 1)[0] for (key,) in db.execute("SELECT DISTINCT key FROM wanted")} if recognition is None else set()
    contents = [(slugs, Recognition(frozenset(jsontext.loads(slugs)), unique=False)) for slugs in slug_sets]
    for record in _records(journal, reader):
        keys = (
            [recognition.key(record.data)]
            if recognition is not None
            else [_keyed(slugs, one.key(record.data) or "", None) for slugs, one in contents]
        )
        for key in keys:
            found = db.execute("SELECT sent FROM wanted WHERE key = ?", (key,)).fetchone() if key is not None else None
            if found is not None:
                edited = _is_edited(record, found[0])
                db.execute("INSERT OR REPLACE INTO seen VALUES (?, ?, ?, ?)", (key, record.id, record.created_at, edited))


def _records(journal: Journal, reader: Reader) -> Iterator[Record]:
    """The records that may be the job's: those with its marker, or all that are newer than the job."""
    header = journal.header
    baseline = Baseline.from_document(journal.recall("baseline")) or Baseline()
    if header.marker is not None:
        marker = Marker.of(header.marker, header.job)
        for operator in (Operator.STARTS_WITH, Operator.CONTAINS):
            filters = [Condition(marker.slug, operator, f"{marker.job}.")]
            page = reader.page(filters=filters).items
            if page and all(str(record.data.get(marker.slug)).startswith(f"{marker.job}.") for record in page):
                yield from _walk(reader, filters, None)
                return
    for record in _walk(reader, (), baseline.newest):
        if record.id not in baseline.ids:
            yield record


def _walk(reader: Reader, filters: Sequence[Condition], since: float | None) -> Iterator[Record]:
    walk = Walk()
    idle = 0
    while not walk.is_over and not walk.reached(since):
        walk.add(reader.page(walk.offset, filters=filters))
        idle = 0 if walk.rows else idle + 1
        if idle > 10:
            raise Unusable("the service sends the same records again and again: it does not heed the offset")
        yield from (row for row in walk.rows if since is None or is_after(row, since))
        walk.rows.clear()


def _is_edited(record: Record, sent: str) -> bool:
    """Whether somebody changed it since: it holds something else than was sent, and the service says so too."""
    slugs = frozenset(jsontext.loads(sent)) if sent else frozenset()
    unchanged = (Recognition(slugs, unique=False).key(record.data) or "") == (sent or "")
    return not unchanged and (record.updated_at is None or record.updated_at != record.created_at)


def _named(db: sqlite3.Connection, *, unique: bool) -> Iterator[Named]:
    query = "SELECT id, edited FROM seen WHERE key = ? ORDER BY created, id"
    rows = (
        "SELECT ordinal, key, (SELECT COUNT(*) FROM wanted AS w WHERE w.key = o.key), "
        "(SELECT COUNT(*) FROM wanted AS w WHERE w.key = o.key AND w.ordinal < o.ordinal) FROM wanted AS o ORDER BY ordinal"
    )
    for ordinal, key, alike, place in db.execute(rows):
        records = db.execute(query, (key,)).fetchall()
        if unique and records:
            yield Named(ordinal, records[0][0], bool(records[0][1]), [record_id for record_id, _ in records[1:]])
        elif not unique and len(records) == alike:
            # Rows that are alike may stand for one another.
            yield Named(ordinal, records[place][0], bool(records[place][1]))
        else:
            yield Named(ordinal, None)
