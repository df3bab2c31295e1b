"""A clock that tests move by hand; sleeping moves it and returns at once."""

from __future__ import annotations

import threading

from crmctl.clock import SystemClock

START = 1_800_000_000.0


class FakeClock:
    """Starts at a fixed Unix time; `slept` lists every sleep in seconds."""

    def __init__(self, now: float = START) -> None:
        self._now = now
        self._lock = threading.Lock()
        self.slept: list[float] = []

    def now(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        with self._lock:
            self.slept.append(seconds)
            self._now += max(0.0, seconds)

    def advance(self, seconds: float) -> None:
        with self._lock:
            self._now += seconds


class HastyClock(SystemClock):
    """The machine's time plus all time slept, for waits on what other processes wrote."""

    def __init__(self) -> None:
        self._slept = 0.0

    def now(self) -> float:
        return super().now() + self._slept

    def monotonic(self) -> float:
        return super().monotonic() + self._slept

    def sleep(self, seconds: float) -> None:
        self._slept += max(0.0, seconds)
