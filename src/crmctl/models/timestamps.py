"""The only reader of the service's timestamps: ISO 8601, UTC where no zone is named. Pure.

What people type is read in `models/moments.py`, what cells hold in `models/typed_text.py`: other grammars, other defaults.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

MICROS = 1_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TICK = timedelta(microseconds=1)
_TOLERANT = re.compile(
    r"(\d{4})-?(\d\d)-?(\d\d)(?:[T ](\d\d):?(\d\d)(?::?(\d\d)(?:[.,](\d+))?)?)?\s*(Z|UTC|GMT|([+-])(\d\d):?(\d\d)?(?::?(\d\d))?)?",
    re.IGNORECASE,
)


def moment_of(timestamp: str | None) -> datetime | None:
    """The moment with its zone, UTC where none is named; None for what is no timestamp. Fractions beyond microseconds are cut off."""
    text = (timestamp or "").strip()
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return _tolerant(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def micros_of(timestamp: str | None) -> int | None:
    """Whole microseconds since 1970: exact, and comparable whatever the spelling. None for what is no timestamp."""
    moment = moment_of(timestamp)
    return None if moment is None else (moment - EPOCH) // _TICK


def seconds_of(timestamp: str | None) -> float | None:
    """Unix time in seconds; None for what is no timestamp."""
    micros = micros_of(timestamp)
    return None if micros is None else micros / MICROS


def micros_of_date(header: str | None) -> int | None:
    """Microseconds of an HTTP Date header, None without a readable one."""
    from email.utils import parsedate_to_datetime

    try:
        return (parsedate_to_datetime(header or "") - EPOCH) // _TICK
    except (ValueError, TypeError):
        return None


def to_timestamp(micros: int) -> str:
    """The ISO 8601 form, to the microsecond where it is not a whole second."""
    return (EPOCH + timedelta(microseconds=micros)).isoformat().replace("+00:00", "Z")


def _tolerant(text: str) -> datetime | None:
    """Forms that `fromisoformat` does not take (on every Python): `24:00`, a leap second, a small `z`, `UTC`, a blank before the zone."""
    found = _TOLERANT.fullmatch(text)
    if found is None:
        return None
    year, month, day, hour, minute, second = (int(part or 0) for part in found.groups()[:6])
    if minute > 59 or second > 60 or hour > 24 or (hour == 24 and (minute or second)):
        return None
    offset = timedelta(hours=int(found[10] or 0), minutes=int(found[11] or 0), seconds=int(found[12] or 0))
    within = timedelta(hours=hour, minutes=minute, seconds=second, microseconds=int((found[7] or "0")[:6].ljust(6, "0")))
    try:
        return datetime(year, month, day, tzinfo=UTC) + within - (-offset if found[9] == "-" else offset)
    except (ValueError, OverflowError):
        return None


def in_a_sentence(timestamp: str, now: float) -> str:
    """Local time to the minute, with the day unless it is that of `now` (Unix seconds); what is no timestamp as it is."""
    if (moment := moment_of(timestamp)) is None:
        return timestamp
    here, today = moment.astimezone(), datetime.fromtimestamp(now, UTC).astimezone()
    return f"{here:%H:%M}" if here.date() == today.date() else f"{here:%Y-%m-%d %H:%M}"
