"""One sender: takes a batch through its attempts and splits until every row of it has an outcome in the journal."""

from __future__ import annotations

from dataclasses import dataclass

from crmctl.bulk.journal.journal import Journal
from crmctl.bulk.journal.states import BatchState
from crmctl.bulk.journal.verdicts import Verdict, disbelieve, judge, question_refusal, refuse_all
from crmctl.bulk.rows.batches import Batch, Batcher
from crmctl.bulk.send.bisection import InHalves, attempts
from crmctl.bulk.send.context import SendContext
from crmctl.bulk.send.evidence import Sent
from crmctl.bulk.send.in_flight import InFlight, Stopped
from crmctl.bulk.send.reconcile import Reconciler
from crmctl.bulk.send.update_replay_check import MERGED
from crmctl.clock import Clock
from crmctl.errors import CrmctlError
from crmctl.models.records import BulkResult

MOST_SPLITS = 32
"""To find the bad rows of one batch, two requests each; one bad row among 100 takes 7."""

ATTEMPTS = 4
"""How often a batch is sent while its outcome is unknown, where twice is as good as once."""


@dataclass(frozen=True)
class Task:
    """One batch to be sent; `parent` is the number of the batch it was split from, `round` how often its rows were in doubt and absent.
    `refusal`: it was refused as a whole, as is known for certain, and goes in halves."""

    number: int
    batch: Batch
    parent: int | None = None
    round: int = 0
    refusal: str | None = None


class Sender:
    """Has no state of its own: several threads may use one."""

    def __init__(self, context: SendContext, in_flight: InFlight, reconciler: Reconciler, batcher: Batcher) -> None:
        self._context = context
        self._journal, self._clock = context.journal, context.clock
        self._in_flight = in_flight
        self._reconciler = reconciler
        self._batcher = batcher
        self._is_merged = bool(self._journal.recall(MERGED))

    def deliver(self, task: Task) -> None:
        """Send a batch, and its parts where the service refuses it as a whole. Raises Stopped when sending is to end."""
        parts = InHalves([task] if task.refusal is None else self._halves(task), self._halves)
        refusals: list[str] = []
        failed = 0
        for part in parts:
            verdict = parts.judged(part, self._send(part, may_split=len(refusals) < MOST_SPLITS))
            failed += len(verdict.failures)
            if verdict.state is BatchState.BISECT:
                refusals.append(verdict.reason)
            elif verdict.state is not BatchState.IN_DOUBT:
                self._context.progress.advance(len(part.batch))
                self._tally(verdict)
        refusal = refusals[-1] if refusals else task.refusal
        self._in_flight.tally_refusal(refusal if failed == len(task.batch) else None)

    def _tally(self, verdict: Verdict) -> None:
        made, changed = ("not there", "deleted") if self._journal.header.mode == "delete" else ("created", "updated")
        self._context.progress.tally({made: verdict.created, changed: verdict.updated, "failed": len(verdict.failures)})

    def _halves(self, task: Task) -> list[Task]:
        return [Task(self._in_flight.next_number(), half, task.number, task.round) for half in task.batch.halves()]

    def _send(self, task: Task, *, may_split: bool) -> Verdict:
        record = _Attempts(task, self._journal, self._in_flight, self._clock)
        with self._in_flight.gate.sending():
            verdict = self._attempt(task, record)
            if not verdict.questionable:
                return self._settle(record, verdict, may_split=may_split)
        try:
            # A refusal is read back before it is believed: some fail after they have carried out what they refuse.
            with self._in_flight.gate.looking():
                sent = Sent(task.number, task.batch, record.sent_at, self._clock.now())
                if self._reconciler.believes(sent, is_part=task.parent is not None):
                    return self._settle(record, verdict, may_split=may_split)
        except Stopped:
            pass
        return self._settle(record, disbelieve(verdict), may_split=may_split, refusal=verdict.reason)

    def _attempt(self, task: Task, record: _Attempts) -> Verdict:
        header = self._journal.header
        outcome: BulkResult | CrmctlError
        for _ in attempts(ATTEMPTS, self._clock):
            try:
                mode = _wire_mode(header.mode)
                outcome = self._context.service.bulk_write(header.object_id, task.batch.records, mode=mode, watch=record)
            except CrmctlError as error:
                outcome = error
            verdict = judge(task.batch, outcome, mode=header.mode, doubt=self._context.options.doubt)
            if verdict.fatal is not None and self._journal.records_made():
                verdict = question_refusal(task.batch, verdict)
            if not verdict.repeatable or self._is_merged or self._in_flight.is_stopping:
                break
        return verdict

    def _settle(self, record: _Attempts, verdict: Verdict, *, may_split: bool, refusal: str | None = None) -> Verdict:
        task = record.task
        if verdict.too_large:
            self._batcher.max_bytes = max(1, min(self._batcher.max_bytes, task.batch.size // 2))
        if verdict.state is BatchState.BISECT and not may_split:
            verdict = refuse_all(task.batch, verdict.reason)
        record.settle(verdict)
        if verdict.state is BatchState.IN_DOUBT:
            sent = Sent(task.number, task.batch, record.sent_at, known_at=self._clock.now())
            self._reconciler.park(sent, task.round, refusal)
        else:
            new = [entry for entry in task.batch.entries if entry.id is None]
            if new and verdict.created == len(new) and not verdict.failures:
                self._reconciler.confirm(new, record.sent_at, self._clock.now())
        self._in_flight.tally(verdict)
        return verdict


def _wire_mode(mode: str) -> str:
    """An update is an upsert of which no row lacks its id."""
    return "create" if mode == "create" else "upsert"


class _Attempts:
    """The journal's view of one batch on its way: every attempt is written down before it leaves."""

    def __init__(self, task: Task, journal: Journal, in_flight: InFlight, clock: Clock) -> None:
        self.task = task
        self.idempotency_key = f"{journal.header.job}:{task.number}"
        self._journal = journal
        self._in_flight = in_flight
        self._clock = clock
        self._begun = self._away = False
        self.sent_at = clock.now()

    def sending(self) -> None:
        self.sent_at = self._clock.now()
        number, batch = self.task.number, self.task.batch
        if self._away:
            self._journal.again(number)
            return
        with self._in_flight.departure(number, batch):
            if self._begun:
                self._journal.again(number)
            else:
                self._journal.begin(number, batch, parent=self.task.parent)
        self._begun = self._away = True

    def refused(self) -> None:
        self.settle(Verdict(BatchState.PLANNED, reason="refused for now"))

    def settle(self, verdict: Verdict) -> None:
        if self._away:
            with self._in_flight.arrival(self.task.number):
                self._journal.settle(self.task.number, self.task.batch, verdict)
            self._away = False
