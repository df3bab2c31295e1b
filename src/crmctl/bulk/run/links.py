"""References between rows of one file: set in a second pass, when every row has its record and the records are known."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from crmctl.bulk.journal.journal import Journal, RowEntry
from crmctl.bulk.journal.states import JobState, RowState
from crmctl.bulk.match.reference_resolution import Links, ReferenceMap, RowLink
from crmctl.bulk.read.read_back import Unusable
from crmctl.bulk.rows.batches import Entry
from crmctl.bulk.run.created_ids import capture_ids
from crmctl.bulk.run.phases import begin_phase, failures, phase_context, send_phase
from crmctl.bulk.send.context import SendContext
from crmctl.client.http.session import encode_json
from crmctl.errors import CrmctlError, ServiceError

FOLDER = "links"
WRITTEN = (RowState.CREATED, RowState.UPDATED, RowState.UNCHANGED)


class _CannotLink(Exception):
    """Why a row is not linked."""


def link_rows(run: SendContext, references: ReferenceMap, again: Callable[[], Iterable[Entry]]) -> CrmctlError | None:
    """Set the references between rows of the job, or what is left of that. Returns why it is not over.

    A row that cannot be linked fails, although its record is there: the error names it.
    """
    journal = run.journal
    with phase_context(run, FOLDER, mode="upsert") as phase:
        if phase.journal.state is JobState.FINISHED:
            return None
        if phase.journal.state is JobState.CHECKING:
            try:
                _learn_ids(run, references, again)
            except CrmctlError as error:
                return error
            _fail_unlinkable(references, journal)
            begin_phase(phase.journal, sum(1 for _ in second_writes(references, journal)))
        count = sum(phase.journal.counts().values())
        failure = send_phase(phase, count, lambda: second_writes(references, journal), "links between rows")
        if failure is not None:
            return failure
        for ordinal, why in failures(phase.journal, (ordinal for ordinal, _ in references.links())).items():
            _fail(references, journal, ordinal, why)
        phase.journal.set_state(JobState.FINISHED)
    return None


def _learn_ids(run: SendContext, references: ReferenceMap, again: Callable[[], Iterable[Entry]]) -> None:
    """The ids of the records that are linked, where the service has not told them. Raises what reading raises."""
    journal = run.journal
    entries = (_row(journal, row) for ordinal, links in references.links() for row in (ordinal, *_rows_in(links)))
    if all(entry.record_id is not None for entry in entries if entry.state is RowState.CREATED):
        return
    reader = run.reader()
    try:
        capture_ids(journal, reader, again)
    except Unusable as failure:
        raise ServiceError(f"the records that were created cannot be read: {failure}", code="unreadable_list") from failure
    finally:
        journal.add_effort(reader.requests, 0.0)


def _fail_unlinkable(references: ReferenceMap, journal: Journal) -> None:
    for ordinal, links in references.links():
        if _row(journal, ordinal).state in WRITTEN:
            try:
                _data(references, journal, ordinal, links)
            except _CannotLink as problem:
                _fail(references, journal, ordinal, str(problem))


def second_writes(references: ReferenceMap, journal: Journal) -> Iterator[Entry]:
    """The second writes: of every row that was written and can be linked."""
    for ordinal, links in references.links():
        row = _row(journal, ordinal)
        if row.record_id is not None and (row.state in WRITTEN or references.is_unlinked(ordinal)):
            try:
                data = _data(references, journal, ordinal, links)
            except _CannotLink:
                continue
            yield Entry(ordinal, encode_json({"data": data, "id": row.record_id}), row.record_id)


def _data(references: ReferenceMap, journal: Journal, ordinal: int, links: dict[str, Links]) -> dict[str, Any]:
    """What the second write of a row says. Raises _CannotLink."""
    if _row(journal, ordinal).record_id is None:
        raise _CannotLink("nobody can say which record it became")
    data: dict[str, Any] = {}
    for slug, (many, values) in links.items():
        ids = [_meant(references, journal, slug, value) for value in values]
        data[slug] = ids if many else ids[0]
    return data


def _meant(references: ReferenceMap, journal: Journal, slug: str, link: RowLink) -> str:
    if link.row is None:
        return str(link.id)
    entry = _row(journal, link.row)
    if entry.record_id is None or (entry.state not in WRITTEN and not references.is_unlinked(link.row)):
        raise _CannotLink(f"{slug}: row {link.row} of the file, which it refers to, is {_STATES.get(entry.state, 'not known')}")
    if link.rival is not None and link.rival != entry.record_id:
        raise _CannotLink(f"{slug}: both row {link.row} of the file (record {entry.record_id}) and record {link.rival} are meant")
    return entry.record_id


_STATES = {
    RowState.CREATED: "created, and nobody can say as which record",
    RowState.FAILED: "refused by the service",
    RowState.REJECTED: "invalid",
    RowState.SKIPPED: "skipped",
}


def _row(journal: Journal, ordinal: int) -> RowEntry:
    return journal.rows(ordinal, ordinal).get(ordinal, RowEntry(RowState.UNSENT))


def _rows_in(links: dict[str, Links]) -> list[int]:
    return [link.row for every in links.values() for link in every.values if link.row is not None]


def _fail(references: ReferenceMap, journal: Journal, ordinal: int, why: str) -> None:
    row = _row(journal, ordinal)
    if row.state in WRITTEN:
        told = f"record {row.record_id} was written" if row.record_id is not None else "it was written"
        references.know_unlinked(ordinal)
        journal.overrule(ordinal, f"{told}, but not linked: {why}")
