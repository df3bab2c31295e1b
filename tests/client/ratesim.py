"""Simulate processes that share one rate budget, against services that limit in different ways. No real time passes."""

from __future__ import annotations

import heapq
import itertools
import math
import random
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import formatdate

from crmctl.client.rate_limit.ledger import BULK, INTERACTIVE, Ledger

START = 1_800_000_000.0
Rounding = Callable[[float], float]


class FixedWindow:
    """Counts requests per window. Windows are aligned to the epoch or begin with the first request."""

    def __init__(self, limit: int, window: float, *, aligned: bool, rounding: Rounding = math.floor, phase: float = 0.0) -> None:
        self.limit, self.window, self.aligned, self.rounding, self.phase = limit, window, aligned, rounding, phase
        self.end, self.count = 0.0, 0

    def ask(self, now: float) -> tuple[bool, int, float]:
        if now >= self.end:
            self.end = ((now - self.phase) // self.window + 1) * self.window + self.phase if self.aligned else now + self.window
            self.count = 0
        accepted = self.count < self.limit
        self.count += accepted
        return accepted, self.limit - self.count, self.rounding(self.end)


class SlidingWindow:
    """Counts the accepted requests of the last `window` seconds. Reset is when the oldest leaves, or a whole window from now."""

    def __init__(self, limit: int, window: float, *, rounding: Rounding = math.ceil, running: bool = False) -> None:
        self.limit, self.window, self.rounding, self.running = limit, window, rounding, running
        self.log: deque[float] = deque()

    def ask(self, now: float) -> tuple[bool, int, float]:
        while self.log and self.log[0] <= now - self.window:
            self.log.popleft()
        accepted = len(self.log) < self.limit
        if accepted:
            self.log.append(now)
        start = now if self.running else self.log[0]
        return accepted, self.limit - len(self.log), self.rounding(start + self.window)


class TokenBucket:
    """A bucket of `capacity` tokens (default: `limit`), refilled evenly by `limit` tokens per window. Reset is when it is full."""

    def __init__(self, limit: int, window: float, capacity: int | None = None) -> None:
        self.limit, self.window, self.capacity = limit, window, capacity or limit
        self.tokens, self.at = float(self.capacity), START

    def ask(self, now: float) -> tuple[bool, int, float]:
        self.tokens = min(self.capacity, self.tokens + (now - self.at) * self.limit / self.window)
        self.at = now
        accepted = self.tokens >= 1.0
        self.tokens -= accepted
        return accepted, int(self.tokens), math.ceil(now + (self.capacity - self.tokens) * self.window / self.limit)


Limiter = FixedWindow | SlidingWindow | TokenBucket


@dataclass
class World:
    """Clients of one service with one key.

    `workers` requests are in flight at a time, each with `latency` seconds to the service and back (with jitter); one in fifty takes
    `stall` seconds more. Each worker prepares its next request for `pace` seconds. `foreign` requests per second come from other clients
    with the same key. A person at a terminal sends a request after each pause between the two `pauses` (seconds; None: no person), and
    `waits` holds how long each of them took. `spelled` writes the Reset of an answer, given its moment and now.
    """

    service: Limiter
    workers: int = 1
    latency: float = 0.05
    jitter: float = 0.02
    stall: float = 0.0
    skew: float = 0.0
    dated: bool = True
    foreign: float = 0.0
    pauses: tuple[float, float] | None = None
    pace: float = 0.0
    headers: bool = True
    spelled: Callable[[float, float], str] = lambda reset, _now: f"{reset:.0f}"
    lane: int = BULK
    start: float = START
    seed: int = 1
    accepted: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)

    ledger: Ledger = field(default_factory=lambda: Ledger(None))

    def __post_init__(self) -> None:
        weakref.finalize(self, self.ledger.close)

    def run(self, *, seconds: float = math.inf, requests: float = math.inf) -> World:
        """Run for a time, or until the service has accepted that many requests."""
        ledger = self.ledger
        dice = random.Random(self.seed)
        order = itertools.count()
        pauses = self.pauses or (0.0, 0.0)
        events: list[tuple[float, int, Callable[[float], object]]] = []

        def at(moment: float, what: Callable[[float], object]) -> None:
            heapq.heappush(events, (moment, next(order), what))

        def ask(now: float, lane: int, then: Callable[[float], object], ticket: int | None = None) -> None:
            """Acquire a slot and send a request; call `then` after the answer."""
            answer = ledger.acquire(now, lane, ticket)
            if isinstance(answer, int):
                at(now + self._leg(dice), lambda moment: arrive(moment, answer, then))
            else:
                at(max(answer.look, now + 1e-4), lambda moment: ask(moment, lane, then, answer.ticket))

        def arrive(now: float, slot: int, then: Callable[[float], object]) -> None:
            said = self.service.ask(now + self.skew)
            (self.accepted if said[0] else self.refused).append(now)
            at(
                now + self._leg(dice),
                lambda moment: (ledger.answered(slot, moment, moment, *self._answer(*said, now + self.skew)), then(moment)),
            )

        def work(now: float) -> None:
            ask(now, self.lane, lambda moment: at(moment + self.pace * dice.uniform(0.5, 1.5), work))

        def person(now: float) -> None:
            ask(now, INTERACTIVE, lambda moment: (self.waits.append(moment - now), at(moment + dice.uniform(*pauses), person)))

        def stranger(now: float) -> None:
            self.service.ask(now + self.skew)
            at(now + dice.expovariate(self.foreign), stranger)

        for _ in range(self.workers):
            at(self.start + dice.random() * 0.01, work)
        if self.pauses:
            at(self.start + dice.uniform(*pauses), person)
        if self.foreign:
            at(self.start, stranger)
        while events and events[0][0] < self.start + seconds and len(self.accepted) < requests:
            now, _, what = heapq.heappop(events)
            what(now)
        return self

    def _answer(self, accepted: bool, left: int, reset: float, now: float) -> tuple[int, dict[str, str]]:
        headers = {"date": formatdate(now, usegmt=True)} if self.dated else {}
        if self.headers:
            limit = str(self.service.limit)
            headers |= {"x-ratelimit-limit": limit, "x-ratelimit-remaining": str(left), "x-ratelimit-reset": self.spelled(reset, now)}
        if not accepted:
            headers["retry-after"] = str(max(1, math.ceil(reset - now)))
        return 200 if accepted else 429, headers

    def _leg(self, dice: random.Random) -> float:
        late = self.stall if self.stall and dice.random() < 0.01 else 0.0
        return self.latency / 2 + dice.random() * self.jitter / 2 + late


def share_used(world: World) -> float:
    """Return the used share of the limit.

    Aligned windows: of the windows that passed completely. A bucket, which begins full: of those after the first. Others: as a rate, over
    full limits.
    """
    service, times = world.service, sorted(world.accepted)
    if isinstance(service, FixedWindow) and service.aligned:
        counts: dict[float, int] = {}
        for moment in times:
            number = (moment - service.phase) // service.window
            counts[number] = counts.get(number, 0) + 1
        whole = range(int(min(counts)) + 1, int(max(counts)))
        return sum(counts.get(number, 0) for number in whole) / (service.limit * len(whole))
    if isinstance(service, TokenBucket):
        windows = int((times[-1] - times[0]) // service.window)
        begin, end = times[0] + service.window, times[0] + windows * service.window
        return sum(begin <= moment < end for moment in times) / (service.limit * (windows - 1))
    rounds = (len(times) - 1) // service.limit
    return rounds * service.window / (times[rounds * service.limit] - times[0])


def least_time(limit: int, window: float, start: float, workers: int, *, cycle: float, requests: int) -> float:
    """Return the seconds needed with exact knowledge of the aligned windows; each worker has one request at a time of `cycle` seconds."""
    free = [start] * workers
    heapq.heapify(free)
    counts: dict[int, int] = {}
    last = start
    for _ in range(requests):
        arrival = heapq.heappop(free) + cycle / 2
        while counts.get(int(arrival // window), 0) >= limit:
            arrival = (arrival // window + 1) * window
        counts[int(arrival // window)] = counts.get(int(arrival // window), 0) + 1
        last = max(last, arrival)
        heapq.heappush(free, arrival + cycle / 2)
    return last - start
