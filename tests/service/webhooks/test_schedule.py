"""The retry schedule stays inside 72 hours and thins out."""

from hypothesis import given
from hypothesis import strategies as st

from crmctl.service.webhooks.schedule import LONGEST_GAP, WINDOW, next_try


def tries(random: float) -> list[float]:
    times, attempt = [0.0], 1
    while (at := next_try(attempt, 0.0, times[-1], random)) is not None:
        times.append(at)
        attempt += 1
    return times


@given(st.floats(min_value=0, max_value=0.999))
def test_the_last_try_is_inside_the_window_and_near_its_end(random: float) -> None:
    times = tries(random)
    assert times == sorted(times)
    assert times[-1] <= WINDOW
    assert times[-1] > WINDOW - LONGEST_GAP * 1.2
    assert 10 <= len(times) <= 30


def test_the_first_gaps_are_short() -> None:
    times = tries(0.5)
    assert times[1] == 5.0
    assert times[4] < 600


def test_a_delivery_whose_window_has_passed_is_not_tried_again() -> None:
    assert next_try(5, 0.0, WINDOW + 1, 0.5) is None
