"""Who sends which deliveries, and what came of it: leases, the places of each endpoint, and how each endpoint fares.

All of it is in the database, so that it holds over any number of processes.
"""
# ruff: noqa: S608 - statements are put together from this package's own names only; values are always parameters

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from crmctl.models import jsontext
from crmctl.service.store import audit_log, outbox
from crmctl.service.store.deliveries import FAILED, PENDING, SUCCEEDED, TEST_EVENT
from crmctl.service.store.timestamps import to_micros
from crmctl.service.store.tx import Tx

DISABLED_EVENT = "webhook.disabled"
"""For endpoints that take every type: another one was disabled."""

GIVEN_UP_SECONDS = 5 * 24 * 3600.0
"""An endpoint without a success for so long is disabled: longer than any delivery is tried."""

MOST_PROBLEM = 300
"""Characters of an endpoint's last problem that are kept for lists; the whole of it is in the delivery's history."""

Ids = Callable[[], str]

_WAITS = "d.state = 'pending' AND d.next_try_at <= ? AND d.lease_until <= ? AND d.created_at >= ?"


@dataclass(frozen=True)
class Terms:
    """What may be claimed: deliveries of endpoints whose last try succeeded (`proven`), or of all the others.

    At most `per_endpoint` of one endpoint are under way at a time, for `lease_seconds` each; none older than `window_seconds`.
    """

    proven: bool
    per_endpoint: int
    lease_seconds: float
    window_seconds: float


@dataclass(frozen=True)
class Due:
    """One claimed delivery, ready to be sent. Times are Unix seconds."""

    delivery: str
    endpoint: str
    event_id: str
    event_type: str
    url: str
    secrets: list[str]
    body: bytes
    attempt: int
    created_at: float


@dataclass(frozen=True)
class Attempt:
    """What one try did. `status` is None when no answer came, `error` then says why."""

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
        """Why it did not succeed, in a few words."""
        return self.error or f"answered with status {self.status}"


def create_tables(tx: Tx) -> None:
    """The migration that brings places and health: what past attempts say about an endpoint is taken over."""
    text = tx.dialect.text
    of_endpoint = "FROM webhook_attempt AS a JOIN webhook_delivery AS d ON d.id = a.delivery_id WHERE d.endpoint_id = webhook_endpoint.id"
    went_well = "a.status BETWEEN 200 AND 299"
    for statement in (
        "ALTER TABLE webhook_endpoint ADD COLUMN tried_at BIGINT",
        "ALTER TABLE webhook_endpoint ADD COLUMN succeeded_at BIGINT",
        "ALTER TABLE webhook_endpoint ADD COLUMN failing_since BIGINT",
        f"ALTER TABLE webhook_endpoint ADD COLUMN problem {text}",
        f"UPDATE webhook_endpoint SET tried_at = (SELECT max(a.at) {of_endpoint}), "
        f"succeeded_at = (SELECT max(a.at) {of_endpoint} AND {went_well})",
        f"UPDATE webhook_endpoint SET failing_since = (SELECT min(a.at) {of_endpoint} AND a.at > coalesce(succeeded_at, 0)), "
        f"problem = (SELECT coalesce(a.error, 'answered with status ' || a.status) {of_endpoint} AND a.at > coalesce(succeeded_at, 0) "
        "ORDER BY a.at DESC LIMIT 1)",
        "CREATE INDEX webhook_delivery_waiting ON webhook_delivery (endpoint_id, next_try_at) WHERE state = 'pending'",
        "CREATE INDEX webhook_delivery_leased ON webhook_delivery (endpoint_id) WHERE state = 'pending' AND lease_until > 0",
        "DROP INDEX webhook_delivery_due",
    ):
        tx.execute(statement)


def is_claimable(tx: Tx, terms: Terms, *, now: float) -> bool:
    """Whether `claim` would find anything."""
    return any(places > 0 for _, places, _ in _free_places(tx, terms, now))


def claim(tx: Tx, terms: Terms, most: int, *, now: float) -> list[Due]:
    """Take up to `most` deliveries that are due and that no other worker holds, of endpoints with free places.

    A worker that dies loses them when its lease ends.
    """
    if tx.dialect.hold_claims:
        tx.execute(tx.dialect.hold_claims)
    at, found = to_micros(now), list[tuple[Any, ...]]()
    for endpoint, places, enabled in _free_places(tx, terms, now):
        limit = min(places, most - len(found))
        if limit > 0:
            found += tx.all(
                # Those that are taken are chosen first, by their own table alone: else a planner that knows little of the tables reads
                # endpoint and event of each that waits.
                "SELECT c.id, c.endpoint_id, c.event_id, c.event_type, e.url, e.secret, e.old_secret, e.old_secret_until, o.payload, "
                f"c.attempts, c.created_at FROM (SELECT d.* FROM webhook_delivery AS d WHERE d.endpoint_id = ? AND {_WAITS} "
                f"AND (? = 1 OR d.event_type = ?) ORDER BY d.next_try_at, d.number LIMIT ?{tx.dialect.for_claim('d')}) AS c "
                "JOIN webhook_endpoint AS e ON e.id = c.endpoint_id JOIN change_log AS o ON o.event_id = c.event_id "
                "ORDER BY c.next_try_at, c.number",
                (endpoint, *_waiting_by(terms, now), enabled, TEST_EVENT, limit),
            )
    until = to_micros(now + terms.lease_seconds)
    tx.execute_many("UPDATE webhook_delivery SET lease_until = ?, attempts = attempts + 1 WHERE id = ?", [(until, row[0]) for row in found])
    return [_DueRow(*row).due(at) for row in found]


def settle(tx: Tx, due: Due, attempt: Attempt, next_try_at: float | None, ids: Ids) -> None:
    """Store a try and what follows: success, another try at `next_try_at`, or failure when that is None.

    An endpoint that has failed for days is disabled; what waits for it waits until somebody enables it, or its window ends.
    """
    state = SUCCEEDED if attempt.succeeded else PENDING if next_try_at is not None else FAILED
    ended = to_micros(attempt.at + attempt.seconds)
    tx.execute(
        "INSERT INTO webhook_attempt (delivery_id, attempt, at, millis, status, error, request_headers, response_headers, response_body) "
        "SELECT id, ?, ?, ?, ?, ?, ?, ?, ? FROM webhook_delivery WHERE id = ? ON CONFLICT DO NOTHING",
        (
            due.attempt,
            to_micros(attempt.at),
            round(attempt.seconds * 1000),
            attempt.status,
            attempt.error,
            jsontext.dumps(dict(attempt.request_headers)),
            jsontext.dumps(dict(attempt.response_headers)),
            attempt.response_body.replace("\x00", "�"),
            due.delivery,
        ),
    )
    tx.execute(
        "UPDATE webhook_delivery SET state = ?, next_try_at = ?, lease_until = 0, settled_at = ? WHERE id = ? AND attempts = ?",
        (
            state,
            to_micros(next_try_at) if state == PENDING and next_try_at is not None else None,
            None if state == PENDING else ended,
            due.delivery,
            due.attempt,
        ),
    )
    _note_health(tx, due, attempt, ended, ids)


def expire(tx: Tx, window_seconds: float, *, now: float) -> int:
    """Fail the deliveries whose window has passed without success, also those that could not be tried at all. Returns how many."""
    at = to_micros(now)
    return tx.execute(
        "UPDATE webhook_delivery SET state = 'failed', next_try_at = NULL, settled_at = ? "
        "WHERE state = 'pending' AND created_at < ? AND lease_until <= ?",
        (at, to_micros(now - window_seconds), at),
    )


def _waiting_by(terms: Terms, now: float) -> tuple[int, int, int]:
    """The parameters of _WAITS."""
    at = to_micros(now)
    return at, at, to_micros(now - terms.window_seconds)


def _free_places(tx: Tx, terms: Terms, now: float) -> list[tuple[str, int, int]]:
    """Endpoints that have something due, with the number of their free places and whether they are enabled; first who has the least under
    way, then the least recent."""
    proven = "e.succeeded_at IS NOT NULL AND e.failing_since IS NULL"
    # The index that holds nothing else: any other one leads through all that waits.
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


def add_disabling(tx: Tx) -> None:
    """The migration for endpoints that the service itself disables."""
    tx.execute("ALTER TABLE webhook_endpoint ADD COLUMN disabled_at BIGINT")


def _give_up(tx: Tx, due: Due, at: int, ids: Ids) -> None:
    """Disable an endpoint that has failed for long enough, once, and say so: in the audit log, and by an event."""
    disabled = tx.execute(
        "UPDATE webhook_endpoint SET enabled = 0, disabled_at = ? WHERE id = ? AND enabled = 1 AND failing_since <= ?",
        (at, due.endpoint, at - to_micros(GIVEN_UP_SECONDS)),
    )
    if disabled:
        about = {"endpointId": due.endpoint, "url": due.url, "reason": "no attempt succeeded for five days"}
        audit_log.note(tx, "endpoint.disabled", due.endpoint, about, now=at / 1_000_000)
        outbox.append(tx, DISABLED_EVENT, about, ids=ids, now=at / 1_000_000)


def _note_health(tx: Tx, due: Due, attempt: Attempt, at: int, ids: Ids) -> None:
    if not attempt.succeeded:
        tx.execute(
            "UPDATE webhook_endpoint SET tried_at = ?, failing_since = coalesce(failing_since, ?), problem = ? WHERE id = ? AND url = ?",
            (at, at, attempt.problem[:MOST_PROBLEM].replace("\x00", "�"), due.endpoint, due.url),
        )
        _give_up(tx, due, at, ids)
        return
    # Of an endpoint that is well, one note a second is enough: every delivery would otherwise wait for the same row.
    tx.execute(
        "UPDATE webhook_endpoint SET tried_at = ?, succeeded_at = ?, failing_since = NULL, problem = NULL WHERE id = ? AND url = ? "
        "AND (failing_since IS NOT NULL OR succeeded_at IS NULL OR succeeded_at < ?)",
        (at, at, due.endpoint, due.url, at - 1_000_000),
    )


class _DueRow(NamedTuple):
    """What is read of a delivery to send it."""

    delivery: str
    endpoint: str
    event_id: str
    event_type: str
    url: str
    secret: str
    old_secret: str | None
    old_until: int | None
    body: bytes
    attempts: int
    created_at: int

    def due(self, at: int) -> Due:
        secrets = [self.secret, self.old_secret] if self.old_secret and (self.old_until or 0) > at else [self.secret]
        about = (self.delivery, self.endpoint, self.event_id, self.event_type, self.url)
        return Due(*about, secrets, bytes(self.body), self.attempts + 1, self.created_at / 1_000_000)
