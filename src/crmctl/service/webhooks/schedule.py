"""When a failed delivery is tried again: exponential growth with jitter, the last try inside 72 hours. Pure."""

from __future__ import annotations

WINDOW = 72 * 3600.0
"""Seconds from an event's first try to its last (specification section 8: up to 3 days)."""

FIRST_GAP = 5.0
GROWTH = 3.0
LONGEST_GAP = 8 * 3600.0
JITTER = 0.2
"""A gap varies by this share either way, so that a receiver that comes back is not met by all its deliveries at once."""


def next_try(attempt: int, first_tried_at: float, now: float, random: float) -> float | None:
    """Unix time of the try after try number `attempt` (from 1), or None when the delivery has failed for good.

    `random` in [0, 1) is the jitter. The last gap is shortened so that one more try falls just inside the window.
    """
    deadline = first_tried_at + WINDOW
    gap = min(LONGEST_GAP, FIRST_GAP * GROWTH ** min(attempt - 1, 32)) * (1 - JITTER + 2 * JITTER * random)
    if now + gap <= deadline:
        return now + gap
    last_chance = deadline - 60.0
    return last_chance if now + gap / 2 < last_chance else None
