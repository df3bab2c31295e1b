"""Events that wait to be delivered, written by the transaction whose changes they describe."""
# ruff: noqa: S608 - statements are put together from this package's own names only; values are always parameters

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from crmctl.models import jsontext
from crmctl.service.store.timestamps import to_micros
from crmctl.service.store.tx import Tx

Ids = Callable[[], str]


@dataclass(frozen=True)
class Event:
    """One event as it was written; `payload` is the frozen body."""

    id: str
    type: str
    payload: bytes
    created_at: float


def append(tx: Tx, event_type: str, payload: Mapping[str, Any], *, ids: Ids, now: float) -> None:
    """Add one event; `payload` becomes the frozen bytes of its body."""
    append_frozen(tx, [(event_type, jsontext.dumps(dict(payload)))], ids=ids, now=now)


def append_frozen(tx: Tx, events: Iterable[tuple[str, str]], *, ids: Ids, now: float) -> None:
    """Add events whose payload is JSON text already, in order."""
    created_at = to_micros(now)
    tx.execute_many(
        "INSERT INTO outbox (id, type, payload, created_at) VALUES (?, ?, ?, ?)",
        [(ids(), event_type, payload.encode(), created_at) for event_type, payload in events],
    )


def is_waiting(tx: Tx) -> bool:
    """Whether any event has not been handed to the features yet."""
    return tx.one("SELECT 1 FROM outbox WHERE dispatched = 0 LIMIT 1") is not None


def take_waiting(tx: Tx, limit: int) -> list[Event]:
    """The oldest events not handed over yet, marked as handed over by this transaction; never one that another transaction is taking."""
    rows = tx.all(
        "SELECT sequence, id, type, payload, created_at FROM outbox WHERE dispatched = 0 "
        f"ORDER BY sequence LIMIT ?{tx.dialect.for_claim('outbox')}",
        (limit,),
    )
    tx.execute_many("UPDATE outbox SET dispatched = 1 WHERE sequence = ?", [(row[0],) for row in rows])
    return [Event(row[1], row[2], bytes(row[3]), row[4] / 1_000_000) for row in rows]
