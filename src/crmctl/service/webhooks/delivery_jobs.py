"""Send webhook deliveries and record every attempt."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from crmctl.service.context import Context
from crmctl.service.jobs.worker import ClaimingJob
from crmctl.service.outbound.caller import OutboundCaller
from crmctl.service.store import deliveries, logs
from crmctl.service.store.deliveries import WINDOW, Due, EndedTry, Lane
from crmctl.service.store.tx import Tx


@dataclass
class _Place:
    """A thread's finished try: whether it is written, and the next delivery for the thread."""

    ended: EndedTry
    following: Due | None = None
    is_free: bool = False


class Settlement:
    """Writes finished tries; thread-safe. Those that arrive during a write are written together after it."""

    def __init__(self, context: Context, lane: Lane) -> None:
        self._context = context
        self._lane = lane
        self._changed = threading.Condition()
        self._waiting: list[_Place] = []
        self._is_writing = False
        self._is_closing = False

    def settle(self, ended: EndedTry) -> Due | None:
        """Write a try, by this thread or another. Returns a delivery claimed for this thread, if any. Only the thread that wrote raises the
        database's errors; the leases of unwritten tries end by themselves."""
        place = _Place(ended)
        with self._changed:
            self._waiting.append(place)
            # A thread whose try another one has written continues at once instead of queuing behind the next transaction.
            self._changed.wait_for(lambda: place.is_free or not self._is_writing)
            if place.is_free:
                return place.following
            batch, self._waiting, self._is_writing = self._waiting, [], True
        try:
            claimed = self._context.engine.write(lambda tx: self._write(tx, batch), by=logs.SERVICE)
            for each, following in zip(batch, claimed, strict=False):
                each.following = following
        finally:
            with self._changed:
                for each in batch:
                    each.is_free = True
                self._is_writing = False
                self._changed.notify_all()
        return place.following

    def close(self) -> None:
        self._is_closing = True

    def _write(self, tx: Tx, batch: list[_Place]) -> list[Due]:
        deliveries.settle(tx, [place.ended for place in batch], self._context.ids)
        if self._is_closing:
            return []
        return deliveries.claim(tx, self._lane, len(batch), now=self._context.clock.now())


FIRST_GAP = 5.0
GROWTH = 3.0
LONGEST_GAP = 8 * 3600.0
JITTER = 0.2
"""Gaps vary by this share either way, so that a recovered receiver does not get all its deliveries at once."""


def next_try(attempt: int, first_tried_at: float, now: float, random: float) -> float | None:
    """Return the Unix time of the try after try number `attempt` (from 1), None when the delivery has failed for good. `random` in [0, 1)
    is the jitter.

    The last gap is shortened, so that one more try falls just inside the window.
    """
    deadline = first_tried_at + WINDOW
    gap = min(LONGEST_GAP, FIRST_GAP * GROWTH ** min(attempt - 1, 32)) * (1 - JITTER + 2 * JITTER * random)
    if now + gap <= deadline:
        return now + gap
    last_chance = deadline - 60.0
    return last_chance if now + gap / 2 < last_chance else None


class Deliveries(ClaimingJob[Due]):
    """Sends the due deliveries of one lane. `random` in [0, 1) is the jitter of retries."""

    def __init__(self, context: Context, sender: OutboundCaller, random: Callable[[], float], lane: Lane) -> None:
        super().__init__(context, lane.places, lane.name)
        self._sender = sender
        self._random = random
        self._lane = lane
        self._settlement = Settlement(context, lane)

    def close(self) -> None:
        self._settlement.close()
        super().close()

    def is_waiting(self, tx: Tx) -> bool:
        return deliveries.is_claimable(tx, self._lane, now=self._context.clock.now())

    def claim(self, tx: Tx, most: int) -> list[Due]:
        return deliveries.claim(tx, self._lane, most, now=self._context.clock.now())

    def work(self, first: Due) -> None:
        due: Due | None = first
        while due is not None:
            attempt = self._sender.send(due)
            again = None if attempt.succeeded else next_try(due.attempt, due.created_at, self._context.clock.now(), self._random())
            due = self._settlement.settle(EndedTry(due, attempt, again))
