"""Send batches until every row has an outcome."""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import count, dropwhile, repeat
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from crmctl.client.session import AttemptObserver
from crmctl.errors import CrmctlError, InterruptedByUser, storage_error
from crmctl.files.validation import NEW_ENTRY, Batch, Batcher, Entry
from crmctl.models import jsontext
from crmctl.models.resources import BulkResult
from crmctl.read.read_back import Reader
from crmctl.write.database import ABANDONED, HEARTBEAT_SECONDS, BatchState, RowState
from crmctl.write.journal import BEFORE
from crmctl.write.reconcile import PARKED_LIMIT, Reconciler, Task
from crmctl.write.send_context import AS_OF, ATTEMPTS, PATIENCE, WITHOUT_EFFECT, SendContext, SentRows, Stopped
from crmctl.write.verdicts import REFUSALS, Verdict, disbelieve, judge, refuse_all

MOST_SPLITS = 32
"""Most splits of one batch to find its bad rows, at two requests each. One bad row among 100 takes 7."""

DOUBTS_IN_A_ROW = 3
"""Consecutive batches in doubt after which sending pauses until they are settled."""

MOST_DOUBTS_IN_A_ROW = 6
"""Consecutive batches in doubt after which sending stops."""

REFUSALS_IN_A_ROW = 3
"""Consecutive batches refused down to the last row after which sending stops."""

TICK_SECONDS = 0.2

GRACE_SECONDS = 5.0
"""Time for requests under way to finish after an interrupt."""


class Attempts(AttemptObserver):
    """The attempts to send one batch. Each is journaled before it leaves. `was_sent`: the journal awaits the outcome."""

    def __init__(self, task: Task, delivery: Delivery) -> None:
        self.task = task
        self.was_sent = False
        self._delivery, self._context = delivery, delivery.context
        self._journal, self._clock = self._context.journal, self._context.clock
        self.idempotency_key = f"{self._journal.header.job}:{task.number}"
        task.sent_at = self._clock.now()

    def sending(self) -> None:
        number, self.task.sent_at = self.task.number, self._clock.now()
        with self._delivery.lock:
            if self._delivery.is_stopping and number not in self._delivery.away:
                raise Stopped
            self._journal.begin(number, self.task.batch, parent=self.task.parent)
            self._delivery.away[number] = self.task.batch

    def refused(self) -> None:
        with self._delivery.lock:
            if self._delivery.away.pop(self.task.number, None) is None:
                raise Stopped  # too late: the journal already has the batch in doubt
            self._journal.settle(self.task.number, self.task.batch, Verdict(BatchState.PLANNED, reason="refused for now"))

    def send(self) -> Verdict:
        """Send the batch, and look whether its updates show. Raises Stopped when sending must end."""
        verdict = self._attempt()
        if verdict.updated and self._journal.header.mode != "delete" and not self._took_effect(verdict):
            return Verdict(BatchState.IN_DOUBT, reason=WITHOUT_EFFECT)
        if self.task.parent is None and self._is_carried_out(verdict):
            return disbelieve(verdict)
        return verdict

    def _attempt(self) -> Verdict:
        header, batch = self._journal.header, self.task.batch
        outcome: BulkResult | CrmctlError
        for _ in PATIENCE.tries(ATTEMPTS, self._clock.sleep):
            try:
                outcome = self._context.write_batch(batch.records, self)
            except CrmctlError as error:
                outcome = error
            verdict = judge(batch, outcome, mode=header.mode)
            is_refused = verdict.state is BatchState.PLANNED and verdict.fatal is not None and verdict.fatal.status in REFUSALS
            if is_refused and self._delivery.can_count and any(entry.id is None for entry in batch.entries):
                verdict = replace(verdict, questionable=True)
            if not verdict.repeatable or header.mode != "delete" or self._delivery.is_stopping:
                break
        return verdict

    def _took_effect(self, verdict: Verdict) -> bool:
        """Whether the records of an acknowledged update show it. Unreadable ones do not."""
        from crmctl.write.effect import took_effect, updates_to_show

        entries = [entry for index, entry in enumerate(self.task.batch.entries) if entry.id is not None and index not in verdict.failures]
        try:
            return took_effect(self._reader(), self._clock, updates_to_show(entries, self._images(entries), self._journal.recall(AS_OF)))
        except CrmctlError:
            return False

    def _is_carried_out(self, verdict: Verdict) -> bool:
        """Whether a record shows an update that the service refused. Takes one request."""
        entries = self.task.batch.entries
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
                return shows_refused(self._reader(), entries, self.task.sent_at, now=self._clock.now)
            record_id, weigh = next(updates_to_show(comparable, images, self._journal.recall(AS_OF)), ("", None))
            return weigh is not None and weigh(self._reader().record(record_id)) is StepStanding.AFTER
        except CrmctlError:
            return False

    def _images(self, entries: Sequence[Entry]) -> dict[int, Any]:
        return self._journal.kept(BEFORE, entries[0].ordinal, entries[-1].ordinal)

    def _reader(self) -> Reader:
        return Reader(self._context.service, self._journal.header.object_id)


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


@dataclass
class Assignment:
    """A batch that was handed out. `parts`: what is still to be sent of it after a refusal of the whole, the next one last."""

    size: int
    parts: list[Task]
    refusal: str | None
    splits: int = 0
    failed: int = 0


class Delivery:
    """One run of sending. Afterwards, `error` is what ended it early (including an interrupt) and `notes` are messages for the user.

    The thread of `run` hands out batches, journals their outcomes and decides what follows. The senders are threads that only send.
    """

    def __init__(self, context: SendContext, reconciler: Reconciler) -> None:
        self.context = context
        self.error: CrmctlError | None = None
        self.lock = threading.Lock()
        self.away: dict[int, Batch] = {}
        """The batches under way, by number; guarded by `lock`."""
        self._journal, self._clock, self._progress = context.journal, context.clock, context.progress
        self._interrupt, self._options = context.interrupt, context.options
        self._reconciler = reconciler
        reconciler.looking = self._looking
        reconciler.batches_to_come = lambda: len(self._assignments) + len(self._backlog) + 2 * (not self._is_read)
        self._batcher = Batcher(self._options.max_rows)
        self._numbers = count(1 + max((batch.number for batch in self._journal.batches()), default=0))
        self._backlog: deque[Task] = deque()
        self._assignments: dict[int, Assignment] = {}  # by the number of the batch or part that is to be settled next
        self._held: deque[Task] = deque()
        self._questions: deque[tuple[Attempts, Verdict]] = deque()
        self._busy = self._failed_rows = self._doubts = self._refusals = 0
        self._is_read = self._is_looking = False
        self._reasons: list[str] = []
        self._crash: BaseException | None = None
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        # A signal near the end of a timeout lets a SimpleQueue of CPython wait for ever.
        self._answers: queue.Queue[tuple[Attempts, Verdict | BaseException]] = queue.Queue()
        self.can_count = reconciler.evidence.can_count
        # Daemon threads: a sender waiting for the rate limit must not keep the process alive.
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(self._options.concurrency)]
        self._beat_due = self._clock.monotonic() + HEARTBEAT_SECONDS

    @property
    def notes(self) -> list[str]:
        return [*self._reasons, *self._reconciler.notes]

    @property
    def is_stopping(self) -> bool:
        return self._interrupt.requested or bool(self._reasons) or self.error is not None or self._crash is not None

    def run(self, entries: Iterable[Entry]) -> None:
        try:
            with on_one_core():
                for thread in self._threads:
                    thread.start()
                try:
                    self._send_all(entries)
                except KeyboardInterrupt:
                    self._interrupt.requested = self._interrupt.again = True
                except BaseException as error:
                    self._crash = error
            self._close()
        finally:
            for _ in self._threads:
                self._tasks.put(None)
        if self._crash is not None:
            raise self._crash
        if self.error is None:
            self._reconciler.settle_refusals()

    def _send_all(self, entries: Iterable[Entry]) -> None:
        for batch in self._batcher.full(entries):
            self._offer(batch)
            if self.is_stopping:
                return
        last = self._batcher.flush()
        self._is_read = last is None
        # The last batch goes alone, so its records are newer than every earlier doubt.
        while self._assignments and not self.is_stopping:
            self._tend()
        if last is not None:
            self._offer(last)
        self._is_read = True
        while not self.is_stopping and (self._reconciler.pending or self._backlog or self._assignments):
            self._tend()

    def _offer(self, batch: Batch) -> None:
        """Hand out a batch once a sender is free, unless sending must stop. Meanwhile, look after rows in doubt."""
        while not self.is_stopping and (self._is_full or self._must_wait or self._backlog or self._has_due):
            self._tend()
        if not self.is_stopping:
            self._assign(Task(batch))

    @property
    def _is_full(self) -> bool:
        return len(self._assignments) >= self._options.concurrency

    @property
    def _has_due(self) -> bool:
        return bool(self._reconciler.pending) and self._reconciler.wait <= 0

    @property
    def _must_wait(self) -> bool:
        """Whether rows in doubt must be settled before new rows are sent."""
        busy = self._reconciler.pending or self._backlog or self._assignments
        is_paused = self._doubts >= DOUBTS_IN_A_ROW and not (self._reconciler.is_starved and not self._assignments)
        return self._reconciler.pending >= PARKED_LIMIT or bool(is_paused and busy)

    def _tend(self) -> None:
        """Take the next answer, look after rows in doubt and send again those proven absent. Wait briefly if nothing is due."""
        if self._backlog and not self._is_full:
            self._assign(self._backlog.popleft())
        elif self._has_due:
            recovered = self._reconciler.recovered
            freed = self._reconciler.work()
            if self._options.settle_only:
                ordinals = (entry.ordinal for part in freed for entry in part.batch.entries)
                self._journal.conclude((ordinal, RowState.SKIPPED, None, ABANDONED) for ordinal in ordinals)
            else:
                self._backlog += (part for batch in freed for part in self._parts(batch))
            if self._reconciler.recovered > recovered:
                self._doubts = 0
            self._release()
        elif self._assignments:
            self._receive()
        else:
            if text := self._reconciler.announce_wait():
                self._progress.note(text)
            self._clock.sleep(min(TICK_SECONDS, self._reconciler.wait))
        if self._clock.monotonic() >= self._beat_due:
            self._journal.claim()
            self._beat_due = self._clock.monotonic() + HEARTBEAT_SECONDS

    def _parts(self, task: Task) -> Iterator[Task]:
        batcher = Batcher(self._batcher.max_rows, self._batcher.max_bytes)
        parts = list(batcher.batches(task.batch.entries))
        # A refusal of the larger request says nothing about its parts.
        return (Task(part, round=task.round, refusal=task.refusal if len(parts) == 1 else None) for part in parts)

    # -- handing out -----------------------------------------------------------------------------------------------------------------

    def _assign(self, task: Task) -> None:
        """Hand out a batch, in halves if the service has refused it as a whole."""
        task.number = next(self._numbers)
        self._go_on(Assignment(len(task.batch), self._halves(task) if task.refusal is not None else [task], task.refusal))

    def _halves(self, task: Task) -> list[Task]:
        """Return both halves, the first one last."""
        return [Task(half, next(self._numbers), round=task.round, parent=task.number) for half in task.batch.halves()][::-1]

    def _go_on(self, assignment: Assignment) -> None:
        """Hand out the next part of a batch. Without one, count whether the service refused all its rows."""
        if assignment.parts:
            part = assignment.parts.pop()
            self._assignments[part.number] = assignment
            self._held.append(part)
            self._release()
            return
        self._refusals = self._refusals + 1 if assignment.refusal is not None and assignment.failed == assignment.size else 0
        if self._refusals >= REFUSALS_IN_A_ROW:
            self._stop(f"stopped: the service refused every row of {self._refusals} batches in a row: {assignment.refusal}")

    def _release(self) -> None:
        """Let senders take the batches handed out, unless records are counted, or are to be once no request is under way."""
        while self._held and not self._questions and not self._is_looking:
            self._busy += 1
            self._tasks.put(self._held.popleft())

    @contextmanager
    def _looking(self) -> Iterator[None]:
        """Wait for the requests under way, and send none during the block. Raises Stopped after an interrupt."""
        self._is_looking = True
        try:
            while self._busy:
                if self._interrupt.requested:
                    raise Stopped
                self._receive()
            yield
        finally:
            self._is_looking = False

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            attempts = Attempts(task, self)
            try:
                outcome: Verdict | BaseException = attempts.send()
            except BaseException as error:
                outcome = error
            self._answers.put((attempts, outcome))

    # -- outcomes --------------------------------------------------------------------------------------------------------------------

    def _receive(self) -> None:
        """Take one answer, if one comes soon, and settle its batch."""
        try:
            attempts, outcome = self._answers.get(timeout=TICK_SECONDS)
        except queue.Empty:
            return
        self._busy -= 1
        task = attempts.task
        with self.lock:
            attempts.was_sent = self.away.pop(task.number, None) is not None
        if not isinstance(outcome, Verdict):
            del self._assignments[task.number]
            self._crash = self._crash if isinstance(outcome, Stopped) else self._crash or outcome
            self._lose({task.number: task.batch} if attempts.was_sent else {})
        elif outcome.questionable:
            self._questions.append((attempts, outcome))
        else:
            self._settle(attempts, outcome)
        if not self._busy:
            self._answer_questions(looks=True)

    def _answer_questions(self, *, looks: bool) -> None:
        """Read back before believing a refusal: some services refuse after carrying out the request."""
        while self._questions:
            attempts, verdict = self._questions.popleft()
            task = attempts.task
            task.known_at = self._clock.now()
            if looks and self._reconciler.believes(task, is_part=task.parent is not None or verdict.fatal is not None):
                self._settle(attempts, verdict)
            else:
                self._settle(attempts, disbelieve(verdict), refusal=verdict.reason)

    def _settle(self, attempts: Attempts, verdict: Verdict, refusal: str | None = None) -> None:
        """Journal the outcome of a batch and hand out the next part of it. `refusal`: the service's message, if it may be false."""
        task, assignment = attempts.task, self._assignments.pop(attempts.task.number)
        if verdict.too_large:
            self._batcher.max_bytes = max(1, min(self._batcher.max_bytes, task.batch.size // 2))
        if verdict.state is BatchState.BISECT and assignment.splits >= MOST_SPLITS:
            verdict = refuse_all(task.batch, verdict.reason)
        if attempts.was_sent:
            self._journal.settle(task.number, task.batch, verdict)
        if verdict.state is BatchState.IN_DOUBT:
            task.known_at, task.refusal, task.is_acknowledged = self._clock.now(), refusal, verdict.reason == WITHOUT_EFFECT
            self._reconciler.park(task)
        else:
            created = [entry for at, entry in enumerate(task.batch.entries) if entry.id is None and at not in verdict.failures]
            if created and verdict.created == len(created):
                self._reconciler.confirm(created, task.sent_at, self._clock.now())
        self._tally(verdict)
        assignment.failed += len(verdict.failures)
        if verdict.state is BatchState.BISECT:
            assignment.refusal, assignment.splits = verdict.reason, assignment.splits + 1
            assignment.parts += self._halves(task)
        elif verdict.state is not BatchState.IN_DOUBT:
            created_word, updated_word = ("not there", "deleted") if self._journal.header.mode == "delete" else ("created", "updated")
            self._progress.advance(len(task.batch))
            self._progress.tally({created_word: verdict.created, updated_word: verdict.updated, "failed": len(verdict.failures)})
        self._go_on(assignment)

    def _tally(self, verdict: Verdict) -> None:
        """Count the outcome of a batch or part, and decide whether to continue."""
        self._failed_rows += len(verdict.failures)
        self._doubts = self._doubts + 1 if verdict.state is BatchState.IN_DOUBT else 0
        self.error = self.error or verdict.fatal
        most = self._options.max_failures
        if most is not None and self._failed_rows >= most:
            self._stop(f"stopped after {self._failed_rows} failed rows (--max-failures {most})")
        elif self._doubts >= MOST_DOUBTS_IN_A_ROW:
            self._stop(f"stopped: the outcome of {self._doubts} requests in a row is unknown")

    def _stop(self, why: str) -> None:
        self._reasons = self._reasons or [why]

    def _close(self) -> None:
        """Wait for the requests under way, after an interrupt at most GRACE_SECONDS. A second interrupt ends the wait.

        Batches that are still unanswered then are in doubt.
        """
        interrupt, deadline = self._interrupt, float("inf")
        interrupt.is_patient = True
        while (under_way := self._number_away()) and not interrupt.again and time.monotonic() < deadline:
            if interrupt.requested and deadline == float("inf"):
                deadline = time.monotonic() + GRACE_SECONDS
                requests = "a request" if under_way == 1 else f"{under_way} requests"
                doubt = f"waiting up to {GRACE_SECONDS:.0f} s for the answer of {requests} under way; Ctrl-C again to leave it in doubt"
                interrupt.tell(self._progress.note, doubt)
            self._receive()
        interrupt.is_patient = False
        self._answer_questions(looks=not interrupt.requested)
        if interrupt.requested and self.error is None:
            self.error = InterruptedByUser("interrupted")
        with self.lock:
            unanswered, self.away = self.away, {}
        self._lose(unanswered)

    def _number_away(self) -> int:
        with self.lock:
            return len(self.away)

    def _lose(self, batches: Mapping[int, Batch]) -> None:
        for number, batch in batches.items():
            self._journal.settle(number, batch, Verdict(BatchState.IN_DOUBT, reason="the program was stopped while it was sent"))


FILE_NAME = "rows"
READ_BYTES = 1_000_000
SPOOL_FORMAT = 2


class EntrySpool(SentRows):
    """Entries on disk, ordered by ordinal. Without `keep`, the file is deleted when it is closed."""

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
