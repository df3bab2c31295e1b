"""Carries the rows of a job to the service: gathers them into batches and keeps a few requests in flight.

What an answer means is decided in `sender`; reading and validating rows is not done here.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Iterable, Iterator

from crmctl.bulk.journal.lease import HEARTBEAT_SECONDS
from crmctl.bulk.journal.states import BatchState
from crmctl.bulk.journal.verdicts import Verdict
from crmctl.bulk.rows.batches import Batch, Batcher, Entry
from crmctl.bulk.send.context import SendContext
from crmctl.bulk.send.in_flight import TICK_SECONDS, InFlight, Stopped
from crmctl.bulk.send.reconcile import PARKED_LIMIT, Freed, Reconciler
from crmctl.bulk.send.sender import Sender, Task
from crmctl.errors import CrmctlError

GRACE_SECONDS = 5.0
"""How long requests in flight may take to end after an interrupt."""


class Delivery:
    """One run of sending. Afterwards `error` says what ended it early (an interrupt too), `notes` what the user should know."""

    def __init__(self, context: SendContext, reconciler: Reconciler) -> None:
        self._journal, self._clock = context.journal, context.clock
        self._reconciler = reconciler
        self._interrupt, options = context.interrupt, context.options
        self._batcher = Batcher(options.max_rows, options.max_bytes)
        self._in_flight = InFlight(self._journal.next_number(), self._interrupt, options.max_failures)
        self._backlog: deque[Freed] = deque()
        self._queue: queue.Queue[Task | None] = queue.Queue(maxsize=options.concurrency)
        self._is_read = False
        reconciler.gate = self._in_flight.gate
        reconciler.settled = context.progress.advance
        self._progress = context.progress
        self._is_wait_told = False
        reconciler.batches_to_come = lambda: self._queue.unfinished_tasks + len(self._backlog) + 2 * (not self._is_read)
        sender = Sender(context, self._in_flight, reconciler, self._batcher)
        # Daemons: a sender that waits for the rate limit must not keep a program alive that was told to end.
        self._threads = [threading.Thread(target=self._work, args=(sender,), daemon=True) for _ in range(options.concurrency)]
        self._beat_due = self._clock.monotonic() + HEARTBEAT_SECONDS

    @property
    def error(self) -> CrmctlError | None:
        return self._in_flight.error

    @property
    def notes(self) -> list[str]:
        return [*self._in_flight.notes, *self._reconciler.notes]

    def run(self, entries: Iterable[Entry]) -> None:
        """Send all entries in input order, or as many as there is reason to."""
        for thread in self._threads:
            thread.start()
        try:
            self._hand_out(entries)
            self._wait()
        except KeyboardInterrupt:
            self._interrupt.requested = self._interrupt.again = True
        except BaseException as error:
            self._in_flight.crash = error
        for number, batch in self._in_flight.close(GRACE_SECONDS, self._progress.note).items():
            self._journal.settle(number, batch, Verdict(BatchState.IN_DOUBT, reason="the program was stopped while it was sent"))
        if self._in_flight.crash is None and self._in_flight.error is None:
            self._reconciler.settle_refusals()
        if self._in_flight.crash is not None:
            raise self._in_flight.crash

    def _hand_out(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            batch = self._batcher.feed(entry)
            if batch is None:
                continue
            self._offer(batch)
            if self._in_flight.is_stopping:
                return
        last = self._batcher.flush()
        self._is_read = last is None
        self._answer_all()
        self._offer(last)
        self._is_read = True
        while not self._in_flight.is_stopping and (self._reconciler.pending or self._backlog or self._queue.unfinished_tasks):
            self._tend()
        for _ in self._threads:
            self._put(None)

    def _answer_all(self) -> None:
        """Wait for what is under way. The last batch goes alone: what it shows is then newer than every doubt before it."""
        while self._queue.unfinished_tasks and not self._in_flight.is_stopping:
            self._tend()

    def _offer(self, batch: Batch | None) -> None:
        if batch is not None:
            self._put(Task(self._in_flight.next_number(), batch))

    def _put(self, task: Task | None) -> None:
        """Wait until a sender has room, looking after rows in doubt, or until sending is to stop."""
        while not self._in_flight.is_stopping:
            if task is not None and (self._must_wait or self._backlog or self._has_due):
                self._tend()
                continue
            try:
                self._queue.put(task, timeout=TICK_SECONDS)
                return
            except queue.Full:
                self._beat()

    @property
    def _has_due(self) -> bool:
        return bool(self._reconciler.pending) and self._reconciler.wait <= 0

    @property
    def _must_wait(self) -> bool:
        """Whether rows in doubt are to be settled before new ones are sent."""
        busy = self._reconciler.pending or self._backlog or self._queue.unfinished_tasks
        is_paused = self._in_flight.is_paused and not (self._reconciler.is_starved and not self._queue.unfinished_tasks)
        return self._reconciler.pending >= PARKED_LIMIT or bool(is_paused and busy)

    def _tend(self) -> None:
        """Look after rows in doubt and send again what is proven absent; where there is nothing to do yet, wait a little."""
        if self._backlog and not self._queue.full():
            part = self._backlog.popleft()
            self._queue.put(Task(self._in_flight.next_number(), part.batch, round=part.round, refusal=part.refusal))
        elif self._has_due:
            recovered = self._reconciler.recovered
            self._backlog += (part for freed in self._reconciler.work() for part in self._parts(freed))
            if self._reconciler.recovered > recovered:
                self._in_flight.calm()
        elif self._queue.unfinished_tasks:
            self._in_flight.wait()
        else:
            self._tell_wait()
            self._clock.sleep(min(TICK_SECONDS, self._reconciler.wait))
        self._beat()

    def _tell_wait(self) -> None:
        """Once a run: a bar that stands still for minutes looks like a program that hangs."""
        if not self._is_wait_told and (text := self._reconciler.patience):
            self._is_wait_told = True
            self._progress.note(text)

    def _parts(self, freed: Freed) -> Iterator[Freed]:
        """What was looked for together may be more than a request takes."""
        batcher = Batcher(self._batcher.max_rows, self._batcher.max_bytes)
        parts = list(batcher.batches(freed.batch.entries))
        # A smaller request is another one: what was refused of the larger says nothing of it.
        return (Freed(part, freed.round, freed.refusal if len(parts) == 1 else None) for part in parts)

    def _wait(self) -> None:
        """Until every sender is through, or sending is to stop."""
        for thread in self._threads:
            while thread.is_alive() and not self._in_flight.is_stopping:
                thread.join(TICK_SECONDS)
                self._beat()

    def _beat(self) -> None:
        if self._clock.monotonic() >= self._beat_due:
            self._journal.beat()
            self._beat_due = self._clock.monotonic() + HEARTBEAT_SECONDS

    def _work(self, sender: Sender) -> None:
        try:
            while (task := self._queue.get()) is not None:
                try:
                    sender.deliver(task)
                finally:
                    self._queue.task_done()
        except Stopped:
            pass
        except BaseException as error:
            self._in_flight.crash = self._in_flight.crash or error
