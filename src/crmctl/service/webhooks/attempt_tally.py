"""Counts attempts where they are made, and writes the counts down once a second: no attempt waits for the count of another."""

from __future__ import annotations

import threading
from collections import Counter

from crmctl.service.context import Context
from crmctl.service.faults import Unavailable
from crmctl.service.store import attempt_counts
from crmctl.service.store.attempt_counts import CountedAttempts
from crmctl.service.store.delivery_claims import Attempt, Due

EVERY_SECONDS = 1.0


class AttemptTally:
    """A job of the worker; `add` is called by whoever made an attempt. A process that is killed loses the count of its last second."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._counted: Counter[CountedAttempts] = Counter()
        self._next_at = 0.0

    def add(self, due: Due, attempt: Attempt) -> None:
        with self._lock:
            self._counted[CountedAttempts.of(due.endpoint, attempt.at, attempt.seconds, attempt.succeeded)] += 1

    def run_once(self) -> bool:
        now = self._context.clock.monotonic()
        if now >= self._next_at:
            self._next_at = now + EVERY_SECONDS
            self._write()
        return False

    def close(self) -> None:
        """Write what is counted, if the database is there."""
        try:
            self._write()
        except Unavailable:
            self._counted.clear()

    def _write(self) -> None:
        with self._lock:
            counted, self._counted = self._counted, Counter()
        if not counted:
            return
        try:
            self._context.engine.write(lambda tx: attempt_counts.add_counts(tx, counted))
        except BaseException:
            with self._lock:
                self._counted += counted
            raise
