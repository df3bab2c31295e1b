"""What the threads of one delivery share: batch numbers, what is in flight, and the reasons to stop. No I/O of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from crmctl.bulk.interrupts import Interrupt
from crmctl.bulk.journal.states import BatchState
from crmctl.bulk.journal.verdicts import Verdict
from crmctl.bulk.rows.batches import Batch
from crmctl.errors import CrmctlError, InterruptedByUser

DOUBTS_IN_A_ROW = 3
"""So many doubtful batches one after the other mean that the service is in trouble: nothing new is sent before they are settled."""

MOST_DOUBTS_IN_A_ROW = 6
"""So many mean that the trouble lasts: sending stops."""

REFUSALS_IN_A_ROW = 3
"""So many batches refused down to the last row mean that something is wrong with all of them: sending stops."""

TICK_SECONDS = 0.2


class Stopped(Exception):
    """How a sender learns that nothing more is to be sent. No error."""


class Gate:
    """Several may send at a time, or one may look while nobody sends: only then records can be counted."""

    def __init__(self, is_stopping: Callable[[], bool], is_interrupted: Callable[[], bool]) -> None:
        self._is_stopping = is_stopping
        self._is_interrupted = is_interrupted
        self._changed = threading.Condition()
        self._sending = self._waiting = 0
        self._looking = False

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Raises Stopped when nothing more is to be sent."""
        with self._changed:
            self._until(lambda: not self._waiting and not self._looking, self._is_stopping)
            self._sending += 1
        try:
            yield
        finally:
            with self._changed:
                self._sending -= 1
                self._changed.notify_all()

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Waits for what is under way, and keeps off what comes. Raises Stopped after an interrupt."""
        with self._changed:
            self._waiting += 1
            try:
                self._until(lambda: not self._sending and not self._looking, self._is_interrupted)
                self._looking = True
            finally:
                self._waiting -= 1
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._looking = False
                self._changed.notify_all()

    def _until(self, ready: Callable[[], bool], ended: Callable[[], bool]) -> None:
        while not ready():
            if ended():
                raise Stopped
            self._changed.wait(TICK_SECONDS)


class InFlight:
    """Safe for several threads. `error` is an error every further batch would meet, or the interrupt; `crash` an unexpected exception."""

    def __init__(self, first_number: int, interrupt: Interrupt, max_failures: int | None) -> None:
        self.error: CrmctlError | None = None
        self.crash: BaseException | None = None
        self.notes: list[str] = []
        self.gate = Gate(lambda: self.is_stopping, lambda: interrupt.requested)
        self._interrupt = interrupt
        self._max_failures = max_failures
        self._number = first_number
        self._in_flight: dict[int, Batch] = {}
        self._changed = threading.Condition()
        self._failed_rows = self._doubts = self._refusals = 0

    def next_number(self) -> int:
        with self._changed:
            number = self._number
            self._number += 1
            return number

    @property
    def is_stopping(self) -> bool:
        return self._interrupt.requested or bool(self.notes) or self.error is not None or self.crash is not None

    @property
    def is_paused(self) -> bool:
        """Whether rows in doubt are to be settled before anything new is sent."""
        return self._doubts >= DOUBTS_IN_A_ROW

    def calm(self) -> None:
        """The service has shown that it works."""
        with self._changed:
            self._doubts = 0

    @contextmanager
    def departure(self, number: int, batch: Batch) -> Iterator[None]:
        """Around writing down that a batch leaves. Raises Stopped when nothing more is to be sent."""
        with self._changed:
            if self.is_stopping:
                raise Stopped
            yield
            self._in_flight[number] = batch

    @contextmanager
    def arrival(self, number: int) -> Iterator[None]:
        """Around writing down what became of a batch. Raises Stopped when it comes too late: the batch is down as doubtful."""
        with self._changed:
            if number not in self._in_flight:
                raise Stopped
            try:
                yield
            finally:
                # What could not be written down is still down as SENDING, which is right.
                del self._in_flight[number]
                self._changed.notify_all()

    def wait(self) -> None:
        """A short while, or until a batch arrives."""
        with self._changed:
            if self._in_flight:
                self._changed.wait(TICK_SECONDS)
            else:
                self._changed.wait(TICK_SECONDS / 100)

    def close(self, grace: float, tell: Callable[[str], None]) -> dict[int, Batch]:
        """Wait for what is in flight; after an interrupt only `grace` seconds, as `tell` hears, and after another one no longer. Returns
        what is still in flight then."""
        deadline = None
        self._interrupt.is_patient = True
        with self._changed:
            while self._in_flight and not self._interrupt.again and (deadline is None or time.monotonic() < deadline):
                if self._interrupt.requested and deadline is None:
                    deadline = time.monotonic() + grace
                    what = "a request" if len(self._in_flight) == 1 else f"{len(self._in_flight)} requests"
                    doubt = f"waiting up to {grace:.0f} s for the answer of {what} under way; Ctrl-C again to leave it in doubt"
                    self._interrupt.tell(tell, doubt)
                self._changed.wait(TICK_SECONDS)
            self._interrupt.is_patient = False
            if self._interrupt.requested and self.error is None:
                self.error = InterruptedByUser("interrupted")
            left, self._in_flight = self._in_flight, {}
            return left

    def tally(self, verdict: Verdict) -> None:
        """Count what became of a batch or a part of one, and decide whether to go on."""
        with self._changed:
            self._failed_rows += len(verdict.failures)
            self._doubts = self._doubts + 1 if verdict.state is BatchState.IN_DOUBT else 0
            if verdict.fatal is not None:
                self.error = self.error or verdict.fatal
            if self._max_failures is not None and self._failed_rows >= self._max_failures:
                self._stop(f"stopped after {self._failed_rows} failed rows (--max-failures {self._max_failures})")
            elif self._doubts >= MOST_DOUBTS_IN_A_ROW:
                self._stop(f"stopped: the outcome of {self._doubts} requests in a row is unknown")

    def tally_refusal(self, reason: str | None) -> None:
        """Count batches that were refused as a whole and in every part; None for one of which something was accepted."""
        with self._changed:
            self._refusals = self._refusals + 1 if reason is not None else 0
            if self._refusals >= REFUSALS_IN_A_ROW:
                self._stop(f"stopped: the service refused every row of {self._refusals} batches in a row: {reason}")

    def _stop(self, why: str) -> None:
        if not self.notes:
            self.notes.append(why)
