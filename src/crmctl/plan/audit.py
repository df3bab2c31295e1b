"""Find the ids of the records a job created, and their duplicates."""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from types import MappingProxyType
from typing import Any, NamedTuple

from crmctl.errors import RejectedError, ServiceError
from crmctl.files.spills import chunks, open_spill
from crmctl.files.validation import Entry
from crmctl.frozen import frozen
from crmctl.match.agreement import EXPLAINED, agreement
from crmctl.match.record_match import Recognition, RecordMatch, by_content, match
from crmctl.models import jsontext
from crmctl.models.resources import BULK_LIMIT, PAGE_LIMIT, Record
from crmctl.read.read_back import Baseline, Reader, Walk, is_after, read_newest
from crmctl.read.records import find
from crmctl.values.equality import canonical
from crmctl.write.database import RowState
from crmctl.write.journal import DOUBTED, DUPLICATE, Header, Journal, entries_of, is_undone, last_sent_at, records_made, surplus_records
from crmctl.write.methods import CONTROL_SECONDS, explain, methods, recognitions
from crmctl.write.reconcile import LOOKS
from crmctl.write.send_context import SETTLE_SECONDS, further_records, known

FEW_RECORDS = 3
"""With fewer records, none shows what the service makes of values."""

MOST_VALUES = 1_000
"""The maximum number of different values to count. With more, the service gives each record its own."""

DROPPED = "no "
"""Prefix of an attribute that lost its value."""

HABITS = "habits of the service"
"""Journal fact: what the service made of the values written."""

_TABLES = """
CREATE TABLE wanted (ordinal INTEGER PRIMARY KEY, id TEXT UNIQUE, key TEXT, form TEXT, data TEXT NOT NULL, slugs TEXT);
CREATE INDEX wanted_key ON wanted (key);
CREATE TABLE seen (
    key TEXT NOT NULL, id TEXT NOT NULL, form TEXT, created TEXT, edited NOT NULL, PRIMARY KEY (key, id)
) WITHOUT ROWID;
CREATE INDEX seen_id ON seen (id);
"""


_UNSEEN = "SELECT id FROM wanted WHERE id IS NOT NULL AND id NOT IN (SELECT id FROM seen)"


class CreatedId(NamedTuple):
    """A created row and its record.

    `id` is None if the record cannot be identified. `extra` maps further records of a unique row to whether they were edited. `seen` is
    False if the record of a known id does not exist.
    """

    ordinal: int
    id: str | None
    edited: bool = False
    extra: Mapping[str, bool] = MappingProxyType({})
    seen: bool = True


def name_records(journal: Journal, reader: Reader, again: Callable[[], Iterable[Entry]]) -> Iterator[CreatedId]:
    """Yield each created row with its current record, in input order, without undone rows. Raises reading errors."""
    recognition = next(iter(recognitions(journal.header)), None)  # by key or unique attribute, else by content
    with closing(open_spill(_TABLES)) as db:
        _gather(db, journal, again, recognition)
        if db.execute("SELECT EXISTS (SELECT 1 FROM wanted)").fetchone()[0]:
            _see(db, journal, reader, recognition)
        yield from _named(db, recognition)


def capture_ids(journal: Journal, reader: Reader, again: Callable[[], Iterable[Entry]]) -> int:
    """Write the ids of created rows into the journal and return the number of rows without one.

    Soon after the job, while the lists show fewer new records than it made, read them again for up to a minute.
    """
    clock = journal.clock
    until = min(last_sent_at(journal) + SETTLE_SECONDS, clock.now() + CONTROL_SECONDS)
    for number in count(1):
        reader.new_records = 0
        unnamed = _capture(journal, reader, again)
        if not unnamed or reader.new_records >= records_made(journal) or clock.now() >= until or reader.stop():
            break
        clock.sleep(LOOKS.gap(number))
    return unnamed


def _capture(journal: Journal, reader: Reader, again: Callable[[], Iterable[Entry]]) -> int:
    unnamed = 0
    for chunk in chunks(name_records(journal, reader, again)):
        journal.name_rows({row.ordinal: row.id for row in chunk if row.id is not None})
        # If one record holds the written values, a different record with the same key belongs to another client.
        extra = {row.ordinal: [record_id for record_id, edited in row.extra.items() if row.edited or not edited] for row in chunk}
        journal.add_duplicates({row.ordinal: [str(row.id), *extra[row.ordinal]] for row in chunk if extra[row.ordinal]})
        unnamed += sum(row.id is None for row in chunk)
    return unnamed


def _gather(db: sqlite3.Connection, journal: Journal, again: Callable[[], Iterable[Entry]], recognition: Recognition | None) -> None:
    for entry, row in entries_of(journal, again()):
        if entry.id is not None or row is None:
            continue
        # A row that was written but could not be linked counts as failed, yet its record exists.
        if row.state is not RowState.CREATED and (row.state is not RowState.FAILED or row.record_id is None):
            continue
        if row.record_id is not None and is_undone(journal, row.record_id):
            continue
        data = entry.data
        key = form = slugs = None
        if recognition is not None and (key := recognition.key(data)) is not None:
            form = recognition.form(data)
        elif row.record_id is None:
            sent = by_content([entry])
            slugs = jsontext.dumps(sorted(sent.slugs))
            key, form = _content_key(slugs, sent, data), sent.form(data)
        values = (entry.ordinal, row.record_id, key, form, jsontext.dumps(data), slugs)
        db.execute("INSERT OR IGNORE INTO wanted VALUES (?, ?, ?, ?, ?, ?)", values)


def _content_key(slugs: str, content: Recognition, data: Mapping[str, Any]) -> str:
    """Return the lookup key of a row without a key of its own: its values, and which attributes it sets."""
    return f"{slugs}\n{content.key(data) or ''}"


def _see(db: sqlite3.Connection, journal: Journal, reader: Reader, recognition: Recognition | None) -> None:
    slug_sets = db.execute("SELECT DISTINCT slugs FROM wanted WHERE slugs IS NOT NULL").fetchall()
    contents = [(slugs, Recognition(frozenset(jsontext.loads(slugs)), unique=False)) for (slugs,) in slug_sets]
    stored = StoredValues(reader, journal.recall(HABITS))
    further = further_records(journal) if recognition is None else ()
    sure = recognition is None  # a unique attribute alone does not prove whose record it is
    for record in walk_new(journal, reader):
        by_id = db.execute("SELECT data, COALESCE(key, '') FROM wanted WHERE id = ?", (record.id,)).fetchone()
        if by_id is not None:
            _mark_seen(db, record, by_id[1], stored.compare(record, jsontext.loads(by_id[0])))
            continue
        if record.id in further:
            continue
        own_key = recognition.key(record.data) if recognition is not None else None
        if recognition is not None and own_key is not None:
            candidates = [(own_key, recognition)]
        else:
            candidates = [(_content_key(slugs, content, record.data), content) for slugs, content in contents]
        looked_up = ((db.execute("SELECT data FROM wanted WHERE key = ?", (key,)).fetchone(), key, content) for key, content in candidates)
        held = [(key, content, row[0]) for row, key, content in looked_up if row is not None]
        if len(held) > 1:  # a row that sets exactly the attributes of the record explains it better than one that sets fewer
            own_slugs = jsontext.dumps(sorted(slug for slug, value in record.data.items() if canonical(value) is not None))
            held = [row for row in held if row[0].startswith(f"{own_slugs}\n")] or held
        for key, content, data in held:
            _mark_seen(db, record, key, stored.compare(record, jsontext.loads(data), sure=sure), content.form(record.data))
    unlisted = {record_id.lower(): record_id for (record_id,) in db.execute(_UNSEEN)}
    for record in find(reader, unlisted):
        data, key = db.execute("SELECT data, COALESCE(key, '') FROM wanted WHERE id = ?", (unlisted[record.id.lower()],)).fetchone()
        _mark_seen(db, record, key, stored.compare(record, jsontext.loads(data)))
    db.create_function("is_edited", 1, lambda facts: stored.is_edited(jsontext.loads(facts)))
    db.execute("UPDATE seen SET edited = is_edited(edited)")
    if stored.records >= FEW_RECORDS and journal.recall(HABITS) is None:
        journal.remember(HABITS, stored.habits)  # an undo leaves mostly edited records to a later one


def _mark_seen(db: sqlite3.Connection, record: Record, key: str, facts: Mapping[str, Any], form: str | None = None) -> None:
    db.execute("INSERT OR REPLACE INTO seen VALUES (?, ?, ?, ?, ?)", (key, record.id, form, record.created_at, jsontext.dumps(facts)))


def walk_new(journal: Journal, reader: Reader) -> Iterator[Record]:
    """Yield the records the job may have created: all that are newer than the job. Raises ServiceError if the pages lead nowhere."""
    baseline = Baseline.from_document(journal.recall("baseline"))
    for record in _walk(reader, baseline.earliest if baseline is not None else None):
        if baseline is None or baseline.is_new(record):
            reader.new_records += 1
            yield reader.current(record)


def _walk(reader: Reader, since: float | None) -> Iterator[Record]:
    walk = Walk(goes_back=True)
    while not walk.is_over and not walk.reached(since):
        walk.add(reader.page(walk.offset))
        if walk.is_stuck:
            hint = "other clients may be writing: run it again later"
            raise ServiceError("the list of records goes on and on without bringing a new one", code="unreadable_list", hint=hint)
        yield from (row for row in walk.rows if since is None or is_after(row, since))
        walk.rows.clear()


@dataclass
class _Differences:
    """Counts of records, of the attributes written to them, and of what differs from the values written."""

    records: int = 0
    sent: Counter[str] = field(default_factory=Counter)
    altered: Counter[str] = field(default_factory=Counter)
    replaced: Counter[str] = field(default_factory=Counter)
    added: Counter[str] = field(default_factory=Counter)
    values: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How often each of the first values of an added attribute occurs."""

    def habits(self, least: int) -> dict[str, Any]:
        """Return what most of at least so many records have in common; `defaults` by attribute, None for values that vary."""

        def common(counts: Counter[str], totals: Callable[[str], int]) -> list[str]:
            return [slug for slug, count in counts.items() if totals(slug) >= least and 2 * count > totals(slug)]

        frequent = {slug: value for (slug, value), count in self.values.items() if 2 * count > self.added[slug]}
        return {
            "altered": common(self.altered, lambda name: self.sent[name.removeprefix(DROPPED)]),
            "replaced": common(self.replaced, lambda name: self.sent[name.removeprefix(DROPPED)]),
            "defaults": {slug: frequent.get(slug) for slug in common(self.added, lambda _: self.records)},
        }


class StoredValues:
    """Tells edits from what the service made of the values written, by comparing the records of a job with each other.

    Records that no client changed share the alterations and defaults of the service; without usable times, most records do. An edit stands
    alone. `habits`: these habits of the service, as an earlier comparison found them. With `sure`, a record certainly belongs to the job.
    """

    def __init__(self, reader: Reader, habits: dict[str, Any] | None = None) -> None:
        self._reader = reader
        self._known = habits
        self._counts = {False: _Differences(), True: _Differences()}

    def compare(self, record: Record, written: Mapping[str, Any], *, sure: bool = True) -> dict[str, Any]:
        """Return how a record differs from the values sent: altered values, those quite different among them, and further attributes."""
        stored = record.data
        altered = {
            slug if canonical(stored.get(slug)) is not None else f"{DROPPED}{slug}": agreement(value, stored.get(slug))
            for slug, value in written.items()
            if canonical(value) != canonical(stored.get(slug))
        }
        others = {slug: value for slug, value in stored.items() if slug not in written}
        added = {slug: jsontext.dumps(value) for slug, value in others.items() if canonical(value) is not None}
        replaced = [slug for slug, score in altered.items() if score < EXPLAINED]
        untouched = record.updated_at is not None and record.updated_at == record.created_at
        counts = self._counts[untouched]
        counts.records += 1
        counts.sent.update(written.keys())
        counts.altered.update(altered.keys())
        counts.replaced.update(replaced)
        counts.added.update(added.keys())
        counts.values.update(pair for pair in added.items() if pair in counts.values or len(counts.values) < MOST_VALUES)
        return {"altered": [*altered], "replaced": replaced, "added": added, "untouched": untouched, "sure": sure}

    @cached_property
    def habits(self) -> dict[str, Any]:
        """How the service stores the written values. Records without a later change tell, where others have one."""
        if self._known is not None:
            return self._known
        touched, untouched = self._counts[False], self._counts[True]
        if touched.records and untouched.records:
            return untouched.habits(least=1)
        return (untouched if untouched.records else touched).habits(FEW_RECORDS)

    def is_edited(self, facts: Mapping[str, Any]) -> bool:
        """Whether another client changed a record since the job wrote it.

        Equal times of creation and change prove that no client did, if the service keeps times. If it does not, an altered value may be the
        service's work, but a value that differs completely or that the job did not send is an edit.
        """
        habits = self.habits
        own = [slug for slug in facts["altered"] if slug not in habits["altered"]]
        if own and not facts["sure"]:
            return True
        defaults = habits["defaults"]
        added = [slug for slug, value in facts["added"].items() if slug not in defaults or defaults[slug] not in (None, value)]
        replaced = [slug for slug in facts["replaced"] if slug not in habits["replaced"]]
        if facts["untouched"]:
            return self.records >= FEW_RECORDS and bool(added or replaced) and not self._keeps_times
        return bool(added or replaced or own)

    @property
    def records(self) -> int:
        return sum(counts.records for counts in self._counts.values())

    @cached_property
    def _keeps_times(self) -> bool:
        """Whether any record of the object shows a later change than its creation. Sends one request."""
        try:
            page = self._reader.list_records(self._reader.object_id, sort="updated_at", order="desc", limit=PAGE_LIMIT)
        except RejectedError:
            return False
        return any(record.updated_at != record.created_at for record in page.items if record.updated_at is not None)


def _named(db: sqlite3.Connection, recognition: Recognition | None) -> Iterator[CreatedId]:
    # If several records share a unique value, the job owns the one with the written values.
    query = "SELECT id, edited, form FROM seen WHERE key = ? ORDER BY edited, created, id"
    rows = (
        "SELECT ordinal, id, key, form, (SELECT COUNT(*) FROM wanted AS w WHERE w.key = o.key), "
        "(SELECT COUNT(*) FROM wanted AS w WHERE w.key = o.key AND w.ordinal < o.ordinal), "
        "(SELECT COUNT(*) FROM wanted AS w WHERE w.key = o.key AND w.form = o.form), "
        "(SELECT COUNT(*) FROM wanted AS w WHERE w.key = o.key AND w.form = o.form AND w.ordinal < o.ordinal), "
        "slugs IS NULL FROM wanted AS o ORDER BY ordinal"
    )
    for ordinal, known_id, key, form, alike, place, same, same_place, has_key in db.execute(rows):
        is_recognized = recognition is not None and has_key
        seen = db.execute(query, (key,)).fetchall() if key is not None else []
        records = {record_id: bool(edited) for record_id, edited, _ in seen}
        exact = {record_id: bool(edited) for record_id, edited, spelling in seen if spelling == form}
        if same < alike and exact:  # other rows differ only in capitals or outer blanks
            records = exact if is_recognized or len(exact) == same else records
        record_id: str | None = known_id
        if known_id is None and records and is_recognized:
            record_id = next(iter(exact or records))
        elif known_id is None and not is_recognized and len(exact) == same:
            record_id = list(exact)[same_place]
        elif known_id is None and not is_recognized and len(records) == alike:
            # Identical rows are interchangeable.
            record_id = list(records)[place]
        edited = records.get(record_id or "")
        if edited is None and record_id is not None:
            row = db.execute("SELECT edited FROM seen WHERE id = ?", (record_id,)).fetchone()
            edited = bool(row[0]) if row is not None else None
        extra = {other_id: changed for other_id, changed in records.items() if other_id != record_id} if is_recognized else {}
        yield CreatedId(ordinal, record_id, bool(edited), extra, edited is not None)


AUDIT_SETTLES = 2
"""Settle times between the last doubt and a final audit."""


@frozen
class Audit:
    """The outcome of an audit.

    `checked` counts rows that were once in doubt. `duplicates` maps each row to its own record and its extra ones. `final` means that no
    delayed record can still appear.
    """

    checked: int
    unreadable: int
    duplicates: Mapping[int, tuple[str | None, Sequence[str]]] = field(default_factory=dict)
    final: bool = True

    def to_document(self) -> list[dict[str, Any]]:
        return [{"row": row, "id": kept, "duplicates": list(extra)} for row, (kept, extra) in sorted(self.duplicates.items())]


def audit_due(journal: Journal, settle: float = SETTLE_SECONDS) -> float | None:
    """Return the Unix time from which an audit is final; None if no row was ever in doubt or the final audit is done."""
    doubted: dict[int, float] = journal.kept(DOUBTED)
    if not doubted or journal.recall("audited") is not None:
        return None
    return max(doubted.values()) + AUDIT_SETTLES * settle


def audit(journal: Journal, reader: Reader, again: Callable[[], Iterable[Entry]], settle: float = SETTLE_SECONDS) -> Audit:
    """Read back each row that was ever in doubt and record its duplicates in the journal. Raises reading errors."""
    due = audit_due(journal, settle)
    doubted = journal.kept(DOUBTED)
    entries = (entry for entry in again() if entry.ordinal in doubted and entry.id is None)
    checked = unreadable = 0
    records: Sequence[Record] | None = None
    for chunk in chunks(entries, BULK_LIMIT):
        if records is None:
            baseline = Baseline.from_document(journal.recall("baseline"))
            reading = read_newest(reader, baseline, baseline.earliest if baseline is not None else None)
            records = [record for record in reading.records if reading.complete and (baseline is None or baseline.is_new(record))]
        matches = _match(journal, records, chunk, again)
        checked += len(chunk)
        if matches is None:
            unreadable += len(chunk)
            continue
        rows = journal.rows(chunk[0].ordinal, chunk[-1].ordinal)
        nameless = {row for row, entry in rows.items() if entry.state is RowState.CREATED and entry.record_id is None}
        journal.name_rows({row: record_id for row, record_id in matches.found.items() if record_id is not None and row in nameless})
        journal.add_duplicates({row: [*filter(None, [matches.found.get(row)]), *extra] for row, extra in matches.extra.items()})
    final = due is None or journal.clock.now() >= due
    if final and not unreadable:
        journal.remember("audited", journal.clock.now())
    return Audit(checked, unreadable, known_duplicates(journal), final)


def _match(
    journal: Journal, records: Sequence[Record], entries: Sequence[Entry], again: Callable[[], Iterable[Entry]]
) -> RecordMatch | None:
    mine = {entry.ordinal for entry in entries}
    created = [entry for entry in entries if (row := journal.row(entry.ordinal)) is not None and row.state is RowState.CREATED]
    for method in methods(journal):
        if not method.fits(entries):
            continue
        method.shows(created, records)
        recognition = method.recognition_of(entries)

        def others() -> Iterator[Entry]:
            return (entry for entry in again() if entry.id is None and entry.ordinal not in mine)

        def alike(keys: Collection[str], recognition: Recognition = recognition) -> Mapping[str, Sequence[tuple[str, int]]]:
            rows: dict[str, list[tuple[str, int]]] = defaultdict(list)
            for entry in others():
                if (key := recognition.key(entry.data)) is not None and key in keys:
                    rows[key].append((recognition.form(entry.data), entry.ordinal))
            return rows

        seen = match(entries, records, recognition, known(journal, entries, alike))
        seen, _ = explain(journal, created, seen, records, replace(recognition, altered=method.altered), others)
        if seen.found:
            return seen
    return None


def known_duplicates(journal: Journal) -> dict[int, tuple[str | None, Sequence[str]]]:
    surplus = surplus_records(journal)
    return {row: ((entry := journal.row(row)) and entry.record_id, extra) for row, extra in surplus.items()}


def is_provable(header: Header) -> bool:
    """Whether a unique attribute shows that the job created a record."""
    return header.unique is not None


def review(journal: Journal, reader: Reader, again: Callable[[], Iterable[Entry]]) -> frozenset[str]:
    """Check the known duplicates again and return the ids of those that still hold the written values.

    Deleted duplicates are forgotten. If a row's own record was deleted, a duplicate takes its place. Raises reading errors.
    """
    duplicates = known_duplicates(journal)
    sent = {entry.ordinal: entry.data for entry in again() if entry.ordinal in duplicates}
    ids = [record_id for own, extra in duplicates.values() for record_id in (own, *extra) if record_id]
    existing = {record.id: record for record in find(reader, ids)}
    as_written: set[str] = set()
    stored = StoredValues(reader)
    facts: dict[str, dict[str, Any]] = {}
    for row, (_, extra) in duplicates.items():
        facts |= {
            record_id: stored.compare(existing[record_id], sent.get(row, {}), sure=False) for record_id in extra if record_id in existing
        }
    for row, (own, extra) in duplicates.items():
        edited = {record_id: stored.is_edited(facts[record_id]) for record_id in extra if record_id in existing}
        gone = [record_id for record_id in extra if record_id not in existing]
        is_gone = edited and own is not None and own not in existing
        if is_gone and own is not None and (is_provable(journal.header) or not is_undone(journal, own)):
            own = max(edited, key=lambda record_id: edited[record_id])
            journal.name_rows({row: own}, replaces=True)
            del edited[own]
            gone.append(own)
        journal.keep(DUPLICATE, ((record_id, None) for record_id in gone))
        as_written |= {record_id for record_id, is_changed in edited.items() if own is not None and not is_changed}
    return frozenset(as_written)
