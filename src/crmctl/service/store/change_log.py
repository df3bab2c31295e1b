"""The log of changes: every change of a record, who made it and what it overwrote, written by the transaction that makes it.

It is the outbox too: a row that an endpoint or a workflow wants also has an event's id and frozen body. What a record held before is found
by going back from what it holds now; so a creation, the most frequent change, costs a row without a document.
"""
# ruff: noqa: S608 - statements are put together from this package's own names only; values are always parameters

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from crmctl.clock import SystemClock
from crmctl.models import jsontext
from crmctl.service.store.timestamps import to_micros
from crmctl.service.store.tx import Tx, insert_columns

CREATED, UPDATED, DELETED = "record.created", "record.updated", "record.deleted"

KNOWN_SINCE = "history.since"
"""Name of the shared value that says, in microseconds, before which moment changes are not known."""

_OLD = "SELECT sequence FROM change_log WHERE at < ? AND waiting = 0"
_UNNEEDED = "NOT EXISTS (SELECT 1 FROM webhook_delivery AS d WHERE d.event_id = change_log.event_id)"

Ids = Callable[[], str]


@dataclass(frozen=True)
class Listeners:
    """Who wants events at this moment: `types` of them, or all when it is None. `organisation` is the id that events name."""

    organisation: str
    types: frozenset[str] | None

    def want(self, event_type: str) -> bool:
        return self.types is None or event_type in self.types


class LoggedChange(NamedTuple):
    """One row to be written.

    `subject` is a record's id and `object_number` its object's; `before` what the change overwrote: None for a creation, for an update the
    values that were others, for a deletion the whole record. `payload` is the body of the event.
    """

    event_type: str
    payload: str | None
    subject: str | None = None
    object_number: int | None = None
    before: str | None = None


def create_tables(tx: Tx) -> None:
    """The migration that makes the outbox the log of changes. Of what is there, only what deliveries still need goes over."""
    text, blob = tx.dialect.text, tx.dialect.blob
    needed = "dispatched = 0 OR EXISTS (SELECT 1 FROM webhook_delivery AS d WHERE d.event_id = outbox.id)"
    for statement in (
        f"""CREATE TABLE change_log (sequence {tx.dialect.sequence}, at BIGINT NOT NULL, type {text} NOT NULL, object_number INTEGER,
            subject {text}, actor {text}, before {text}, event_id {text}, payload {blob}, waiting INTEGER NOT NULL)""",
        "INSERT INTO change_log (at, type, event_id, payload, waiting) "
        f"SELECT created_at, type, id, payload, 1 - dispatched FROM outbox WHERE {needed} ORDER BY sequence",
        "DROP TABLE outbox",
        "CREATE INDEX change_log_at ON change_log (at)",
        "CREATE INDEX change_log_waiting ON change_log (sequence) WHERE waiting = 1",
        "CREATE UNIQUE INDEX change_log_event ON change_log (event_id) WHERE event_id IS NOT NULL",
        # Not the creations: those are found by their time, which the record itself has.
        "CREATE INDEX change_log_subject ON change_log (subject, sequence) WHERE before IS NOT NULL",
    ):
        tx.execute(statement)
    if tx.one("SELECT 1 FROM organisation") is not None:
        note_known_since(tx, SystemClock().now())


def note_known_since(tx: Tx, moment: float) -> None:
    """Changes before this Unix time are not known, or not any more."""
    tx.execute(
        "INSERT INTO service_value (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        (KNOWN_SINCE, str(to_micros(moment))),
    )


def listeners(tx: Tx) -> Listeners:
    """Raises LookupError before the organisation is set up."""
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


def append(tx: Tx, known: Listeners, entries: Sequence[LoggedChange], *, ids: Ids, now: float) -> None:
    """Add entries, in order; those that somebody wants wait to be handed over."""
    payloads = [entry.payload if entry.payload is not None and known.want(entry.event_type) else None for entry in entries]
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
    """What merging `changes` into `data` overwrites, as it is kept: the old value of every attribute that gets another one, or null."""
    old = {slug: data.get(slug) for slug, value in changes.items() if differ(data.get(slug), value)}
    return jsontext.dumps(old)


def whole(created_at: int, document: str) -> str:
    """What a deletion overwrites, as it is kept; `document` is the data as JSON."""
    return f'{{"createdAt":{created_at},"data":{document}}}'


def forget(tx: Tx, before: float, most: int) -> int:
    """Delete up to `most` entries older than this Unix time that no delivery needs any more; how many there were."""
    gone = tx.execute(f"DELETE FROM change_log WHERE sequence IN ({_OLD} AND {_UNNEEDED} ORDER BY at LIMIT ?)", (to_micros(before), most))
    if gone:
        note_known_since(tx, before)
    return gone


def slim(tx: Tx, before: float, most: int) -> int:
    """Take the bodies out of up to `most` entries older than this Unix time whose deliveries are forgotten."""
    old = f"{_OLD} AND event_id IS NOT NULL AND {_UNNEEDED} ORDER BY at LIMIT ?"
    return tx.execute(f"UPDATE change_log SET event_id = NULL, payload = NULL WHERE sequence IN ({old})", (to_micros(before), most))


def differ(old: Any, new: Any) -> bool:
    """Whether two values are not the same on the wire; objects with the same members in another order are the same."""
    # As text: 1, 1.0 and true are equal to Python.
    return old is not new and jsontext.dumps(old, sort_keys=True) != jsontext.dumps(new, sort_keys=True)
