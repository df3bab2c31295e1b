"""Points in time as people write them, turned into the UTC timestamps of the wire. Pure: the caller says what time it is."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta

from crmctl.errors import UsageError

FORMS = "2026-05-01, '2026-05-01 14:00', 2026-05-01T14:00:00+02:00, today, 'yesterday 15:30', 14:00, -2h, 'in 3 days', '1 May 2026'"

_DAYS = {"today": 0, "yesterday": -1, "tomorrow": 1}
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_UNITS = {"sec": "s", "second": "s", "min": "m", "minute": "m", "hour": "h", "hr": "h", "day": "d", "week": "w"} | {
    unit: unit for unit in _SECONDS
}
_AMOUNT = r"(\d{1,6})\s*([a-z]+)"
_TIME = re.compile(r"(?:at\s+)?(\d{1,2})(?::(\d{2}))?(?::(\d{2}))?\s*(am|pm)?", re.IGNORECASE)
_AMBIGUOUS = re.compile(r"\d{1,2}[/-]\d{1,2}[/-]\d{2,4}")
_WRITTEN = ("%Y/%m/%d", "%Y.%m.%d", "%d.%m.%Y", "%d %B %Y", "%d %b %Y", "%B %d %Y", "%b %d %Y")


def timestamp(text: str, now: float) -> str:
    """The UTC timestamp of a point in time: `2026-05-01T12:00:00Z`. What names no zone is in the zone of this machine.

    `now` is Unix time in seconds. Raises UsageError for what is no date, or one that can be read in two ways.
    """
    words = " ".join(text.split())
    present = datetime.fromtimestamp(now, UTC)
    try:
        moment = next((found for read in (_iso, _relative, _named, _mail) if (found := read(words, present)) is not None), None)
        if moment is not None:
            return _wire(moment)
    except (ValueError, OverflowError, OSError):
        pass
    if _AMBIGUOUS.match(words):
        raise UsageError(f"{text!r} can be read in two ways", hint="write the year first: 2026-05-01", code="bad_date")
    raise UsageError(f"{text!r} is not a date that can be read", hint=f"forms: {FORMS}", code="bad_date")


def _wire(moment: datetime) -> str:
    """A moment without a zone is local time."""
    spec = "milliseconds" if moment.microsecond else "seconds"
    return moment.astimezone(UTC).isoformat(timespec=spec).replace("+00:00", "Z")


def _iso(text: str, _present: datetime) -> datetime | None:
    if not re.match(r"\d{4}-?\d{2}-?\d{2}", text):
        return None
    joined = re.sub(r"\s+(?=[+-]\d{2}:?\d{2}$|[zZ]$)", "", re.sub(r"\s+UTC$", "Z", text))
    try:
        return datetime.fromisoformat(joined)
    except ValueError:
        return _on_day(text, date.fromisoformat)


def _relative(text: str, present: datetime) -> datetime | None:
    """`now`, `-2h`, `+1d`, `3 days ago`, `in 2 weeks`."""
    lowered = text.lower()
    if lowered == "now":
        return present.replace(microsecond=0)
    for pattern, sign in ((rf"-\s*{_AMOUNT}", -1), (rf"\+\s*{_AMOUNT}", 1), (rf"{_AMOUNT} ago", -1), (rf"in {_AMOUNT}", 1)):
        found = re.fullmatch(pattern, lowered)
        unit = _UNITS.get(found[2]) or _UNITS.get(found[2].removesuffix("s")) if found else None
        if found and unit:
            return present.replace(microsecond=0) + timedelta(seconds=sign * int(found[1]) * _SECONDS[unit])
    return None


def _named(text: str, present: datetime) -> datetime | None:
    """`today`, `yesterday 15:30`, `14:00`, `1 May 2026 9am`."""
    here = present.astimezone().date()
    if ":" in text or text[-1:].lower() == "m":
        clock = _clock(text)
        if clock is not None:
            return datetime.combine(here, clock)

    def day(word: str) -> date:
        if word.lower() in _DAYS:
            return here + timedelta(days=_DAYS[word.lower()])
        plain = re.sub(r"(?<=\d)(?:st|nd|rd|th)\b", "", word.replace(",", " "), flags=re.IGNORECASE)
        return next(found for form in _WRITTEN if (found := _parsed(" ".join(plain.split()), form)))

    return _on_day(text, day)


def _on_day(text: str, day: Callable[[str], date]) -> datetime | None:
    """A day that `day` can read, alone or followed by a time; a day alone begins at midnight."""
    words = text.split(" ")
    for split in range(len(words), 0, -1):
        clock = time() if split == len(words) else _clock(" ".join(words[split:]))
        try:
            if clock is not None:
                return datetime.combine(day(" ".join(words[:split])), clock)
        except (ValueError, StopIteration):
            continue
    return None


def _clock(text: str) -> time | None:
    found = _TIME.fullmatch(text)
    if found is None or (found[2] is None and found[4] is None):
        return None
    hour, half = int(found[1]), (found[4] or "").lower()
    if half:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + (12 if half == "pm" else 0)
    return time(hour, int(found[2] or 0), int(found[3] or 0))


def _parsed(text: str, form: str) -> date | None:
    try:
        return datetime.strptime(text, form).date()  # noqa: DTZ007 - a day has no zone
    except ValueError:
        return None


def _mail(text: str, _present: datetime) -> datetime | None:
    """`Fri, 01 May 2026 14:00:00 +0200`, as mails have it."""
    from email.utils import parsedate_to_datetime

    return parsedate_to_datetime(text) if re.search(r"\d{2}:\d{2}", text) and re.search(r"[A-Za-z]{3}", text) else None
