"""The rate budget against services that limit in different ways: nothing is refused, and little of the limit is left unused."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from crmctl.client.budget import INTERACTIVE
from tests.client.ratesim import START, FixedWindow, Rounding, SlidingWindow, TokenBucket, World, least_time

ROUNDINGS: list[Rounding] = [math.floor, math.ceil, round]
SHORT: dict[str, Any] = {"latency": 0.02, "jitter": 0.005}


def used(world: World, windows: int, window: float) -> float:
    """Share of the limit used over whole windows, the first one (whose end must be found) included."""
    return len([moment for moment in world.accepted if moment < START + windows * window]) / (world.service.limit * windows)


@pytest.mark.parametrize("workers", [1, 8])
@pytest.mark.parametrize("rounding", ROUNDINGS, ids=lambda rounding: rounding.__name__)
@pytest.mark.parametrize("phase", [0.0, 0.37, 0.9])
def test_aligned_windows_are_used_and_never_overrun(workers: int, rounding: Rounding, phase: float) -> None:
    service = FixedWindow(100, 60.0, aligned=True, rounding=rounding, phase=phase)
    world = World(service, workers=workers, start=START + 24.0).run(seconds=36.0 + 5 * 60.0)
    assert world.refused == []
    windows = Counter((moment - phase) // 60.0 for moment in world.accepted)
    first, *whole = [count for _, count in sorted(windows.items())][:5]
    assert first >= 95  # its edge has still to be found
    assert sum(whole) / 400 >= 0.965


@pytest.mark.parametrize("workers", [1, 8])
@pytest.mark.parametrize("rounding", ROUNDINGS, ids=lambda rounding: rounding.__name__)
def test_windows_that_begin_with_a_request_are_used_and_never_overrun(workers: int, rounding: Rounding) -> None:
    world = World(FixedWindow(100, 60.0, aligned=False, rounding=rounding), workers=workers).run(seconds=361.0)
    assert world.refused == []
    # Every window begins a moment after the one before has ended, so the sixth is still going on.
    assert len([moment for moment in world.accepted if moment < START + 350.0]) >= 0.96 * 600


@pytest.mark.parametrize("workers", [1, 8])
@pytest.mark.parametrize("rounding", [math.floor, math.ceil], ids=lambda rounding: rounding.__name__)
@pytest.mark.parametrize("running", [False, True])
def test_sliding_windows_are_used_and_never_overrun(workers: int, rounding: Rounding, running: bool) -> None:
    world = World(SlidingWindow(100, 60.0, rounding=rounding, running=running), workers=workers).run(seconds=300)
    assert world.refused == []
    assert used(world, 5, 60.0) >= 0.97


@pytest.mark.parametrize("workers", [1, 2, 8])
@pytest.mark.parametrize("start", [0.0, 0.3, 1.4, 2.2])
def test_short_aligned_windows_with_an_exact_reset_cost_nothing(workers: int, start: float) -> None:
    """Two imports of 100 rows' worth of requests and a few look-ups, against 100 per 3 seconds."""
    world = World(FixedWindow(100, 3.0, aligned=True), workers=workers, latency=0.01, jitter=0.002, start=START + start).run(requests=206)
    assert world.refused == []
    assert world.accepted[-1] - world.start <= 1.1 * least_time(100, 3.0, start, workers, cycle=0.012, requests=206)


@pytest.mark.parametrize("make", [lambda: FixedWindow(100, 3.0, aligned=False), lambda: SlidingWindow(100, 3.0)], ids=["fixed", "sliding"])
@pytest.mark.parametrize("workers", [1, 4])
def test_short_windows_of_other_kinds_are_never_overrun(make: Callable[[], Any], workers: int) -> None:
    world = World(make(), workers=workers, **SHORT).run(seconds=30)
    assert world.refused == []
    assert used(world, 10, 3.0) >= 0.65


@pytest.mark.parametrize("skew", [-3600.0, -7.3, 0.4, 5.0, 86_400.0])
@pytest.mark.parametrize("make", [lambda: FixedWindow(100, 60.0, aligned=True), lambda: SlidingWindow(100, 60.0)], ids=["fixed", "sliding"])
def test_a_service_whose_clock_is_wrong(make: Callable[[], Any], skew: float) -> None:
    world = World(make(), workers=4, skew=skew).run(seconds=240)
    assert world.refused == []
    assert used(world, 4, 60.0) >= 0.95


def test_without_a_date_header() -> None:
    world = World(FixedWindow(100, 60.0, aligned=True), workers=4, dated=False).run(seconds=240)
    assert world.refused == []
    assert used(world, 4, 60.0) >= 0.95


@pytest.mark.parametrize("limit", [1, 2, 5, 10, 20, 300])
def test_other_limits(limit: int) -> None:
    for service in (FixedWindow(limit, 60.0, aligned=True), SlidingWindow(limit, 60.0)):
        world = World(service, workers=3).run(seconds=180)
        assert len(world.refused) <= (3 if limit < 3 else 0)  # more workers than the limit, before it was ever heard of
        assert used(world, 3, 60.0) >= 0.8


def test_a_token_bucket_is_rarely_overrun() -> None:
    world = World(TokenBucket(100, 60.0), workers=8).run(seconds=300)
    assert len(world.refused) <= 8
    assert len(world.accepted) >= 450


def test_somebody_else_uses_the_same_key() -> None:
    """Others cannot be seen before they act; their refusals stay few and the rest of the limit is used."""
    world = World(FixedWindow(100, 60.0, aligned=True), workers=4, foreign=0.5).run(seconds=300)
    assert len(world.refused) <= 10
    assert len(world.accepted) >= 300


def test_a_service_without_rate_headers_is_not_slowed() -> None:
    world = World(FixedWindow(10_000, 60.0, aligned=True), workers=4, headers=False).run(seconds=30)
    assert len(world.accepted) >= 1500


def test_people_may_use_what_bulk_work_leaves() -> None:
    bulk = World(SlidingWindow(100, 60.0), start=START).run(seconds=30)
    person = World(SlidingWindow(100, 60.0), lane=INTERACTIVE).run(seconds=30)
    assert (len(bulk.accepted), len(person.accepted)) == (95, 100)
