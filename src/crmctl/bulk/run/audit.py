"""A second look at a job: rows that were ever in doubt are read once more, doubles are named, and deleted or unmarked on request."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

from crmctl.bulk.journal.journal import Header, Journal
from crmctl.bulk.journal.states import RowState
from crmctl.bulk.match.record_match import Recognition, RecordMatch, match
from crmctl.bulk.read.read_back import Baseline, ByPrefix, Reader, Unusable
from crmctl.bulk.read.records_by_id import fetch
from crmctl.bulk.read.seen_ids import SeenIds
from crmctl.bulk.rows.batches import Entry
from crmctl.bulk.rows.markers import Marker
from crmctl.bulk.run.created_ids import is_edited
from crmctl.bulk.send.context import SETTLE_SECONDS, ImportService
from crmctl.bulk.send.methods import methods
from crmctl.bulk.send.twin_rows import known
from crmctl.errors import CrmctlError, PartialError, UsageError
from crmctl.models import jsontext
from crmctl.models.filters import Condition, Operator
from crmctl.models.records import BULK_LIMIT, Record

AUDIT_SETTLES = 2
"""So many settle times after the last doubt an audit is final."""


@dataclass(frozen=True)
class Audit:
    """`checked` rows were once in doubt. `duplicates`: by row, its own record and those that are there besides. `final`: nothing that was
    under way then can still appear."""

    checked: int
    unreadable: int
    duplicates: Mapping[int, tuple[str | None, Sequence[str]]] = field(default_factory=dict)
    final: bool = True

    def to_document(self) -> list[dict[str, Any]]:
        return [{"row": row, "id": kept, "duplicates": list(extra)} for row, (kept, extra) in sorted(self.duplicates.items())]


def audit_due(journal: Journal, settle: float = SETTLE_SECONDS) -> float | None:
    """The Unix time from which an audit is final; None when no row was ever in doubt, or the final audit is done."""
    doubted = journal.doubted()
    if not doubted or journal.recall("audited") is not None:
        return None
    return max(doubted.values()) + AUDIT_SETTLES * settle


def audit(journal: Journal, reader: Reader, again: Callable[[], Iterable[Entry]], settle: float = SETTLE_SECONDS) -> Audit:
    """Read all rows back that were ever in doubt, and write further records of them into the journal. Raises what reading raises."""
    due = audit_due(journal, settle)
    doubted = journal.doubted()
    entries = (entry for entry in again() if entry.ordinal in doubted and entry.id is None)
    checked = unreadable = 0
    while chunk := list(islice(entries, BULK_LIMIT)):
        found = _look(journal, reader, chunk, again)
        checked += len(chunk)
        if found is None:
            unreadable += len(chunk)
            continue
        rows = journal.rows(chunk[0].ordinal, chunk[-1].ordinal)
        nameless = {row for row, entry in rows.items() if entry.state is RowState.CREATED and entry.record_id is None}
        journal.name_rows({row: record_id for row, record_id in found.found.items() if record_id is not None and row in nameless})
        journal.record_duplicates(found.extra)
    final = due is None or journal.clock.now() >= due
    if final and not unreadable:
        journal.remember("audited", journal.clock.now())
    return Audit(checked, unreadable, known_duplicates(journal), final)


def _look(journal: Journal, reader: Reader, entries: Sequence[Entry], again: Callable[[], Iterable[Entry]]) -> RecordMatch | None:
    baseline = Baseline.from_document(journal.recall("baseline"))
    mine = {entry.ordinal for entry in entries}
    created = [entry for entry in entries if _state(journal, entry.ordinal) is RowState.CREATED]
    for method in methods(journal):
        if not method.fits(entries):
            continue
        try:
            reading = method.way.read(reader, entries, baseline.earliest if baseline is not None else None, lambda _, __: False)
        except Unusable:
            continue
        is_new = baseline.is_new if baseline is not None and not isinstance(method.way, ByPrefix) else _any_record
        records = [record for record in reading.records if is_new(record)]
        method.shows(created, records)
        recognition = method.recognition_of(entries)

        def alike(keys: Collection[str], recognition: Recognition = recognition) -> Mapping[str, Sequence[int]]:
            """Further rows of the job that are just like these."""
            found: dict[str, list[int]] = defaultdict(list)
            for entry in again():
                if entry.ordinal not in mine and (key := recognition.key(entry.data)) is not None and key in keys:
                    found[key].append(entry.ordinal)
            return found

        if reading.complete and (found := match(entries, records, recognition, known(journal, entries, alike))).found:
            return found
    return None


def _state(journal: Journal, ordinal: int) -> RowState | None:
    entry = journal.rows(ordinal, ordinal).get(ordinal)
    return entry.state if entry is not None else None


def _any_record(_: Record) -> bool:
    return True


def known_duplicates(journal: Journal) -> dict[int, tuple[str | None, Sequence[str]]]:
    """By row, its own record and those that are there besides."""
    found = journal.duplicates()
    return {row: ((entry := journal.rows(row, row).get(row)) and entry.record_id, extra) for row, extra in found.items()}


def refuse_unproven(journal: Journal) -> None:
    """Raises UsageError for a job whose records are recognised by content only: another one may be somebody else's."""
    if not is_provable(journal.header):
        hint = f"look at the records, and delete them with crmctl bulk delete {journal.header.object} --ids FILE"
        raise UsageError("these rows have neither marker nor unique attribute: they may be somebody else's", hint=hint, code="not_ours")


def is_provable(header: Header) -> bool:
    """Whether marker or unique attribute say whose a record is."""
    return header.marker is not None or header.unique is not None


def review(journal: Journal, reader: Reader, again: Callable[[], Iterable[Entry]]) -> frozenset[str]:
    """See what became of the records that are too many: those that are gone are forgotten, and where a row's own is gone another takes its
    place. Returns the ones that are as they were written, beside the row's own. Raises what reading raises."""
    told, marker = known_duplicates(journal), journal.header.marker
    sent = {entry.ordinal: entry.data for entry in again() if entry.ordinal in told}
    with SeenIds() as ids:
        for own, extra in told.values():
            for record_id in filter(None, (own, *extra)):
                ids.add(record_id.lower())
        there = {record.id: record for record in chain.from_iterable(fetch(reader, ids))}
    as_written: set[str] = set()
    for row, (own, extra) in told.items():
        written = jsontext.dumps({slug: value for slug, value in sent.get(row, {}).items() if slug != marker})
        edited = {one: is_edited(there[one], written, marker, sure=marker is not None) for one in extra if one in there}
        gone = [one for one in extra if one not in there]
        if edited and own is not None and own not in there and (is_provable(journal.header) or not journal.is_undone(own)):
            own = max(edited, key=lambda one: edited[one])
            journal.rename_row(row, own)
            del edited[own]
            gone.append(own)
        for record_id in gone:
            journal.forget_duplicate(record_id)
        as_written |= {one for one, is_changed in edited.items() if own is not None and not is_changed}
    return frozenset(as_written)


def clear_markers(journal: Journal, service: ImportService, reader: Reader) -> int:
    """Empty the marker of every record of the job; returns how many. What they are needed for must be over.

    Raises UsageError for a job without markers or with rows in doubt, PartialError when the service does not let go of them.
    """
    header = journal.header
    if header.marker is None:
        raise UsageError(f"job {header.job} wrote no markers", code="no_marker")
    counts = journal.counts()
    if counts[RowState.IN_DOUBT] or counts[RowState.UNSENT]:
        raise UsageError(f"job {header.job} still needs its markers", hint=f"crmctl bulk resume {header.job}", code="marker_needed")
    cleared: set[str] = set()
    for ids in _marked(Marker.of(header.marker, header.job), reader):
        if cleared >= set(ids):
            raise PartialError(f"the service does not let go of markers: {len(ids)} left")
        result = service.bulk_write(header.object_id, [{"id": one, "data": {header.marker: None}} for one in ids], mode="upsert")
        if result.failed:
            raise PartialError(f"a marker could not be cleared: {result.failed[0].error}")
        cleared |= set(ids)
    return len(cleared)


def _marked(marker: Marker, reader: Reader) -> Iterator[list[str]]:
    """Ids of records that have a marker at this moment, a page at a time, until there are none."""
    prefix = f"{marker.job}."
    while True:
        rows = reader.page(filters=[Condition(marker.slug, Operator.STARTS_WITH, prefix)]).items
        if not all(str(row.data.get(marker.slug)).startswith(prefix) for row in rows):
            raise CrmctlError("the service does not heed the filter on the marker", code="unusable_filter")
        if not rows:
            return
        yield [row.id for row in rows]
