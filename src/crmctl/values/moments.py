"""Points in time: timestamps of the service and moments people type."""

from __future__ import annotations

import re
from calendar import monthrange
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta
from typing import NamedTuple

from crmctl.errors import UsageError

FORMS = "2026-05-01, '2026-05-01 14:00', 2026-05-01T14:00:00+02:00, today, 'yesterday 15:30', 14:00, -2h, 2y, 'in 3 days', '1 May 2026'"

_DAYS = {"today": 0, "yesterday": -1, "tomorrow": 1}
_SECONDS = {"s": 1, "m": 60, "h": 3600}
_IN_DAYS = {"d": 1, "w": 7}
_MONTHS = {"mo": 1, "y": 12}
_UNITS = {"sec": "s", "second": "s", "min": "m", "minute": "m", "hour": "h", "hr": "h", "day": "d", "week": "w"} | {
    "month": "mo",
    "year": "y",
    "yr": "y",
    **{unit: unit for unit in (*_SECONDS, *_IN_DAYS, *_MONTHS)},
}
_DISTANCE = re.compile(r"(?:(?P<sign>[-+]|in(?= ))\s*)?(\d{1,6})\s*([a-z]+)(?P<ago> ago)?")
_TIME = re.compile(r"(?:at\s+)?(\d{1,2})(?::(\d{2}))?(?::(\d{2}))?\s*(am|pm)?", re.IGNORECASE)
_ISO_DAY = re.compile(r"\d{4}-?\d{2}-?\d{2}")
_AMBIGUOUS = re.compile(r"\d{1,2}[/-]\d{1,2}[/-]\d{2,4}")
_SLASHED = re.compile(r"(\d{1,2})[/-](\d{1,2})[/-](\d{4})(?!\d)")
_WRITTEN = ("%Y/%m/%d", "%Y.%m.%d", "%d.%m.%Y", "%d %B %Y", "%d %b %Y", "%B %d %Y", "%b %d %Y")


class Moment(NamedTuple):
    """A point in time with its zone. `is_day`: the text names a whole day that begins then. `counts_days`: it counts days or months."""

    at: datetime
    is_day: bool = False
    counts_days: bool = False

    @property
    def timestamp(self) -> str:
        """The wire form: `2026-05-01T12:00:00Z`."""
        spec = "milliseconds" if self.at.microsecond else "seconds"
        return self.at.astimezone(UTC).isoformat(timespec=spec).replace("+00:00", "Z")

    @property
    def for_date(self) -> str:
        """The operand for a date attribute: the day if the text means one, else the timestamp."""
        return self.at.astimezone().date().isoformat() if self.is_day or self.counts_days else self.timestamp

    @property
    def next_day(self) -> Moment:
        """The first moment of the day after."""
        return Moment(datetime.combine(self.at.astimezone().date() + timedelta(days=1), time()).astimezone(), is_day=True)


def timestamp(text: str, now: float) -> str:
    """Return the UTC timestamp of a text. Without a zone it is local time. Raises UsageError."""
    return read_moment(text, now).timestamp


def read_moment(text: str, now: float) -> Moment:
    """Return the point in time that a text names; `now` is Unix time in seconds.

    Raises UsageError for a text that is no date or an ambiguous one.
    """
    words, present = _year_first(" ".join(text.split())), datetime.fromtimestamp(now, UTC)
    distance = _DISTANCE.fullmatch(words.lower())
    unit = (_UNITS.get(distance[3]) or _UNITS.get(distance[3].removesuffix("s"))) if distance else None
    try:
        if words.lower() == "now":
            moment: datetime | None = present.replace(microsecond=0)
        elif distance and unit and not (distance["sign"] and distance["ago"]):
            count = int(distance[2]) * (1 if distance["sign"] in ("+", "in") else -1)
            moment = _moved(present.replace(microsecond=0), count, unit)
        else:
            moment = _iso(words) or _dated(words, present.astimezone().date())
        if moment is not None:
            has_time = moment.tzinfo is not None or moment.time() != time() or re.search(r"[:Tt]\d|\d\s*[ap]m$", words)
            dated = Moment(moment.astimezone(), is_day=not has_time, counts_days=unit in {*_IN_DAYS, *_MONTHS})
            dated.at.astimezone(UTC)  # beyond the calendar this fails
            return dated
    except (ValueError, OverflowError, OSError):
        pass
    if _AMBIGUOUS.match(words):
        raise UsageError(f"{text!r} can be read in two ways", hint="write the year first: 2026-05-01", code="bad_date")
    raise UsageError(f"{text!r} is not a date that can be read", hint=f"forms: {FORMS}", code="bad_date")


def _year_first(words: str) -> str:
    """Return 31/12/1990 and 12/31/1990 as 1990-12-31; a date whose day may be its month stays as it is."""
    match = _SLASHED.match(words)
    first, second = (int(match[1]), int(match[2])) if match else (0, 0)
    day, month = (second, first) if second > 12 else (first, second)
    is_clear = day > 12 >= month or day == month <= 12
    return f"{match[3]}-{month:02}-{day:02}{words[match.end() :]}" if match and is_clear else words


def _moved(now: datetime, count: int, unit: str) -> datetime:
    """Return the moment that many units from now: `-2h`, `2y`, `+1d`, `3 days ago`, `in 2 weeks`.

    Days and months are local: the time of day stays the same when the clocks change. A month ends with its last day.
    """
    if unit in _SECONDS:
        return now + timedelta(seconds=count * _SECONDS[unit])
    here = now.astimezone().replace(tzinfo=None)
    if unit in _IN_DAYS:
        return (here + timedelta(days=count * _IN_DAYS[unit])).astimezone()
    year, month = divmod(here.year * 12 + here.month - 1 + count * _MONTHS[unit], 12)
    return here.replace(year=year, month=month + 1, day=min(here.day, monthrange(year, month + 1)[1])).astimezone()


def _iso(words: str) -> datetime | None:
    joined = re.sub(r"\s+(?=[+-]\d{2}:?\d{2}$|[zZ]$)", "", re.sub(r"\s+UTC$", "Z", words))
    with suppress(ValueError):
        return datetime.fromisoformat(joined) if _ISO_DAY.match(words) else None
    return None


def _dated(words: str, today: date) -> datetime | None:
    """Read a day, a time of today, or both: `1 May 2026 9am`. A day alone begins at midnight."""
    parts = words.split(" ")
    for split in range(len(parts), 0, -1):
        clock = time() if split == len(parts) else _clock(" ".join(parts[split:]))
        if clock is not None and (day := _day(" ".join(parts[:split]), today)) is not None:
            return datetime.combine(day, clock)
    return datetime.combine(today, clock) if (clock := _clock(words)) is not None else None


def _day(text: str, today: date) -> date | None:
    if text.lower() in _DAYS:
        return today + timedelta(days=_DAYS[text.lower()])
    if _ISO_DAY.match(text):
        with suppress(ValueError):
            return date.fromisoformat(text)
    plain = re.sub(r"(?<=\d)(?:st|nd|rd|th)\b", "", text.replace(",", " "), flags=re.IGNORECASE)
    for form in _WRITTEN:
        with suppress(ValueError):
            return datetime.strptime(" ".join(plain.split()), form).date()  # noqa: DTZ007 - a day has no zone
    return None


def _clock(text: str) -> time | None:
    match = _TIME.fullmatch(text)
    if match is None or (match[2] is None and match[4] is None):
        return None
    hour, half = int(match[1]), (match[4] or "").lower()
    if half:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + (12 if half == "pm" else 0)
    return time(hour, int(match[2] or 0), int(match[3] or 0))


_SPAN_UNITS = {"ms": 0.001, **_SECONDS, **{unit: days * 86400 for unit, days in _IN_DAYS.items()}}
_SPAN = re.compile(rf"([0-9]{{1,6}}(?:\.[0-9]{{1,6}})?)({'|'.join(_SPAN_UNITS)})")


def read_span(text: object) -> float:
    """Return the seconds of `2d`, `15m` or `500ms`. Raises ValueError."""
    match = _SPAN.fullmatch(str(text))
    if match is None:
        raise ValueError(f"must be a duration such as 2d, 15m or 500ms, not {text!r}")
    return float(match[1]) * _SPAN_UNITS[match[2]]


MICROS = 1_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TICK = timedelta(microseconds=1)


def moment_of(timestamp: str | None) -> datetime | None:
    """Return the moment of a timestamp, in UTC unless it names a zone; None for any other text. Fractions end at microseconds."""
    try:
        moment = datetime.fromisoformat((timestamp or "").strip().upper().replace(" UTC", "Z").replace("UTC", "Z").replace(" +", "+"))
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def micros_of(timestamp: str | None) -> int | None:
    """Return whole microseconds since 1970, which compare exactly; None for a text that is no timestamp."""
    moment = moment_of(timestamp)
    return None if moment is None else (moment - EPOCH) // _TICK


def seconds_of(timestamp: str | None) -> float | None:
    """Return Unix time in seconds; None for a text that is no timestamp."""
    micros = micros_of(timestamp)
    return None if micros is None else micros / MICROS


def micros_of_date(header: str | None) -> int | None:
    """Return the microseconds of an HTTP Date header; None for an unreadable one."""
    from email.utils import parsedate_to_datetime

    try:
        return (parsedate_to_datetime(header or "") - EPOCH) // _TICK
    except (ValueError, TypeError):
        return None


def to_timestamp(micros: int, timespec: str = "auto") -> str:
    """Return the ISO 8601 form, by default with microseconds unless it is a whole second."""
    return (EPOCH + timedelta(microseconds=micros)).isoformat(timespec=timespec).replace("+00:00", "Z")


def in_a_sentence(timestamp: str, now: float) -> str:
    """Return local time to the minute, with the day unless it is that of `now` (Unix seconds). Other texts stay unchanged."""
    if (moment := moment_of(timestamp)) is None:
        return timestamp
    here, today = moment.astimezone(), datetime.fromtimestamp(now, UTC).astimezone()
    return f"{here:%H:%M}" if here.date() == today.date() else f"{here:%Y-%m-%d %H:%M}"
