"""How an endpoint's attempts of the last day went: how many, how many succeeded, and how long those took. Counted by the hour.

Counts and not the attempts themselves: a day of a busy endpoint has millions, and a page shows it within milliseconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil, floor, log2, log10
from typing import Any, NamedTuple

from crmctl.service.store.tx import Tx

HOUR = 3600
HOURS = 24
STEPS = 4
"""Classes of time for each doubling: what is said of a time is at most a fifth too much."""


class CountedAttempts(NamedTuple):
    """What attempts have in common that are counted together; `time_class` is None for those that did not succeed."""

    endpoint_id: str
    hour: int
    time_class: int | None

    @classmethod
    def of(cls, endpoint_id: str, at: float, seconds: float, succeeded: bool) -> CountedAttempts:
        millis = max(1.0, seconds * 1000)
        return cls(endpoint_id, int(at // HOUR), ceil(STEPS * log2(millis)) if succeeded else None)


@dataclass
class DayOfEndpoint:
    """The attempts of the last 24 hours, the one that runs included."""

    tries: int = 0
    succeeded: int = 0
    by_class: dict[int, int] = field(default_factory=dict)

    @property
    def rate(self) -> str | None:
        """`99.8 %`; never 100 % of what is not all, nor 0 % of what is not nothing."""
        if not self.tries:
            return None
        tenths = round(1000 * self.succeeded / self.tries)
        if 0 < self.succeeded < self.tries:
            tenths = min(999, max(1, tenths))
        return f"{tenths // 10}.{tenths % 10} %" if tenths % 10 else f"{tenths // 10} %"

    @property
    def median(self) -> str | None:
        """How long half of those that succeeded took at most."""
        return self._within(0.5)

    @property
    def slowest(self) -> str | None:
        """How long 95 of a hundred of them took at most."""
        return self._within(0.95)

    def _within(self, share: float) -> str | None:
        wanted, seen = share * self.succeeded, 0
        for time_class, count in sorted(self.by_class.items()):
            seen += count
            if seen >= wanted:
                return _duration(2 ** (time_class / STEPS))
        return None


def create_tables(tx: Tx) -> None:
    """The migration that brings the counts, and an index that finds an endpoint's deliveries of one state."""
    text = tx.dialect.text
    tx.execute(
        f"""CREATE TABLE webhook_hour (endpoint_id {text} NOT NULL, hour INTEGER NOT NULL, time_class INTEGER NOT NULL,
            attempts BIGINT NOT NULL, PRIMARY KEY (endpoint_id, hour, time_class))"""
    )
    tx.execute("CREATE INDEX webhook_delivery_state ON webhook_delivery (endpoint_id, state, number)")


def add_counts(tx: Tx, counts: Mapping[CountedAttempts, int]) -> None:
    """Of an endpoint that was deleted meanwhile nothing is kept."""
    tx.execute_many(
        "INSERT INTO webhook_hour (endpoint_id, hour, time_class, attempts) SELECT id, ?, ?, ? FROM webhook_endpoint WHERE id = ? "
        "ON CONFLICT (endpoint_id, hour, time_class) DO UPDATE SET attempts = webhook_hour.attempts + excluded.attempts",
        # In one order, so that two processes never wait for each other.
        sorted(
            (each.hour, _FAILED if each.time_class is None else each.time_class, count, each.endpoint_id) for each, count in counts.items()
        ),
    )


def last_day(tx: Tx, *, now: float, endpoint_id: str | None = None) -> dict[str, DayOfEndpoint]:
    """By the id of the endpoint, of one or of all; a DayOfEndpoint without a try for those that had none."""
    one, given = ("AND endpoint_id = ? ", (endpoint_id,)) if endpoint_id else ("", ())
    rows = tx.all(
        "SELECT endpoint_id, time_class, CAST(sum(attempts) AS BIGINT) FROM webhook_hour "  # noqa: S608 - the condition is one of two
        f"WHERE hour > ? {one}GROUP BY endpoint_id, time_class",
        (int(now // HOUR) - HOURS, *given),
    )
    days: defaultdict[str, DayOfEndpoint] = defaultdict(DayOfEndpoint)
    for endpoint, time_class, attempts in rows:
        day = days[endpoint]
        day.tries += attempts
        if time_class != _FAILED:
            day.succeeded += attempts
            day.by_class[time_class] = attempts
    return days


def forget(tx: Tx, before: float) -> None:
    """Delete the counts of hours before this Unix time: a few for each endpoint."""
    tx.execute("DELETE FROM webhook_hour WHERE hour < ?", (int(before // HOUR),))


_FAILED = -1


def _duration(millis: float) -> str:
    """`80 ms`, `1.2 s`: two digits, which is what is known."""
    unit = 10 ** max(0, floor(log10(millis)) - 1)
    rounded: Any = round(millis / unit) * unit
    return f"{rounded} ms" if rounded < 1000 else f"{rounded / 1000:.1f} s"
