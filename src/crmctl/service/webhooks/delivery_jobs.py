"""The delivery jobs: send what is due, several at once, and store every try; give up what is old.

At least once, and at most one worker at a time for each delivery: a claim is a lease in the database. So are the places of an endpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from crmctl.service.context import Context
from crmctl.service.jobs.periodic import PeriodicJob
from crmctl.service.jobs.places import Places
from crmctl.service.jobs.worker import POLL_SECONDS
from crmctl.service.outbound.caller import ATTEMPT_SECONDS, OutboundCaller
from crmctl.service.store import delivery_claims
from crmctl.service.store.delivery_claims import Due, EndedTry, Terms
from crmctl.service.webhooks.schedule import WINDOW, next_try
from crmctl.service.webhooks.settlement import Settlement

LEASE_SECONDS = 2 * ATTEMPT_SECONDS
"""Longer than a try can take: a delivery whose lease ended belongs to a worker that died."""

EXPIRY_SECONDS = 600.0


@dataclass(frozen=True)
class Lane:
    """`places` of one process for endpoints that have something in common."""

    name: str
    places: int
    terms: Terms


PROVEN = Lane("delivery", 32, Terms(True, 8, LEASE_SECONDS, WINDOW))
UNPROVEN = Lane("probe", 64, Terms(False, 1, LEASE_SECONDS, WINDOW))
"""Endpoints that are new or whose last try failed: one try at a time each, and never in the places of those that work."""


class Deliveries:
    """Sends what is due in one lane. `random` in [0, 1) is the jitter of retries."""

    def __init__(self, context: Context, sender: OutboundCaller, random: Callable[[], float], lane: Lane) -> None:
        self._context = context
        self._sender = sender
        self._random = random
        self._terms = lane.terms
        self._places = Places(lane.places, lane.name)
        self._settlement = Settlement(context, lane.terms)

    def run_once(self) -> bool:
        """Start what is due and has a place; whether to look again at once."""
        free = self._places.free()
        due = self._claim(free) if free else []
        for one in due:
            self._places.start(self._deliver, one)
        return bool(due) or self._places.wait(POLL_SECONDS)

    def close(self) -> None:
        """Waits for the tries under way."""
        self._settlement.close()
        self._places.close()

    def _claim(self, most: int) -> list[Due]:
        engine, clock = self._context.engine, self._context.clock
        if not engine.read(lambda tx: delivery_claims.is_claimable(tx, self._terms, now=clock.now())):
            return []
        return engine.write(lambda tx: delivery_claims.claim(tx, self._terms, most, now=clock.now()))

    def _deliver(self, first: Due) -> None:
        """One after the other, as long as there is a following one."""
        due: Due | None = first
        while due is not None:
            attempt = self._sender.send(due)
            again = None if attempt.succeeded else next_try(due.attempt, due.created_at, self._context.clock.now(), self._random())
            due = self._settlement.settle(EndedTry(due, attempt, again))


class Expiry(PeriodicJob):
    """Gives up what is past its window, now and then."""

    every = EXPIRY_SECONDS

    def work(self) -> None:
        self._context.engine.write(lambda tx: delivery_claims.expire(tx, WINDOW, now=self._context.clock.now()))
