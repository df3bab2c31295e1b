"""The request log: who asked what, from where, and how it ended. Never a key, only its id; never a query string or body."""
# ruff: noqa: S608 - statements are put together from this package's own names only; values are always parameters

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

from crmctl.service.store import actors
from crmctl.service.store.timestamps import to_micros, to_wire
from crmctl.service.store.tx import Tx

_FAILED = "status >= 400"
_COLUMNS = "at, request_id, key_id, method, route, status, micros, address"


@dataclass(frozen=True)
class LoggedRequest:
    """One answered request; `at` and `micros`, how long it took, in microseconds. `route` is the template of its path."""

    at: int
    request_id: str
    key_id: str | None
    method: str
    route: str
    status: int | None
    micros: int
    address: str | None


@dataclass(frozen=True)
class RequestFilter:
    """Which requests to list: of a key, with an id, with a status from `status` on, since a Unix time."""

    key_id: str | None = None
    request_id: str | None = None
    status: int | None = None
    since: float | None = None


def create_tables(tx: Tx) -> None:
    """The migration that brings the log."""
    text = tx.dialect.text
    tx.execute(
        f"""CREATE TABLE request_log (sequence {tx.dialect.sequence}, at BIGINT NOT NULL, request_id {text} NOT NULL, key_id {text},
            method {text} NOT NULL, route {text} NOT NULL, status INTEGER, micros BIGINT NOT NULL, address {text})"""
    )
    tx.execute("CREATE INDEX request_log_at ON request_log (at)")


def create_index_of_failures(tx: Tx) -> None:
    """The migration that brings it. Most requests are not in it, so it costs them nothing."""
    tx.execute(f"CREATE INDEX request_log_failed ON request_log (at) WHERE {_FAILED}")


def append(tx: Tx, requests: Sequence[LoggedRequest]) -> None:
    tx.execute_many(f"INSERT INTO request_log ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", [astuple(request) for request in requests])


def list_requests(tx: Tx, wanted: RequestFilter, limit: int = 50, offset: int = 0) -> list[dict[str, Any]]:
    """Newest first, as `{at, requestId, key, method, path, status, ms, address}`."""
    since = None if wanted.since is None else to_micros(wanted.since)
    asked = (("key_id = ?", wanted.key_id), ("request_id = ?", wanted.request_id), ("status >= ?", wanted.status), ("at >= ?", since))
    given = [(condition, value) for condition, value in asked if value is not None]
    conditions = [condition for condition, _ in given]
    if wanted.status is not None and wanted.status >= 400:
        # To the letter: that is what an engine knows the index by.
        conditions.append(_FAILED)
    where = f"WHERE {' AND '.join(conditions)} " if conditions else ""
    rows = tx.all(
        f"SELECT {_COLUMNS} FROM request_log {where}ORDER BY at DESC, sequence DESC LIMIT ? OFFSET ?",
        (*(value for _, value in given), limit, offset),
    )
    names = actors.described(tx, {actors.key(row[2]) for row in rows if row[2]})
    return [
        {
            "at": to_wire(at),
            "requestId": request_id,
            "key": names[actors.key(key_id)] if key_id else None,
            "method": method,
            "path": route,
            "status": status,
            "ms": micros / 1000,
            "address": address,
        }
        for at, request_id, key_id, method, route, status, micros, address in rows
    ]


def moment_of_newest(tx: Tx, count: int) -> float | None:
    """When the last of so many newest requests was asked, in Unix seconds; None where there are none before it."""
    rows = tx.all("SELECT at FROM request_log ORDER BY at DESC LIMIT 2 OFFSET ?", (count - 1,))
    return rows[0][0] / 1_000_000 if len(rows) == 2 else None


def forget(tx: Tx, before: float, most: int) -> int:
    """Delete up to `most` entries older than this Unix time; how many there were."""
    old = "SELECT sequence FROM request_log WHERE at < ? ORDER BY at LIMIT ?"
    return tx.execute(f"DELETE FROM request_log WHERE sequence IN ({old})", (to_micros(before), most))
