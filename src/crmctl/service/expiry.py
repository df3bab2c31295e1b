"""When an API key ends, as people write it: a date, a timestamp, or a span from now."""

from __future__ import annotations

import re

from crmctl.service.faults import BadRequest
from crmctl.service.store.timestamps import micros_of
from crmctl.service.values.dates import parse_instant
from crmctl.service.values.text import Invalid

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def parse_expiry(text: str, now: float) -> float:
    """Unix seconds of `30d`, `12h`, `2027-01-31` (its midnight, UTC) or a timestamp. Raises BadRequest, also for the past."""
    span = re.fullmatch(r"([0-9]{1,6})([smhdw])", text.strip())
    try:
        end = now + int(span[1]) * _SECONDS[span[2]] if span else micros_of(parse_instant(text.strip())) / 1_000_000
    except Invalid:
        raise BadRequest(
            f"{text!r} is neither a date (2027-01-31), a timestamp, nor a span such as 30d or 12h", {"field": "expires"}
        ) from None
    if end <= now:
        raise BadRequest(f"{text} is in the past", {"field": "expires"})
    return end
