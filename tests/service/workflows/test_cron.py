"""When schedules are due: forwards, backwards, over changes of daylight saving time."""

from __future__ import annotations

from datetime import datetime

import pytest

from crmctl.service.workflows.cron import latest_due, next_due


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


@pytest.mark.parametrize(
    ("cron", "timezone", "now", "before", "after"),
    [
        ("* * * * *", None, "2027-01-15T08:00:00Z", "2027-01-15T08:00:00Z", "2027-01-15T08:01:00Z"),
        ("* * * * *", None, "2027-01-15T08:00:59.9Z", "2027-01-15T08:00:00Z", "2027-01-15T08:01:00Z"),
        ("0 8 * * 1", None, "2027-01-15T08:00:00Z", "2027-01-11T08:00:00Z", "2027-01-18T08:00:00Z"),
        ("0 8 * * *", "Europe/Berlin", "2027-03-27T12:00:00Z", "2027-03-27T07:00:00Z", "2027-03-28T06:00:00Z"),
        ("30 2 * * *", "Europe/Berlin", "2027-03-28T00:59:00Z", "2027-03-27T01:30:00Z", "2027-03-28T01:00:00Z"),
        ("0 0 29 2 *", None, "2027-01-15T08:00:00Z", "2024-02-29T00:00:00Z", "2028-02-29T00:00:00Z"),
    ],
)
def test_due_times(cron: str, timezone: str | None, now: str, before: str, after: str) -> None:
    assert next_due(cron, timezone, at(now)) == at(after)
    assert latest_due(cron, timezone, at(now)) == at(before)
