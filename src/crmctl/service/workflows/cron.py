"""When a schedule is due: five-field cron expressions, in UTC or a named time zone. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from crmctl.service.faults import BadRequest


def check_cron(cron: str | None, timezone: str | None, now: float) -> None:
    """Raises BadRequest for what is no cron expression, no time zone, or never due."""
    if cron is None:
        raise BadRequest("cron is required for the trigger schedule", {"field": "cron"})
    if len(cron.split()) != 5:
        raise BadRequest("cron must have five fields: minute, hour, day of the month, month, day of the week", {"field": "cron"})
    try:
        _zone(timezone)
    except (LookupError, ValueError, OSError):
        raise BadRequest(f"timezone must be a name such as Europe/Berlin, not {timezone!r}", {"field": "timezone"}) from None
    try:
        due = next_due(cron, timezone, now)
    except CronSimError as problem:
        raise BadRequest(f"cron cannot be read: {problem}", {"field": "cron"}) from None
    if due is None:
        raise BadRequest("cron names a day that never comes", {"field": "cron"})


def next_due(cron: str, timezone: str | None, after: float) -> float | None:
    """The first due Unix time later than `after`."""
    found = next(CronSim(cron, datetime.fromtimestamp(after, _zone(timezone))), None)
    return None if found is None else found.timestamp()


def latest_due(cron: str, timezone: str | None, until: float) -> float | None:
    """The last due Unix time that is not later than `until`."""
    # A backward search leaves out the very second it begins at.
    start = datetime.fromtimestamp(until, UTC).replace(second=0, microsecond=0) + timedelta(seconds=1)
    found = next(CronSim(cron, start.astimezone(_zone(timezone)), reverse=True), None)
    return None if found is None else found.timestamp()


def _zone(timezone: str | None) -> tzinfo:
    return UTC if timezone is None else ZoneInfo(timezone)
