"""The retry policy as a table, and both forms of Retry-After."""

from __future__ import annotations

import math
import time
from email.utils import formatdate

import pytest

from crmctl.client.answers import Answer
from crmctl.client.session import MAX_ATTEMPTS, REPEATABLE, next_wait
from crmctl.clock import retry_after
from crmctl.errors import NetworkError
from tests.support.zones import in_zone

NOW = 1_800_000_000.0


LOST = NetworkError("lost", outcome_unknown=True)
NEVER_SENT = NetworkError("never sent")


def wait(
    result: Answer | NetworkError,
    asked: float | None = None,
    *,
    repeatable: bool,
    attempt: int = 1,
    waited: float = 0.0,
    max_wait: float = 300.0,
    random: float = 0.5,
) -> float | None:
    return next_wait(result, asked, attempt=attempt, repeatable=repeatable, waited=waited, max_wait=max_wait, random=lambda: random)


@pytest.mark.parametrize(
    ("result", "repeatable", "again"),
    [
        (Answer(429), True, True),
        (Answer(429), False, True),
        (Answer(502), True, True),
        (Answer(503), True, True),
        (Answer(504), True, True),
        (Answer(503), False, False),
        (Answer(500), True, False),
        (Answer(408), True, False),
        (Answer(404), True, False),
        (LOST, True, True),
        (LOST, False, False),
        (NEVER_SENT, False, True),
        (NEVER_SENT, True, True),
    ],
)
def test_requests_that_are_retried(result: Answer | NetworkError, repeatable: bool, again: bool) -> None:
    assert (wait(result, repeatable=repeatable) is not None) == again


def test_repeatable_methods() -> None:
    assert [method for method in ("GET", "HEAD", "PATCH", "DELETE", "POST", "PUT") if method in REPEATABLE] == [
        "GET",
        "HEAD",
        "PATCH",
        "DELETE",
    ]


def test_the_span_of_the_jitter_doubles_and_is_used_in_full() -> None:
    spans = [wait(LOST, repeatable=True, attempt=attempt, random=1.0) for attempt in range(1, MAX_ATTEMPTS)]
    assert spans == [0.5, 1.0, 2.0, 4.0]
    assert wait(LOST, repeatable=True, attempt=3, random=0.0) == 0.0


def test_attempts_end_except_for_a_rate_limit() -> None:
    assert wait(Answer(503), repeatable=True, attempt=MAX_ATTEMPTS) is None
    assert wait(Answer(429), 1, repeatable=True, attempt=200) is not None


@pytest.mark.parametrize("status", [429, 503])
def test_a_wish_of_the_service_is_never_shortened(status: int) -> None:
    for random in (0.0, 0.3, 0.999):
        given = wait(Answer(status), 120, repeatable=True, random=random)
        assert given is not None
        assert given >= 120
    assert wait(Answer(status), 301, repeatable=True, max_wait=300) is None
    assert wait(Answer(status), 120, repeatable=True, waited=200, max_wait=300) is None


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
