"""Takes steps: each is written down before and after, each may be taken twice. What the service refuses fails the step, not the job."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import attrgetter
from typing import Any, Protocol

from crmctl.bulk.interrupts import Interrupt
from crmctl.bulk.journal.states import BatchState
from crmctl.bulk.journal.verdicts import Verdict, judge
from crmctl.bulk.merge.merge_journal import MergeJournal
from crmctl.bulk.merge.steps import MergeStep, StepKind, StepState
from crmctl.bulk.read.counted_reads import ReadService
from crmctl.bulk.read.linked_activities import swap_links
from crmctl.bulk.rows.batches import Batch, Batcher, Entry
from crmctl.bulk.send.bisection import InHalves, attempts
from crmctl.bulk.send.context import Writer
from crmctl.bulk.send.deletion import RecordDeleter, still_there
from crmctl.bulk.undo.relink import ActivityService
from crmctl.client.http.session import encode_json
from crmctl.errors import CrmctlError, InterruptedByUser, NotFoundError, RejectedError, ServiceError
from crmctl.models.activities import Activity
from crmctl.models.records import BULK_LIMIT, BulkResult, Record

ATTEMPTS = 4
"""How often a request of unknown outcome is sent: twice is as good as once."""


class MergeWriter(ReadService, Writer, RecordDeleter, ActivityService, Protocol):
    """The calls of the client that a merge, and taking one apart, makes."""

    def create_record(self, object_id: str, data: Mapping[str, Any]) -> Record: ...
    def get_activity(self, activity_id: str) -> Activity: ...


@dataclass
class StepSender:
    """Sends for one job. Raises what ends everything: no network, no right, interrupted."""

    writer: MergeWriter
    journal: MergeJournal
    interrupt: Interrupt
    requests: int = 0
    refused: dict[int, str] = field(default_factory=dict)
    """What could not be put back, by step, with the service's words."""

    def write(self, steps: Iterable[MergeStep], *, back: bool = False) -> None:
        """Records get what the steps say; with `back` what they held before, the last step first, and the steps are undone then."""
        done = StepState.UNDONE if back else StepState.DONE
        ordered = sorted(sorted(steps, key=attrgetter("number"), reverse=back), key=attrgetter("object_id"))
        for object_id, some in groupby(ordered, key=attrgetter("object_id")):
            known = {step.number: step for step in some}
            entries = (_entry(step, step.before if back else step.after) for step in known.values())
            for batch in Batcher().batches(entries):
                if not back:
                    self.journal.mark_steps(batch.ordinals, StepState.SENDING)
                for failed, went in self._written(object_id, batch):
                    self.journal.mark_steps(went, done)
                    for number, why in failed.items():
                        self._refused(known[number], why, back=back)

    def _refused(self, step: MergeStep, why: str, *, back: bool) -> None:
        """A record that refers to somebody and is deleted meanwhile refers to nobody."""
        state = StepState.DONE if back else StepState.FAILED
        if step.kind is StepKind.REFERENCE:
            self._begin()
            try:
                self.writer.get_record(step.object_id, step.target)
            except NotFoundError:
                state, why = (StepState.UNDONE if back else StepState.DONE), ""
        self.journal.mark_steps([step.number], state, why or None)
        if state is StepState.DONE and why:
            self.refused[step.number] = why

    def _written(self, object_id: str, batch: Batch) -> Iterable[tuple[dict[int, str], list[int]]]:
        """For each part of a batch: the numbers that failed, with the service's words, and those that went."""
        parts = InHalves([batch], Batch.halves)
        for part in parts:
            verdict = parts.judged(part, self._send(part, object_id))
            if verdict.state is BatchState.CONFIRMED:
                failed = {part.ordinals[index]: why for index, why in verdict.failures.items()}
                yield failed, [number for number in part.ordinals if number not in failed]

    def _send(self, batch: Batch, object_id: str) -> Verdict:
        def attempt() -> Verdict:
            outcome: BulkResult | CrmctlError
            self._begin()
            try:
                outcome = self.writer.bulk_write(object_id, batch.records, mode="upsert")
            except NotFoundError as missing:
                outcome = RejectedError(missing.message)
            except CrmctlError as error:
                outcome = error
            verdict = judge(batch, outcome, mode="upsert")
            if verdict.state is BatchState.IN_DOUBT:
                return replace(verdict, fatal=outcome if isinstance(outcome, CrmctlError) else ServiceError(verdict.reason))
            return verdict

        return self._settled(attempt)

    def _settled(self, attempt: Callable[[], Verdict]) -> Verdict:
        for _ in attempts(ATTEMPTS, self.journal.clock):
            verdict = attempt()
            if not verdict.repeatable or self.interrupt.requested:
                break
        if verdict.state in (BatchState.IN_DOUBT, BatchState.PLANNED):
            raise verdict.fatal or ServiceError(verdict.reason)
        return verdict

    def delete(self, steps: Sequence[MergeStep]) -> None:
        """Losers are deleted; one that is gone is as good."""
        for at in range(0, len(steps), BULK_LIMIT):
            part = steps[at : at + BULK_LIMIT]
            self.journal.mark_steps([step.number for step in part], StepState.SENDING)
            pieces = InHalves([part], _halves)
            for some in pieces:
                verdict = pieces.judged(some, self._delete(some))
                if verdict.state is BatchState.CONFIRMED:
                    failed = {some[index].number: why for index, why in verdict.failures.items()}
                    self.journal.mark_steps([step.number for step in some if step.number not in failed], StepState.DONE)
                    for number, why in failed.items():
                        self.journal.mark_steps([number], StepState.FAILED, why)

    def _delete(self, steps: Sequence[MergeStep]) -> Verdict:
        object_id, ids, tried = steps[0].object_id, [step.target for step in steps], False

        def attempt() -> Verdict:
            nonlocal tried
            self._begin()
            was_tried, tried = tried, True
            try:
                gone = self.writer.bulk_delete(object_id, ids)
            except (NotFoundError, RejectedError) as error:
                if len(steps) > 1:
                    return Verdict(BatchState.BISECT, reason=error.message)
                return Verdict(BatchState.CONFIRMED, failures={} if isinstance(error, NotFoundError) else {0: error.message})
            except CrmctlError as error:
                state = BatchState.IN_DOUBT if error.outcome_unknown else BatchState.PLANNED
                return Verdict(state, reason=error.message, repeatable=error.outcome_unknown, fatal=error)
            return Verdict(BatchState.CONFIRMED, failures={} if was_tried else still_there(self.writer, object_id, ids, gone))

        return self._settled(attempt)

    def relink(self, step: MergeStep, away: Mapping[str, str]) -> None:
        """An activity names other records, whatever else somebody has made of it since it was listed."""
        self._begin()
        try:
            activity = self.writer.get_activity(step.target)
            change = swap_links(activity.wire, away)
        except NotFoundError:
            change = {}
        if not change:
            # Somebody else did it, or there is none any more: nothing that an undo would take back.
            self.journal.mark_steps([step.number], StepState.DONE if step.state is StepState.SENDING else StepState.UNDONE)
            return
        # Nothing was sent yet, or it was not carried out: what is there now is what an undo puts back.
        self.journal.change_step(step.number, {name: activity.wire.get(name) for name in change}, change)
        self._patch(step, change)

    def links(self, step: MergeStep) -> dict[str, Any] | None:
        """What the links of an activity, those that a step changed, are now; None when it is gone."""
        self._begin()
        try:
            activity = self.writer.get_activity(step.target)
        except NotFoundError:
            return None
        return {name: activity.wire.get(name) for name in step.after}

    def put_links_back(self, step: MergeStep, links: Mapping[str, Any]) -> None:
        self._patch(step, links, back=True)

    def _patch(self, step: MergeStep, links: Mapping[str, Any], *, back: bool = False) -> None:
        self._begin()
        try:
            self.writer.update_activity(step.target, links)
        except RejectedError as error:
            self.journal.mark_steps([step.number], StepState.DONE if back else StepState.FAILED, error.message)
            return
        except NotFoundError:
            pass  # deleted since: there is nothing to name anybody
        self.journal.mark_steps([step.number], StepState.UNDONE if back else StepState.DONE)

    def _begin(self) -> None:
        if self.interrupt.requested:
            raise InterruptedByUser("interrupted")
        self.requests += 1


def _entry(step: MergeStep, data: Mapping[str, Any]) -> Entry:
    encoded = b'{"data":%s,"id":%s}' % (encode_json(data), encode_json(step.target))
    return Entry(step.number, encoded, step.target)


def _halves(steps: Sequence[MergeStep]) -> Sequence[Sequence[MergeStep]]:
    middle = len(steps) // 2
    return steps[:middle], steps[middle:]
