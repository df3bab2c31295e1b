"""Webhook endpoints with their secrets and health, their deliveries with claims and outcomes, and figures for monitoring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any, Unpack

from crmctl.frozen import frozen
from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.models.resources import EVENT_TYPES
from crmctl.models.signatures import new_secret
from crmctl.service.faults import BadRequest
from crmctl.service.store import change_log, logs
from crmctl.service.store.record_tables import invalid, require_description
from crmctl.service.store.tx import Ids, Row, Rows, Stamp, Tx, all_in, execute_in, insert, required, table_of, to_micros, update

MAX_URL = 2000
ROTATION_SECONDS = 24 * 3600.0
"""How long the old secret signs along with the new one."""

_HEALTH = (
    "CASE WHEN disabled_at IS NOT NULL THEN 'disabled' WHEN tried_at IS NULL THEN 'untried' WHEN failing_since IS NULL THEN 'working' "
    "ELSE 'failing' END AS health"
)
_ENDPOINTS = Rows(
    "webhook_endpoint",
    "webhook endpoint",
    f"id, url, description, {_HEALTH}, problem, event_types, enabled, succeeded_at, failing_since, disabled_at, created_at, updated_at",
    event_types=jsontext.loads,
    enabled=bool,
)


def list_endpoints(tx: Tx) -> list[Json]:
    """Return endpoints, oldest first, without secrets.

    `health` tells the last try: `untried`, `working`, `failing`, or `disabled` by the service. `problem` is why it failed.
    """
    return _ENDPOINTS.all(tx, "ORDER BY number")


def get_endpoint(tx: Tx, endpoint_id: str) -> Json:
    return _ENDPOINTS.get(tx, endpoint_id)


def create_endpoint(tx: Tx, *, url: str, description: str = "", event_types: Sequence[str] | None = None, **stamp: Unpack[Stamp]) -> Json:
    """Create an enabled endpoint with a fresh secret; `event_types` None means all. The caller has vetted the URL. Raises BadRequest."""
    row: Json = {"id": stamp["ids"](), "url": _url(url), "description": require_description(description)}
    row |= {"event_types": _types(event_types), "enabled": 1, "secret": new_secret()}
    row |= dict.fromkeys(("created_at", "updated_at"), to_micros(stamp["now"]))
    insert(tx, "webhook_endpoint", row)
    logs.note(tx, "endpoint.created", row["id"], {"url": row["url"]}, now=stamp["now"])
    return get_endpoint(tx, row["id"])


def update_endpoint(tx: Tx, endpoint_id: str, changes: Mapping[str, Any], *, now: float) -> Json:
    """Change any of url, description, eventTypes, enabled. Raises NotFound, BadRequest."""
    endpoint = get_endpoint(tx, endpoint_id)
    columns: Json = {"updated_at": to_micros(now)}
    columns |= {"url": _url(changes["url"])} if "url" in changes else {}
    columns |= {"description": require_description(changes["description"])} if "description" in changes else {}
    columns |= {"event_types": _types(changes["eventTypes"])} if "eventTypes" in changes else {}
    columns |= {"enabled": int(changes["enabled"])} if "enabled" in changes else {}
    if columns.get("url", endpoint["url"]) != endpoint["url"]:
        # A new address has no history.
        columns |= dict.fromkeys(("tried_at", "succeeded_at", "failing_since", "problem"))
    if columns.get("enabled") or "url" in columns:
        # An endpoint that is enabled again gets as much time as a new one.
        columns |= {"disabled_at": None} | ({"failing_since": None, "problem": None} if endpoint["disabledAt"] else {})
    update(tx, "webhook_endpoint", columns, "id = ?", endpoint["id"])
    logs.note(tx, "endpoint.updated", endpoint["id"], {"url": endpoint["url"], **changes} | logs.differences(endpoint, changes), now=now)
    return get_endpoint(tx, endpoint_id)


def delete_endpoint(tx: Tx, endpoint_id: str) -> None:
    """Delete an endpoint with its deliveries and their history. Raises NotFound."""
    known_id = get_endpoint(tx, endpoint_id)["id"]
    tx.execute("DELETE FROM webhook_attempt WHERE delivery_id IN (SELECT id FROM webhook_delivery WHERE endpoint_id = ?)", (known_id,))
    for table, column in (("webhook_delivery", "endpoint_id"), ("webhook_endpoint", "id")):
        tx.execute(f"DELETE FROM {table} WHERE {column} = ?", (known_id,))
    logs.note(tx, "endpoint.deleted", known_id)


def reveal_secret(tx: Tx, endpoint_id: str) -> str:
    known_id = get_endpoint(tx, endpoint_id)["id"]
    return str(required(tx.one("SELECT secret FROM webhook_endpoint WHERE id = ?", (known_id,)))[0])


def rotate_secret(tx: Tx, endpoint_id: str, *, now: float) -> str:
    """Create a new secret; the old ones sign along for a day, so that the receiver can change over. Raises NotFound."""
    known_id = get_endpoint(tx, endpoint_id)["id"]
    fresh = new_secret()
    tx.execute(
        "UPDATE webhook_endpoint SET old_secret = secret || CASE WHEN old_secret_until > ? THEN ' ' || old_secret ELSE '' END, "
        "old_secret_until = ?, secret = ?, updated_at = ? WHERE id = ?",
        (to_micros(now), to_micros(now + ROTATION_SECONDS), fresh, to_micros(now), known_id),
    )
    logs.note(tx, "endpoint.secret_rotated", known_id, now=now)
    return fresh


def _url(value: str) -> str:
    if not value.strip() or len(value) > MAX_URL:
        raise invalid("url", f"must be an address of at most {MAX_URL} characters")
    return value.strip()


def _types(value: Sequence[str] | None) -> str | None:
    if value is None:
        return None
    unknown = sorted(set(value) - EVENT_TYPES.keys())
    if unknown or not value:
        raise BadRequest(f"eventTypes must name some of: {', '.join(EVENT_TYPES)}", {"field": "eventTypes", "unknown": unknown})
    return jsontext.dumps([name for name in EVENT_TYPES if name in value])


PENDING, SUCCEEDED, FAILED = "pending", "succeeded", "failed"
TEST_EVENT = "webhook.test"
MOST_COUNTED = 10_000

_DELIVERIES = Rows(
    "webhook_delivery", "delivery", "id, endpoint_id, event_id, event_type, state, attempts, next_try_at, created_at, settled_at"
)
_ATTEMPTS = Rows(
    "webhook_attempt",
    "attempt",
    "attempt, millis AS milliseconds, status, error, response_body, at, request_headers, response_headers",
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
    endpoint, event = delivery["endpointId"], delivery["eventId"]
    replayed = _replay(tx, endpoint, [(endpoint, event, delivery["eventType"])], **stamp)
    if replayed:
        return replayed[0], True
    waiting = "event_id = ? AND endpoint_id = ? AND state = 'pending' ORDER BY number"
    return str(required(tx.one(f"SELECT id FROM webhook_delivery WHERE {waiting} LIMIT 1", (event, endpoint)))[0]), False


def replay_range(tx: Tx, endpoint_id: str, since: float, until: float, *, only_failed: bool, **stamp: Unpack[Stamp]) -> int:
    """Replay every event delivered to an endpoint between two Unix times, once each; with `only_failed`, those that never succeeded.
    Waiting ones are tried now instead. Returns the number of events; raises NotFound."""
    endpoint = get_endpoint(tx, endpoint_id)["id"]
    events = _events_between(tx, endpoint, since, until, only_failed)
    _replay(tx, endpoint, events, **stamp)
    return len(events)


def _replay(tx: Tx, endpoint: str, events: Sequence[tuple[str, str, str]], **stamp: Unpack[Stamp]) -> list[str]:
    """Deliver events, given as endpoint, id and type, or try those now that wait but are not being tried. Returns the new deliveries."""
    # Locked, so that two replays do not create the same delivery twice.
    tx.one(f"SELECT id FROM webhook_endpoint WHERE id = ?{tx.dialect.for_update}", (endpoint,))
    sql = "SELECT event_id FROM webhook_delivery WHERE endpoint_id = ? AND state = 'pending' AND event_id IN {}"
    waiting, at = {row[0] for row in all_in(tx, sql, [event[1] for event in events], [endpoint])}, to_micros(stamp["now"])
    tx.execute_many(
        "UPDATE webhook_delivery SET next_try_at = ? WHERE event_id = ? AND endpoint_id = ? AND state = 'pending' AND next_try_at > ? "
        "AND lease_until <= ?",
        [(at, event, endpoint, at, at) for event in sorted(waiting)],
    )
    return _insert_deliveries(tx, [event for event in events if event[1] not in waiting], stamp["ids"], stamp["now"])


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


def forget_deliveries(tx: Tx, before: float, most: int) -> int:
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


def _insert_deliveries(tx: Tx, deliveries: Sequence[Sequence[str]], ids: Ids, now: float) -> list[str]:
    at = to_micros(now)
    rows: list[tuple[Any, ...]] = [(ids(), *delivery, PENDING, 0, at, 0, at) for delivery in deliveries]
    tx.execute_many(
        "INSERT INTO webhook_delivery (id, endpoint_id, event_id, event_type, state, attempts, next_try_at, lease_until, created_at) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        rows,
    )
    return [row[0] for row in rows]


RECENT = 1000
"""How many of an endpoint's newest deliveries tell how it does."""


def recent_attempts(tx: Tx, endpoint_id: str) -> Json:
    """Return `{tries, succeeded, rate, median, slowest}` of the RECENT newest deliveries: their share of successes, and how long half of
    these, and 95 % of them, took at most; None if unknown."""
    newest = "SELECT id FROM webhook_delivery WHERE endpoint_id = ? ORDER BY number DESC LIMIT ?"
    rows = tx.all(f"SELECT millis, status FROM webhook_attempt WHERE delivery_id IN ({newest})", (endpoint_id, RECENT))
    millis = sorted(millis for millis, status in rows if status is not None and 200 <= status < 300)
    median, slowest = (_duration(millis[ceil(share * len(millis)) - 1]) if millis else None for share in (0.5, 0.95))
    return {"tries": len(rows), "succeeded": len(millis), "rate": _rate(len(millis), len(rows)), "median": median, "slowest": slowest}


def _rate(succeeded: int, tries: int) -> str | None:
    """Return `99.8 %`; 100 % and 0 % only when exact."""
    if not tries:
        return None
    tenths = round(1000 * succeeded / tries)
    if 0 < succeeded < tries:
        tenths = min(999, max(1, tenths))
    return f"{tenths // 10}.{tenths % 10} %" if tenths % 10 else f"{tenths // 10} %"


def _duration(millis: int) -> str:
    """Return `80 ms` or `1.2 s`, with two digits."""
    unit = 10 ** max(0, len(str(millis)) - 2)
    rounded = round(millis / unit) * unit
    return f"{rounded} ms" if rounded < 1000 else f"{rounded / 1000:.1f} s"


DAY = 24 * 3600.0

FIGURES: dict[str, tuple[str, str]] = {
    "events_waiting": ("Events that are not handed to endpoints and workflows yet.", "SELECT count(*) FROM change_log WHERE waiting = 1"),
    "events_oldest_seconds": (
        "Age of the oldest of them.",
        "SELECT (SELECT at FROM change_log WHERE waiting = 1 ORDER BY sequence LIMIT 1)",
    ),
    "deliveries_pending": (
        "Webhook deliveries that are not settled.",
        "SELECT count(*) FROM webhook_delivery WHERE state = 'pending'",
    ),
    "deliveries_oldest_seconds": (
        "Age of the oldest of them.",
        "SELECT min(created_at) FROM webhook_delivery WHERE state = 'pending'",
    ),
    "deliveries_failed_day": (
        "Webhook deliveries that failed for good in the last 24 hours.",
        "SELECT count(*) FROM webhook_delivery WHERE state = 'failed' AND settled_at >= ?",
    ),
    "endpoints_failing": (
        "Enabled webhook endpoints whose last attempt failed.",
        "SELECT count(*) FROM webhook_endpoint WHERE enabled = 1 AND failing_since IS NOT NULL",
    ),
    "workflow_runs_waiting": ("Workflow runs that have not ended.", "SELECT count(*) FROM workflow_run WHERE completed_at IS NULL"),
    "workflow_runs_failed_day": (
        "Workflow runs that failed in the last 24 hours.",
        "SELECT count(*) FROM workflow_run WHERE status = 'failed' AND completed_at >= ?",
    ),
    "database_bytes": ("Size of the database.", ""),
    "database_connections": ("Connections to the database that are open.", ""),
    "database_connections_used": ("Those of them that are in use.", ""),
    "database_requests_waiting": ("Transactions that wait for a connection.", ""),
    "request_log_dropped": ("Requests that could not be written to the request log.", ""),
}
"""Each figure's description, and the query that reads it from an index. A parameter is the moment 24 hours ago; ages are read as times."""


def read_figures(tx: Tx, *, now: float) -> dict[str, float]:
    yesterday, values = to_micros(now - DAY), dict[str, float]()
    for name, (_, sql) in FIGURES.items():
        if sql:
            value = required(tx.one(sql, (yesterday,) * sql.count("?")))[0]
            is_age = name.endswith("_seconds")
            values[name] = (0.0 if value is None else max(0.0, now - value / 1_000_000)) if is_age else float(value)
    return values


DISABLED_EVENT = "webhook.disabled"
"""Tells endpoints that take every type that another one was disabled."""

GIVEN_UP_SECONDS = 5 * 24 * 3600.0
"""How long an endpoint may fail before it is disabled: longer than any delivery is tried."""

MOST_PROBLEM = 300
"""Most characters of an endpoint's last problem in lists; the delivery's history has all of it."""

_WAITS = "d.state = 'pending' AND d.next_try_at <= ? AND d.lease_until <= ? AND d.created_at >= ?"

WINDOW = 72 * 3600.0
"""Seconds from an event's first try to its last (specification section 8: up to 3 days)."""

LEASE_SECONDS = 30.0
"""Longer than any try: a delivery whose lease ended belongs to a worker that died."""


@frozen
class Lane:
    """`places` of one process for deliveries to endpoints whose last try succeeded (`proven`), or to all others. At most `per_endpoint` of
    one endpoint are under way."""

    name: str
    places: int
    proven: bool
    per_endpoint: int


PROVEN = Lane("delivery", 32, True, 8)
UNPROVEN = Lane("probe", 64, False, 1)
"""New endpoints and those whose last try failed: one try at a time each, never in the places of working ones."""


@frozen
class Due:
    """A claimed delivery, ready to be sent. Times are Unix seconds."""

    delivery: str
    endpoint: str
    event_id: str
    event_type: str
    url: str
    secrets: list[str]
    body: bytes
    attempt: int
    created_at: float

    @classmethod
    def of(cls, row: Row, at: int) -> Due:
        """Return a delivery read by `claim`; its old secrets, separated by blanks, sign along until they end."""
        delivery, endpoint, event_id, event_type, url, secret, old_secrets, old_until, body, attempts, created_at = row
        secrets = [secret, *(old_secrets.split() if (old_until or 0) > at else ())]
        return cls(delivery, endpoint, event_id, event_type, url, secrets, bytes(body), attempts + 1, created_at / 1_000_000)


@frozen
class Attempt:
    """A try of a delivery. `status` is None without an answer; `error` then says why. `again` is the Unix time of the next try, if any."""

    due: Due
    at: float
    seconds: float
    status: int | None
    error: str | None
    request_headers: Mapping[str, str]
    response_headers: Mapping[str, str]
    response_body: str
    again: float | None = None

    @property
    def succeeded(self) -> bool:
        return self.status is not None and 200 <= self.status < 300

    @property
    def problem(self) -> str:
        return self.error or f"answered with status {self.status}"

    @property
    def ended_at(self) -> int:
        return to_micros(self.at + self.seconds)

    @property
    def well_at(self) -> tuple[str, str] | None:
        return (self.due.endpoint, self.due.url) if self.succeeded else None


def is_claimable(tx: Tx, lane: Lane, *, now: float) -> bool:
    return any(places > 0 for _, places, _ in _free_places(tx, lane, now))


def claim(tx: Tx, lane: Lane, most: int, *, now: float) -> list[Due]:
    """Take up to `most` due deliveries of endpoints with free places. A worker that dies loses them when its lease ends."""
    if tx.dialect.hold_claims:
        tx.execute(tx.dialect.hold_claims)
    at, claimed = to_micros(now), list[tuple[Any, ...]]()
    for endpoint, places, enabled in _free_places(tx, lane, now):
        limit = min(places, most - len(claimed))
        if limit > 0:
            claimed += tx.all(
                # Choose them by their own table first: a planner with few statistics would read endpoint and event of each waiting one.
                "SELECT c.id, c.endpoint_id, c.event_id, c.event_type, e.url, e.secret, e.old_secret, e.old_secret_until, o.payload, "
                f"c.attempts, c.created_at FROM (SELECT d.* FROM webhook_delivery AS d WHERE d.endpoint_id = ? AND {_WAITS} "
                f"AND (? = 1 OR d.event_type = ?) ORDER BY d.next_try_at, d.number LIMIT ?{tx.dialect.for_claim('d')}) AS c "
                "JOIN webhook_endpoint AS e ON e.id = c.endpoint_id JOIN change_log AS o ON o.event_id = c.event_id "
                "ORDER BY c.next_try_at, c.number",
                (endpoint, *_waiting_by(now), enabled, TEST_EVENT, limit),
            )
    until = to_micros(now + LEASE_SECONDS)
    execute_in(
        tx, "UPDATE webhook_delivery SET lease_until = ?, attempts = attempts + 1 WHERE id IN {}", [row[0] for row in claimed], [until]
    )
    return [Due.of(row, at) for row in claimed]


def settle(tx: Tx, tries: Sequence[Attempt], ids: Ids) -> None:
    """Store tries and their consequences: success, another try, or failure. An endpoint that has failed for days is disabled; its
    deliveries wait until it is enabled again or their window ends."""
    # In one order, so that two processes do not wait for each other.
    tries = sorted(tries, key=lambda attempt: (attempt.due.endpoint, attempt.ended_at, attempt.due.delivery))
    _insert_attempts(tx, tries)
    # A try leaves a time for the next one or a final state, so that the other column is 0.
    ended: dict[str, Sequence[int | str]] = {
        "delivery_id": [attempt.due.delivery for attempt in tries],
        "attempt": [attempt.due.attempt for attempt in tries],
        "state": [SUCCEEDED if attempt.succeeded else FAILED if attempt.again is None else PENDING for attempt in tries],
        "again": [0 if attempt.again is None else to_micros(attempt.again) for attempt in tries],
        "settled": [attempt.ended_at if attempt.again is None else 0 for attempt in tries],
    }
    table, values = table_of("ended", ended)
    tx.execute(
        f"{table} UPDATE webhook_delivery SET state = ended.state, next_try_at = nullif(ended.again, 0), lease_until = 0, "
        "settled_at = nullif(ended.settled, 0) FROM ended "
        "WHERE webhook_delivery.id = ended.delivery_id AND webhook_delivery.attempts = ended.attempt",
        values,
    )
    for attempt, following in zip(tries, [*tries[1:], None], strict=True):
        # Of successes in a row, the last one says everything.
        if following is None or attempt.well_at is None or attempt.well_at != following.well_at:
            _note_health(tx, attempt, ids)


def _insert_attempts(tx: Tx, tries: Sequence[Attempt]) -> None:
    columns: dict[str, list[Any]] = {
        "delivery_id": [attempt.due.delivery for attempt in tries],
        "attempt": [attempt.due.attempt for attempt in tries],
        "at": [to_micros(attempt.at) for attempt in tries],
        "millis": [round(attempt.seconds * 1000) for attempt in tries],
        "status": [attempt.status for attempt in tries],
        "error": [attempt.error for attempt in tries],
        "request_headers": [jsontext.dumps(dict(attempt.request_headers)) for attempt in tries],
        "response_headers": [jsontext.dumps(dict(attempt.response_headers)) for attempt in tries],
        "response_body": [attempt.response_body.replace("\x00", "�") for attempt in tries],
    }
    filled = {name: values for name, values in columns.items() if values.count(None) < len(values)}
    table, values = table_of("tried", filled)
    names = ", ".join(filled)
    tx.execute(
        f"{table} INSERT INTO webhook_attempt ({names}) SELECT {names} FROM tried "
        "WHERE EXISTS (SELECT 1 FROM webhook_delivery AS d WHERE d.id = tried.delivery_id) ON CONFLICT DO NOTHING",
        values,
    )


def expire_deliveries(tx: Tx, *, now: float) -> int:
    """Fail the deliveries whose window has passed, tried or not, and return their number."""
    at = to_micros(now)
    return tx.execute(
        "UPDATE webhook_delivery SET state = 'failed', next_try_at = NULL, settled_at = ? "
        "WHERE state = 'pending' AND created_at < ? AND lease_until <= ?",
        (at, to_micros(now - WINDOW), at),
    )


def _waiting_by(now: float) -> tuple[int, int, int]:
    at = to_micros(now)
    return at, at, to_micros(now - WINDOW)


def _free_places(tx: Tx, lane: Lane, now: float) -> list[tuple[str, int, int]]:
    """Return the endpoints with something due, their free places and whether they are enabled; the least busy and least recent first."""
    proven = "e.succeeded_at IS NOT NULL AND e.failing_since IS NULL"
    # This index holds nothing else; any other one leads through everything that waits.
    leased = tx.dialect.table_by("webhook_delivery AS l", "webhook_delivery_leased")
    rows = tx.all(
        f"SELECT e.id, (SELECT count(*) FROM {leased} WHERE l.endpoint_id = e.id AND l.state = 'pending' "
        "AND l.lease_until > 0 AND l.lease_until > ?) AS under_way, e.enabled FROM webhook_endpoint AS e "
        f"WHERE {proven if lane.proven else f'NOT ({proven})'} AND EXISTS (SELECT 1 FROM webhook_delivery AS d "
        f"WHERE d.endpoint_id = e.id AND {_WAITS} AND (e.enabled = 1 OR d.event_type = ?)) "
        "ORDER BY under_way, coalesce(e.tried_at, 0), e.number",
        (to_micros(now), *_waiting_by(now), TEST_EVENT),
    )
    return [(endpoint, lane.per_endpoint - under_way, enabled) for endpoint, under_way, enabled in rows]


def _give_up(tx: Tx, due: Due, at: int, ids: Ids) -> None:
    """Disable an endpoint that has failed for long enough, once, with an entry in the audit log and an event."""
    disabled = tx.execute(
        "UPDATE webhook_endpoint SET enabled = 0, disabled_at = ? WHERE id = ? AND enabled = 1 AND failing_since <= ?",
        (at, due.endpoint, at - to_micros(GIVEN_UP_SECONDS)),
    )
    if disabled:
        about = {"endpointId": due.endpoint, "url": due.url, "reason": "no attempt succeeded for five days"}
        logs.note(tx, "endpoint.disabled", due.endpoint, about, now=at / 1_000_000)
        change_log.append_event(tx, DISABLED_EVENT, about, ids=ids, now=at / 1_000_000)


def _note_health(tx: Tx, attempt: Attempt, ids: Ids) -> None:
    due, at = attempt.due, attempt.ended_at
    if not attempt.succeeded:
        tx.execute(
            "UPDATE webhook_endpoint SET tried_at = ?, failing_since = coalesce(failing_since, ?), problem = ? WHERE id = ? AND url = ?",
            (at, at, attempt.problem[:MOST_PROBLEM].replace("\x00", "�"), due.endpoint, due.url),
        )
        _give_up(tx, due, at, ids)
        return
    # One note a second is enough for a healthy endpoint: otherwise every delivery would wait for the same row.
    tx.execute(
        "UPDATE webhook_endpoint SET tried_at = ?, succeeded_at = ?, failing_since = NULL, problem = NULL WHERE id = ? AND url = ? "
        "AND (failing_since IS NOT NULL OR succeeded_at IS NULL OR succeeded_at < ?)",
        (at, at, due.endpoint, due.url, at - 1_000_000),
    )
