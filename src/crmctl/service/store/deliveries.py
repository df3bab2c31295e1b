"""Webhook deliveries, counts of their attempts, and figures for monitoring."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, floor, log2, log10
from typing import Any, NamedTuple, Unpack

from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.service.store import change_log
from crmctl.service.store.rows import Rows
from crmctl.service.store.tx import Stamp, Tx, required, to_micros, to_wire
from crmctl.service.store.webhooks import get_endpoint, list_endpoints

PENDING, SUCCEEDED, FAILED = "pending", "succeeded", "failed"
TEST_EVENT = "webhook.test"
MOST_COUNTED = 10_000

Ids = Callable[[], str]


_DELIVERIES = Rows(
    "webhook_delivery",
    "delivery",
    "id, endpoint_id, event_id, event_type, state, attempts",
    next_try_at=to_wire,
    created_at=to_wire,
    settled_at=to_wire,
)
_ATTEMPTS = Rows(
    "webhook_attempt",
    "attempt",
    "attempt, millis AS milliseconds, status, error, response_body",
    at=to_wire,
    request_headers=jsontext.loads,
    response_headers=jsontext.loads,
)


def fan_out(tx: Tx, events: Sequence[change_log.Event], **stamp: Unpack[Stamp]) -> None:
    """Create a delivery for each enabled endpoint that wants the event."""
    enabled = [endpoint for endpoint in list_endpoints(tx) if endpoint["enabled"]]
    rows = [
        (endpoint["id"], event.id, event.type)
        for event in events
        for endpoint in enabled
        if endpoint["eventTypes"] is None or event.type in endpoint["eventTypes"]
    ]
    _insert_deliveries(tx, rows, stamp["ids"], stamp["now"])


def send_test(tx: Tx, endpoint_id: str, **stamp: Unpack[Stamp]) -> str:
    """Create a test event for one endpoint, enabled or not. Returns the delivery's id; raises NotFound."""
    endpoint = get_endpoint(tx, endpoint_id)
    payload = {"message": "This is a test of your webhook endpoint.", "endpointId": endpoint["id"]}
    event_id = change_log.append_settled(tx, TEST_EVENT, payload, **stamp)
    return _insert_deliveries(tx, [(endpoint["id"], event_id, TEST_EVENT)], stamp["ids"], stamp["now"])[0]


def replay(tx: Tx, delivery_id: str, **stamp: Unpack[Stamp]) -> tuple[str, bool]:
    """Deliver an event to the same endpoint again. Returns the delivery's id, and whether it is new: one that still waits is tried now
    instead. Raises NotFound."""
    delivery = get_delivery(tx, delivery_id)
    _hold_endpoint(tx, delivery["endpointId"])
    waiting = tx.one(
        "SELECT id FROM webhook_delivery WHERE event_id = ? AND endpoint_id = ? AND state = 'pending' ORDER BY number LIMIT 1",
        (delivery["eventId"], delivery["endpointId"]),
    )
    if waiting is not None:
        _try_now(tx, delivery["endpointId"], [delivery["eventId"]], stamp["now"])
        return str(waiting[0]), False
    return _insert_deliveries(tx, [(delivery["endpointId"], delivery["eventId"], delivery["eventType"])], stamp["ids"], stamp["now"])[
        0
    ], True


def replay_range(tx: Tx, endpoint_id: str, since: float, until: float, *, only_failed: bool, **stamp: Unpack[Stamp]) -> int:
    """Replay every event delivered to an endpoint between two Unix times, once each; with `only_failed`, those that never succeeded.
    Waiting ones are tried now instead. Returns the number of events; raises NotFound."""
    endpoint = get_endpoint(tx, endpoint_id)["id"]
    _hold_endpoint(tx, endpoint)
    events = _events_between(tx, endpoint, since, until, only_failed)
    waiting = {row[0] for row in tx.all("SELECT event_id FROM webhook_delivery WHERE endpoint_id = ? AND state = 'pending'", (endpoint,))}
    _try_now(tx, endpoint, [event[1] for event in events if event[1] in waiting], stamp["now"])
    _insert_deliveries(tx, [event for event in events if event[1] not in waiting], stamp["ids"], stamp["now"])
    return len(events)


def count_range(tx: Tx, endpoint_id: str, since: float, until: float, *, only_failed: bool) -> int:
    """Return how many events such a replay would concern now. Raises NotFound."""
    return len(_events_between(tx, get_endpoint(tx, endpoint_id)["id"], since, until, only_failed))


def _events_between(tx: Tx, endpoint: str, since: float, until: float, only_failed: bool) -> list[tuple[Any, ...]]:
    succeeded = (
        "SELECT 1 FROM webhook_delivery AS s WHERE s.event_id = d.event_id AND s.endpoint_id = d.endpoint_id AND s.state = 'succeeded'"
    )
    return tx.all(
        "SELECT d.endpoint_id, d.event_id, d.event_type FROM webhook_delivery AS d WHERE d.endpoint_id = ? AND d.created_at >= ? "
        f"AND d.created_at < ? {f'AND NOT EXISTS ({succeeded}) ' if only_failed else ''}"
        "GROUP BY d.endpoint_id, d.event_id, d.event_type ORDER BY min(d.number)",
        (endpoint, to_micros(since), to_micros(until)),
    )


def forget(tx: Tx, before: float, most: int) -> int:
    """Delete up to `most` deliveries settled before this Unix time with their attempts, and return their number."""
    old = [row[0] for row in tx.all("SELECT id FROM webhook_delivery WHERE settled_at < ? LIMIT ?", (to_micros(before), most))]
    tx.execute_many("DELETE FROM webhook_attempt WHERE delivery_id = ?", [(delivery_id,) for delivery_id in old])
    tx.execute_many("DELETE FROM webhook_delivery WHERE id = ?", [(delivery_id,) for delivery_id in old])
    return len(old)


def list_deliveries(tx: Tx, endpoint_id: str, state: str | None = None, limit: int = 50, offset: int = 0) -> list[Json]:
    condition, params = ("AND state = ? ", (state,)) if state else ("", ())
    rest = f"WHERE endpoint_id = ? {condition}ORDER BY number DESC LIMIT ? OFFSET ?"
    return _DELIVERIES.all(tx, rest, (endpoint_id, *params, limit, offset))


def count_deliveries(tx: Tx, endpoint_id: str) -> dict[str, int]:
    """Return how many are in each state, at most MOST_COUNTED + 1: a busy endpoint has millions."""
    sql = "SELECT count(*) FROM (SELECT 1 FROM webhook_delivery WHERE endpoint_id = ? AND state = ? LIMIT ?) AS counted"
    return {state: required(tx.one(sql, (endpoint_id, state, MOST_COUNTED + 1)))[0] for state in (PENDING, SUCCEEDED, FAILED)}


def get_delivery(tx: Tx, delivery_id: str) -> Json:
    """Return a delivery with its `body` and `history`, every attempt's request and response. Raises NotFound."""
    delivery = _DELIVERIES.get(tx, delivery_id)
    body = required(tx.one("SELECT payload FROM change_log WHERE event_id = ?", (delivery["eventId"],)))[0]
    history = _ATTEMPTS.all(tx, "WHERE delivery_id = ? ORDER BY attempt", (delivery["id"],))
    return delivery | {"body": bytes(body).decode(), "history": history}


def _hold_endpoint(tx: Tx, endpoint_id: str) -> None:
    """Lock the endpoint, so that two replays do not create the same delivery twice."""
    tx.one(f"SELECT id FROM webhook_endpoint WHERE id = ?{tx.dialect.for_update}", (endpoint_id,))


def _try_now(tx: Tx, endpoint_id: str, events: Sequence[str], now: float) -> None:
    """Bring forward the next try of a waiting delivery, unless it is being tried."""
    at = to_micros(now)
    tx.execute_many(
        "UPDATE webhook_delivery SET next_try_at = ? WHERE event_id = ? AND endpoint_id = ? AND state = 'pending' AND next_try_at > ? "
        "AND lease_until <= ?",
        [(at, event, endpoint_id, at, at) for event in events],
    )


def _insert_deliveries(tx: Tx, deliveries: Sequence[Sequence[str]], ids: Ids, now: float) -> list[str]:
    at = to_micros(now)
    rows: list[tuple[Any, ...]] = [(ids(), *delivery, PENDING, 0, at, 0, at) for delivery in deliveries]
    tx.execute_many(
        "INSERT INTO webhook_delivery (id, endpoint_id, event_id, event_type, state, attempts, next_try_at, lease_until, created_at) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        rows,
    )
    return [row[0] for row in rows]


HOUR = 3600
HOURS = 24
STEPS = 4
"""Classes of duration per doubling: a reported duration is at most a fifth too long."""


class CountedAttempts(NamedTuple):
    """The common properties of attempts counted together; `time_class` is None for failures."""

    endpoint_id: str
    hour: int
    time_class: int | None

    @classmethod
    def of(cls, endpoint_id: str, at: float, seconds: float, succeeded: bool) -> CountedAttempts:
        millis = max(1.0, seconds * 1000)
        return cls(endpoint_id, int(at // HOUR), ceil(STEPS * log2(millis)) if succeeded else None)


@dataclass
class DayOfEndpoint:
    """The attempts of the last 24 hours, the current one included."""

    tries: int = 0
    succeeded: int = 0
    by_class: dict[int, int] = field(default_factory=dict)

    @property
    def rate(self) -> str | None:
        """Return `99.8 %`; 100 % and 0 % only when exact."""
        if not self.tries:
            return None
        tenths = round(1000 * self.succeeded / self.tries)
        if 0 < self.succeeded < self.tries:
            tenths = min(999, max(1, tenths))
        return f"{tenths // 10}.{tenths % 10} %" if tenths % 10 else f"{tenths // 10} %"

    @property
    def median(self) -> str | None:
        """Return an upper bound of the median duration of successes."""
        return self._within(0.5)

    @property
    def slowest(self) -> str | None:
        """Return an upper bound of the duration of 95 % of the successes."""
        return self._within(0.95)

    def _within(self, share: float) -> str | None:
        target, seen = share * self.succeeded, 0
        for time_class, count in sorted(self.by_class.items()):
            seen += count
            if seen >= target:
                return _duration(2 ** (time_class / STEPS))
        return None


def add_counts(tx: Tx, counts: Mapping[CountedAttempts, int]) -> None:
    """Add counts, except for endpoints that were deleted meanwhile."""
    tx.execute_many(
        "INSERT INTO webhook_hour (endpoint_id, hour, time_class, attempts) SELECT id, ?, ?, ? FROM webhook_endpoint WHERE id = ? "
        "ON CONFLICT (endpoint_id, hour, time_class) DO UPDATE SET attempts = webhook_hour.attempts + excluded.attempts",
        # In one order, so that two processes never wait for each other.
        sorted(
            (counted.hour, _FAILED if counted.time_class is None else counted.time_class, count, counted.endpoint_id)
            for counted, count in counts.items()
        ),
    )


def last_day(tx: Tx, *, now: float, endpoint_id: str | None = None) -> dict[str, DayOfEndpoint]:
    """Return the last day by endpoint id, of one endpoint or of all; one without attempts has an empty day."""
    condition, params = ("AND endpoint_id = ? ", (endpoint_id,)) if endpoint_id else ("", ())
    rows = tx.all(
        "SELECT endpoint_id, time_class, CAST(sum(attempts) AS BIGINT) FROM webhook_hour "
        f"WHERE hour > ? {condition}GROUP BY endpoint_id, time_class",
        (int(now // HOUR) - HOURS, *params),
    )
    days: defaultdict[str, DayOfEndpoint] = defaultdict(DayOfEndpoint)
    for endpoint, time_class, attempts in rows:
        day = days[endpoint]
        day.tries += attempts
        if time_class != _FAILED:
            day.succeeded += attempts
            day.by_class[time_class] = attempts
    return days


def forget_counts(tx: Tx, before: float) -> None:
    tx.execute("DELETE FROM webhook_hour WHERE hour < ?", (int(before // HOUR),))


_FAILED = -1


def _duration(millis: float) -> str:
    """Return `80 ms` or `1.2 s`, with two digits."""
    unit = 10 ** max(0, floor(log10(millis)) - 1)
    rounded: Any = round(millis / unit) * unit
    return f"{rounded} ms" if rounded < 1000 else f"{rounded / 1000:.1f} s"


DAY = 24 * 3600.0

FIGURES = {
    "events_waiting": "Events that are not handed to endpoints and workflows yet.",
    "events_oldest_seconds": "Age of the oldest of them.",
    "deliveries_pending": "Webhook deliveries that are not settled.",
    "deliveries_oldest_seconds": "Age of the oldest of them.",
    "deliveries_failed_day": "Webhook deliveries that failed for good in the last 24 hours.",
    "delivery_attempts_day": "Attempts of webhook deliveries in the last 24 hours, whatever came of them.",
    "delivery_attempts_failed_day": "Those of them that did not succeed.",
    "endpoints_failing": "Enabled webhook endpoints whose last attempt failed.",
    "workflow_runs_waiting": "Workflow runs that have not ended.",
    "workflow_runs_failed_day": "Workflow runs that failed in the last 24 hours.",
    "database_bytes": "Size of the database.",
    "database_connections": "Connections to the database that are open.",
    "database_connections_used": "Those of them that are in use.",
    "database_requests_waiting": "Transactions that wait for a connection.",
    "request_log_dropped": "Requests that could not be written to the request log.",
}


def read_figures(tx: Tx, *, now: float) -> dict[str, float]:
    """Return the figures. Each comes from an index, whatever the amount of data."""
    at, yesterday = to_micros(now), to_micros(now - DAY)

    def one(sql: str, *params: int) -> float:
        return float(required(tx.one(sql, params))[0])

    def age(sql: str) -> float:
        since = required(tx.one(sql))[0]
        return 0.0 if since is None else max(0.0, (at - since) / 1_000_000)

    days = last_day(tx, now=now).values()
    return {
        "events_waiting": one("SELECT count(*) FROM change_log WHERE waiting = 1"),
        "events_oldest_seconds": age("SELECT (SELECT at FROM change_log WHERE waiting = 1 ORDER BY sequence LIMIT 1)"),
        "deliveries_pending": one("SELECT count(*) FROM webhook_delivery WHERE state = 'pending'"),
        "deliveries_oldest_seconds": age("SELECT min(created_at) FROM webhook_delivery WHERE state = 'pending'"),
        "deliveries_failed_day": one("SELECT count(*) FROM webhook_delivery WHERE state = 'failed' AND settled_at >= ?", yesterday),
        "delivery_attempts_day": float(sum(day.tries for day in days)),
        "delivery_attempts_failed_day": float(sum(day.tries - day.succeeded for day in days)),
        "endpoints_failing": one("SELECT count(*) FROM webhook_endpoint WHERE enabled = 1 AND failing_since IS NOT NULL"),
        "workflow_runs_waiting": one("SELECT count(*) FROM workflow_run WHERE completed_at IS NULL"),
        "workflow_runs_failed_day": one("SELECT count(*) FROM workflow_run WHERE status = 'failed' AND completed_at >= ?", yesterday),
    }
