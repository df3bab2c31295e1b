"""The retry schedule ends within 72 hours and becomes sparser. Its numbers are the service's promise, so they are written out here."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crmctl.service.background import next_try

HOUR = 3600.0


def tries(random: float) -> list[float]:
    times, attempt = [0.0], 1
    while (at := next_try(attempt, 0.0, times[-1], random)) is not None:
        times.append(at)
        attempt += 1
    return times


@given(st.floats(min_value=0, max_value=0.999))
def test_the_last_try_is_near_the_end_of_the_window(random: float) -> None:
    times = tries(random)
    assert times == sorted(times)
    assert 62 * HOUR < times[-1] <= 72 * HOUR
    assert 10 <= len(times) <= 30
    assert max(after - before for before, after in pairwise(times)) <= 8 * HOUR * 1.2


def test_the_gaps_grow_threefold_from_five_seconds_to_eight_hours() -> None:
    times = tries(0.5)
    gaps = [round(after - before) for before, after in pairwise(times)]
    assert gaps[:9] == [5, 15, 45, 135, 405, 1215, 3645, 10935, 28800]
    assert set(gaps[8:-1]) == {28800}
    assert round(times[-1]) == 246800


@pytest.mark.parametrize(("random", "gap"), [(0.0, 4.0), (0.25, 4.5), (0.5, 5.0), (1.0, 6.0)])
def test_a_gap_varies_by_a_fifth_either_way(random: float, gap: float) -> None:
    assert next_try(1, 1000.0, 1000.0, random) == pytest.approx(1000.0 + gap)


@pytest.mark.parametrize(
    ("now", "again"),
    [
        (64 * HOUR, 72 * HOUR),  # the gap ends with the window
        (65 * HOUR, 72 * HOUR - 60),  # the gap would end after it: one more try just before
        (67.9 * HOUR, 72 * HOUR - 60),
        (68 * HOUR, None),  # less than half a gap is left
        (72 * HOUR + 1, None),
    ],
)
def test_the_last_gap_is_shortened_to_fit_the_window(now: float, again: float | None) -> None:
    assert next_try(20, 0.0, now, 0.5) == again
