"""Send batches until every row has an outcome."""

from __future__ import annotations

import os
import queue
import sys
import threading
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import dropwhile, repeat
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from crmctl.client.session import AttemptObserver
from crmctl.clock import Clock
from crmctl.errors import CrmctlError, storage_error
from crmctl.files.validation import NEW_ENTRY, Batch, Batcher, Entry
from crmctl.models import jsontext
from crmctl.models.resources import BulkResult
from crmctl.read.read_back import Reader
from crmctl.write.database import ABANDONED, HEARTBEAT_SECONDS, BatchState, RowState
from crmctl.write.evidence import Sent
from crmctl.write.in_flight import AS_OF, ATTEMPTS, PATIENCE, TICK_SECONDS, WITHOUT_EFFECT, InFlight, SendContext, SentRows, Stopped
from crmctl.write.journal import BEFORE, Journal
from crmctl.write.reconcile import PARKED_LIMIT, Reconciler, Task
from crmctl.write.verdicts import REFUSALS, Verdict, disbelieve, judge, refuse_all

MOST_SPLITS = 32
"""Most splits of one batch to find its bad rows, at two requests each. One bad row among 100 takes 7."""


class Sender:
    """Sends single batches. Stateless, so several threads may share one."""

    def __init__(self, context: SendContext, in_flight: InFlight, reconciler: Reconciler, batcher: Batcher) -> None:
        self._context = context
        self._journal, self._clock = context.journal, context.clock
        self._reader = Reader(context.service, context.journal.header.object_id)
        self._in_flight = in_flight
        self._reconciler = reconciler
        self._batcher = batcher

    def deliver(self, task: Task) -> None:
        """Send a batch. If the service refuses it as a whole, send it in parts. Raises Stopped when sending must end."""
        created, updated = ("not there", "deleted") if self._journal.header.mode == "delete" else ("created", "updated")
        parts = [task] if task.refusal is None else self._halves(task)
        refusals: list[str] = []
        failed = 0
        while parts:
            part = parts.pop()
            verdict = self._send(part, may_split=len(refusals) < MOST_SPLITS)
            failed += len(verdict.failures)
            if verdict.state is BatchState.BISECT:
                refusals.append(verdict.reason)
                parts += self._halves(part)
            elif verdict.state is not BatchState.IN_DOUBT:
                self._context.progress.advance(len(part.batch))
                self._context.progress.tally({created: verdict.created, updated: verdict.updated, "failed": len(verdict.failures)})
        refusal = refusals[-1] if refusals else task.refusal
        self._in_flight.tally_refusal(refusal if failed == len(task.batch) else None)

    def _halves(self, task: Task) -> list[Task]:
        """Return both halves, the first one last."""
        first, second = (Task(half, task.round, number=self._in_flight.next_number(), parent=task.number) for half in task.batch.halves())
        return [second, first]

    def _send(self, task: Task, *, may_split: bool) -> Verdict:
        record = _Attempts(task, self._journal, self._in_flight, self._clock)
        with self._in_flight.gate.sending():
            verdict = self._attempt(task, record)
            if verdict.updated and self._journal.header.mode != "delete" and not self._took_effect(task, verdict):
                ineffective = Verdict(BatchState.IN_DOUBT, reason=WITHOUT_EFFECT)
                return self._settle(record, ineffective, may_split=may_split, is_acknowledged=True)
            if task.parent is None and self._is_carried_out(task, verdict, record.sent_at):
                return self._settle(record, disbelieve(verdict), may_split=may_split)
            if not verdict.questionable:
                return self._settle(record, verdict, may_split=may_split)
        try:
            # Read back before believing a refusal: some services refuse after carrying out the request.
            with self._in_flight.gate.looking():
                sent = Sent(task.number, task.batch, record.sent_at, self._clock.now())
                if self._reconciler.believes(sent, is_part=task.parent is not None or verdict.fatal is not None):
                    return self._settle(record, verdict, may_split=may_split)
        except Stopped:
            pass
        return self._settle(record, disbelieve(verdict), may_split=may_split, refusal=verdict.reason)

    def _attempt(self, task: Task, record: _Attempts) -> Verdict:
        header = self._journal.header
        outcome: BulkResult | CrmctlError
        for _ in PATIENCE.tries(ATTEMPTS, self._clock.sleep):
            try:
                outcome = self._context.write_batch(task.batch.records, record)
            except CrmctlError as error:
                outcome = error
            verdict = judge(task.batch, outcome, mode=header.mode)
            is_refused = verdict.state is BatchState.PLANNED and verdict.fatal is not None and verdict.fatal.status in REFUSALS
            if is_refused and self._reconciler.evidence.can_count and any(entry.id is None for entry in task.batch.entries):
                verdict = replace(verdict, questionable=True)
            if not verdict.repeatable or header.mode != "delete" or self._in_flight.is_stopping:
                break
        return verdict

    def _took_effect(self, task: Task, verdict: Verdict) -> bool:
        """Whether the records of an acknowledged update show it. Unreadable ones do not."""
        from crmctl.write.effect import took_effect, updates_to_show

        entries = [entry for index, entry in enumerate(task.batch.entries) if entry.id is not None and index not in verdict.failures]
        try:
            return took_effect(self._reader, self._clock, updates_to_show(entries, self._images(entries), self._journal.recall(AS_OF)))
        except CrmctlError:
            return False

    def _is_carried_out(self, task: Task, verdict: Verdict, sent_at: float) -> bool:
        """Whether a record shows an update that the service refused. Takes one request."""
        entries = task.batch.entries
        refused = (
            verdict.fatal.status in REFUSALS if verdict.fatal is not None else verdict.state is not BatchState.IN_DOUBT and verdict.reason
        )
        if not refused or self._journal.header.mode == "delete" or any(entry.id is None for entry in entries):
            return False
        from crmctl.write.effect import StepStanding, shows_refused, updates_to_show

        images = self._images(entries)
        comparable = [entry for entry in entries if entry.ordinal in images]
        try:
            if not comparable:
                return shows_refused(self._reader, entries, sent_at, now=self._clock.now)
            record_id, weigh = next(updates_to_show(comparable, images, self._journal.recall(AS_OF)), ("", None))
            return weigh is not None and weigh(self._reader.record(record_id)) is StepStanding.AFTER
        except CrmctlError:
            return False

    def _images(self, entries: Sequence[Entry]) -> dict[int, Any]:
        return self._journal.kept(BEFORE, entries[0].ordinal, entries[-1].ordinal)

    def _settle(
        self, record: _Attempts, verdict: Verdict, *, may_split: bool, refusal: str | None = None, is_acknowledged: bool = False
    ) -> Verdict:
        task = record.task
        if verdict.too_large:
            self._batcher.max_bytes = max(1, min(self._batcher.max_bytes, task.batch.size // 2))
        if verdict.state is BatchState.BISECT and not may_split:
            verdict = refuse_all(task.batch, verdict.reason)
        record.settle(verdict)
        if verdict.state is BatchState.IN_DOUBT:
            sent = Sent(task.number, task.batch, record.sent_at, known_at=self._clock.now())
            self._reconciler.park(sent, task.round, refusal, is_acknowledged=is_acknowledged)
        else:
            created = [entry for at, entry in enumerate(task.batch.entries) if entry.id is None and at not in verdict.failures]
            if created and verdict.created == len(created):
                self._reconciler.confirm(created, record.sent_at, self._clock.now())
        self._in_flight.tally(verdict)
        return verdict


class _Attempts(AttemptObserver):
    """Journal entries of one batch: every attempt is stored before it is sent."""

    def __init__(self, task: Task, journal: Journal, in_flight: InFlight, clock: Clock) -> None:
        self.task = task
        self.idempotency_key = f"{journal.header.job}:{task.number}"
        self._journal = journal
        self._in_flight = in_flight
        self._clock = clock
        self._away = False
        self.sent_at = clock.now()

    def sending(self) -> None:
        self.sent_at = self._clock.now()
        number, batch = self.task.number, self.task.batch
        if self._away:
            self._journal.begin(number, batch)
            return
        with self._in_flight.departure(number, batch):
            self._journal.begin(number, batch, parent=self.task.parent)
        self._away = True

    def refused(self) -> None:
        self.settle(Verdict(BatchState.PLANNED, reason="refused for now"))

    def settle(self, verdict: Verdict) -> None:
        if self._away:
            with self._in_flight.arrival(self.task.number):
                self._journal.settle(self.task.number, self.task.batch, verdict)
            self._away = False


GRACE_SECONDS = 5.0
"""Time for requests in flight to finish after an interrupt."""


@contextmanager
def on_one_core() -> Iterator[None]:
    """Keep this thread, and those that it starts, on the core where it runs, if the system can (Linux).

    Threads that share Python's interpreter lock use one core at a time. On several cores each hand-over of the lock wakes another core: an
    import then takes half as much processor time again. The kernel moves other programs to the other cores.
    """
    allowed: set[int] = set()
    with suppress(OSError, AttributeError):  # another system, or one that forbids it
        core = int(Path("/proc/thread-self/stat").read_text().rpartition(")")[2].split()[36])
        if getattr(sys, "_is_gil_enabled", lambda: True)():
            before = os.sched_getaffinity(0)
            os.sched_setaffinity(0, {core})
            allowed = before
    try:
        yield
    finally:
        with suppress(OSError):
            if allowed:
                os.sched_setaffinity(0, allowed)


class Delivery:
    """One run of sending. Afterwards, `error` is what ended it early (including an interrupt) and `notes` are messages for the user."""

    def __init__(self, context: SendContext, reconciler: Reconciler) -> None:
        self._journal, self._clock = context.journal, context.clock
        self.error: CrmctlError | None = None
        self._reconciler = reconciler
        self._interrupt, options = context.interrupt, context.options
        self._batcher = Batcher(options.max_rows)
        first_number = 1 + max((batch.number for batch in self._journal.batches()), default=0)
        self._in_flight = InFlight(first_number, self._interrupt, options.max_failures)
        self._settle_only = options.settle_only
        self._backlog: deque[Task] = deque()
        self._queue: queue.Queue[Task | None] = queue.Queue(maxsize=options.concurrency)
        self._is_read = False
        reconciler.gate = self._in_flight.gate
        reconciler.settled = context.progress.advance
        self._progress = context.progress
        reconciler.batches_to_come = lambda: self._queue.unfinished_tasks + len(self._backlog) + 2 * (not self._is_read)
        sender = Sender(context, self._in_flight, reconciler, self._batcher)
        # Daemon threads: a sender waiting for the rate limit must not keep the process alive.
        self._threads = [threading.Thread(target=self._work, args=(sender,), daemon=True) for _ in range(options.concurrency)]
        self._beat_due = self._clock.monotonic() + HEARTBEAT_SECONDS

    @property
    def notes(self) -> list[str]:
        return [*self._in_flight.notes, *self._reconciler.notes]

    def run(self, entries: Iterable[Entry]) -> None:
        with on_one_core():
            for thread in self._threads:
                thread.start()
            try:
                self._hand_out(entries)
                for thread in self._threads:
                    while thread.is_alive() and not self._in_flight.is_stopping:
                        thread.join(TICK_SECONDS)
                        self._beat()
            except KeyboardInterrupt:
                self._interrupt.requested = self._interrupt.again = True
            except BaseException as error:
                self._in_flight.crash = error
        for number, batch in self._in_flight.close(GRACE_SECONDS, self._progress.note).items():
            self._journal.settle(number, batch, Verdict(BatchState.IN_DOUBT, reason="the program was stopped while it was sent"))
        with suppress(queue.Empty):  # batches not taken yet stay unsent
            while True:
                self._queue.get_nowait()
        for _ in self._threads:  # let idle senders of a stopped job end
            self._queue.put_nowait(None)
        if self._in_flight.crash is None and self._in_flight.error is None:
            self._reconciler.settle_refusals()
        self.error = self._in_flight.error
        if self._in_flight.crash is not None:
            raise self._in_flight.crash

    def _hand_out(self, entries: Iterable[Entry]) -> None:
        for batch in self._batcher.full(entries):
            self._offer(batch)
            if self._in_flight.is_stopping:
                return
        last = self._batcher.flush()
        self._is_read = last is None
        # The last batch goes alone, so its records are newer than every earlier doubt.
        while self._queue.unfinished_tasks and not self._in_flight.is_stopping:
            self._tend()
        if last is not None:
            self._offer(last)
        self._is_read = True
        while not self._in_flight.is_stopping and (self._reconciler.pending or self._backlog or self._queue.unfinished_tasks):
            self._tend()
        for _ in self._threads:
            self._put(None)

    def _offer(self, batch: Batch) -> None:
        self._put(Task(batch, number=self._in_flight.next_number()))

    def _put(self, task: Task | None) -> None:
        """Wait until a sender is free or sending must stop. Meanwhile, look after rows in doubt."""
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
        """Whether rows in doubt must be settled before new rows are sent."""
        busy = self._reconciler.pending or self._backlog or self._queue.unfinished_tasks
        is_paused = self._in_flight.is_paused and not (self._reconciler.is_starved and not self._queue.unfinished_tasks)
        return self._reconciler.pending >= PARKED_LIMIT or bool(is_paused and busy)

    def _tend(self) -> None:
        """Look after rows in doubt and send again those proven absent. Wait briefly if nothing is due."""
        if self._backlog and not self._queue.full():
            self._queue.put(replace(self._backlog.popleft(), number=self._in_flight.next_number()))
        elif self._has_due:
            recovered = self._reconciler.recovered
            freed = self._reconciler.work()
            if self._settle_only:
                ordinals = (entry.ordinal for part in freed for entry in part.batch.entries)
                self._journal.conclude((ordinal, RowState.SKIPPED, None, ABANDONED) for ordinal in ordinals)
            else:
                self._backlog += (part for batch in freed for part in self._parts(batch))
            if self._reconciler.recovered > recovered:
                self._in_flight.calm()
        elif self._queue.unfinished_tasks:
            self._in_flight.wait()
        else:
            if text := self._reconciler.announce_wait():
                self._progress.note(text)
            self._clock.sleep(min(TICK_SECONDS, self._reconciler.wait))
        self._beat()

    def _parts(self, task: Task) -> Iterator[Task]:
        batcher = Batcher(self._batcher.max_rows, self._batcher.max_bytes)
        parts = list(batcher.batches(task.batch.entries))
        # A refusal of the larger request says nothing about its parts.
        return (replace(task, batch=part, refusal=task.refusal if len(parts) == 1 else None) for part in parts)

    def _beat(self) -> None:
        if self._clock.monotonic() >= self._beat_due:
            self._journal.claim()
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


FILE_NAME = "rows"
READ_BYTES = 1_000_000
SPOOL_FORMAT = 2


class EntrySpool(SentRows):
    """Entries on disk, ordered by ordinal. Without `keep`, the file is deleted when it is closed."""

    _lock = threading.Lock()

    def __init__(self, folder: Path) -> None:
        self._path = folder / f"{FILE_NAME}.part"
        self._file = os.fdopen(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600), "r+b")

    @classmethod
    def kept(cls, folder: Path, seal: Sequence[int] | None) -> EntrySpool | None:
        """Return the entries kept by an earlier run; None unless the file matches its seal. The rows can then be built again."""
        spool = cls.__new__(cls)
        spool._path = folder / FILE_NAME
        try:
            spool._file = spool._path.open("r+b")
        except OSError:
            return None
        if seal is None or spool._seal() != [*seal]:
            spool._file.close()
            return None
        return spool

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            with self._on_disk():
                self._file.close()
        finally:
            if self._path.name != FILE_NAME:
                self._path.unlink(missing_ok=True)

    def add(self, entries: Sequence[Entry]) -> None:
        """Add a block of entries: a line with the length of the records, first and last ordinal, all ordinals if some are missing between
        them, and the ids if there are any; then the records, whose JSON has no line feed."""
        if not entries:
            return
        ordinals, records, ids = zip(*entries, strict=True)
        content, first, last = b"\n".join(records), ordinals[0], ordinals[-1]
        is_complete = last - first < len(ordinals)
        head = jsontext.dumps([len(content), first, last, None if is_complete else ordinals, ids if any(ids) else None])
        with self._on_disk():
            self._file.write(b"%s\n%s\n" % (head.encode(), content))

    def keep(self) -> list[int]:
        """Sync the file and keep it for later runs. Return a seal that shows whether it is still complete. Raises StorageError."""
        with self._on_disk():
            self._file.flush()
            os.fsync(self._file.fileno())
            seal = self._seal()
            self._path = self._path.rename(self._path.with_name(FILE_NAME))
        return seal

    @staticmethod
    def discard(folder: Path) -> None:
        (folder / FILE_NAME).unlink(missing_ok=True)

    def since(self, ordinal: int) -> Iterator[Entry]:
        """Yield the entries from a row on. Several readers may take turns."""
        at = 0
        while True:
            with self._lock:
                self._file.seek(at)
                if not (head := self._file.readline()):
                    return
                length, first, last, ordinals, ids = jsontext.loads(head)
                at += len(head) + length + 1
                if last < ordinal:
                    continue
                records = self._file.read(length).split(b"\n")
            entries = map(NEW_ENTRY, zip(ordinals or range(first, last + 1), records, ids or repeat(None, len(records)), strict=True))
            yield from entries if first >= ordinal else dropwhile(lambda entry: entry.ordinal < ordinal, entries)

    @contextmanager
    def _on_disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise storage_error(error, self._path) from error

    def _seal(self) -> list[int]:
        """Return format, size and checksum."""
        check = 0
        self._file.seek(0)
        while block := self._file.read(READ_BYTES):
            check = zlib.crc32(block, check)
        return [SPOOL_FORMAT, self._file.tell(), check]
