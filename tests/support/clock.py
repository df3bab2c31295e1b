"""A clock that tests move by hand; sleeping moves it and returns at once."""

from __future__ import annotations

import threading

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
