"""Points in time as a person says them: `3 hours ago`. Pure; the caller says what time it is."""

from __future__ import annotations

from crmctl.models.timestamps import moment_of

_UNITS = (("day", 86_400), ("hour", 3_600), ("minute", 60))


def relative(timestamp: str, now: float) -> str | None:
    """`just now`, `5 minutes ago`, `in 2 hours`, and the date beyond 30 days. None for what is no ISO 8601 timestamp.

    `now` is Unix time in seconds. A timestamp without a zone is UTC, as the specification has it.
    """
    moment = moment_of(timestamp)
    if moment is None:
        return None
    try:
        distance = now - moment.timestamp()
    except (OverflowError, ValueError):
        return None
    seconds = abs(distance)
    if seconds > 30 * 86_400:
        return moment.date().isoformat()
    for unit, length in _UNITS:
        if seconds >= length:
            count = int(seconds // length)
            text = f"{count} {unit}{'s' if count != 1 else ''}"
            return f"{text} ago" if distance > 0 else f"in {text}"
    return "just now"
