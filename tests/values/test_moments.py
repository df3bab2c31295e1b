"""Moments as people write them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from crmctl.errors import UsageError
from crmctl.values.moments import read_moment, timestamp
from tests.support.zones import in_zone

NOW = datetime(2026, 5, 31, 10, 20, 30, 400_000, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("text", "wire"),
    [
        ("2026-05-01", "2026-05-01T00:00:00Z"), ("20260501", "2026-05-01T00:00:00Z"), ("2026-05-01 14:00", "2026-05-01T14:00:00Z"),
        ("2026-05-01T14:00:00+02:00", "2026-05-01T12:00:00Z"), ("2026-05-01 14:00 UTC", "2026-05-01T14:00:00Z"),
        ("2026-05-01 2pm", "2026-05-01T14:00:00Z"),
        ("2026-05-01T14:00:00.25Z", "2026-05-01T14:00:00.250Z"), ("now", "2026-05-31T10:20:30Z"), ("today", "2026-05-31T00:00:00Z"),
        ("yesterday 15:30", "2026-05-30T15:30:00Z"), ("tomorrow at 9am", "2026-06-01T09:00:00Z"), ("14:05:06", "2026-05-31T14:05:06Z"),
        ("12am", "2026-05-31T00:00:00Z"), ("12 pm", "2026-05-31T12:00:00Z"), ("12:30am", "2026-05-31T00:30:00Z"),
        ("1:15 pm", "2026-05-31T13:15:00Z"),
        ("-2h", "2026-05-31T08:20:30Z"), ("2h", "2026-05-31T08:20:30Z"), ("+1d", "2026-06-01T10:20:30Z"),
        ("in 2 weeks", "2026-06-14T10:20:30Z"),
        ("3 days ago", "2026-05-28T10:20:30Z"), ("90 seconds", "2026-05-31T10:19:00Z"), ("-3mo", "2026-02-28T10:20:30Z"),
        ("+1 month", "2026-06-30T10:20:30Z"),
        ("2y", "2024-05-31T10:20:30Z"), ("in 9 months", "2027-02-28T10:20:30Z"), ("1 May 2026", "2026-05-01T00:00:00Z"),
        ("May 1st, 2026 9am", "2026-05-01T09:00:00Z"), ("01.05.2026", "2026-05-01T00:00:00Z"), ("2026/05/01 14:00", "2026-05-01T14:00:00Z"),
        ("2026-05-01 14:00 -0330", "2026-05-01T17:30:00Z"),
    ],
)  # fmt: skip
def test_a_text_names_one_moment(text: str, wire: str) -> None:
    with in_zone("UTC"):
        assert timestamp(text, NOW) == wire
        assert timestamp(f"  {text} ".replace(" ", "  "), NOW) == wire


@pytest.mark.parametrize(
    ("text", "wire"),
    [
        ("2026-05-01", "2026-04-30T22:00:00Z"), ("2026-01-01 14:00:05", "2026-01-01T13:00:05Z"),
        ("20260501T140000Z", "2026-05-01T14:00:00Z"),
        ("2026/05/01 9am", "2026-05-01T07:00:00Z"), ("Today", "2026-05-30T22:00:00Z"), ("tomorrow at 12pm", "2026-06-01T10:00:00Z"),
        ("90 minutes ago", "2026-05-31T08:50:30Z"), ("-5mo", "2025-12-31T11:20:30Z"),
    ],
)  # fmt: skip
def test_a_moment_without_a_zone_is_local(text: str, wire: str) -> None:
    with in_zone("Europe/Berlin"):
        assert timestamp(text, NOW) == wire


@pytest.mark.parametrize(
    "text",
    [
        "",
        "soon",
        "5",
        "2026-02-30",
        "2026-13-01",
        "25:00",
        "14:60",
        "0am",
        "13pm",
        "14",
        "-2 h ago",
        "in 2h ago",
        "2 fortnights",
        "99999999d",
        "999999y",
        "0001-01-01 00:00+10:00",
    ],
)  # fmt: skip
def test_text_without_a_moment_is_refused(text: str) -> None:
    with in_zone("UTC"), pytest.raises(UsageError, match="is not a date that can be read"):
        read_moment(text, NOW)


@pytest.mark.parametrize("text", ["1/5/2026", "01/05/26", "5-1-2026", "05-06-2026"])
def test_ambiguous_moments_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="can be read in two ways"):
        read_moment(text, NOW)


def test_days_differ_from_moments() -> None:
    with in_zone("Asia/Tokyo"):
        day, midnight, distance = (read_moment(text, NOW) for text in ("2026-05-01", "2026-05-01 00:00", "2w"))
    assert [(one.is_day, one.counts_days) for one in (day, midnight, distance)] == [(True, False), (False, False), (False, True)]
    assert day.timestamp == midnight.timestamp == "2026-04-30T15:00:00Z"
    with in_zone("Asia/Tokyo"):
        assert [one.for_date for one in (day, midnight, distance)] == ["2026-05-01", "2026-04-30T15:00:00Z", "2026-05-17"]
        assert day.next_day.timestamp == "2026-05-01T15:00:00Z"
        assert read_moment("2h", NOW).for_date == "2026-05-31T08:20:30Z"


def test_days_and_months_are_those_of_the_calendar_on_both_sides_of_a_change_of_the_clocks() -> None:
    with in_zone("Europe/Berlin"):
        after_midnight = datetime(2026, 4, 9, 22, 30, tzinfo=UTC).timestamp()  # 00:30 on 10 April, summer time
        for text, day in [("30d", "2026-03-11"), ("2w", "2026-03-27"), ("1mo", "2026-03-10"), ("in 7 months", "2026-11-10")]:
            moment = read_moment(text, after_midnight)
            assert (moment.for_date, moment.at.strftime("%H:%M")) == (day, "00:30"), text
        assert timestamp("720h", after_midnight) == "2026-03-10T22:30:00Z"
