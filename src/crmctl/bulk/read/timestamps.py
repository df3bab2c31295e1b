"""Timestamps of the service as whole microseconds since 1970, beside those of HTTP headers. Knows no record."""

from __future__ import annotations

from datetime import timedelta
from email.utils import parsedate_to_datetime

from crmctl.models.timestamps import EPOCH, MICROS, micros_of

__all__ = ["MICROS", "micros_of", "micros_of_date", "to_timestamp"]

_TICK = timedelta(microseconds=1)


def micros_of_date(header: str | None) -> int | None:
    """Microseconds of an HTTP Date header, None without a readable one."""
    try:
        return (parsedate_to_datetime(header or "") - EPOCH) // _TICK
    except (ValueError, TypeError):
        return None


def to_timestamp(micros: int) -> str:
    """The ISO 8601 form, to the microsecond where it is not a whole second."""
    return (EPOCH + timedelta(microseconds=micros)).isoformat().replace("+00:00", "Z")
