"""The log of record changes, and the events that wait to be dispatched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from crmctl.frozen import frozen
from crmctl.models import jsontext
from crmctl.models.resources import AttributeType
from crmctl.service.faults import BadRequest, shown
from crmctl.service.store.condition_sql import compile_condition
from crmctl.service.store.keys import put_value
from crmctl.service.store.tx import Ids, Tx, execute_in, insert_columns, to_micros
from crmctl.values.attribute_types import StoredAttribute
from crmctl.values.conditions import value_test
from crmctl.values.filters import Condition

CREATED, UPDATED, DELETED = "record.created", "record.updated", "record.deleted"

KNOWN_SINCE = "history.since"
"""Name of the shared value with the moment, in microseconds, since which changes are known."""

_OLD = "SELECT sequence FROM change_log WHERE at < ? AND waiting = 0"
_UNNEEDED = "NOT EXISTS (SELECT 1 FROM webhook_delivery AS d WHERE d.event_id = change_log.event_id)"


@frozen
class Listeners:
    """Recipients of events now: the event `types`, or all when None. `organisation` is the id that events name."""

    organisation: str
    types: frozenset[str] | None

    def want(self, event_type: str) -> bool:
        return self.types is None or event_type in self.types


class LoggedChange(NamedTuple):
    """A row to write. `subject` is a record's id, `object_number` its object's, `payload` the body of the event.

    `before` is what the change overwrote: None for a creation, the changed values of an update, the whole record of a deletion.
    """

    event_type: str
    payload: str | None
    subject: str | None = None
    object_number: int | None = None
    before: str | None = None


def listeners(tx: Tx) -> Listeners:
    """Return who wants events. Raises LookupError before the organisation is set up."""
    rows = tx.all(
        "SELECT 'organisation', id FROM organisation UNION ALL SELECT 'endpoint', event_types FROM webhook_endpoint WHERE enabled = 1 "
        "UNION ALL SELECT 'workflow', trigger_event FROM workflow WHERE enabled = 1"
    )
    organisation, types, wants_all = None, set[str](), False
    for kind, value in rows:
        if kind == "organisation":
            organisation = value
        elif kind == "workflow":
            types.add(value.replace("/", "."))
        elif value is None:
            wants_all = True
        else:
            types.update(jsontext.loads(value))
    if organisation is None:
        raise LookupError("the organisation is not set up")
    return Listeners(organisation, None if wants_all else frozenset(types))


def append(tx: Tx, audience: Listeners, entries: Sequence[LoggedChange], *, ids: Ids, now: float) -> None:
    """Add entries in order. Those that an endpoint or workflow wants wait to be dispatched."""
    payloads = [entry.payload if entry.payload is not None and audience.want(entry.event_type) else None for entry in entries]
    columns: dict[str, list[Any]] = {
        "at": [to_micros(now)] * len(entries),
        "type": [entry.event_type for entry in entries],
        "object_number": [entry.object_number for entry in entries],
        "subject": [entry.subject for entry in entries],
        "actor": [tx.by] * len(entries),
        "before": [entry.before for entry in entries],
        "event_id": [None if payload is None else ids() for payload in payloads],
        "payload": [None if payload is None else payload.encode() for payload in payloads],
        "waiting": [int(payload is not None) for payload in payloads],
    }
    insert_columns(tx, "change_log", columns)


def overwritten(data: Mapping[str, Any], changes: Mapping[str, Any]) -> str:
    """Return what merging `changes` into `data` overwrites: the old value, or null, of every attribute that changes."""
    old = {slug: data.get(slug) for slug, value in changes.items() if differ(data.get(slug), value)}
    return jsontext.dumps(old)


def whole(created_at: int, document: str) -> str:
    """Return what a deletion overwrites; `document` is the data as JSON."""
    return f'{{"createdAt":{created_at},"data":{document}}}'


def forget(tx: Tx, before: float, most: int) -> int:
    """Delete up to `most` entries older than this Unix time that no delivery needs, and return their number."""
    gone = tx.execute(f"DELETE FROM change_log WHERE sequence IN ({_OLD} AND {_UNNEEDED} ORDER BY at LIMIT ?)", (to_micros(before), most))
    if gone:
        put_value(tx, KNOWN_SINCE, str(to_micros(before)))
    return gone


def slim(tx: Tx, before: float, most: int) -> int:
    """Delete the bodies of up to `most` entries older than this Unix time whose deliveries are forgotten."""
    old = f"{_OLD} AND event_id IS NOT NULL AND {_UNNEEDED} ORDER BY at LIMIT ?"
    return tx.execute(f"UPDATE change_log SET event_id = NULL, payload = NULL WHERE sequence IN ({old})", (to_micros(before), most))


def differ(old: Any, new: Any) -> bool:
    """Whether two values differ on the wire. The order of an object's members does not matter."""
    # As text, because 1, 1.0 and true are equal in Python.
    return old is not new and jsontext.dumps(old, sort_keys=True) != jsontext.dumps(new, sort_keys=True)


@frozen
class Event:
    """An event as it was written; `payload` is its unchangeable body."""

    id: str
    type: str
    payload: bytes
    created_at: float


def append_event(tx: Tx, event_type: str, payload: Mapping[str, Any], *, ids: Ids, now: float) -> None:
    audience = listeners(tx)
    if audience.want(event_type):
        append(tx, audience, [LoggedChange(event_type, jsontext.dumps(dict(payload)))], ids=ids, now=now)


def append_settled(tx: Tx, event_type: str, payload: Mapping[str, Any], *, ids: Ids, now: float) -> str:
    """Add an event that is not dispatched, because the caller makes its deliveries. Returns its id."""
    event_id = ids()
    tx.execute(
        "INSERT INTO change_log (at, type, actor, event_id, payload, waiting) VALUES (?, ?, ?, ?, ?, 0)",
        (to_micros(now), event_type, tx.by, event_id, jsontext.dumps(dict(payload)).encode()),
    )
    return event_id


def is_waiting(tx: Tx) -> bool:
    return tx.one("SELECT 1 FROM change_log WHERE waiting = 1 LIMIT 1") is not None


def count_waiting(tx: Tx, most: int = 10_000) -> tuple[int, int]:
    """Return the number of waiting entries, one more than `most` if there are more, and `most`."""
    rows = tx.all("SELECT 1 FROM change_log WHERE waiting = 1 LIMIT ?", (most + 1,))
    return len(rows), most


def take_waiting(tx: Tx, limit: int) -> list[Event]:
    """Return the oldest waiting events and mark them as dispatched. Never takes one that another transaction is taking."""
    rows = tx.all(
        "SELECT sequence, event_id, type, payload, at FROM change_log WHERE waiting = 1 "
        f"ORDER BY sequence LIMIT ?{tx.dialect.for_claim('change_log')}",
        (limit,),
    )
    execute_in(tx, "UPDATE change_log SET waiting = 0 WHERE sequence IN {}", [row[0] for row in rows])
    return [Event(row[1], row[2], bytes(row[3]), row[4] / 1_000_000) for row in rows]


ACTIVITY_ATTRIBUTES: Mapping[str, StoredAttribute] = {"title": StoredAttribute("", 0, "title", AttributeType.TEXT)}
"""Attributes that conditions on an activity may name: its event carries only the title of its data."""


def check(tx: Tx, attributes: Mapping[str, StoredAttribute], conditions: Sequence[Condition]) -> None:
    """Raise BadRequest naming the slug for an unknown one, an operator its type does not have, or a value of the wrong kind."""
    for condition in conditions:
        if condition.slug not in attributes:
            valid = list(attributes)
            raise BadRequest(
                f"unknown attribute {shown(condition.slug)!r} in a condition; conditions can use: {', '.join(valid)}",
                {"field": "attributeSlug", "slug": shown(condition.slug), "valid": valid},
            )
        compile_condition(condition, attributes, tx.dialect)


def hold(tx: Tx, attributes: Mapping[str, StoredAttribute], conditions: Sequence[Condition], data: Mapping[str, Any]) -> bool:
    """Whether all conditions hold for the data. Raises BadRequest if they cannot be evaluated any more."""
    check(tx, attributes, conditions)
    return all(
        value_test(attributes[condition.slug], condition.operator, condition.value)(data.get(condition.slug)) for condition in conditions
    )
