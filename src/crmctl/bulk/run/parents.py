"""Records that rows refer to and that are not there: made before the rows, each once, and then known by the ids the service gave them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from crmctl.bulk.journal.journal import Journal
from crmctl.bulk.journal.states import JobState, RowState
from crmctl.bulk.match.key_index import KeyIndex
from crmctl.bulk.match.key_lookups import Lookup
from crmctl.bulk.match.reference_resolution import ParentGroup, ReferenceMap
from crmctl.bulk.rows.batches import Entry
from crmctl.bulk.run.phases import RunContext, phase_journal, send_phase
from crmctl.bulk.run.rows_to_send import chunks
from crmctl.client.http.session import encode_json
from crmctl.errors import CrmctlError, InterruptedByUser, ServiceError
from crmctl.models.attributes import AttributeType

FOLDER = "parents"
TELLING = (AttributeType.EMAIL, AttributeType.NUMBER, AttributeType.DATE)
"""Types of which no two different keys look alike however a service spells them."""

TICK_SECONDS = 0.5
GAPS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Seconds between looks for records that were just created."""


def make_parents(crew: RunContext, references: ReferenceMap) -> CrmctlError | None:
    """Make all parents that are missing, or what is left of that, and reject the rows that get none. Returns why it is not over."""
    journal = crew.job.journal
    for number, group in enumerate(references.groups(), 1):
        reference = group.reference
        unique = reference.key if reference.type in TELLING else None
        facts = {"object": reference.object, "object_id": reference.object_id, "mode": "create", "unique": unique}
        with phase_journal(crew, f"{FOLDER}-{number}", **facts) as phase:
            if phase.state is JobState.FINISHED:
                continue
            try:
                failure = _make(crew, references, group, phase)
            except CrmctlError as error:
                failure = error
            if failure is not None:
                return failure
    for ordinal, why in references.orphans():
        if ordinal not in journal.taken(ordinal, ordinal):
            journal.conclude([(ordinal, RowState.REJECTED, None, f"no record could be created that it refers to: {why}")])
    return None


def _make(crew: RunContext, references: ReferenceMap, group: ParentGroup, phase: Journal) -> CrmctlError | None:
    reference = group.reference
    lookup = Lookup(crew.service, reference.object_id, lambda: crew.interrupt.requested, as_of=references.as_of(reference.object_id))
    try:
        if phase.state is JobState.CHECKING:
            phase.restart_check()
            phase.record_check(group.size, ())
            phase.set_state(JobState.OPEN)
        _leave_out_known(references, group, phase, lookup)

        def entries() -> Iterator[Entry]:
            return (Entry(number, encode_json({"data": data})) for number, data, _ in references.parents(group))

        failure = send_phase(crew, phase, group.size, entries, f"records of {reference.object}")
        if failure is not None:
            return failure
        for chunk in chunks(references.parents(group)):
            errors = _failures(phase, chunk)
            references.know_parents({}, {number: f"{reference.told}: {error}" for number, error in errors.items()})
        _read_back(crew, references, group, phase, lookup)
        phase.set_state(JobState.FINISHED)
        return None
    finally:
        phase.add_effort(lookup.requests, 0.0)


def _leave_out_known(references: ReferenceMap, group: ParentGroup, phase: Journal, lookup: Lookup) -> None:
    """What somebody else has created since is not made again."""
    with KeyIndex(group.rule) as index:
        for chunk in chunks(references.parents(group)):
            taken = phase.taken(chunk[0][0], chunk[-1][0])
            for number, data, _ in chunk:
                if number not in taken:
                    index.want(number, 0, 0, data)
        if not index.key_count:
            return
        if not lookup.refresh(index):
            lookup.fill(index)
        for found in chunks(index.matches()):
            references.know_parents(dict(found), {})
            phase.conclude((number, RowState.UNCHANGED, record_id, None) for number, record_id in found)


def _read_back(crew: RunContext, references: ReferenceMap, group: ParentGroup, phase: Journal, lookup: Lookup) -> None:
    """Learn the ids of what was created. Raises ServiceError when the service does not show them."""
    for attempt, gap in enumerate((*GAPS, 0.0)):
        with KeyIndex(group.rule) as index:
            for chunk in chunks(references.parents(group)):
                failed = _failures(phase, chunk)
                for number, data, record_id in chunk:
                    if record_id is None and number not in failed:
                        index.want(number, 0, 0, data)
            missing = index.key_count
            if not missing:
                return
            if attempt or not lookup.refresh(index):
                lookup.fill(index)
            for found in chunks(index.matches()):
                references.know_parents(dict(found), {})
                phase.name_rows(dict(found))
                missing -= len(found)
        if not missing:
            return
        _wait(crew, gap)
    raise ServiceError(
        f"the service does not show every record of {group.reference.object} that was created: {missing:,} missing", code="not_shown"
    )


def _failures(phase: Journal, parents: Sequence[tuple[int, dict[str, Any], str | None]]) -> dict[int, str]:
    """Which of these parents the service refused, and why."""
    entries = phase.rows(parents[0][0], parents[-1][0])
    return {number: one.error or "refused" for number, one in entries.items() if one.state is RowState.FAILED}


def _wait(crew: RunContext, seconds: float) -> None:
    while seconds > 0:
        if crew.interrupt.requested:
            raise InterruptedByUser("interrupted")
        crew.clock.sleep(min(seconds, TICK_SECONDS))
        seconds -= TICK_SECONDS
