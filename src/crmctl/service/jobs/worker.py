"""Background threads of a service process, and the jobs that dispatch events, write logs and remove data piece by piece."""

from __future__ import annotations

import contextlib
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Generic, TypeVar

from crmctl.frozen import frozen
from crmctl.service.context import Context
from crmctl.service.faults import FAILURES, Busy, Held, Unavailable
from crmctl.service.store import change_log, logs, objects, webhooks, workflows
from crmctl.service.store.engine import Engine
from crmctl.service.store.logs import LoggedRequest
from crmctl.service.store.tx import Tx

POLL_SECONDS = 0.25
"""Longest sleep, and so the delay before work is noticed. A look costs one indexed read, and also finds what other processes left."""

REST_SECONDS = 5.0
"""Pause after a job failed, for example because the database is away."""


@frozen
class Job:
    """Repeating work. Processes coordinate it through the database alone."""

    run: Callable[[], object]
    """Does the work that is there, and returns whether to look again at once."""
    seconds: float = POLL_SECONDS
    """Time until the next look, if not at once."""
    close: Callable[[], None] = lambda: None
    """Finishes the work under way."""


class Worker:
    """Runs each job on a thread until stopped. A failing job is reported and tried again; it never stops the others."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=[job], daemon=True) for job in jobs]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _run(self, job: Job) -> None:
        while not self._stopping.is_set():
            try:
                pause = 0.0 if job.run() else job.seconds
            except Exception as error:
                FAILURES.tell(error)
                pause = REST_SECONDS
            self._stopping.wait(pause)
        job.close()


T = TypeVar("T")


class ClaimingJob(ABC, Generic[T]):
    """Claims pieces of work for `most` places, and does each on a thread. Errors of the work are reported; its lease in the database
    decides about the rest."""

    def __init__(self, context: Context, most: int, name: str) -> None:
        self._context = context
        self._most = most
        self._under_way: set[Future[None]] = set()
        self._pool = ThreadPoolExecutor(most, thread_name_prefix=name)

    def run_once(self) -> bool:
        """Start what is due and has a place. Returns whether to look again at once."""
        self._under_way = {future for future in self._under_way if not future.done()}
        engine, places = self._context.engine, self._most - len(self._under_way)
        claimed = engine.write(lambda tx: self.claim(tx, places)) if places and engine.read(self.is_due) else []
        if not claimed and self._under_way:
            # A piece that has ended since the first line ends the wait at once.
            wait(self._under_way, POLL_SECONDS, FIRST_COMPLETED)
        self._under_way |= {self._pool.submit(self._run, item) for item in claimed}
        return bool(self._under_way)

    def close(self) -> None:
        """Wait for the work under way."""
        self._pool.shutdown()

    @abstractmethod
    def is_due(self, tx: Tx) -> bool: ...

    @abstractmethod
    def claim(self, tx: Tx, most: int) -> list[T]: ...

    @abstractmethod
    def work(self, item: T) -> None: ...

    def _run(self, item: T) -> None:
        try:
            self.work(item)
        except Exception as error:
            FAILURES.tell(error)


BATCH = 200

Consumer = Callable[..., None]
"""Takes `(tx, events, ids=, now=)` and stores the consequences of the events; it does nothing else."""


def dispatch(context: Context, consumers: Sequence[Consumer]) -> bool:
    """Hand the oldest waiting events to their consumers. Returns whether there were any."""

    def hand_over(tx: Tx) -> bool:
        events = change_log.take_waiting(tx, BATCH)
        for consumer in consumers if events else ():
            consumer(tx, events, ids=context.ids, now=context.clock.now())
        return bool(events)

    return context.engine.read(change_log.is_waiting) and context.engine.write(hand_over)


MOST_WAITING = 20_000
"""Most entries kept while the database is away."""


class RequestLogWriter:
    """Collects the entries of the request log, which a job writes once a second, so that no request waits. A killed process loses a
    second's worth."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._held: list[LoggedRequest] = []
        self.dropped = 0

    def add(self, request: LoggedRequest) -> None:
        with self._lock:
            if len(self._held) < MOST_WAITING:
                self._held.append(request)
            else:
                self.dropped += 1

    def close(self) -> None:
        """Write the rest, if the database is there."""
        try:
            self.work()
        except Unavailable:
            self.dropped += len(self._held)
            self._held.clear()

    def work(self) -> None:
        with self._lock:
            entries, self._held = self._held, []
        if not entries:
            return
        try:
            self._engine.write(lambda tx: logs.append(tx, entries))
        except BaseException:
            with self._lock:
                self._held = (entries + self._held)[:MOST_WAITING]
            raise


AGAIN_SECONDS = 5.0
"""Pause after a table was in use: everyone else waits behind each try."""


def take_piece(engine: Engine) -> bool:
    """Remove one piece of the values of a deleted attribute, and rest as long as that took, so that others can write. Returns False when
    there is none, or while others use the table."""
    begun = time.monotonic()
    with contextlib.suppress(Busy):
        if engine.read(objects.is_removal_waiting) and engine.write(objects.take_out):
            time.sleep(time.monotonic() - begun)
            return True
    return False


def after_removal(engine: Engine, fn: Callable[[Tx], T], *, within: float, by: str | None = None) -> T:
    """Run `engine.write(fn)`, which changes a table and may reuse the slug of a deleted attribute, once its values are removed and no long
    reader, such as a backup, uses the table.

    Raises Held when that takes longer than `within` seconds.
    """
    end = time.monotonic() + within
    while True:
        try:
            return engine.write(fn, within=max(0.001, end - time.monotonic()), by=by)
        except Held:
            if time.monotonic() >= end:
                raise
        if not take_piece(engine):
            time.sleep(min(AGAIN_SECONDS, max(0.0, end - time.monotonic())))


CHUNK = 1000
DELIVERY_SECONDS = 30 * 24 * 3600.0
"""Retention of settled deliveries, their attempts and the bodies of their events."""
RUN_SECONDS = 90 * 24 * 3600.0
"""Retention of ended workflow runs."""


def forget_old(context: Context) -> None:
    """Delete what is older than its retention, piece by piece."""
    engine, now, kept = context.engine, context.clock.now(), context.settings.kept
    engine.write(lambda tx: webhooks.expire_deliveries(tx, now=now))
    engine.write(lambda tx: workflows.forget_runs(tx, now - RUN_SECONDS))
    pieces: list[Callable[[Tx], int]] = [
        lambda tx: webhooks.forget_deliveries(tx, now - DELIVERY_SECONDS, CHUNK),
        lambda tx: change_log.slim(tx, now - DELIVERY_SECONDS, CHUNK),
        lambda tx: change_log.forget(tx, now - kept.history, CHUNK),
        lambda tx: logs.forget(tx, "request_log", now - kept.requests, CHUNK),
        lambda tx: logs.forget(tx, "audit_log", now - kept.audit, CHUNK),
    ]
    for forget in pieces:
        while engine.write(forget) == CHUNK:
            pass
