"""The shared state of one run: batches in flight, and the reasons to stop."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import TYPE_CHECKING, TypeVar

from crmctl.bulk_context import Interrupt, Progress
from crmctl.client.crm import Crm
from crmctl.client.session import AttemptObserver
from crmctl.clock import Backoff, Clock
from crmctl.errors import CrmctlError, InterruptedByUser
from crmctl.files.validation import Batch, Entry
from crmctl.frozen import frozen
from crmctl.match.record_match import Known, Twins
from crmctl.models.resources import BULK_LIMIT, BulkResult
from crmctl.read.read_back import Reader
from crmctl.write.database import MAY_BE_THERE, BatchState
from crmctl.write.journal import DUPLICATE, Journal
from crmctl.write.verdicts import Verdict

if TYPE_CHECKING:
    from crmctl.client.answers import Page
    from crmctl.models.resources import Record


PATIENCE = Backoff(first=1.0)

ATTEMPTS = 4
"""Most attempts of a request while its outcome is unknown."""

T = TypeVar("T")

AS_OF = "keys as of"
"""Journal fact: a moment of the service, in microseconds, before which crmctl saw every change."""

WITHOUT_EFFECT = "the service answered that it updated the record, which still holds its old values"

SETTLE_SECONDS = 120.0
"""How many seconds after the send a missing row may still appear."""


def samples(rows: Sequence[T]) -> Sequence[T]:
    """Return the last, the first and the middle one of these rows, as far as they differ."""
    return [rows[place] for place in dict.fromkeys([len(rows) - 1, 0, len(rows) // 2])] if rows else []


def write_requests(records: int) -> int:
    """Return the number of requests that update or delete this many records: crmctl reads one record after each."""
    return 2 * -(-records // BULK_LIMIT)


WriteBatch = Callable[[str, Sequence[bytes], AttemptObserver], BulkResult]
"""Writes the records of one batch into an object. Jobs that delete or edit supply their own."""


class SentRows:
    """Valid rows of a job as sent, in input order. Can be read any number of times."""

    def __init__(self, entries: Callable[[], Iterable[Entry]]) -> None:
        self._entries = entries

    def since(self, ordinal: int) -> Iterator[Entry]:
        return (entry for entry in self._entries() if entry.ordinal >= ordinal)


@frozen
class DeliveryOptions:
    """Options of one run.

    `max_failures`: stop after this many refused rows. `settle`: seconds to watch rows in doubt. `capture_ids`: learn the ids of created
    records.
    """

    concurrency: int = 2
    max_rows: int = BULK_LIMIT
    max_failures: int | None = None
    settle: float = SETTLE_SECONDS
    capture_ids: bool = False
    settle_only: bool = False
    """Only settle rows in doubt. Absent rows are abandoned, not sent again."""
    trusts_lists: bool = False
    """Rows in doubt since an earlier run are absent if settled lists do not show them, even if nothing proves the lists current."""


@frozen
class SendContext:
    """One run of sending the rows of one journal."""

    service: Crm
    journal: Journal
    options: DeliveryOptions
    clock: Clock
    progress: Progress
    interrupt: Interrupt = field(default_factory=Interrupt, kw_only=True)
    newest: Callable[[], Page[Record] | None] = field(default=lambda: None, kw_only=True)
    """Returns the records changed last, if they were just read."""
    write: WriteBatch | None = field(default=None, kw_only=True)
    """Writes a batch in place of the bulk-write request."""

    def write_batch(self, records: Sequence[bytes], watch: AttemptObserver) -> BulkResult:
        header = self.journal.header
        if self.write is not None:
            return self.write(header.object_id, records, watch)
        mode = "create" if header.mode == "create" else "upsert"
        return self.service.bulk_write(header.object_id, records, mode=mode, watch=watch)

    def reader(self) -> Reader:
        """Return a reader of the job's object. It counts its requests and stops waiting after an interrupt."""
        return Reader(self.service, self.journal.header.object_id, lambda: self.interrupt.requested, note=self.progress.note)


DOUBTS_IN_A_ROW = 3
"""Consecutive batches in doubt after which sending pauses until they are settled."""

MOST_DOUBTS_IN_A_ROW = 6
"""Consecutive batches in doubt after which sending stops."""

REFUSALS_IN_A_ROW = 3
"""Consecutive batches refused down to the last row after which sending stops."""

TICK_SECONDS = 0.2


class Stopped(Exception):
    """Tells a sender to stop. Not an error."""


class Gate:
    """Admits several senders, or one reader while all senders wait, so that records can be counted."""

    def __init__(self, is_stopping: Callable[[], bool], is_interrupted: Callable[[], bool]) -> None:
        self._is_stopping = is_stopping
        self._is_interrupted = is_interrupted
        self._changed = threading.Condition()
        self._sending = self._waiting = 0
        self._looking = False

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Hold the gate open for one request. Raises Stopped when sending must stop."""
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
        """Wait for requests in flight and hold back new ones. Raises Stopped after an interrupt."""
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
    """Batches in flight. Safe for several threads.

    `error` is an interrupt, or an error that every further batch would meet. `crash` is an unexpected exception.
    """

    def __init__(self, first_number: int, interrupt: Interrupt, max_failures: int | None) -> None:
        self.error: CrmctlError | None = None
        self.crash: BaseException | None = None
        self.notes: list[str] = []
        self.gate = Gate(lambda: self.is_stopping, lambda: interrupt.requested)
        self._interrupt = interrupt
        self._max_failures = max_failures
        self._number = first_number
        self._in_flight: dict[int, tuple[Batch, threading.Thread]] = {}
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
        """Whether rows in doubt must be settled before new rows are sent."""
        return self._doubts >= DOUBTS_IN_A_ROW

    def calm(self) -> None:
        with self._changed:
            self._doubts = 0

    @contextmanager
    def departure(self, number: int, batch: Batch) -> Iterator[None]:
        """Enclose the journal entry of a batch about to leave. Raises Stopped when sending must stop."""
        with self._changed:
            if self.is_stopping:
                raise Stopped
            yield
            self._in_flight[number] = batch, threading.current_thread()

    @contextmanager
    def arrival(self, number: int) -> Iterator[None]:
        """Enclose the journal entry of a batch's outcome. Raises Stopped if it is late: the journal then already has the batch in doubt."""
        with self._changed:
            if number not in self._in_flight:
                raise Stopped
            try:
                yield
            finally:
                # If the journal write failed, the batch correctly stays SENDING.
                del self._in_flight[number]
                self._changed.notify_all()

    def wait(self) -> None:
        with self._changed:
            self._changed.wait(TICK_SECONDS if self._in_flight else TICK_SECONDS / 100)

    def close(self, grace: float, tell: Callable[[str], None]) -> dict[int, Batch]:
        """Wait for batches in flight and return those still unanswered. The batch of a thread that crashed is never answered.

        After an interrupt, announce the wait through `tell` and wait at most `grace` seconds. A second interrupt ends the wait.
        """
        deadline = None
        self._interrupt.is_patient = True
        with self._changed:
            while any(sender.is_alive() for _, sender in self._in_flight.values()):
                if self._interrupt.again or (deadline is not None and time.monotonic() >= deadline):
                    break
                if self._interrupt.requested and deadline is None:
                    deadline = time.monotonic() + grace
                    requests = "a request" if len(self._in_flight) == 1 else f"{len(self._in_flight)} requests"
                    doubt = f"waiting up to {grace:.0f} s for the answer of {requests} under way; Ctrl-C again to leave it in doubt"
                    self._interrupt.tell(tell, doubt)
                self._changed.wait(TICK_SECONDS)
            self._interrupt.is_patient = False
            if self._interrupt.requested and self.error is None:
                self.error = InterruptedByUser("interrupted")
            unanswered, self._in_flight = self._in_flight, {}
            return {number: batch for number, (batch, _) in unanswered.items()}

    def tally(self, verdict: Verdict) -> None:
        """Count the outcome of a batch or part, and decide whether to continue."""
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
        """Count batches refused down to the last part. A `reason` of None, for a batch accepted in part, resets the count."""
        with self._changed:
            self._refusals = self._refusals + 1 if reason is not None else 0
            if self._refusals >= REFUSALS_IN_A_ROW:
                self._stop(f"stopped: the service refused every row of {self._refusals} batches in a row: {reason}")

    def _stop(self, why: str) -> None:
        if not self.notes:
            self.notes.append(why)


Alike = Callable[[Collection[str]], Mapping[str, Iterable[tuple[str, int]]]]
"""Returns form and ordinal of the job's other rows that have the given keys."""


def known(journal: Journal, entries: Sequence[Entry], alike: Alike) -> Known:
    """Return earlier findings about the records that may match these entries, which are in input order."""
    rows = journal.rows(entries[0].ordinal, entries[-1].ordinal) if entries else {}
    names = {entry.ordinal: name for entry in entries if (row := rows.get(entry.ordinal)) and (name := row.record_id) is not None}
    return Known(lambda keys: {key: _twins(journal, rows) for key, rows in alike(keys).items()}, names, further_records(journal))


def further_records(journal: Journal) -> frozenset[str]:
    """Return the surplus records of rows that exist twice."""
    return frozenset(journal.kept(DUPLICATE))


def _twins(journal: Journal, rows: Iterable[tuple[str, int]]) -> dict[str, Twins]:
    names: dict[str, list[str | None]] = defaultdict(list)
    for form, ordinal in rows:
        entry = journal.row(ordinal)
        if entry is not None and entry.state in MAY_BE_THERE:
            names[form].append(entry.record_id)
    return {form: Twins(frozenset(filter(None, ids)), ids.count(None)) for form, ids in names.items()}
