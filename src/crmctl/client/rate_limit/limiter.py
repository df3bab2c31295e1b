"""Waiting for the rate budget: asked before every request, told about every answer. What is allowed is decided in `model`."""

from __future__ import annotations

import hashlib
import hmac
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from crmctl.clock import Clock
from crmctl.errors import RateLimitedError, reason, storage_error

if TYPE_CHECKING:
    from crmctl.client.rate_limit.ledger import Ledger, Wait

T = TypeVar("T")

UNCOUNTED = 0
"""The slot of requests to a service without a limit: until it names one, nothing has to be written down."""

NOTED_WAIT = 3.0
"""Seconds from which on a wait is worth a sentence."""


class Budget(Protocol):
    """Paces requests. Safe for several threads."""

    def acquire(self, patience: float) -> int:
        """Wait until one request may go and return its slot; `patience` is the most seconds to wait.

        Raises RateLimitedError at once when the wait would be longer, saying until when.
        """
        ...

    def answered(self, slot: int, status: int, headers: Mapping[str, str]) -> None:
        """The request of this slot was answered; header names are lower case."""
        ...

    def lost(self, slot: int, *, never_sent: bool) -> None:
        """The request of this slot got no answer."""
        ...

    def window(self) -> float:
        """The length of the service's rate window in seconds, as far as it is known."""
        ...

    def close(self) -> None:
        """Let go of files; safe to call twice."""
        ...

    def time_for(self, requests: int) -> float:
        """Seconds that so many requests take at least, by what is known of the limit; 0 without one."""
        ...


class Unpaced:
    """No budget at all: every request goes at once."""

    def acquire(self, patience: float) -> int:
        return 0

    def answered(self, slot: int, status: int, headers: Mapping[str, str]) -> None:
        return None

    def lost(self, slot: int, *, never_sent: bool) -> None:
        return None

    def window(self) -> float:
        from crmctl.client.rate_limit.model import DEFAULT_WINDOW

        return DEFAULT_WINDOW

    def close(self) -> None:
        return None

    def time_for(self, requests: int) -> float:
        return 0.0


class SharedBudget:
    """The budget of one key, shared by every process of this machine through the file at `path`.

    `lane` is `interactive` or `bulk`. A file that cannot be used never stops work: this process then paces itself alone, and says so once.
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
        from crmctl.client.rate_limit.ledger import Grant

        started = self._clock.monotonic()
        wait: Wait | None = None
        noted = False
        try:
            while True:
                now = self._clock.monotonic()
                ticket = wait.ticket if wait is not None else None
                answer = self._use(lambda ledger, now=now, ticket=ticket: ledger.acquire(now, self._lane, ticket))  # type: ignore[misc]
                if isinstance(answer, Grant):
                    wait = None
                    return answer.slot
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
        from crmctl.client.rate_limit.estimator import has_limit

        if slot == UNCOUNTED and not has_limit(status, headers):
            return
        now, wall = self._clock.monotonic(), self._clock.now()
        if slot == UNCOUNTED:
            slot = self._use(lambda ledger: ledger.admit(now)).slot
        self._is_unlimited = self._use(lambda ledger: ledger.answered(slot, now, wall, status, headers, self._lane))

    def lost(self, slot: int, *, never_sent: bool) -> None:
        if slot == UNCOUNTED:
            return
        now = self._clock.monotonic()
        self._use(lambda ledger: ledger.lost(slot, now, never_sent=never_sent))

    def window(self) -> float:
        return self._use(lambda ledger: ledger.window())

    def close(self) -> None:
        with self._lock:
            if self._ledger is not None:
                self._ledger.close()
                self._ledger = None

    def time_for(self, requests: int) -> float:
        if self._is_unlimited:
            return 0.0
        now = self._clock.monotonic()
        return self._use(lambda ledger: ledger.time_for(now, requests))

    def _say_wait(self, until: float, now: float) -> None:
        """Once, however many threads wait for the same moment."""
        with self._lock:
            is_news, self._said = abs(until - self._said) >= 1.0, until
        if is_news:
            self._note(f"rate limit: waiting {until - now:.0f} s until {clock_time(self._clock.now() + until - now)}")

    def _check_patience(self, needed: float, patience: float, left: float) -> None:
        if needed <= patience:
            return
        raise RateLimitedError(
            f"the rate limit leaves no request before {clock_time(self._clock.now() + left)}, longer than may be waited",
            hint="--max-wait SECONDS waits longer",
            retryable=True,
            retry_after=left,
        )

    def _use(self, work: Callable[[Ledger], T]) -> T:
        """Work on the ledger; where the file fails, on one in memory."""
        import sqlite3

        from crmctl.client.rate_limit.ledger import Ledger

        with self._lock:
            if self._ledger is None:
                try:
                    self._ledger = Ledger(self._path)
                except (sqlite3.Error, OSError) as error:
                    self._ledger = self._alone(error)
            ledger = self._ledger
        try:
            return work(ledger)
        except (sqlite3.Error, OSError) as error:
            with self._lock:
                if self._ledger is ledger:
                    ledger.close()
                    self._ledger = self._alone(error)
                ledger = self._ledger
            return work(ledger)

    def _alone(self, error: Exception) -> Ledger:
        from crmctl.client.rate_limit.ledger import Ledger

        why = reason(storage_error(error, self._path) or error)
        self._note(f"the shared rate budget cannot be used ({why}); other crmctl processes with this key are not taken into account")
        return Ledger(None)


def ledger_path(state_dir: Path, origin: str, key: str) -> Path:
    """The file of one key at one origin. Its name is a keyed fingerprint: it tells nothing about the key."""
    return state_dir / "rate" / f"{hmac.new(key.encode(), origin.encode(), hashlib.sha256).hexdigest()[:32]}.sqlite"


def clock_time(moment: float) -> str:
    """A Unix time as local wall-clock time, for people who wait: `10:42:00`."""
    return time.strftime("%H:%M:%S", time.localtime(moment))
