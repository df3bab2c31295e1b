"""Time and ids of a test double: movable, and repeatable with a seed."""

from __future__ import annotations

import random
import threading

from crmctl.clock import SystemClock

SEEDED_START = 1_767_225_600.0
"""The time at which a seeded double begins: 2026-01-01T00:00:00Z."""


class MovableClock(SystemClock):
    """A clock that `set` moves. A seeded one stands still, except for a millisecond before each request, so that equal runs give equal
    times; any other one runs on from where it was set."""

    def __init__(self, start: float | None, *, is_seeded: bool) -> None:
        self._is_seeded = is_seeded
        self._start: float | None = SEEDED_START if is_seeded and start is None else start
        self._base: float | None
        self.reset()

    def now(self) -> float:
        if self._base is None:
            return super().now()
        return self._base + (self._ticks / 1000 if self._is_seeded else self.monotonic() - self._set_at)

    def set(self, moment: float) -> None:
        self._base, self._set_at, self._ticks = moment, self.monotonic(), 0

    def tick(self) -> None:
        """Move a seeded clock on by a millisecond."""
        self._ticks += 1

    def mark(self) -> None:
        """Let `reset` return here."""
        if self._is_seeded:
            self._start = self.now()

    def reset(self) -> None:
        self._base, self._set_at, self._ticks = self._start, self.monotonic(), 0


class SeededIds:
    """Makes UUIDs of version 7 in the order of the clock. `reset` repeats those made since `mark`."""

    def __init__(self, seed: int, clock: MovableClock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._random, self._count = random.Random(seed), 0
        self.mark()

    def mark(self) -> None:
        """Let `reset` return here."""
        self._marked = self._random.getstate(), self._count

    def reset(self) -> None:
        state, self._count = self._marked
        self._random.setstate(state)

    def __call__(self) -> str:
        with self._lock:
            self._count += 1
            millis, high, low = int(self._clock.now() * 1000), self._count >> 12 & 0xFFF, self._count & 0xFFF
            return f"{millis >> 16:08x}-{millis & 0xFFFF:04x}-7{high:03x}-8{low:03x}-{self._random.getrandbits(48):012x}"
