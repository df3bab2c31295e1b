"""How long to wait before trying, or looking, again: longer each time, and not everybody at once. Knows neither clock nor network."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

MOST_DOUBLINGS = 32


@dataclass(frozen=True)
class Backoff:
    """Gaps in seconds from `first` to `longest`, each `growth` times the last; of each the share `jitter` (0 to 1) is up to chance."""

    first: float = 0.5
    longest: float = 20.0
    growth: float = 2.0
    jitter: float = 0.5

    def gap(self, attempt: int, chance: Callable[[], float] = random.random) -> float:
        """Seconds after attempt number `attempt` (from 1); `chance` yields numbers in [0, 1)."""
        span = min(self.longest, self.first * self.growth ** min(attempt - 1, MOST_DOUBLINGS))
        return span * (1 - self.jitter + self.jitter * chance()) if self.jitter else span
