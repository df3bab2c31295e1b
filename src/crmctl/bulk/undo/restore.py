"""Writes what an undo has decided: what an update overwrote is written again, and what is done is remembered. Twice is as good as once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from crmctl.bulk.journal.states import BatchState
from crmctl.bulk.journal.verdicts import Verdict, judge
from crmctl.bulk.progress import Progress
from crmctl.bulk.rows.batches import Batch, Batcher, Entry
from crmctl.bulk.send.bisection import RepeatableSender
from crmctl.bulk.send.context import Writer
from crmctl.clock import Clock
from crmctl.errors import CrmctlError, NotFoundError, RejectedError, ServiceError
from crmctl.models.records import BULK_LIMIT, BulkResult

ATTEMPTS = 4
"""How often a request of unknown outcome is sent."""


class UndoLog(Protocol):
    """Remembers what is undone; the journal."""

    def mark_undone(self, record_ids: Iterable[str]) -> None: ...


@dataclass
class Restored:
    """What became of the rows: `failed` with the service's words, `in_doubt` may or may not be back, `unsent` were not tried."""

    restored: int = 0
    failed: dict[int, str] = field(default_factory=dict)
    in_doubt: int = 0
    unsent: int = 0
    requests: int = 0
    error: CrmctlError | None = None


@dataclass(frozen=True)
class Restorer:
    """Sends what puts records back. Never raises for what the service answers: an error that ended it early is the result's `error`."""

    writer: Writer
    object_id: str
    ledger: UndoLog
    result: Restored = field(default_factory=Restored)
    attempts: int = ATTEMPTS

    def put_back(self, entries: Iterable[Entry], total: int, clock: Clock, progress: Progress) -> Restored:
        """Send all entries, or as many as there is reason to."""
        progress.start("putting back", total, BULK_LIMIT)
        RepeatableSender(self, self.result, clock, progress).send_all(Batcher().batches(entries))
        return self.result

    def send(self, batch: Batch) -> Verdict:
        outcome: BulkResult | CrmctlError
        try:
            outcome = self.writer.bulk_write(self.object_id, batch.records, mode="upsert")
        except NotFoundError as missing:
            outcome = RejectedError(missing.message)
        except CrmctlError as error:
            outcome = error
        verdict = judge(batch, outcome, mode="upsert")
        if verdict.state is not BatchState.IN_DOUBT:
            return verdict
        return replace(verdict, fatal=outcome if isinstance(outcome, CrmctlError) else ServiceError(verdict.reason))

    def settle(self, batch: Batch, verdict: Verdict, *, doubted: bool) -> None:
        self.result.failed.update((batch.ordinals[index], reason) for index, reason in verdict.failures.items())
        done = [str(entry.id) for index, entry in enumerate(batch.entries) if index not in verdict.failures]
        self.ledger.mark_undone(done)
        self.result.restored += len(done)

    @staticmethod
    def halves(batch: Batch) -> Sequence[Batch]:
        return batch.halves()
