"""Events that wait to be delivered, written by the transaction whose changes they describe."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from crmctl.models import jsontext
from crmctl.service.store.timestamps import to_micros
from crmctl.service.store.tx import Tx

Ids = Callable[[], str]


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
