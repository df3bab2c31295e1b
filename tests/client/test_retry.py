"""The retry policy as a table, and both forms of Retry-After."""

from __future__ import annotations

import math
import time
from email.utils import formatdate

import pytest

from crmctl.client.session import MAX_ATTEMPTS, Failure, is_repeatable, next_wait
from crmctl.clock import retry_after
from tests.support.zones import in_zone

NOW = 1_800_000_000.0


def wait(
    failure: Failure, *, repeatable: bool, attempt: int = 1, waited: float = 0.0, max_wait: float = 300.0, random: float = 0.5
) -> float | None:
    return next_wait(failure, attempt=attempt, repeatable=repeatable, waited=waited, max_wait=max_wait, random=random)


@pytest.mark.parametrize(
    ("failure", "repeatable", "again"),
    [
        (Failure(status=429), True, True),
        (Failure(status=429), False, True),
        (Failure(status=502), True, True),
        (Failure(status=503), True, True),
        (Failure(status=504), True, True),
        (Failure(status=503), False, False),
        (Failure(status=500), True, False),
        (Failure(status=408), True, False),
        (Failure(status=404), True, False),
        (Failure(), True, True),
        (Failure(), False, False),
        (Failure(never_sent=True), False, True),
        (Failure(never_sent=True), True, True),
        (Failure(never_sent=True, transient=False), True, False),
        (Failure(transient=False), True, False),
    ],
)
def test_requests_that_are_retried(failure: Failure, repeatable: bool, again: bool) -> None:
    assert (wait(failure, repeatable=repeatable) is not None) == again


def test_repeatable_methods() -> None:
    assert [method for method in ("GET", "HEAD", "PATCH", "DELETE", "POST", "PUT") if is_repeatable(method)] == [
        "GET",
        "HEAD",
        "PATCH",
        "DELETE",
    ]


def test_the_span_of_the_jitter_doubles_and_is_used_in_full() -> None:
    spans = [wait(Failure(), repeatable=True, attempt=attempt, random=1.0) for attempt in range(1, MAX_ATTEMPTS)]
    assert spans == [0.5, 1.0, 2.0, 4.0]
    assert wait(Failure(), repeatable=True, attempt=3, random=0.0) == 0.0


def test_attempts_end_except_for_a_rate_limit() -> None:
    assert wait(Failure(status=503), repeatable=True, attempt=MAX_ATTEMPTS) is None
    assert wait(Failure(status=429, retry_after=1), repeatable=True, attempt=200) is not None


@pytest.mark.parametrize("status", [429, 503])
def test_a_wish_of_the_service_is_never_shortened(status: int) -> None:
    for random in (0.0, 0.3, 0.999):
        given = wait(Failure(status=status, retry_after=120), repeatable=True, random=random)
        assert given is not None
        assert given >= 120
    assert wait(Failure(status=status, retry_after=301), repeatable=True, max_wait=300) is None
    assert wait(Failure(status=status, retry_after=120), repeatable=True, waited=200, max_wait=300) is None


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "12"}, 12.0),
        ({"retry-after": " 1.5 "}, 1.5),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": formatdate(NOW + 30, usegmt=True)}, 30.0),
        ({"retry-after": formatdate(NOW - 30, usegmt=True)}, 0.0),
        # The service's clock is an hour ahead; its Date header gives the base.
        ({"retry-after": formatdate(NOW + 3610, usegmt=True), "date": formatdate(NOW + 3600, usegmt=True)}, 10.0),
        # Dates without a zone are UTC wherever the test runs.
        ({"retry-after": time.asctime(time.gmtime(NOW + 30))}, 30.0),
        ({"retry-after": formatdate(NOW + 30).replace("-0000", "")}, 30.0),
        ({"retry-after": "9" * 30}, 1e9),
        ({}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "nan"}, None),
    ],
)
def test_retry_after(headers: dict[str, str], seconds: float | None) -> None:
    with in_zone("America/New_York"):
        found = retry_after(headers, NOW)
    assert found == seconds if seconds is None else math.isclose(found or 0.0, seconds)
