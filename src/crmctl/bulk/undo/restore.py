"""Writes what an undo has decided: what an update overwrote is written again, and what is done is remembered. Twice is as good as once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from crmctl.bulk.interrupts import watch_interrupts
from crmctl.bulk.journal.states import BatchState
from crmctl.bulk.journal.verdicts import Verdict, judge
from crmctl.bulk.progress import Progress
from crmctl.bulk.rows.batches import Batch, Batcher, Entry
from crmctl.bulk.send.deletion import Deleter
from crmctl.bulk.send.sender import Writer
from crmctl.clock import Clock
from crmctl.errors import CrmctlError, InterruptedByUser, NotFoundError, RejectedError, ServiceError
from crmctl.models.records import BULK_LIMIT, BulkResult

ATTEMPTS = 4
"""How often a request of unknown outcome is sent."""


class UndoLog(Protocol):
    """Remembers what is undone; the journal."""

    def mark_undone(self, record_ids: Iterable[str]) -> None: ...


@dataclass(frozen=True)
class Marking:
    """A deleter that remembers what is deleted as soon as the service has said so."""

    deleter: Deleter
    ledger: UndoLog

    def bulk_delete(self, object_id: str, ids: Sequence[str]) -> int | None:
        gone = self.deleter.bulk_delete(object_id, ids)
        self.ledger.mark_undone(ids)
        return gone

    def get_object(self, object_id: str) -> Any:
        return self.deleter.get_object(object_id)


@dataclass
class Restored:
    """What became of the rows: `failed` with the service's words, `in_doubt` may or may not be back, `unsent` were not tried."""

    restored: int = 0
    failed: dict[int, str] = field(default_factory=dict)
    in_doubt: int = 0
    unsent: int = 0
    requests: int = 0
    error: CrmctlError | None = None


@dataclass
class Restorer:
    """Sends what puts records back. Never raises for what the service answers: an error that ended it early is the result's `error`."""

    writer: Writer
    object_id: str
    ledger: UndoLog
    clock: Clock
    progress: Progress
    result: Restored = field(default_factory=Restored)

    def put_back(self, entries: Iterable[Entry], total: int) -> Restored:
        """Send all entries, or as many as there is reason to."""
        batcher = Batcher()
        self.progress.start("putting back", total, BULK_LIMIT)
        with watch_interrupts() as interrupt:
            for entry in entries:
                if interrupt.requested and self.result.error is None:
                    self.result.error = InterruptedByUser("interrupted")
                if (batch := batcher.feed(entry)) is not None:
                    self._send(batch)
            if interrupt.requested and self.result.error is None:
                self.result.error = InterruptedByUser("interrupted")
            if (batch := batcher.flush()) is not None:
                self._send(batch)
        self.progress.finish()
        return self.result

    def _send(self, batch: Batch) -> None:
        """One request; where it is refused as a whole its halves, down to the single record."""
        if self.result.error is not None:
            self.result.unsent += len(batch)
            return
        verdict, error = self._attempts(batch)
        if verdict.state is BatchState.BISECT:
            for half in batch.halves():
                self._send(half)
            return
        if verdict.state is BatchState.CONFIRMED:
            self.result.failed.update((batch.ordinals[index], reason) for index, reason in verdict.failures.items())
            done = [str(entry.id) for index, entry in enumerate(batch.entries) if index not in verdict.failures]
            self.ledger.mark_undone(done)
            self.result.restored += len(done)
            self.progress.advance(len(batch))
            return
        self.result.error = verdict.fatal or error
        if verdict.state is BatchState.IN_DOUBT:
            self.result.in_doubt += len(batch)
        else:
            self.result.unsent += len(batch)

    def _attempts(self, batch: Batch) -> tuple[Verdict, CrmctlError]:
        outcome: BulkResult | CrmctlError
        for attempt in range(ATTEMPTS):
            if attempt:
                self.clock.sleep(2.0 ** (attempt - 1))
            self.result.requests += 1
            try:
                outcome = self.writer.bulk_write(self.object_id, batch.records, mode="upsert")
            except NotFoundError as missing:
                outcome = RejectedError(missing.message)
            except CrmctlError as error:
                outcome = error
            verdict = judge(batch, outcome, mode="upsert")
            if verdict.state is not BatchState.IN_DOUBT:
                break
        failure = outcome if isinstance(outcome, CrmctlError) else ServiceError(verdict.reason)
        return verdict, failure
