"""Deliveries: one event for one endpoint, with every attempt. What is stored, never how it is sent.

The body is the event's frozen bytes in the log of changes; the event's id stays the same over retries and replays.
"""
# ruff: noqa: S608 - statements are put together from this package's own names only; values are always parameters

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Unpack

from crmctl.models import jsontext
from crmctl.service.faults import NotFound
from crmctl.service.store import outbox
from crmctl.service.store.stamp import Stamp
from crmctl.service.store.timestamps import optional_to_wire, to_micros, to_wire
from crmctl.service.store.tx import Tx, required
from crmctl.service.store.webhooks import get_endpoint, list_endpoints
from crmctl.service.values.choices import canonical_uuid

PENDING, SUCCEEDED, FAILED = "pending", "succeeded", "failed"
TEST_EVENT = "webhook.test"
MOST_COUNTED = 10_000

Ids = Callable[[], str]


class _Row(NamedTuple):
    """The columns of a delivery."""

    id: str
    endpoint_id: str
    event_id: str
    event_type: str
    state: str
    attempts: int
    next_try_at: int | None
    created_at: int
    settled_at: int | None

    def wire(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "endpointId": self.endpoint_id,
            "eventId": self.event_id,
            "eventType": self.event_type,
            "state": self.state,
            "attempts": self.attempts,
            "nextTryAt": optional_to_wire(self.next_try_at),
            "createdAt": to_wire(self.created_at),
            "settledAt": optional_to_wire(self.settled_at),
        }


_COLUMNS = ", ".join(_Row._fields)


def create_tables(tx: Tx) -> None:
    """The part of the migration for deliveries. Events written before it have nobody to go to and count as dispatched."""
    text, identity = tx.dialect.text, tx.dialect.identity
    for statement in (
        "ALTER TABLE outbox ADD COLUMN dispatched INTEGER NOT NULL DEFAULT 0",
        "UPDATE outbox SET dispatched = 1",
        "CREATE INDEX outbox_waiting ON outbox (sequence) WHERE dispatched = 0",
        f"""CREATE TABLE webhook_delivery (number {identity}, id {text} NOT NULL UNIQUE, endpoint_id {text} NOT NULL,
            event_id {text} NOT NULL, event_type {text} NOT NULL, state {text} NOT NULL, attempts INTEGER NOT NULL, next_try_at BIGINT,
            lease_until BIGINT NOT NULL, created_at BIGINT NOT NULL, settled_at BIGINT)""",
        "CREATE INDEX webhook_delivery_due ON webhook_delivery (next_try_at) WHERE state = 'pending'",
        "CREATE INDEX webhook_delivery_endpoint ON webhook_delivery (endpoint_id, number)",
        "CREATE INDEX webhook_delivery_event ON webhook_delivery (event_id)",
        f"""CREATE TABLE webhook_attempt (delivery_id {text} NOT NULL, attempt INTEGER NOT NULL, at BIGINT NOT NULL,
            millis BIGINT NOT NULL, status INTEGER, error {text}, request_headers {text} NOT NULL, response_headers {text} NOT NULL,
            response_body {text} NOT NULL, PRIMARY KEY (delivery_id, attempt))""",
    ):
        tx.execute(statement)


def fan_out(tx: Tx, events: Sequence[outbox.Event], **stamp: Unpack[Stamp]) -> None:
    """Make the deliveries of events: one for each enabled endpoint that wants the type."""
    enabled = [endpoint for endpoint in list_endpoints(tx) if endpoint["enabled"]]
    wanted = [
        (endpoint["id"], event.id, event.type)
        for event in events
        for endpoint in enabled
        if endpoint["eventTypes"] is None or event.type in endpoint["eventTypes"]
    ]
    _insert_deliveries(tx, wanted, stamp["ids"], stamp["now"])


def send_test(tx: Tx, endpoint_id: str, **stamp: Unpack[Stamp]) -> str:
    """A test event for one endpoint, enabled or not; returns the delivery's id. Raises NotFound."""
    endpoint = get_endpoint(tx, endpoint_id)
    payload = {"message": "This is a test of your webhook endpoint.", "endpointId": endpoint["id"]}
    event_id = outbox.append_settled(tx, TEST_EVENT, payload, **stamp)
    return _insert_deliveries(tx, [(endpoint["id"], event_id, TEST_EVENT)], stamp["ids"], stamp["now"])[0]


def replay(tx: Tx, delivery_id: str, **stamp: Unpack[Stamp]) -> tuple[str, bool]:
    """Deliver the same event to the same endpoint again, with a window of its own; the delivery's id, and whether it is a new one.

    While a delivery of the event still waits, no other is made: that one is tried now. Raises NotFound.
    """
    known = get_delivery(tx, delivery_id)
    _hold_endpoint(tx, known["endpointId"])
    waiting = tx.one(
        "SELECT id FROM webhook_delivery WHERE event_id = ? AND endpoint_id = ? AND state = 'pending' ORDER BY number LIMIT 1",
        (known["eventId"], known["endpointId"]),
    )
    if waiting is not None:
        _try_now(tx, known["endpointId"], [known["eventId"]], stamp["now"])
        return str(waiting[0]), False
    return _insert_deliveries(tx, [(known["endpointId"], known["eventId"], known["eventType"])], stamp["ids"], stamp["now"])[0], True


def replay_range(tx: Tx, endpoint_id: str, since: float, until: float, *, only_failed: bool, **stamp: Unpack[Stamp]) -> int:
    """Replay every event delivered to an endpoint between two Unix times, once each; with `only_failed`, those that never succeeded.

    Those that still wait are tried now and not made again. Returns how many events it concerned. Raises NotFound.
    """
    endpoint = get_endpoint(tx, endpoint_id)["id"]
    _hold_endpoint(tx, endpoint)
    events = _events_between(tx, endpoint, since, until, only_failed)
    waiting = {row[0] for row in tx.all("SELECT event_id FROM webhook_delivery WHERE endpoint_id = ? AND state = 'pending'", (endpoint,))}
    _try_now(tx, endpoint, [event[1] for event in events if event[1] in waiting], stamp["now"])
    _insert_deliveries(tx, [event for event in events if event[1] not in waiting], stamp["ids"], stamp["now"])
    return len(events)


def count_range(tx: Tx, endpoint_id: str, since: float, until: float, *, only_failed: bool) -> int:
    """How many events such a replay would concern now. Raises NotFound."""
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
    """Delete up to `most` deliveries settled before this Unix time, with their attempts; how many there were."""
    old = [row[0] for row in tx.all("SELECT id FROM webhook_delivery WHERE settled_at < ? LIMIT ?", (to_micros(before), most))]
    tx.execute_many("DELETE FROM webhook_attempt WHERE delivery_id = ?", [(each,) for each in old])
    tx.execute_many("DELETE FROM webhook_delivery WHERE id = ?", [(each,) for each in old])
    return len(old)


def list_deliveries(tx: Tx, endpoint_id: str, state: str | None = None, limit: int = 50, offset: int = 0) -> list[dict[str, Any]]:
    """Newest first."""
    condition, given = ("AND state = ? ", (state,)) if state else ("", ())
    sql = f"SELECT {_COLUMNS} FROM webhook_delivery WHERE endpoint_id = ? {condition}ORDER BY number DESC LIMIT ? OFFSET ?"
    return [_Row(*row).wire() for row in tx.all(sql, (endpoint_id, *given, limit, offset))]


def count_deliveries(tx: Tx, endpoint_id: str) -> dict[str, int]:
    """How many are in each state, up to MOST_COUNTED and one: a busy endpoint has millions, and nobody reads such a number."""
    sql = "SELECT count(*) FROM (SELECT 1 FROM webhook_delivery WHERE endpoint_id = ? AND state = ? LIMIT ?) AS counted"
    return {state: required(tx.one(sql, (endpoint_id, state, MOST_COUNTED + 1)))[0] for state in (PENDING, SUCCEEDED, FAILED)}


def get_delivery(tx: Tx, delivery_id: str) -> dict[str, Any]:
    """With its `body` and `history`, every attempt's request and response. Raises NotFound."""
    row = tx.one(f"SELECT {_COLUMNS} FROM webhook_delivery WHERE id = ?", (canonical_uuid(delivery_id) or "",))
    if row is None:
        raise NotFound(f"there is no delivery with the id {delivery_id}")
    found = _Row(*row).wire()
    attempts = tx.all(
        "SELECT attempt, at, millis, status, error, request_headers, response_headers, response_body FROM webhook_attempt "
        "WHERE delivery_id = ? ORDER BY attempt",
        (found["id"],),
    )
    body = required(tx.one("SELECT payload FROM change_log WHERE event_id = ?", (found["eventId"],)))[0]
    return found | {"body": bytes(body).decode(), "history": [_AttemptRow(*each).wire() for each in attempts]}


def _hold_endpoint(tx: Tx, endpoint_id: str) -> None:
    """Keeps two replays at once from making the same delivery twice."""
    tx.one(f"SELECT id FROM webhook_endpoint WHERE id = ?{tx.dialect.for_update}", (endpoint_id,))


def _try_now(tx: Tx, endpoint_id: str, events: Sequence[str], now: float) -> None:
    """Bring forward the next try of what waits; what is being tried at this moment stays as it is."""
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


class _AttemptRow(NamedTuple):
    """The columns of one attempt."""

    attempt: int
    at: int
    millis: int
    status: int | None
    error: str | None
    request_headers: str
    response_headers: str
    response_body: str

    def wire(self) -> dict[str, Any]:
        return {
            "attempt": self.attempt,
            "at": to_wire(self.at),
            "milliseconds": self.millis,
            "status": self.status,
            "error": self.error,
            "requestHeaders": jsontext.loads(self.request_headers),
            "responseHeaders": jsontext.loads(self.response_headers),
            "responseBody": self.response_body,
        }
