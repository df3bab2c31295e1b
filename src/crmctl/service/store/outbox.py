"""The entries of the log of changes that wait to be handed to what wants them, and events that are no change of a record."""
# ruff: noqa: S608 - statements are put together from this package's own names only; values are always parameters

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from crmctl.models import jsontext
from crmctl.service.store import change_log
from crmctl.service.store.timestamps import to_micros
from crmctl.service.store.tx import Tx, execute_in

Ids = Callable[[], str]


@dataclass(frozen=True)
class Event:
    """One event as it was written; `payload` is the frozen body."""

    id: str
    type: str
    payload: bytes
    created_at: float


def append(tx: Tx, event_type: str, payload: Mapping[str, Any], *, ids: Ids, now: float) -> None:
    """Add one event; `payload` becomes the frozen bytes of its body. Nothing is added where nobody wants it."""
    known = change_log.listeners(tx)
    if known.want(event_type):
        change_log.append(tx, known, [change_log.LoggedChange(event_type, jsontext.dumps(dict(payload)))], ids=ids, now=now)


def append_settled(tx: Tx, event_type: str, payload: Mapping[str, Any], *, ids: Ids, now: float) -> str:
    """Add an event that is handed to nobody: who adds it makes its deliveries. Its id."""
    event_id = ids()
    tx.execute(
        "INSERT INTO change_log (at, type, actor, event_id, payload, waiting) VALUES (?, ?, ?, ?, ?, 0)",
        (to_micros(now), event_type, tx.by, event_id, jsontext.dumps(dict(payload)).encode()),
    )
    return event_id


def is_waiting(tx: Tx) -> bool:
    """Whether any event has not been handed to the features yet."""
    return tx.one("SELECT 1 FROM change_log WHERE waiting = 1 LIMIT 1") is not None


def take_waiting(tx: Tx, limit: int) -> list[Event]:
    """The oldest events not handed over yet, marked as handed over by this transaction; never one that another transaction is taking."""
    rows = tx.all(
        "SELECT sequence, event_id, type, payload, at FROM change_log WHERE waiting = 1 "
        f"ORDER BY sequence LIMIT ?{tx.dialect.for_claim('change_log')}",
        (limit,),
    )
    execute_in(tx, "UPDATE change_log SET waiting = 0 WHERE sequence IN {}", [row[0] for row in rows])
    return [Event(row[1], row[2], bytes(row[3]), row[4] / 1_000_000) for row in rows]
