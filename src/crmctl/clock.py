"""Clocks, waits between attempts, and times in HTTP headers."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from crmctl.frozen import frozen


class Clock(Protocol):
    """The time as crmctl reads it; tests pass their own."""

    def now(self) -> float:
        """Unix time in seconds."""
        ...

    def monotonic(self) -> float:
        """Seconds that never run backwards, comparable within one boot of the machine."""
        ...

    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's own clock. CLOCK_BOOTTIME counts suspended time and is shared by all processes of a boot."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        boottime = getattr(time, "CLOCK_BOOTTIME", None)
        return time.clock_gettime(boottime) if boottime is not None else time.monotonic()

    def sleep(self, seconds: float) -> None:
        if seconds > 0:
            time.sleep(seconds)


MOST_DOUBLINGS = 32


@frozen
class Backoff:
    """Gaps in seconds from `first` to `longest`, each `growth` times the previous one; the share `jitter` (0 to 1) of each is random."""

    first: float = 0.5
    longest: float = 20.0
    growth: float = 2.0
    jitter: float = 0.5

    def gap(self, attempt: int, chance: Callable[[], float] = random.random) -> float:
        """Return the wait in seconds after attempt `attempt` (from 1); `chance` yields numbers in [0, 1)."""
        span = min(self.longest, self.first * self.growth ** min(attempt - 1, MOST_DOUBLINGS))
        return span * (1 - self.jitter + self.jitter * chance()) if self.jitter else span

    def tries(self, most: int, sleep: Callable[[float], None]) -> Iterator[int]:
        """Yield 1, 2, 3 up to `most`, sleeping before each but the first."""
        for number in range(1, most + 1):
            if number > 1:
                sleep(self.gap(number - 1))
            yield number


_LONGEST_WAIT = 1e9
"""Seconds that a clock can still count; a service that asks for more gets no request in any case."""


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Return the seconds of `Retry-After`, given as a number or as an HTTP date, which counts from the service's own `Date`."""
    text = headers.get("retry-after", "").strip()
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        until = http_date(text)
        if until is None:
            return None
        seconds = until - (http_date(headers.get("date", "")) or now)
    return min(max(0.0, seconds), _LONGEST_WAIT) if seconds < float("inf") else None


def http_date(text: str) -> float | None:
    """Return the Unix time of an HTTP date, or None. A date without a zone, such as the old form `Fri Nov 27 05:00:00 2026`, is UTC."""
    if not text:
        return None
    from datetime import UTC
    from email.utils import parsedate_to_datetime

    try:
        moment = parsedate_to_datetime(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None
