"""Points in time as a person reads them: local time to the minute."""

from __future__ import annotations

from crmctl.models.timestamps import moment_of


def local(timestamp: str) -> tuple[str, str] | None:
    """Local time to the minute, and the name of its zone. None for what is no ISO 8601 timestamp."""
    moment = moment_of(timestamp)
    if moment is None:
        return None
    try:
        here = moment.astimezone()
    except (OverflowError, ValueError, OSError):
        return None
    return f"{here:%Y-%m-%d %H:%M}", here.tzname() or ""
