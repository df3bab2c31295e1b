"""The audit log, the request log, and the actors they name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from crmctl.clock import SystemClock
from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.service.store.tx import Rows, Tx, all_in, to_micros

KEY, MEMBER, WORKFLOW = "key", "member", "workflow"
OPERATOR = "operator"
"""Whoever works with the service's own data: crmctl service, or a console opened by its link."""

SERVICE = "service"
"""The service itself, when it does something that people should know of."""

_NAMES = {KEY: "SELECT id, name FROM api_key WHERE id IN {}", MEMBER: "SELECT id, name FROM member WHERE id IN {}"}
_NAMES[WORKFLOW] = "SELECT id, name FROM workflow WHERE id IN {}"


def key(key_id: str) -> str:
    return f"{KEY}:{key_id}"


def member(member_id: str) -> str:
    return f"{MEMBER}:{member_id}"


def workflow(workflow_id: str) -> str:
    return f"{WORKFLOW}:{workflow_id}"


def described(tx: Tx, actors: Iterable[str | None]) -> dict[str | None, Json | None]:
    """Return each actor as `{type, id, name}`, the last two if known; None for the service itself."""
    names: dict[str | None, Json | None] = {None: None}
    by_type: dict[str, set[str]] = {}
    for actor in actors:
        if actor is not None:
            kind, _, known_id = actor.partition(":")
            names[actor] = {"type": kind} | ({"id": known_id} if known_id else {})
            by_type.setdefault(kind, set()).add(known_id)
    for kind, details in by_type.items():
        for known_id, name in all_in(tx, _NAMES[kind], details) if kind in _NAMES else ():
            names[f"{kind}:{known_id}"] = {"type": kind, "id": known_id, "name": name}
    return names


def note(tx: Tx, action: str, subject: str, about: Mapping[str, Any] | None = None, *, now: float | None = None) -> None:
    """Add an entry. `action` is a noun and a verb such as `attribute.deleted`; `about` is for readers and never holds a secret.

    The service does not note its own set-up.
    """
    if tx.by is not None:
        at = to_micros(SystemClock().now() if now is None else now)
        row = (at, tx.by, action, subject, jsontext.dumps(dict(about or {})))
        tx.execute("INSERT INTO audit_log (at, actor, action, subject, about) VALUES (?, ?, ?, ?, ?)", row)


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> Json:
    """Return `{changes: {name: [old, new]}}` for the entry of an update."""
    return {"changes": {name: [old.get(name), value] for name, value in new.items() if old.get(name) != value}}


_ENTRIES = Rows("audit_log", "entry", "actor AS by, action, subject AS id, at, about", about=jsontext.loads)


def list_entries(tx: Tx, limit: int = 50, offset: int = 0, *, action: str | None = None, subject: str | None = None) -> list[Json]:
    """Return entries, newest first, as `{at, by, action, id, about}`.

    `action` is one action, or a noun for all of its actions; `subject` is the id of a thing.
    """
    where = "WHERE (action = ? OR action LIKE ?) " if action else "WHERE subject = ? " if subject else ""
    params: tuple[str, ...] = (action, f"{action}.%") if action else (subject,) if subject else ()
    entries = _ENTRIES.all(tx, f"{where}ORDER BY sequence DESC LIMIT ? OFFSET ?", (*params, limit, offset))
    names = described(tx, (entry["by"] for entry in entries))
    return [entry | {"by": names[entry["by"]]} for entry in entries]


def forget(tx: Tx, table: str, before: float, most: int) -> int:
    """Delete up to `most` entries of the audit log or request log older than this Unix time, and return their number."""
    old = f"SELECT sequence FROM {table} WHERE at < ? ORDER BY at LIMIT ?"
    return tx.execute(f"DELETE FROM {table} WHERE sequence IN ({old})", (to_micros(before), most))


_FAILED = "status >= 400"
_REQUESTS = Rows(
    "request_log",
    "request",
    "request_id, method, route AS path, status, address, at, key_id AS key, micros AS ms",
    key=key,
    ms=lambda micros: micros / 1000,
)


class LoggedRequest(NamedTuple):
    """An answered request: `at` and its duration `micros` in microseconds, `route` the template of its path."""

    at: int
    request_id: str
    key_id: str | None
    method: str
    route: str
    status: int | None
    micros: int
    address: str | None


def append(tx: Tx, requests: Sequence[LoggedRequest]) -> None:
    columns = ", ".join(LoggedRequest._fields)
    tx.execute_many(f"INSERT INTO request_log ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", requests)


def list_requests(
    tx: Tx,
    limit: int = 50,
    offset: int = 0,
    *,
    key_id: str | None = None,
    request_id: str | None = None,
    status: int | None = None,
    since: float | None = None,
) -> list[Json]:
    """Return requests, newest first, as `{at, requestId, key, method, path, status, ms, address}`: of a key, with an id, with a status from
    `status` on, since a Unix time."""
    at = None if since is None else to_micros(since)
    filters = {"key_id = ?": key_id, "request_id = ?": request_id, "status >= ?": status, "at >= ?": at}
    values = {condition: value for condition, value in filters.items() if value is not None}
    conditions = list(values)
    if status is not None and status >= 400:
        # Verbatim, because the engine recognises the index by this text.
        conditions.append(_FAILED)
    where = f"WHERE {' AND '.join(conditions)} " if conditions else ""
    requests = _REQUESTS.all(tx, f"{where}ORDER BY at DESC, sequence DESC LIMIT ? OFFSET ?", (*values.values(), limit, offset))
    names = described(tx, {request["key"] for request in requests})
    return [request | {"key": names[request["key"]]} for request in requests]


def slowest(tx: Tx, since: float, limit: int) -> list[Json]:
    """Return the requests since a Unix time that took longest, as `list_requests` does, with the key's actor alone."""
    return _REQUESTS.all(tx, "WHERE at >= ? ORDER BY micros DESC, sequence DESC LIMIT ?", (to_micros(since), limit))
