"""Dates and instants: YYYY-MM-DD or an ISO 8601 timestamp. A date is its midnight in UTC; a timestamp without an offset is UTC."""

from __future__ import annotations

import re
from datetime import date, datetime, timedelta
from typing import Any

from crmctl.service.values.text import Invalid

_DAY = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_INSTANT = re.compile(
    r"(\d{4})-(\d{2})-(\d{2})"
    r"(?:[Tt ](\d{2}):(\d{2})(?::(\d{2})(?:[.,](\d{1,9}))?)?(?:[Zz]|([+-])(\d{2}):?(\d{2}))?)?",
    re.ASCII,
)


def parse_instant(text: str) -> datetime:
    """The naive UTC time of a date or timestamp, digits below the microsecond dropped; raises Invalid, also for 2023-02-30."""
    match = _INSTANT.fullmatch(text)
    if match is None:
        raise Invalid("must be a date (2026-01-31) or an ISO 8601 timestamp (2026-01-31T09:30:00Z)")
    year, month, day, hour, minute, second, fraction, sign, hours, minutes = match.groups()
    try:
        when = datetime(  # noqa: DTZ001 - UTC by definition, see above
            int(year), int(month), int(day), int(hour or 0), int(minute or 0), int(second or 0), int((fraction or "0")[:6].ljust(6, "0"))
        )
        if sign:
            if int(hours) > 23 or int(minutes) > 59:
                raise Invalid("has an offset from UTC that does not exist")
            offset = timedelta(hours=int(hours), minutes=int(minutes))
            when = when - offset if sign == "+" else when + offset
    except Invalid:
        raise
    except (ValueError, OverflowError):
        raise Invalid("is not a real date or time") from None
    return when


def date_key(text: str) -> str:
    """Fixed-width ISO 8601 in UTC, which sorts as time does; raises Invalid."""
    if len(text) == 10 and _DAY.fullmatch(text):
        # Most dates are days.
        try:
            date.fromisoformat(text)
        except ValueError:
            raise Invalid("is not a real date or time") from None
        return f"{text}T00:00:00.000000Z"
    return parse_instant(text).isoformat(timespec="microseconds") + "Z"


def read_date(value: Any) -> str:
    if not isinstance(value, str):
        raise Invalid("must be a date as a string (2026-01-31)")
    return date_key(value)
