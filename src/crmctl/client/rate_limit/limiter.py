"""Pace requests: wait for room before each request and log each answer."""

from __future__ import annotations

import hashlib
import hmac
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from crmctl.clock import Clock
from crmctl.errors import RateLimitedError, reason, storage_error

if TYPE_CHECKING:
    from crmctl.client.rate_limit.ledger import Ledger, Wait

T = TypeVar("T")

UNCOUNTED = 0
"""The slot of requests to a service without a limit: they are not logged until an answer names a limit."""

NOTED_WAIT = 3.0
"""Seconds from which a wait is worth a message."""


class Budget:
    """No pacing: every request goes at once. Safe for several threads, as are its subclasses."""

    def acquire(self, patience: float) -> int:
        """Wait until one request may go and return its slot. Raise RateLimitedError at once if that takes more than `patience` seconds."""
        return UNCOUNTED

    def answered(self, slot: int, status: int, headers: Mapping[str, str]) -> None:
        """Record the answer to the request of this slot; header names are lower case."""

    def lost(self, slot: int, *, never_sent: bool) -> None:
        """Record that the request of this slot got no answer."""

    def close(self) -> None:
        """Close the file; safe to call twice."""

    def time_for(self, requests: int) -> float:
        """Return the least seconds that so many requests take; 0 without a limit."""
        return 0.0


class SharedBudget(Budget):
    """The budget of one key, shared by every process of this machine through the file at `path`.

    `lane` is `interactive` or `bulk`. If the file is unusable, the process tells the user once and paces only itself.
    """

    def __init__(self, path: Path, clock: Clock, *, lane: str = "interactive", note: Callable[[str], None] | None = None) -> None:
        self._path = path
        self._clock = clock
        self._lane = 1 if lane == "bulk" else 0
        self._note = note or (lambda _: None)
        self._ledger: Ledger | None = None
        self._is_unlimited = False
        self._said = 0.0
        self._lock = threading.Lock()

    def acquire(self, patience: float) -> int:
        if self._is_unlimited:
            return UNCOUNTED
        started = self._clock.monotonic()
        wait: Wait | None = None
        noted = False
        try:
            while True:
                now = self._clock.monotonic()
                ticket = wait.ticket if wait is not None else None
                answer = self._use(lambda ledger, now=now, ticket=ticket: ledger.acquire(now, self._lane, ticket))  # type: ignore[misc]
                if isinstance(answer, int):
                    wait = None
                    return answer
                wait = answer
                self._check_patience(answer.until - started, patience, answer.until - now)
                if not noted and answer.until - now >= NOTED_WAIT:
                    noted = True
                    self._say_wait(answer.until, now)
                self._clock.sleep(answer.look - now)
        finally:
            if wait is not None:
                ticket = wait.ticket
                self._use(lambda ledger: ledger.leave(ticket))

    def answered(self, slot: int, status: int, headers: Mapping[str, str]) -> None:
        from crmctl.client.rate_limit.model import has_limit

        if slot == UNCOUNTED and not has_limit(status, headers):
            return
        now, wall = self._clock.monotonic(), self._clock.now()
        if slot == UNCOUNTED:
            slot = self._use(lambda ledger: ledger.admit(now))
        self._is_unlimited = self._use(lambda ledger: ledger.answered(slot, now, wall, status, headers))

    def lost(self, slot: int, *, never_sent: bool) -> None:
        if slot == UNCOUNTED:
            return
        now = self._clock.monotonic()
        self._use(lambda ledger: ledger.lost(slot, now, never_sent=never_sent))

    def close(self) -> None:
        with self._lock:
            if self._ledger is not None:
                self._ledger.close()
                self._ledger = None

    def time_for(self, requests: int) -> float:
        if self._is_unlimited:
            return 0.0
        now = self._clock.monotonic()
        return self._use(lambda ledger: ledger.time_for(now, requests, self._said - now, bulk=self._lane > 0))

    def _say_wait(self, until: float, now: float) -> None:
        """Tell the user once, however many threads wait for the same moment."""
        with self._lock:
            is_news, self._said = abs(until - self._said) >= 1.0, until
        if is_news:
            self._note(f"rate limit: waiting {until - now:.0f} s until {clock_time(self._clock.now(), until - now)}")

    def _check_patience(self, needed: float, patience: float, seconds: float) -> None:
        from crmctl.client.rate_limit.model import LONGEST_WINDOW

        if needed <= patience:
            return
        message, hint = "the rate limit leaves no request before", "--max-wait SECONDS waits longer"
        if seconds > LONGEST_WINDOW:  # no limit of requests lasts so long: a Retry-After asked for it
            message = "the service asked for no request before"
            hint += f"; if that was a mistake, delete {self._path}, and crmctl asks the service again"
        raise RateLimitedError(
            f"{message} {clock_time(self._clock.now(), seconds)}, which is longer than --max-wait",
            hint=hint,
            retryable=True,
            retry_after=seconds,
        )

    def _use(self, work: Callable[[Ledger], T]) -> T:
        """Run `work` on the ledger, or on one in memory if the file fails."""
        import sqlite3

        from crmctl.client.rate_limit.ledger import Ledger

        used: Ledger | None = None
        try:
            with self._lock:
                used = self._ledger = self._ledger or Ledger(self._path)
            return work(used)
        except (sqlite3.Error, OSError) as error:
            with self._lock:
                if self._ledger is used:
                    if used is not None:
                        used.close()
                    why = reason(storage_error(error, self._path))
                    self._note(f"the shared rate budget is unusable ({why}); crmctl cannot see other processes that use this key")
                    self._ledger = Ledger(None)
                spare = self._ledger
            assert spare is not None
            return work(spare)


def ledger_path(state_dir: Path, origin: str, key: str) -> Path:
    """Return the file of one key at one origin. Its name is a keyed hash that does not reveal the key."""
    return state_dir / "rate" / f"{hmac.new(key.encode(), origin.encode(), hashlib.sha256).hexdigest()[:32]}.sqlite"


def clock_time(now: float, wait: float) -> str:
    """Return the local time after so many seconds: `10:42:00`, on another day `2026-11-28 10:42:00`."""
    local = time.localtime(now + wait)
    return time.strftime("%H:%M:%S" if local[:3] == time.localtime(now)[:3] else "%Y-%m-%d %H:%M:%S", local)
