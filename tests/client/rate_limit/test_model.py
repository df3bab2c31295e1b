"""The rate budget against services that limit in different ways: none refuses a request, and crmctl uses nearly the whole limit.

A few cases of each kind; benchmarks/rate_budget.py prints the full table.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from email.utils import formatdate
from typing import Any

import pytest

from crmctl.client.rate_limit.ledger import BULK, INTERACTIVE
from tests.client.ratesim import START, FixedWindow, Limiter, SlidingWindow, TokenBucket, World, least_time, share_used
from tests.support.campaigns import rest_in_campaigns

KINDS: dict[str, Callable[[float], Limiter]] = {
    "aligned": lambda window: FixedWindow(100, window, aligned=True),
    "aligned, ends rounded down": lambda window: FixedWindow(100, window, aligned=True, phase=0.9),
    "aligned, ends rounded up": lambda window: FixedWindow(100, window, aligned=True, phase=0.37, rounding=math.ceil),
    "begins with a request, rounded down": lambda window: FixedWindow(100, window, aligned=False),
    "begins with a request, rounded up": lambda window: FixedWindow(100, window, aligned=False, rounding=math.ceil),
    "sliding, rounded down": lambda window: SlidingWindow(100, window, rounding=math.floor),
    "sliding, rounded up": lambda window: SlidingWindow(100, window, rounding=math.ceil),
    "sliding, reset runs ahead": lambda window: SlidingWindow(100, window, rounding=math.ceil, running=True),
}
SHORT: dict[str, Any] = {"latency": 0.01, "jitter": 0.004}


@pytest.mark.parametrize("workers", rest_in_campaigns([8, 1]))
@pytest.mark.parametrize("kind", rest_in_campaigns(KINDS, 4))
def test_a_minute_is_used_and_never_overrun(kind: str, workers: int) -> None:
    service = KINDS[kind](60.0)
    world = World(service, workers=workers, start=START + 24.0).run(seconds=280.0)
    assert world.refused == []
    assert share_used(world) >= 0.98


@pytest.mark.campaign
@pytest.mark.parametrize("workers", [1, 8])
@pytest.mark.parametrize("kind", KINDS)
def test_three_seconds_are_used_and_never_overrun(kind: str, workers: int) -> None:
    """Rounding by one second is a third of the window; crmctl learns where the window ends without a refusal."""
    world = World(KINDS[kind](3.0), workers=workers, start=START + 1.363, **SHORT).run(seconds=33.0)
    assert world.refused == []
    assert share_used(world) >= (0.98 if kind == "aligned" else 0.95)


@pytest.mark.parametrize("workers", [1, 2, 8])
def test_short_windows_of_our_own_service_cost_nothing_at_any_phase(workers: int) -> None:
    """100 batches and two look-ups against 100 requests per 3 seconds: within 10 % of the shortest possible time (8 workers: or 50 ms)."""
    for step in range(10):
        phase = step * 0.3
        world = World(FixedWindow(100, 3.0, aligned=True), workers=workers, latency=0.01, jitter=0.002, start=START + phase).run(
            requests=102
        )
        least = least_time(100, 3.0, phase, workers, cycle=0.011, requests=102)
        assert world.refused == []
        assert world.accepted[-1] - world.start <= max(1.1 * least, least + (0.05 if workers == 8 else 0.0)), phase


@pytest.mark.parametrize(("window", "every"), rest_in_campaigns([(60.0, 6.0), (3.0, 3.7)]))
@pytest.mark.parametrize("kind", KINDS)
def test_people_wait_less_than_two_seconds(kind: str, window: float, every: float) -> None:
    """Two imports saturate the key; a user lists records now and then, which delays learning the end of short windows."""
    timing = SHORT if window == 3.0 else {}
    world = World(KINDS[kind](window), workers=2, pauses=(every, every), **timing).run(seconds=4 * window + 2)
    assert world.refused == []
    assert len(world.waits) >= 3
    assert max(world.waits) < 2.0
    assert share_used(world) >= (0.98 if window == 60.0 else 0.75)


@pytest.mark.campaign
@pytest.mark.parametrize("imports", [2, 7])
@pytest.mark.parametrize("kind", ["aligned", "sliding, rounded up"])
def test_imports_beside_a_person_with_frequent_queries(kind: str, imports: int) -> None:
    """Simulate benchmarks/rate_processes.py, which measures real processes: an import has two requests in flight."""
    world = World(KINDS[kind](60.0), workers=2 * imports, latency=0.006, pace=0.02, pauses=(3.3, 9.3), seed=imports, start=START + 52.0)
    world.run(seconds=270.0)
    assert world.refused == []
    assert share_used(world) >= 0.98
    assert len(world.waits) >= 35
    assert max(world.waits) < 2.0


@pytest.mark.campaign
@pytest.mark.parametrize(("jitter", "stall"), [(0.3, 0.0), (0.05, 0.8)])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.startswith("sliding")])
def test_answers_of_a_busy_machine(kind: str, jitter: float, stall: float) -> None:
    """Answers arrive late, or in another order than the requests."""
    service = KINDS[kind](60.0)
    world = World(service, workers=14, latency=0.02, jitter=jitter, stall=stall, pace=0.02, pauses=(3.3, 9.3), seed=2).run(seconds=270.0)
    assert world.refused == []
    assert share_used(world) >= 0.98
    assert max(world.waits) < 2.0


@pytest.mark.parametrize("skew", rest_in_campaigns([-7.3, 86_400.0, -3600.0, 0.4], 2))
@pytest.mark.parametrize("kind", ["aligned", "sliding, rounded up"])
def test_a_service_whose_clock_is_wrong(kind: str, skew: float) -> None:
    world = World(KINDS[kind](60.0), workers=3, skew=skew).run(seconds=180)
    assert world.refused == []
    assert len(world.accepted) >= 290


def test_without_a_date_header() -> None:
    world = World(FixedWindow(100, 60.0, aligned=True), workers=3, dated=False).run(seconds=180)
    assert world.refused == []
    assert len(world.accepted) >= 290


FORMS: dict[str, Callable[[float, float], str]] = {
    "milliseconds": lambda reset, _: f"{reset * 1000:.0f}",
    "a fraction": lambda reset, _: f"{reset:.3f}",
    "a date": lambda reset, _: formatdate(reset, usegmt=True),
    "seconds to wait, rounded up": lambda reset, now: f"{math.ceil(reset - now)}",
    "seconds to wait, rounded down": lambda reset, now: f"{math.floor(reset - now)}",
    "exact seconds to wait": lambda reset, now: f"{reset - now:.3f}",
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", rest_in_campaigns(["aligned", "begins with a request, rounded up", "sliding, rounded up"]))
def test_a_reset_in_another_form(kind: str, form: str) -> None:
    """Windows of 20 seconds: without Reset they would be taken for a minute."""
    world = World(KINDS[kind](20.0), workers=3, start=START + 7.0, spelled=FORMS[form]).run(seconds=100.0)
    assert world.refused == []
    assert share_used(world) >= 0.9


@pytest.mark.parametrize("limit", [1, 2, 5, 10, 20, 300])
def test_other_limits(limit: int) -> None:
    for service in (FixedWindow(limit, 60.0, aligned=True), SlidingWindow(limit, 60.0)):
        world = World(service, workers=3).run(seconds=180)
        assert len(world.refused) <= (3 if limit < 3 else 0)  # there are more workers than the limit allows, and no answer has named it yet
        assert len(world.accepted) >= 0.8 * 3 * limit


def test_a_token_bucket_is_not_overrun() -> None:
    world = World(TokenBucket(100, 60.0), workers=8).run(seconds=300)
    assert world.refused == []
    assert len(world.accepted) >= 500


def test_a_bucket_smaller_than_the_limit_is_approached_evenly() -> None:
    world = World(TokenBucket(100, 60.0, capacity=20), workers=4).run(seconds=360)
    first, *later = (count for _, count in sorted(Counter(moment // 60.0 for moment in world.refused).items()))
    assert first <= 4  # one for each request in flight
    assert max(later, default=0) <= 4
    assert len(world.accepted) >= 500


@pytest.mark.parametrize("foreign", rest_in_campaigns([30 / 60, 10 / 60, 60 / 60]))
@pytest.mark.parametrize("workers", [1, 8])
def test_another_client_uses_the_same_key(workers: int, foreign: float) -> None:
    """Other clients cannot be seen before they send: one refusal in a window reveals them, and no more follow."""
    world = World(FixedWindow(100, 60.0, aligned=True), workers=workers, foreign=foreign).run(seconds=300)
    assert max(Counter(moment // 60.0 for moment in world.refused).values(), default=0) <= 1
    assert len(world.accepted) + 300 * foreign >= 400


def test_a_service_without_rate_headers_is_not_slowed() -> None:
    world = World(FixedWindow(10_000, 60.0, aligned=True), workers=4, headers=False).run(seconds=30)
    assert len(world.accepted) >= 1500


def test_people_may_use_the_reserve_of_bulk_work() -> None:
    bulk = World(SlidingWindow(100, 60.0), start=START).run(seconds=30)
    person = World(SlidingWindow(100, 60.0), lane=INTERACTIVE).run(seconds=30)
    assert (len(bulk.accepted), len(person.accepted)) == (90, 100)


@pytest.mark.parametrize(
    "kind", rest_in_campaigns(["aligned, ends rounded up", "begins with a request, rounded up", "sliding, rounded up"])
)
def test_an_announced_time_includes_the_used_up_window_and_the_reserve(kind: str) -> None:
    dice, near = random.Random(7), 0
    for seed in range(10):
        before = World(KINDS[kind](60.0), lane=dice.choice([BULK, INTERACTIVE]), start=START + dice.uniform(0, 60), seed=seed)
        start = before.run(requests=dice.randint(2, 99)).accepted[-1] + 0.1
        requests = dice.randint(1, 200)
        announced = before.ledger.time_for(start, requests, bulk=True)
        taken = World(before.service, start=start, seed=seed, ledger=before.ledger).run(requests=requests).accepted[-1] - start
        near += abs(taken - announced) <= 15.0
    assert near >= 9
