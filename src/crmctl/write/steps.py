"""Steps: writes to existing records.

Merges, undos and deletions of ids use one `StepSender`. Before it repeats an update whose answer was lost, it reads the records. Creates
need more care: see `sender`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any

from crmctl.bulk_context import Interrupt, Progress, watch_interrupts
from crmctl.client.crm import Crm
from crmctl.clock import Clock
from crmctl.errors import CrmctlError, InterruptedByUser, NotFoundError, RejectedError, ServiceError
from crmctl.files.spills import chunks
from crmctl.files.validation import Batch, Batcher, Entry
from crmctl.frozen import frozen
from crmctl.models.resources import BULK_LIMIT, Record
from crmctl.read.read_back import Reader
from crmctl.read.stable_pages import SeenIds
from crmctl.values.equality import alike
from crmctl.write.database import BatchState
from crmctl.write.effect import Attributes, StepStanding, changed_last, current_records, delete_records, is_visible, standing, took_effect
from crmctl.write.send_context import ATTEMPTS, PATIENCE, WITHOUT_EFFECT, samples
from crmctl.write.verdicts import Verdict, judge


class StepKind(StrEnum):
    """The purpose of a step. A merge takes its steps in the order of `MERGE_ORDER`."""

    UPDATE = "update"
    """Writes values to a record."""
    FREE = "free"
    """Clears a loser's unique value for the survivor."""
    SURVIVOR = "survivor"
    """Writes the merged values to the survivor."""
    REFERENCE = "reference"
    """Makes a record refer to the survivor in place of a loser."""
    ACTIVITY = "activity"
    """Makes an activity name the survivor in place of a loser."""
    DELETE = "delete"
    """Deletes a record."""
    CLAIM = "claim"
    """Writes a unique value to the survivor after its loser is deleted, because the loser required it."""


MERGE_ORDER = tuple(kind for kind in StepKind if kind is not StepKind.UPDATE)


class StepState(StrEnum):
    """State of a step. `sending`: it may be on its way, or done."""

    PLANNED = "planned"
    SENDING = "sending"
    DONE = "done"
    FAILED = "failed"
    UNDONE = "undone"


@frozen
class Step:
    """One write. `before` and `after` hold the changed attributes (for an activity, its links) with old and new values."""

    kind: StepKind
    object_id: str
    target: str
    before: Mapping[str, Any] = field(default_factory=dict)
    after: Mapping[str, Any] = field(default_factory=dict)
    number: int = 0
    group: int = 0
    state: StepState = StepState.PLANNED
    error: str | None = None


Mark = Callable[[Sequence[Step], StepState, str | None], None]
"""Stores the state of steps, before they are sent and afterwards, with the service's message for failed ones."""


@dataclass
class StepSender:
    """Sends steps. Raises errors that end everything: no network, no permission, interrupt.

    Marks refused steps as failed. `in_doubt` counts steps on their way at the end, `absent` records already gone before their deletion.
    `attributes`: by object id, to recognise values in the service's spelling.
    """

    service: Crm
    clock: Clock
    interrupt: Interrupt = field(default_factory=Interrupt)
    in_doubt: int = 0
    absent: int = 0
    attributes: Mapping[str, Attributes] = field(default_factory=dict)

    def update(self, steps: Iterable[Step], mark: Mark) -> None:
        for _, of_object in groupby(steps, key=attrgetter("object_id")):
            pending: dict[int, Step] = {}
            for batch in Batcher().batches(_entries(of_object, pending)):
                self._send([pending.pop(number) for number in batch.ordinals], mark)

    def delete(self, steps: Iterable[Step], mark: Mark) -> None:
        """Delete the records of these steps, all of one object. Records already gone count as deleted and as `absent`."""
        for chunk in chunks(steps, BULK_LIMIT):
            self._send(chunk, mark)

    def unsettled(self, steps: Sequence[Step], mark: Mark) -> list[Step]:
        """Return the steps of one object that the service has not carried out, although they were sent. Mark the other ones.

        Updates of records that another client changed since fail. Raises the errors of reading.
        """
        is_deletion, object_id = steps[0].kind is StepKind.DELETE, steps[0].object_id
        attributes, reader = self.attributes.get(object_id, {}), self._reader(steps)
        steps_left = [step for step in steps if not is_deletion and not step.before]  # to be written whatever the record holds
        steps = [step for step in steps if is_deletion or step.before]

        def holds(position: int, record: Record) -> bool:
            step = steps[position]
            return standing(step.before, step.after, record.data, attributes)[0] is StepStanding.AFTER

        page = changed_last(reader) if not is_deletion and len(steps) > 2 else None
        records = current_records(reader, [step.target for step in steps], page, holds)
        for step, record in zip(steps, list(records), strict=True):
            if is_deletion and record is None:
                mark([step], StepState.DONE, None)
            elif is_deletion or record is None:
                steps_left.append(step)
            else:
                state, changed = standing(step.before, step.after, record.data, attributes)
                if state is StepStanding.BEFORE:
                    steps_left.append(step)
                elif state is StepStanding.AFTER:
                    mark([step], StepState.DONE, None)
                else:
                    mark([step], StepState.FAILED, f"another client changed {', '.join(changed)} since the update was sent")
        return steps_left

    def begin(self) -> None:
        """Raise InterruptedByUser after an interrupt, before a request is sent."""
        if self.interrupt.requested:
            raise InterruptedByUser("interrupted")

    def _send(self, steps: Sequence[Step], mark: Mark) -> None:
        mark(steps, StepState.SENDING, None)
        parts = [steps]
        while parts:
            part, verdict = self._settle(parts.pop(), mark)
            if verdict.state is BatchState.BISECT:
                middle = len(part) // 2
                parts += (part[middle:], part[:middle])
                continue
            mark([step for index, step in enumerate(part) if index not in verdict.failures], StepState.DONE, None)
            for index, why in verdict.failures.items():
                mark([part[index]], StepState.FAILED, why)

    def _settle(self, part: Sequence[Step], mark: Mark) -> tuple[Sequence[Step], Verdict]:
        """Send a part, and repeat the steps not carried out while the outcome is unknown. Return the steps sent last, and the verdict.

        Raises errors that end everything.
        """
        for number in PATIENCE.tries(ATTEMPTS, self.clock.sleep):
            if number > 1 and part[0].kind is not StepKind.DELETE:  # a repeated deletion changes nothing
                try:
                    part = self.unsettled(part, mark)
                except CrmctlError:
                    self.in_doubt += len(part)
                    raise
                if not part:
                    return part, Verdict(BatchState.CONFIRMED)
            if number == 1 or not self.interrupt.requested:
                self.begin()
                verdict = self._attempt(part, is_first=number == 1)
            if not verdict.repeatable or self.interrupt.requested:
                break
        if verdict.state in (BatchState.IN_DOUBT, BatchState.PLANNED):
            self.in_doubt += len(part) if verdict.state is BatchState.IN_DOUBT else 0
            raise verdict.fatal or ServiceError(verdict.reason)
        return part, verdict

    def _attempt(self, steps: Sequence[Step], *, is_first: bool) -> Verdict:
        batch, object_id, is_deletion = Batch(tuple(_entries(steps, {}))), steps[0].object_id, steps[0].kind is StepKind.DELETE
        mode = "delete" if is_deletion else "upsert"
        try:
            if is_deletion:
                ids = [step.target for step in steps]
                result, absent = delete_records(self.service, object_id, ids, stop=lambda: self.interrupt.requested)
                self.absent += absent if is_first or result.created else 0
            else:
                result = self.service.bulk_write(object_id, batch.records, mode=mode)
        except CrmctlError as error:
            outcome = RejectedError(error.message) if isinstance(error, NotFoundError) and not is_deletion else error
            verdict = judge(batch, outcome, mode=mode)
            return replace(verdict, fatal=error) if verdict.state is BatchState.IN_DOUBT else verdict
        verdict = judge(batch, result, mode=mode)
        if not is_deletion and verdict.updated and not self._took_effect(steps, verdict):
            return Verdict(BatchState.IN_DOUBT, reason=WITHOUT_EFFECT, repeatable=True)
        return verdict

    def _took_effect(self, steps: Sequence[Step], verdict: Verdict) -> bool:
        """Whether the records of acknowledged updates show them. Unreadable ones do not."""
        attributes = self.attributes.get(steps[0].object_id, {})
        written = [step for index, step in enumerate(steps) if index not in verdict.failures]
        visible = [step for step in written if not step.before or is_visible(step.before, step.after)]
        pairs = [(step.target, partial(_standing_of, step, attributes)) for step in samples(visible)]
        try:
            return took_effect(self._reader(steps), self.clock, pairs)
        except CrmctlError:
            return False

    def _reader(self, steps: Sequence[Step]) -> Reader:
        return Reader(self.service, steps[0].object_id, lambda: self.interrupt.requested)


@dataclass
class StepOutcome:
    """Result of taking steps. `failed`: the service's messages by step number, `targets`: the records of these steps; `unsent`: steps not
    tried because of `error`."""

    done: int = 0
    absent: int = 0
    failed: dict[int, str] = field(default_factory=dict)
    targets: dict[int, str] = field(default_factory=dict)
    in_doubt: int = 0
    unsent: int = 0
    error: CrmctlError | None = None

    @property
    def left(self) -> int:
        return len(self.failed) + self.in_doubt + self.unsent


def take_steps(
    sender: StepSender, progress: Progress, steps: Iterable[Step], total: int, remember: Callable[[Sequence[str]], None]
) -> StepOutcome:
    """Take steps that are all deletions or all updates. `remember` receives the ids of each finished step at once.

    Does not raise errors of the service: one that ended the steps early is the outcome's `error`.
    """
    outcome = StepOutcome()

    def mark(steps: Sequence[Step], state: StepState, why: str | None) -> None:
        if state is StepState.DONE:
            remember([step.target for step in steps])
            outcome.done += len(steps)
        elif state is StepState.FAILED:
            outcome.failed[steps[0].number] = why or "refused"
            outcome.targets[steps[0].number] = steps[0].target
        progress.advance(len(steps) if state is not StepState.SENDING else 0)

    with watch_interrupts(progress.note, sender.interrupt):
        try:
            for is_deletion, some in groupby(steps, key=lambda step: step.kind is StepKind.DELETE):
                (sender.delete if is_deletion else sender.update)(some, mark)
        except CrmctlError as error:
            outcome.error = error
    progress.finish()
    outcome.absent, outcome.in_doubt = sender.absent, sender.in_doubt
    outcome.unsent = total - outcome.done - len(outcome.failed) - outcome.in_doubt
    return outcome


def deletions(object_id: str, ids: SeenIds) -> Iterator[Step]:
    for number, record_id in enumerate(record_id for chunk in ids.chunks(BULK_LIMIT) for record_id in chunk):
        yield Step(StepKind.DELETE, object_id, record_id, number=number)


def _standing_of(step: Step, attributes: Attributes, record: Record) -> StepStanding:
    """Return how a record stands to a step. If the old values are unknown, it must show the new ones."""
    if step.before:
        return standing(step.before, step.after, record.data, attributes)[0]
    is_after = all(alike(attributes.get(slug), value, record.data.get(slug)) for slug, value in step.after.items())
    return StepStanding.AFTER if is_after else StepStanding.BEFORE


def _entries(steps: Iterable[Step], pending: dict[int, Step]) -> Iterator[Entry]:
    for step in steps:
        pending[step.number] = step
        yield Entry.of(step.number, step.after, step.target)
