"""Timestamps of the service as whole microseconds since 1970: exact, comparable whatever their spelling. Knows no record."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

MICROS = 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TICK = timedelta(microseconds=1)


def micros_of(timestamp: str | None) -> int | None:
    """Microseconds of an ISO 8601 timestamp (UTC where it names no zone); None for anything else."""
    try:
        moment = datetime.fromisoformat(timestamp or "")
    except ValueError:
        return None
    return (moment.replace(tzinfo=moment.tzinfo or UTC) - _EPOCH) // _TICK


def micros_of_date(header: str | None) -> int | None:
    """Microseconds of an HTTP Date header, None without a readable one."""
    try:
        return (parsedate_to_datetime(header or "") - _EPOCH) // _TICK
    except (ValueError, TypeError):
        return None


def to_timestamp(micros: int) -> str:
    """The ISO 8601 form, to the microsecond where it is not a whole second."""
    return (_EPOCH + timedelta(microseconds=micros)).isoformat().replace("+00:00", "Z")
