"""Fixed windows that count requests per key.

Windows start at multiples of their length since the Unix epoch, so that the reset time is exact.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from typing import Protocol

_SWEEP_AT = 10_000


@dataclass(frozen=True)
class RateState:
    """`remaining` requests in the window after this one; `reset` is the window's end in whole Unix seconds."""

    allowed: bool
    remaining: int
    reset: int


class RateWindows(Protocol):
    def take(self, key_id: str, limit: int, window_seconds: int, now: float) -> RateState:
        """Count one request of the key; refused ones do not count."""
        ...


class LocalRateWindows:
    """In this process's memory: on SQLite one process serves, and a write per request would cost a disk flush."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._windows: dict[str, tuple[int, int]] = {}

    def take(self, key_id: str, limit: int, window_seconds: int, now: float) -> RateState:
        end = (math.floor(now / window_seconds) + 1) * window_seconds
        with self._lock:
            if len(self._windows) >= _SWEEP_AT:
                self._windows = {key: window for key, window in self._windows.items() if window[0] > now}
            known_end, taken = self._windows.get(key_id, (end, 0))
            if known_end != end:
                taken = 0
            allowed = taken < limit
            if allowed:
                taken += 1
            self._windows[key_id] = (end, taken)
        return RateState(allowed, max(0, limit - taken), end)
