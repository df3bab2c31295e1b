"""Points in time as the storage keeps them: whole microseconds since the Unix epoch. On the wire they are ISO 8601 UTC with a Z."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def to_micros(seconds: float) -> int:
    """From Unix seconds, as a Clock gives them."""
    return round(seconds * 1_000_000)


def to_wire(micros: int) -> str:
    """2026-01-31T09:30:00.000000Z"""
    # Not strftime: its %Y leaves out the leading zeros of an early year.
    return (_EPOCH + timedelta(microseconds=micros)).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def optional_to_wire(micros: int | None) -> str | None:
    return None if micros is None else to_wire(micros)


def micros_of(when: datetime) -> int:
    """From a naive UTC time."""
    return (when.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
