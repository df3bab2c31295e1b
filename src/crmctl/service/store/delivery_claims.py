"""Who sends which deliveries, and what came of it: leases, the places of each endpoint, and how each endpoint fares.

All of it is in the database, so that it holds over any number of processes.
"""
# ruff: noqa: S608 - statements are put together from this package's own names only; values are always parameters

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from crmctl.models import jsontext
from crmctl.service.store import audit_log, outbox
from crmctl.service.store.deliveries import FAILED, PENDING, SUCCEEDED, TEST_EVENT
from crmctl.service.store.timestamps import to_micros
from crmctl.service.store.tx import Tx, execute_in, table_of

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


@dataclass(frozen=True)
class EndedTry:
    """One try that has ended; `again` is the Unix time of the next one, None when there is none."""

    due: Due
    attempt: Attempt
    again: float | None

    @property
    def ended_at(self) -> int:
        return to_micros(self.attempt.at + self.attempt.seconds)

    @property
    def well_at(self) -> tuple[str, str] | None:
        """The endpoint and its address, where it was one."""
        return (self.due.endpoint, self.due.url) if self.attempt.succeeded else None


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
    execute_in(
        tx, "UPDATE webhook_delivery SET lease_until = ?, attempts = attempts + 1 WHERE id IN {}", [row[0] for row in found], [until]
    )
    return [_DueRow(*row).due(at) for row in found]


def settle(tx: Tx, tries: Sequence[EndedTry], ids: Ids) -> None:
    """Store tries and what follows from each: success, another try, or failure.

    An endpoint that has failed for days is disabled; what waits for it waits until somebody enables it, or its window ends.
    """
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
        # Of successes in a row the last one says all.
        if following is None or each.well_at is None or each.well_at != following.well_at:
            _note_health(tx, each, ids)


def _insert_attempts(tx: Tx, tries: Sequence[EndedTry]) -> None:
    columns: dict[str, list[Any]] = {
        "delivery_id": [each.due.delivery for each in tries],
        "attempt": [each.due.attempt for each in tries],
        "at": [to_micros(each.attempt.at) for each in tries],
        "millis": [round(each.attempt.seconds * 1000) for each in tries],
        "status": [each.attempt.status for each in tries],
        "error": [each.attempt.error for each in tries],
        "request_headers": [jsontext.dumps(dict(each.attempt.request_headers)) for each in tries],
        "response_headers": [jsontext.dumps(dict(each.attempt.response_headers)) for each in tries],
        "response_body": [each.attempt.response_body.replace("\x00", "�") for each in tries],
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


def order_waiting(tx: Tx) -> None:
    """The migration by which what waits is read in its order, and not sorted for each claim."""
    tx.execute("DROP INDEX webhook_delivery_waiting")
    tx.execute("CREATE INDEX webhook_delivery_waiting ON webhook_delivery (endpoint_id, next_try_at, number) WHERE state = 'pending'")


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


def _note_health(tx: Tx, ended: EndedTry, ids: Ids) -> None:
    due, attempt, at = ended.due, ended.attempt, ended.ended_at
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
