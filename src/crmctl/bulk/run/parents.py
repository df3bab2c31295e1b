"""Records that rows refer to and that are not there: made before the rows, each once, and then known by the ids the service gave them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from crmctl.backoff import Backoff
from crmctl.bulk.journal.journal import Journal
from crmctl.bulk.journal.states import JobState, RowState
from crmctl.bulk.match.key_index import KeyIndex
from crmctl.bulk.match.key_lookups import Lookup
from crmctl.bulk.match.reference_resolution import ParentGroup, ReferenceMap
from crmctl.bulk.rows.batches import Entry
from crmctl.bulk.run.phases import begin_phase, phase_context, send_phase
from crmctl.bulk.run.rows_to_send import chunks
from crmctl.bulk.send.context import SendContext
from crmctl.client.http.session import encode_json
from crmctl.errors import CrmctlError, InterruptedByUser, ServiceError
from crmctl.models.attribute_types import Trait, types_with

FOLDER = "parents"
TELLING = types_with(Trait.TELLING)

TICK_SECONDS = 0.5
LOOKS = 8
"""How often records that were just created are looked for, and the seconds between."""

GAPS = Backoff(longest=30.0, jitter=0.0)


def make_parents(run: SendContext, references: ReferenceMap) -> CrmctlError | None:
    """Make all parents that are missing, or what is left of that, and reject the rows that get none. Returns why it is not over."""
    journal = run.journal
    for number, group in enumerate(references.groups(), 1):
        reference = group.reference
        unique = reference.key if reference.type in TELLING else None
        facts = {"object": reference.object, "object_id": reference.object_id, "mode": "create", "unique": unique}
        with phase_context(run, f"{FOLDER}-{number}", **facts) as phase:
            if phase.journal.state is JobState.FINISHED:
                continue
            try:
                failure = _Parents(phase, references, group).make()
            except CrmctlError as error:
                failure = error
            if failure is not None:
                return failure
    for ordinal, why in references.orphans():
        if ordinal not in journal.taken(ordinal, ordinal):
            journal.conclude([(ordinal, RowState.REJECTED, None, f"no record could be created that it refers to: {why}")])
    return None


class _Parents:
    """The parents of one group, made in a phase of their own."""

    def __init__(self, phase: SendContext, references: ReferenceMap, group: ParentGroup) -> None:
        self.phase = phase
        self.journal = phase.journal
        self.references = references
        self.group = group
        object_id = group.reference.object_id
        self.lookup = Lookup(phase.service, object_id, lambda: phase.interrupt.requested, as_of=references.as_of(object_id))

    def make(self) -> CrmctlError | None:
        """Returns why it is not over. Raises what reading raises."""
        reference = self.group.reference
        try:
            begin_phase(self.journal, self.group.size)
            self._leave_out_known()
            failure = send_phase(self.phase, self.group.size, self._entries, f"records of {reference.object}")
            if failure is not None:
                return failure
            for chunk in chunks(self._all()):
                errors = _failures(self.journal, chunk)
                self.references.know_parents({}, {number: f"{reference.told}: {error}" for number, error in errors.items()})
            self._read_back()
            self.journal.set_state(JobState.FINISHED)
            return None
        finally:
            self.journal.add_effort(self.lookup.requests, 0.0)

    def _all(self) -> Iterator[tuple[int, dict[str, Any], str | None]]:
        return self.references.parents(self.group)

    def _entries(self) -> Iterator[Entry]:
        return (Entry(number, encode_json({"data": data})) for number, data, _ in self._all())

    def _leave_out_known(self) -> None:
        """What somebody else has created since is not made again."""
        with KeyIndex(self.group.rule) as index:
            for chunk in chunks(self._all()):
                taken = self.journal.taken(chunk[0][0], chunk[-1][0])
                for number, data, _ in chunk:
                    if number not in taken:
                        index.want(number, data)
            if not index.key_count:
                return
            if not self.lookup.refresh(index):
                self.lookup.fill(index)
            for found in chunks(index.matches()):
                self.references.know_parents(dict(found), {})
                self.journal.conclude((number, RowState.UNCHANGED, record_id, None) for number, record_id in found)

    def _read_back(self) -> None:
        """Learn the ids of what was created. Raises ServiceError when the service does not show them."""
        for look in range(1, LOOKS + 1):
            missing = self._look_for_ids(is_first=look == 1)
            if not missing:
                return
            if look < LOOKS:
                _wait(self.phase, GAPS.gap(look))
        raise ServiceError(
            f"the service does not show every record of {self.group.reference.object} that was created: {missing:,} missing",
            code="not_shown",
        )

    def _look_for_ids(self, *, is_first: bool) -> int:
        """How many are still missing."""
        with KeyIndex(self.group.rule) as index:
            for chunk in chunks(self._all()):
                failed = _failures(self.journal, chunk)
                for number, data, record_id in chunk:
                    if record_id is None and number not in failed:
                        index.want(number, data)
            missing = index.key_count
            if not missing:
                return 0
            if not is_first or not self.lookup.refresh(index):
                self.lookup.fill(index)
            for found in chunks(index.matches()):
                self.references.know_parents(dict(found), {})
                self.journal.name_rows(dict(found))
                missing -= len(found)
            return missing


def _failures(phase: Journal, parents: Sequence[tuple[int, dict[str, Any], str | None]]) -> dict[int, str]:
    """Which of these parents the service refused, and why."""
    entries = phase.rows(parents[0][0], parents[-1][0])
    return {number: one.error or "refused" for number, one in entries.items() if one.state is RowState.FAILED}


def _wait(run: SendContext, seconds: float) -> None:
    while seconds > 0:
        if run.interrupt.requested:
            raise InterruptedByUser("interrupted")
        run.clock.sleep(min(seconds, TICK_SECONDS))
        seconds -= TICK_SECONDS
