"""Webhook endpoints: their URLs, event types and signing secrets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Unpack

from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.models.resources import EVENT_TYPES
from crmctl.models.signatures import new_secret
from crmctl.service.faults import BadRequest, NotFound
from crmctl.service.store import logs
from crmctl.service.store.record_tables import invalid, require_description, require_flag
from crmctl.service.store.tx import Stamp, Tx, optional_to_wire, required, to_micros, to_wire
from crmctl.values.value_readers import canonical_uuid

MAX_URL = 2000
ROTATION_SECONDS = 24 * 3600.0
"""How long the old secret signs along with the new one."""

Ids = Callable[[], str]


class _Row(NamedTuple):
    """The columns of an endpoint, its secrets left out."""

    id: str
    url: str
    description: str
    event_types: str | None
    enabled: int
    created_at: int
    updated_at: int
    tried_at: int | None
    succeeded_at: int | None
    failing_since: int | None
    problem: str | None
    disabled_at: int | None

    def health(self) -> str:
        if self.disabled_at is not None:
            return "disabled"
        return "untried" if self.tried_at is None else "working" if self.failing_since is None else "failing"

    def wire(self) -> Json:
        return {
            "id": self.id,
            "url": self.url,
            "description": self.description,
            "eventTypes": None if self.event_types is None else jsontext.loads(self.event_types),
            "enabled": bool(self.enabled),
            "health": self.health(),
            "succeededAt": optional_to_wire(self.succeeded_at),
            "failingSince": optional_to_wire(self.failing_since),
            "problem": self.problem,
            "disabledAt": optional_to_wire(self.disabled_at),
            "createdAt": to_wire(self.created_at),
            "updatedAt": to_wire(self.updated_at),
        }


_COLUMNS = ", ".join(_Row._fields)


def list_endpoints(tx: Tx) -> list[Json]:
    """Return endpoints, oldest first, without secrets.

    `health` tells the last try: `untried`, `working`, `failing`, or `disabled` by the service. `problem` is why it failed.
    """
    return [_Row(*row).wire() for row in tx.all(f"SELECT {_COLUMNS} FROM webhook_endpoint ORDER BY number")]


def get_endpoint(tx: Tx, endpoint_id: str) -> Json:
    row = tx.one(f"SELECT {_COLUMNS} FROM webhook_endpoint WHERE id = ?", (canonical_uuid(endpoint_id) or "",))
    if row is None:
        raise NotFound(f"there is no webhook endpoint with the id {endpoint_id}")
    return _Row(*row).wire()


def create_endpoint(tx: Tx, *, url: str, description: str = "", event_types: Sequence[str] | None = None, **stamp: Unpack[Stamp]) -> Json:
    """Create an enabled endpoint with a fresh secret; `event_types` None means all. The caller has vetted the URL. Raises BadRequest."""
    at = to_micros(stamp["now"])
    row = (stamp["ids"](), _url(url), require_description(description), _types(event_types), 1, at, at)
    tx.execute(
        "INSERT INTO webhook_endpoint (id, url, description, event_types, enabled, created_at, updated_at, secret) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (*row, new_secret()),
    )
    logs.note(tx, "endpoint.created", row[0], {"url": row[1]}, now=stamp["now"])
    return get_endpoint(tx, row[0])


def update_endpoint(tx: Tx, endpoint_id: str, changes: Mapping[str, Any], *, now: float) -> Json:
    """Change any of url, description, eventTypes, enabled. Raises NotFound, BadRequest."""
    endpoint = get_endpoint(tx, endpoint_id)
    readers: dict[str, tuple[str, Callable[[Any], Any]]] = {
        "url": ("url", _url),
        "description": ("description", require_description),
        "eventTypes": ("event_types", _types),
        "enabled": ("enabled", lambda value: int(require_flag(value, "enabled"))),
    }
    columns = {readers[field][0]: readers[field][1](value) for field, value in changes.items()} | {"updated_at": to_micros(now)}
    if columns.get("url", endpoint["url"]) != endpoint["url"]:
        # A new address has no history.
        columns |= dict.fromkeys(("tried_at", "succeeded_at", "failing_since", "problem"))
    if columns.get("enabled") or "url" in columns:
        # An endpoint that is enabled again gets as much time as a new one.
        columns |= {"disabled_at": None} | ({"failing_since": None, "problem": None} if endpoint["disabledAt"] else {})
    assignments = ", ".join(f"{column} = ?" for column in columns)
    tx.execute(f"UPDATE webhook_endpoint SET {assignments} WHERE id = ?", (*columns.values(), endpoint["id"]))
    logs.note(tx, "endpoint.updated", endpoint["id"], {"url": endpoint["url"], **changes}, now=now)
    return get_endpoint(tx, endpoint_id)


def delete_endpoint(tx: Tx, endpoint_id: str) -> None:
    """Delete an endpoint with its deliveries and their history. Raises NotFound."""
    known_id = get_endpoint(tx, endpoint_id)["id"]
    tx.execute("DELETE FROM webhook_attempt WHERE delivery_id IN (SELECT id FROM webhook_delivery WHERE endpoint_id = ?)", (known_id,))
    tx.execute("DELETE FROM webhook_delivery WHERE endpoint_id = ?", (known_id,))
    tx.execute("DELETE FROM webhook_hour WHERE endpoint_id = ?", (known_id,))
    tx.execute("DELETE FROM webhook_endpoint WHERE id = ?", (known_id,))
    logs.note(tx, "endpoint.deleted", known_id)


def reveal_secret(tx: Tx, endpoint_id: str) -> str:
    known_id = get_endpoint(tx, endpoint_id)["id"]
    return str(required(tx.one("SELECT secret FROM webhook_endpoint WHERE id = ?", (known_id,)))[0])


def rotate_secret(tx: Tx, endpoint_id: str, *, now: float) -> str:
    """Create a new secret; the old one signs along for a day, so that the receiver can change over. Raises NotFound."""
    known_id = get_endpoint(tx, endpoint_id)["id"]
    fresh = new_secret()
    tx.execute(
        "UPDATE webhook_endpoint SET old_secret = secret, old_secret_until = ?, secret = ?, updated_at = ? WHERE id = ?",
        (to_micros(now + ROTATION_SECONDS), fresh, to_micros(now), known_id),
    )
    logs.note(tx, "endpoint.secret_rotated", known_id, now=now)
    return fresh


def _url(value: Any) -> str:
    if not isinstance(value, str) or not value.strip() or len(value) > MAX_URL:
        raise invalid("url", f"must be an address of at most {MAX_URL} characters")
    return value.strip()


def _types(value: Any) -> str | None:
    if value is None:
        return None
    unknown = sorted(set(value) - EVENT_TYPES.keys())
    if unknown or not value:
        raise BadRequest(f"eventTypes must name some of: {', '.join(EVENT_TYPES)}", {"field": "eventTypes", "unknown": unknown})
    return jsontext.dumps([name for name in EVENT_TYPES if name in value])
