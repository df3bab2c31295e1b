"""The reader of the service's timestamps."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crmctl.values.moments import micros_of, moment_of, seconds_of

NOON = 1_767_614_400 * 1_000_000
"""2026-01-05T12:00:00Z"""


@pytest.mark.parametrize(
    ("text", "later"),
    [
        ("2026-01-05T12:00:00Z", 0),
        ("2026-01-05T12:00:00z", 0),
        ("2026-01-05T12:00:00", 0),
        ("2026-01-05 12:00:00", 0),
        ("2026-01-05 12:00:00 UTC", 0),
        ("2026-01-05T12:00:00UTC", 0),
        ("2026-01-05 12:00:00 +0000", 0),
        ("2026-01-05T12:00", 0),
        ("20260105T120000Z", 0),
        ("2026-01-05T14:00:00+02:00", 0),
        ("2026-01-05T06:30:00-0530", 0),
        (" 2026-01-05T12:00:00Z ", 0),
        ("2026-01-05T12:00:00.5", 500_000),
        ("2026-01-05T12:00:00.123456789Z", 123_456),
        ("2026-01-05T12:00:00,25Z", 250_000),
        ("2026-01-05", -12 * 3600 * 1_000_000),
    ],
)
def test_every_spelling_of_a_moment_is_read(text: str, later: int) -> None:
    assert micros_of(text) == NOON + later
    assert seconds_of(text) == (NOON + later) / 1_000_000


@pytest.mark.parametrize(
    "text", [None, "", "soon", "2026-13-05T12:00:00Z", "2026-01-05T24:00:01Z", "2026-01-05T12:60:00Z", "12:00", "1767614400", "2026-02-30"]
)
def test_text_without_a_timestamp_is_none(text: str | None) -> None:
    assert (moment_of(text), micros_of(text), seconds_of(text)) == (None, None, None)


ZONES = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@given(st.datetimes(datetime(1970, 1, 2), datetime(9999, 12, 30), timezones=ZONES | st.just(UTC)))
def test_moments_keep_their_microseconds_in_every_zone(moment: datetime) -> None:
    assert micros_of(moment.isoformat()) == (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    assert moment_of(moment.astimezone(UTC).replace(tzinfo=None).isoformat()) == moment
