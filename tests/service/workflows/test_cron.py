"""Due times of schedules: forwards, backwards, in steps, across changes of daylight saving time."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from crmctl.service.workflows.workflow_definition import latest_due, next_due


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
        ("*/15 * * * *", None, "2027-01-15T08:14:59Z", "2027-01-15T08:00:00Z", "2027-01-15T08:15:00Z"),
        ("*/15 * * * *", None, "2027-01-15T08:45:00Z", "2027-01-15T08:45:00Z", "2027-01-15T09:00:00Z"),
        ("*/7 * * * *", None, "2027-01-15T08:56:30Z", "2027-01-15T08:56:00Z", "2027-01-15T09:00:00Z"),
        ("5-59/20 * * * *", None, "2027-01-15T08:30:00Z", "2027-01-15T08:25:00Z", "2027-01-15T08:45:00Z"),
        ("0 */6 * * *", None, "2027-01-15T18:00:01Z", "2027-01-15T18:00:00Z", "2027-01-16T00:00:00Z"),
        ("0 0 1 */3 *", None, "2027-01-15T08:00:00Z", "2027-01-01T00:00:00Z", "2027-04-01T00:00:00Z"),
    ],
)
def test_due_times(cron: str, timezone: str | None, now: str, before: str, after: str) -> None:
    assert next_due(cron, timezone, at(now)) == at(after)
    assert latest_due(cron, timezone, at(now)) == at(before)


@pytest.mark.parametrize(
    ("cron", "minutes"),
    [("* * * * *", range(60)), ("*/15 * * * *", [0, 15, 30, 45]), ("*/25 * * * *", [0, 25, 50]), ("3-20/5 * * * *", [3, 8, 13, 18])],
)
def test_an_hour_has_each_due_minute_once(cron: str, minutes: list[int]) -> None:
    start, found = at("2027-01-15T08:00:00Z"), list[int]()
    due = next_due(cron, None, start - 1)
    while due is not None and due < start + 3600:
        found.append(round(due - start) // 60)
        assert latest_due(cron, None, due) == due
        assert latest_due(cron, None, due - 1) != due
        due = next_due(cron, None, due)
    assert found == list(minutes)


def test_the_latest_due_time_is_exact_to_the_second() -> None:
    moment = datetime.fromisoformat("2027-01-15T08:00:00+00:00")
    for offset, minute in ((-1, 59), (0, 0), (1, 0), (59, 0), (60, 1)):
        found = latest_due("* * * * *", None, (moment + timedelta(seconds=offset)).timestamp())
        assert found is not None
        assert datetime.fromtimestamp(found, moment.tzinfo).minute == minute
