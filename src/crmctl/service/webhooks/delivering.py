"""The delivery jobs: send what is due, a few at once, and store every try; give up and forget what is old.

At least once, and at most one worker at a time for each delivery: a claim is a lease in the database.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from crmctl.service.context import Context
from crmctl.service.jobs.worker import POLL_SECONDS
from crmctl.service.store import deliveries
from crmctl.service.webhooks.schedule import WINDOW, next_try
from crmctl.service.webhooks.sending import ATTEMPT_SECONDS, Sender

AT_ONCE = 8
LEASE_SECONDS = 2 * ATTEMPT_SECONDS
"""Longer than a try can take: a delivery whose lease ended belongs to a worker that died."""

HOUSEKEEPING_SECONDS = 600.0
RETENTION_SECONDS = 30 * 24 * 3600.0
"""How long settled deliveries and their history are kept."""


class Deliveries:
    """Sends. `random` in [0, 1) is the jitter of retries. A receiver that hangs occupies one of the places, never all the work."""

    def __init__(self, context: Context, sender: Sender, random: Callable[[], float]) -> None:
        self._context = context
        self._sender = sender
        self._random = random
        self._places = threading.Semaphore(AT_ONCE)
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="delivery")

    def run_once(self) -> bool:
        """Start what is due and has a place; whether there was anything."""
        free = self._take_places()
        due = self._claim(free) if free else []
        for one in due:
            self._pool.submit(self._deliver, one)
        for _ in range(free - len(due)):
            self._places.release()
        return bool(due)

    def close(self) -> None:
        """Waits for the tries under way."""
        self._pool.shutdown()

    def _take_places(self) -> int:
        # Waits for the first: when all are taken, the next try starts as soon as one has ended.
        taken = int(self._places.acquire(timeout=POLL_SECONDS))
        while 0 < taken < AT_ONCE and self._places.acquire(blocking=False):
            taken += 1
        return taken

    def _claim(self, most: int) -> list[deliveries.Due]:
        engine, clock = self._context.engine, self._context.clock
        at = engine.read(deliveries.next_due)
        if at is None or at > clock.now():
            return []
        return engine.write(lambda tx: deliveries.claim(tx, most, LEASE_SECONDS, WINDOW, now=clock.now()))

    def _deliver(self, due: deliveries.Due) -> None:
        try:
            attempt = self._sender.send(due)
            again = None if attempt.succeeded else next_try(due.attempt, due.created_at, self._context.clock.now(), self._random())
            self._context.engine.write(lambda tx: deliveries.settle(tx, due, attempt, again))
        finally:
            self._places.release()


class Housekeeping:
    """Gives up what is past its window and forgets what is past its retention, now and then."""

    def __init__(self, context: Context, retention_seconds: float = RETENTION_SECONDS) -> None:
        self._context = context
        self._retention = retention_seconds
        self._next_at = 0.0

    def run_once(self) -> bool:
        now = self._context.clock.now()
        if now < self._next_at:
            return False
        self._next_at = now + HOUSEKEEPING_SECONDS
        self._context.engine.write(lambda tx: deliveries.expire(tx, WINDOW, now=now))
        self._context.engine.write(lambda tx: deliveries.forget(tx, now - self._retention))
        return False

    def close(self) -> None:
        """Nothing is kept open."""
