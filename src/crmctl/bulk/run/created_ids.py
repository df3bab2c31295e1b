"""Learning which record each created row became: one pass over the records, against the rows of the job. Memory stays flat."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import islice
from types import MappingProxyType
from typing import NamedTuple

from crmctl.bulk.journal.journal import Journal, RowEntry
from crmctl.bulk.journal.states import RowState
from crmctl.bulk.match.record_match import Recognition, by_content, canonical
from crmctl.bulk.read.read_back import Baseline, Reader, Unusable, Walk, is_after
from crmctl.bulk.rows.batches import Entry
from crmctl.bulk.rows.markers import Marker
from crmctl.bulk.send.methods import recognitions
from crmctl.bulk.send.twin_rows import further_records
from crmctl.bulk.spill import open_spill
from crmctl.models import jsontext
from crmctl.models.filters import Condition, Operator
from crmctl.models.records import Record

CHUNK_ROWS = 500

_TABLES = """
CREATE TABLE wanted (ordinal INTEGER PRIMARY KEY, id TEXT UNIQUE, key TEXT, data TEXT NOT NULL);
CREATE INDEX wanted_key ON wanted (key);
CREATE TABLE seen (key TEXT NOT NULL, id TEXT NOT NULL, created TEXT, edited INTEGER NOT NULL, PRIMARY KEY (key, id)) WITHOUT ROWID;
CREATE INDEX seen_id ON seen (id);
"""


class CreatedId(NamedTuple):
    """A created row and its record. `id` is None where nobody can say which one it is; `extra` are further records of a unique row, each
    with whether it was edited. `seen`: the record is among those that were read; an id that was learnt earlier need not be.
    """

    ordinal: int
    id: str | None
    edited: bool = False
    extra: Mapping[str, bool] = MappingProxyType({})
    seen: bool = True


def name_records(journal: Journal, reader: Reader, again: Callable[[], Iterable[Entry]]) -> Iterator[CreatedId]:
    """Every created row of the job in input order, with its record as it is found now; rows that were undone are left out.

    `edited`: somebody changed the record since. Raises what reading raises, and Unusable when the service's lists cannot be read through.
    """
    recognition = _recognition(journal)
    with closing(open_spill(_TABLES)) as db:
        _gather(db, journal, again, recognition)
        if db.execute("SELECT EXISTS (SELECT 1 FROM wanted)").fetchone()[0]:
            _see(db, journal, reader, recognition)
        yield from _named(db, recognition, marked=journal.header.marker is not None)


def capture_ids(journal: Journal, reader: Reader, again: Callable[[], Iterable[Entry]]) -> int:
    """Write the ids of created rows into the journal; returns how many rows stay without one."""
    unnamed, marked = 0, journal.header.marker is not None
    found = name_records(journal, reader, again)
    while chunk := list(islice(found, CHUNK_ROWS)):
        journal.name_rows({row.ordinal: row.id for row in chunk if row.id is not None})
        # Beside a record that holds what was written, one that holds something else is somebody else's.
        extra = {row.ordinal: [one for one, edited in row.extra.items() if marked or row.edited or not edited] for row in chunk}
        journal.record_duplicates({row.ordinal: [str(row.id), *extra[row.ordinal]] for row in chunk if extra[row.ordinal]})
        unnamed += sum(row.id is None for row in chunk)
    return unnamed


def _recognition(journal: Journal) -> Recognition | None:
    """By marker, else by key or a unique attribute; None is by content."""
    return next(iter(recognitions(journal.header)), None)


def _gather(db: sqlite3.Connection, journal: Journal, again: Callable[[], Iterable[Entry]], recognition: Recognition | None) -> None:
    entries = iter(again())
    any_undone = bool(journal.undone_count)
    while chunk := list(islice(entries, CHUNK_ROWS)):
        known = journal.rows(chunk[0].ordinal, chunk[-1].ordinal)
        for entry in chunk:
            row = known.get(entry.ordinal)
            if entry.id is not None or row is None or not _is_there(row):
                continue
            if any_undone and journal.is_undone(row.record_id):
                continue
            data = entry.data
            key = None
            if recognition is not None:
                key = recognition.key(data) or ""
            elif row.record_id is None:
                sent = by_content([entry])
                key = _keyed(jsontext.dumps(sorted(sent.slugs)), sent.key(data) or "", None)
            # The marker may have been cleared since: that is no change by somebody.
            written = {slug: value for slug, value in data.items() if slug != journal.header.marker}
            db.execute("INSERT OR IGNORE INTO wanted VALUES (?, ?, ?, ?)", (entry.ordinal, row.record_id, key, jsontext.dumps(written)))


def _is_there(row: RowEntry) -> bool:
    """A row that was written and could not be linked has failed, and has its record all the same."""
    return row.state is RowState.CREATED or (row.state is RowState.FAILED and row.record_id is not None)


def _keyed(slugs: str, key: str, recognition: Recognition | None) -> str:
    """Rows that give different attributes are told apart by those as well, where content is all there is."""
    return key if recognition is not None else f"{slugs}\n{key}"


def _see(db: sqlite3.Connection, journal: Journal, reader: Reader, recognition: Recognition | None) -> None:
    keyed = db.execute("SELECT DISTINCT key FROM wanted WHERE key IS NOT NULL") if recognition is None else ()
    slug_sets = {key.split("\n", 1)[0] for (key,) in keyed}
    contents = [(slugs, Recognition(frozenset(jsontext.loads(slugs)), unique=False)) for slugs in slug_sets]
    marker = journal.header.marker
    further = further_records(journal) if recognition is None else ()
    for record in _records(journal, reader):
        by_id = db.execute("SELECT data, COALESCE(key, '') FROM wanted WHERE id = ?", (record.id,)).fetchone()
        if by_id is not None:
            _mark_seen(db, record, by_id[1], is_edited(record, by_id[0], marker))
            continue
        if record.id in further:
            continue
        keys = (
            [recognition.key(record.data)]
            if recognition is not None
            else [_keyed(slugs, one.key(record.data) or "", None) for slugs, one in contents]
        )
        for key in keys:
            found = db.execute("SELECT data FROM wanted WHERE key = ?", (key,)).fetchone() if key is not None else None
            if found is not None:
                # By a unique attribute alone it may be somebody else's, however new it is.
                edited = is_edited(record, found[0], marker, sure=recognition is None or marker is not None)
                _mark_seen(db, record, key or "", edited)


def _mark_seen(db: sqlite3.Connection, record: Record, key: str, edited: bool) -> None:
    db.execute("INSERT OR REPLACE INTO seen VALUES (?, ?, ?, ?)", (key, record.id, record.created_at, edited))


def _records(journal: Journal, reader: Reader) -> Iterator[Record]:
    """The records that may be the job's: those with its marker, or all that are newer than the job."""
    header = journal.header
    baseline = Baseline.from_document(journal.recall("baseline"))
    if header.marker is not None:
        marker = Marker.of(header.marker, header.job)
        for operator in (Operator.STARTS_WITH, Operator.CONTAINS):
            filters = [Condition(marker.slug, operator, f"{marker.job}.")]
            page = reader.page(filters=filters).items
            if page and all(str(record.data.get(marker.slug)).startswith(f"{marker.job}.") for record in page):
                yield from _walk(reader, filters, None)
                return
    for record in _walk(reader, (), baseline.earliest if baseline is not None else None):
        if baseline is None or baseline.is_new(record):
            yield record


def _walk(reader: Reader, filters: Sequence[Condition], since: float | None) -> Iterator[Record]:
    walk = Walk()
    idle = 0
    while not walk.is_over and not walk.reached(since):
        walk.add(reader.page(walk.offset, filters=filters))
        idle = 0 if walk.rows else idle + 1
        if idle > 10:
            raise Unusable("the list goes on and on without bringing a new record")
        yield from (row for row in walk.rows if since is None or is_after(row, since))
        walk.rows.clear()


def is_edited(record: Record, sent: str, marker: str | None, *, sure: bool = True) -> bool:
    """Whether somebody changed it since: the service says so, and it holds something else, or more, than was written.

    Unless it is `sure` that it is the job's, it must hold what was written, whatever the service says.
    """
    written = jsontext.loads(sent)
    untouched = record.updated_at is not None and record.updated_at == record.created_at
    if untouched and sure:
        return False
    content = Recognition(frozenset(written), unique=False)
    if content.key(record.data) != content.key(written):
        return True
    more = any(canonical(value) is not None for slug, value in record.data.items() if slug not in written and slug != marker)
    return more and not untouched and record.updated_at is not None


def _named(db: sqlite3.Connection, recognition: Recognition | None, *, marked: bool) -> Iterator[CreatedId]:
    # Of several records with a unique value the one that holds what was written is the job's; with a marker all of them are.
    query = f"SELECT id, edited FROM seen WHERE key = ? ORDER BY {'created' if marked else 'edited, created'}, id"  # noqa: S608
    rows = (
        "SELECT ordinal, id, key, (SELECT COUNT(*) FROM wanted AS w WHERE w.key = o.key), "
        "(SELECT COUNT(*) FROM wanted AS w WHERE w.key = o.key AND w.ordinal < o.ordinal) FROM wanted AS o ORDER BY ordinal"
    )
    for ordinal, known, key, alike, place in db.execute(rows):
        records = {one: bool(changed) for one, changed in db.execute(query, (key,))} if key is not None else {}
        record_id: str | None = None
        if known is not None:
            record_id = known
        elif records and recognition is not None:
            record_id = next(iter(records))
        elif len(records) == alike and recognition is None:
            # Rows that are alike may stand for one another.
            record_id = list(records)[place]
        edited = records.get(record_id or "")
        if edited is None and record_id is not None:
            found = db.execute("SELECT edited FROM seen WHERE id = ?", (record_id,)).fetchone()
            edited = bool(found[0]) if found is not None else None
        extra = {one: changed for one, changed in records.items() if one != record_id} if recognition is not None else {}
        yield CreatedId(ordinal, record_id, bool(edited), extra, edited is not None)
