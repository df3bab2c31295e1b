"""Whether a failed request is sent again, and after how long. Pure functions: no clock, no network, no sleeping."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from crmctl.backoff import Backoff

RETRIED_STATUSES = frozenset({429, 502, 503, 504})
"""500 and 408 are not here: a 500 is a bug that repeats, a 408 says that the request was too slow to be read."""

MAX_ATTEMPTS = 5
"""For failures that say nothing about when to come back. A 429 has no such bound: `--max-wait` ends it."""

BACKOFF = Backoff(jitter=1.0)


@dataclass(frozen=True)
class Failure:
    """What went wrong. `status` is None when no answer came; `never_sent` means no byte of the request can have reached the service.

    `retry_after` is what the service asked for, in seconds. `transient` is false for failures that repeat (an untrusted certificate).
    """

    status: int | None = None
    never_sent: bool = False
    retry_after: float | None = None
    transient: bool = True


def is_repeatable(method: str) -> bool:
    """Whether sending a request twice leaves what sending it once does.

    GET, and DELETE or PATCH of one resource. A bulk delete is not: its second answer would count only what the first try left, and the user
    would be told a wrong number; the caller says so (`idempotent=False`), and bulk work settles such an outcome by looking.
    """
    return method in ("GET", "HEAD", "PATCH", "DELETE")


def next_wait(failure: Failure, *, attempt: int, repeatable: bool, waited: float, max_wait: float, random: float) -> float | None:
    """Seconds to wait before attempt `attempt + 1` (attempts count from 1), or None to give up.

    `random` in [0, 1) is the jitter: full jitter over an exponentially growing span. A wish of the service is a lower bound and never
    shortened: when it does not fit into what is left of `max_wait`, the answer is to give up.
    """
    if not _may_repeat(failure, repeatable) or (failure.status != 429 and attempt >= MAX_ATTEMPTS):
        return None
    wait = BACKOFF.gap(attempt, lambda: random)
    if failure.retry_after is not None:
        wait += failure.retry_after
    return wait if waited + (failure.retry_after or 0.0) <= max_wait and waited + wait <= max_wait + BACKOFF.first else None


def _may_repeat(failure: Failure, repeatable: bool) -> bool:
    if failure.status == 429 or (failure.never_sent and failure.transient):
        return True  # the service did nothing
    if not repeatable or not failure.transient:
        return False
    return failure.status is None or failure.status in RETRIED_STATUSES


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds the service asks to wait: `Retry-After` as seconds, or as an HTTP date (by the service's own clock where it sends `Date`)."""
    text = headers.get("retry-after", "").strip()
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        until = http_date(text)
        if until is None:
            return None
        seconds = until - (http_date(headers.get("date", "")) or now)
    return max(0.0, seconds) if seconds < float("inf") else None


def http_date(text: str) -> float | None:
    """Unix seconds of an HTTP date, or None."""
    if not text:
        return None
    from email.utils import parsedate_to_datetime

    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None
