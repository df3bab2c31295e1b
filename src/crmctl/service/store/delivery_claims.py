"""Claims of deliveries, their outcomes, and the health of endpoints. Everything is in the database, so that any number of processes
agree."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from crmctl.models import jsontext
from crmctl.service.store import change_log, logs
from crmctl.service.store.deliveries import FAILED, PENDING, SUCCEEDED, TEST_EVENT
from crmctl.service.store.tx import Row, Tx, execute_in, table_of, to_micros

DISABLED_EVENT = "webhook.disabled"
"""Tells endpoints that take every type that another one was disabled."""

GIVEN_UP_SECONDS = 5 * 24 * 3600.0
"""How long an endpoint may fail before it is disabled: longer than any delivery is tried."""

MOST_PROBLEM = 300
"""Most characters of an endpoint's last problem in lists; the delivery's history has all of it."""

Ids = Callable[[], str]

_WAITS = "d.state = 'pending' AND d.next_try_at <= ? AND d.lease_until <= ? AND d.created_at >= ?"


@dataclass(frozen=True)
class Terms:
    """Terms of a claim: deliveries of endpoints whose last try succeeded (`proven`), or of all others. At most `per_endpoint` of one
    endpoint are under way, for `lease_seconds` each; none is older than `window_seconds`."""

    proven: bool
    per_endpoint: int
    lease_seconds: float
    window_seconds: float


@dataclass(frozen=True)
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
        """Return a delivery read by `claim`; its old secret signs along until it ends."""
        delivery, endpoint, event_id, event_type, url, secret, old_secret, old_until, body, attempts, created_at = row
        secrets = [secret, old_secret] if old_secret and (old_until or 0) > at else [secret]
        return cls(delivery, endpoint, event_id, event_type, url, secrets, bytes(body), attempts + 1, created_at / 1_000_000)


@dataclass(frozen=True)
class Attempt:
    """The outcome of one try. `status` is None without an answer; `error` then says why."""

    at: float
    seconds: float
    status: int | None
    error: str | None
    request_headers: Mapping[str, str]
    response_headers: Mapping[str, str]
    response_body: str

    @property
    def succeeded(self) -> bool:
        return self.status is not None and 200 <= self.status < 300

    @property
    def problem(self) -> str:
        """Return in a few words why it did not succeed."""
        return self.error or f"answered with status {self.status}"


@dataclass(frozen=True)
class EndedTry:
    """A finished try; `again` is the Unix time of the next one, if any."""

    due: Due
    attempt: Attempt
    again: float | None

    @property
    def ended_at(self) -> int:
        return to_micros(self.attempt.at + self.attempt.seconds)

    @property
    def well_at(self) -> tuple[str, str] | None:
        """Return the endpoint and its address if the try succeeded."""
        return (self.due.endpoint, self.due.url) if self.attempt.succeeded else None


def is_claimable(tx: Tx, terms: Terms, *, now: float) -> bool:
    """Whether `claim` would find anything."""
    return any(places > 0 for _, places, _ in _free_places(tx, terms, now))


def claim(tx: Tx, terms: Terms, most: int, *, now: float) -> list[Due]:
    """Take up to `most` due deliveries of endpoints with free places. A worker that dies loses them when its lease ends."""
    if tx.dialect.hold_claims:
        tx.execute(tx.dialect.hold_claims)
    at, claimed = to_micros(now), list[tuple[Any, ...]]()
    for endpoint, places, enabled in _free_places(tx, terms, now):
        limit = min(places, most - len(claimed))
        if limit > 0:
            claimed += tx.all(
                # Choose them by their own table first: a planner with few statistics would read endpoint and event of each waiting one.
                "SELECT c.id, c.endpoint_id, c.event_id, c.event_type, e.url, e.secret, e.old_secret, e.old_secret_until, o.payload, "
                f"c.attempts, c.created_at FROM (SELECT d.* FROM webhook_delivery AS d WHERE d.endpoint_id = ? AND {_WAITS} "
                f"AND (? = 1 OR d.event_type = ?) ORDER BY d.next_try_at, d.number LIMIT ?{tx.dialect.for_claim('d')}) AS c "
                "JOIN webhook_endpoint AS e ON e.id = c.endpoint_id JOIN change_log AS o ON o.event_id = c.event_id "
                "ORDER BY c.next_try_at, c.number",
                (endpoint, *_waiting_by(terms, now), enabled, TEST_EVENT, limit),
            )
    until = to_micros(now + terms.lease_seconds)
    execute_in(
        tx, "UPDATE webhook_delivery SET lease_until = ?, attempts = attempts + 1 WHERE id IN {}", [row[0] for row in claimed], [until]
    )
    return [Due.of(row, at) for row in claimed]


def settle(tx: Tx, tries: Sequence[EndedTry], ids: Ids) -> None:
    """Store tries and their consequences: success, another try, or failure. An endpoint that has failed for days is disabled; its
    deliveries wait until it is enabled again or their window ends."""
    # In one order, so that two processes do not wait for each other.
    tries = sorted(tries, key=lambda one: (one.due.endpoint, one.ended_at, one.due.delivery))
    _insert_attempts(tx, tries)
    well = [each for each in tries if each.attempt.succeeded]
    if well:
        ended: dict[str, Sequence[int | str]] = {
            "delivery_id": [each.due.delivery for each in well],
            "attempt": [each.due.attempt for each in well],
            "at": [each.ended_at for each in well],
        }
        table, values = table_of("ended", ended)
        tx.execute(
            f"{table} UPDATE webhook_delivery SET state = '{SUCCEEDED}', next_try_at = NULL, lease_until = 0, settled_at = ended.at "
            "FROM ended WHERE webhook_delivery.id = ended.delivery_id AND webhook_delivery.attempts = ended.attempt",
            values,
        )
    tx.execute_many(
        "UPDATE webhook_delivery SET state = ?, next_try_at = ?, lease_until = 0, settled_at = ? WHERE id = ? AND attempts = ?",
        [
            (
                FAILED if each.again is None else PENDING,
                None if each.again is None else to_micros(each.again),
                each.ended_at if each.again is None else None,
                each.due.delivery,
                each.due.attempt,
            )
            for each in tries
            if not each.attempt.succeeded
        ],
    )
    for each, following in zip(tries, [*tries[1:], None], strict=True):
        # Of successes in a row, the last one says everything.
        if following is None or each.well_at is None or each.well_at != following.well_at:
            _note_health(tx, each, ids)


def _insert_attempts(tx: Tx, tries: Sequence[EndedTry]) -> None:
    columns: dict[str, list[Any]] = {
        "delivery_id": [ended.due.delivery for ended in tries],
        "attempt": [ended.due.attempt for ended in tries],
        "at": [to_micros(ended.attempt.at) for ended in tries],
        "millis": [round(ended.attempt.seconds * 1000) for ended in tries],
        "status": [ended.attempt.status for ended in tries],
        "error": [ended.attempt.error for ended in tries],
        "request_headers": [jsontext.dumps(dict(ended.attempt.request_headers)) for ended in tries],
        "response_headers": [jsontext.dumps(dict(ended.attempt.response_headers)) for ended in tries],
        "response_body": [ended.attempt.response_body.replace("\x00", "�") for ended in tries],
    }
    filled = {name: values for name, values in columns.items() if values.count(None) < len(values)}
    table, values = table_of("tried", filled)
    names = ", ".join(filled)
    tx.execute(
        f"{table} INSERT INTO webhook_attempt ({names}) SELECT {names} FROM tried "
        "WHERE EXISTS (SELECT 1 FROM webhook_delivery AS d WHERE d.id = tried.delivery_id) ON CONFLICT DO NOTHING",
        values,
    )


def expire(tx: Tx, window_seconds: float, *, now: float) -> int:
    """Fail the deliveries whose window has passed, tried or not, and return their number."""
    at = to_micros(now)
    return tx.execute(
        "UPDATE webhook_delivery SET state = 'failed', next_try_at = NULL, settled_at = ? "
        "WHERE state = 'pending' AND created_at < ? AND lease_until <= ?",
        (at, to_micros(now - window_seconds), at),
    )


def _waiting_by(terms: Terms, now: float) -> tuple[int, int, int]:
    """Return the parameters of _WAITS."""
    at = to_micros(now)
    return at, at, to_micros(now - terms.window_seconds)


def _free_places(tx: Tx, terms: Terms, now: float) -> list[tuple[str, int, int]]:
    """Return the endpoints with something due, their free places and whether they are enabled; the least busy and least recent first."""
    proven = "e.succeeded_at IS NOT NULL AND e.failing_since IS NULL"
    # This index holds nothing else; any other one leads through everything that waits.
    leased = tx.dialect.table_by("webhook_delivery AS l", "webhook_delivery_leased")
    rows = tx.all(
        f"SELECT e.id, (SELECT count(*) FROM {leased} WHERE l.endpoint_id = e.id AND l.state = 'pending' "
        "AND l.lease_until > 0 AND l.lease_until > ?) AS under_way, e.enabled FROM webhook_endpoint AS e "
        f"WHERE {proven if terms.proven else f'NOT ({proven})'} AND EXISTS (SELECT 1 FROM webhook_delivery AS d "
        f"WHERE d.endpoint_id = e.id AND {_WAITS} AND (e.enabled = 1 OR d.event_type = ?)) "
        "ORDER BY under_way, coalesce(e.tried_at, 0), e.number",
        (to_micros(now), *_waiting_by(terms, now), TEST_EVENT),
    )
    return [(endpoint, terms.per_endpoint - under_way, enabled) for endpoint, under_way, enabled in rows]


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


def _note_health(tx: Tx, ended: EndedTry, ids: Ids) -> None:
    due, attempt, at = ended.due, ended.attempt, ended.ended_at
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
