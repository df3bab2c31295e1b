"""Fixed windows that count requests per key.

Windows start at multiples of their length since the Unix epoch, so that the reset time is exact.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from crmctl.service.failures import FAILURES
from crmctl.service.store.tx import Tx

UNLIMITED = 2_147_483_647
"""As a limit: every request is allowed. Told to clients as it is, so that those that pace themselves never wait."""

_SWEEP_AT = 10_000

_KEPT_SECONDS = 3600
"""How long windows that ended are kept: longer than the clocks of two service machines can be apart."""


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
    """In this process's memory."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._windows: dict[str, tuple[int, int]] = {}

    def take(self, key_id: str, limit: int, window_seconds: int, now: float) -> RateState:
        end = _end(now, window_seconds)
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


class _Writer(Protocol):
    def write(self, fn: Callable[[Tx], int | None], *, single: bool = False) -> int | None: ...


class DatabaseRateWindows:
    """In the database: exact for all processes that serve from it together. One row for each key and window."""

    def __init__(self, engine: _Writer) -> None:
        self._engine = engine
        self._current = 0

    def take(self, key_id: str, limit: int, window_seconds: int, now: float) -> RateState:
        end = _end(now, window_seconds)
        if limit >= UNLIMITED:
            return RateState(True, limit, end)

        def count(tx: Tx) -> int | None:
            row = tx.one(
                "INSERT INTO rate_window (key_id, ends_at, taken) VALUES (?, ?, 1) ON CONFLICT (key_id, ends_at) "
                "DO UPDATE SET taken = rate_window.taken + 1 WHERE rate_window.taken < ? RETURNING taken",
                (key_id, end, limit),
            )
            return None if row is None else int(row[0])

        taken = self._engine.write(count, single=True)
        if end > self._current:
            self._current = end
            self._engine.write(lambda tx: tx.execute("DELETE FROM rate_window WHERE ends_at < ?", (math.floor(now) - _KEPT_SECONDS,)))
        return RateState(taken is not None, 0 if taken is None else limit - taken, end)


class FallingBack:
    """Counts in memory what cannot be counted where it should be: reading must go on when the disk is full."""

    def __init__(self, windows: RateWindows) -> None:
        self._windows = windows
        self._local = LocalRateWindows()

    def take(self, key_id: str, limit: int, window_seconds: int, now: float) -> RateState:
        try:
            return self._windows.take(key_id, limit, window_seconds, now)
        except Exception as error:
            FAILURES.tell(error, briefly=True)
            return self._local.take(key_id, limit, window_seconds, now)


def create_tables(tx: Tx) -> None:
    """The migration that brings the windows. On SQLite they are in a file of their own, and the table of the database stays empty."""
    tx.execute(
        f"{tx.dialect.passing_table} rate_window (key_id {tx.dialect.text} NOT NULL, ends_at BIGINT NOT NULL, taken BIGINT NOT NULL, "
        "PRIMARY KEY (key_id, ends_at))"
    )


def _end(now: float, window_seconds: int) -> int:
    return (math.floor(now / window_seconds) + 1) * window_seconds
