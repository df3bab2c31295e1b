"""Background threads of a service process, and the jobs that dispatch events, write logs and remove data piece by piece."""

from __future__ import annotations

import contextlib
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import ClassVar, Generic, TypeVar

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


class BackgroundJob(ABC):
    """Repeating work. Processes coordinate it through the database alone."""

    def __init__(self, context: Context) -> None:
        self._context = context

    @abstractmethod
    def run_once(self) -> bool:
        """Do the work that is there, and return whether there was any."""

    def close(self) -> None:  # noqa: B027
        """Finish the work under way."""


class Worker:
    """Runs every job until stopped. A failing job is reported and tried again; it never stops the others."""

    def __init__(self, jobs: Sequence[BackgroundJob]) -> None:
        self._jobs = jobs
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=[job], name=type(job).__name__, daemon=True) for job in jobs]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        for job in self._jobs:
            job.close()

    def _run(self, job: BackgroundJob) -> None:
        while not self._stopping.is_set():
            try:
                pause = 0.0 if job.run_once() else POLL_SECONDS
            except Exception as error:
                FAILURES.tell(error)
                pause = REST_SECONDS
            self._stopping.wait(pause)


class PeriodicJob(BackgroundJob):
    """Calls `work` every so many seconds."""

    every: ClassVar[float]
    _next_at = 0.0

    def run_once(self) -> bool:
        now = self._context.clock.monotonic()
        if now >= self._next_at:
            self._next_at = now + self.every
            self.work()
        return False

    @abstractmethod
    def work(self) -> None: ...


T = TypeVar("T")


class ClaimingJob(BackgroundJob, Generic[T]):
    """Claims pieces of work for `most` places, and does each on a thread. Errors of the work are reported; its lease in the database
    decides about the rest."""

    def __init__(self, context: Context, most: int, name: str) -> None:
        super().__init__(context)
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


class Dispatcher(BackgroundJob):
    """Hands events from the outbox to their consumers."""

    def __init__(self, context: Context, consumers: Sequence[Consumer]) -> None:
        super().__init__(context)
        self._consumers = consumers

    def run_once(self) -> bool:
        engine = self._context.engine
        return engine.read(change_log.is_waiting) and engine.write(self._dispatch)

    def _dispatch(self, tx: Tx) -> bool:
        events = change_log.take_waiting(tx, BATCH)
        for consumer in self._consumers if events else ():
            consumer(tx, events, ids=self._context.ids, now=self._context.clock.now())
        return bool(events)


MOST_WAITING = 20_000
"""Most entries kept while the database is away."""


class RequestLogWriter(PeriodicJob):
    """Collects the entries of the request log and writes them once a second, so that no request waits. A killed process loses a second's
    worth."""

    every = 1.0

    def __init__(self, context: Context) -> None:
        super().__init__(context)
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
            self._context.engine.write(lambda tx: logs.append(tx, entries))
        except BaseException:
            with self._lock:
                self._held = (entries + self._held)[:MOST_WAITING]
            raise


AGAIN_SECONDS = 5.0
"""Pause after a table was in use: everyone else waits behind each try."""


class Removals(BackgroundJob):
    """Removes the values of deleted attributes."""

    _next_at = 0.0

    def run_once(self) -> bool:
        clock = self._context.clock
        if clock.monotonic() < self._next_at or not self._context.engine.read(objects.is_removal_waiting):
            return False
        try:
            return take_piece(self._context.engine)
        except Busy:
            self._next_at = clock.monotonic() + AGAIN_SECONDS
            return False


def take_piece(engine: Engine) -> bool:
    """Take one piece, rest as long as that took, so that others can write, and return whether there was one. Raises Busy."""
    begun = time.monotonic()
    was_there = engine.write(objects.take_out)
    time.sleep(time.monotonic() - begun)
    return was_there


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
        with contextlib.suppress(Busy):
            if not take_piece(engine):
                time.sleep(min(AGAIN_SECONDS, max(0.0, end - time.monotonic())))


CHUNK = 1000
DELIVERY_SECONDS = 30 * 24 * 3600.0
"""Retention of settled deliveries, their attempts and the bodies of their events."""
RUN_SECONDS = 90 * 24 * 3600.0
"""Retention of ended workflow runs."""


class Retention(PeriodicJob):
    every = 600.0

    def work(self) -> None:
        now = self._context.clock.now()
        kept = self._context.settings.kept
        self._context.engine.write(lambda tx: webhooks.expire_deliveries(tx, now=now))
        self._context.engine.write(lambda tx: workflows.forget_runs(tx, now - RUN_SECONDS))
        self._repeat(lambda tx: webhooks.forget_deliveries(tx, now - DELIVERY_SECONDS, CHUNK))
        self._repeat(lambda tx: change_log.slim(tx, now - DELIVERY_SECONDS, CHUNK))
        self._repeat(lambda tx: change_log.forget(tx, now - kept.history, CHUNK))
        self._repeat(lambda tx: logs.forget(tx, "request_log", now - kept.requests, CHUNK))
        self._repeat(lambda tx: logs.forget(tx, "audit_log", now - kept.audit, CHUNK))

    def _repeat(self, forget: Callable[[Tx], int]) -> None:
        while self._context.engine.write(forget) == CHUNK:
            pass
