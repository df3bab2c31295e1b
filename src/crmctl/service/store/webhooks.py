"""Webhook endpoints: their URLs, event types and signing secrets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.models.resources import EVENT_TYPES
from crmctl.models.signatures import new_secret
from crmctl.service.faults import BadRequest
from crmctl.service.store import logs
from crmctl.service.store.record_tables import invalid, require_description
from crmctl.service.store.tx import Rows, Stamp, Tx, insert, required, to_micros, update

MAX_URL = 2000
ROTATION_SECONDS = 24 * 3600.0
"""How long the old secret signs along with the new one."""

_HEALTH = (
    "CASE WHEN disabled_at IS NOT NULL THEN 'disabled' WHEN tried_at IS NULL THEN 'untried' WHEN failing_since IS NULL THEN 'working' "
    "ELSE 'failing' END AS health"
)
_ENDPOINTS = Rows(
    "webhook_endpoint",
    "webhook endpoint",
    f"id, url, description, {_HEALTH}, problem, event_types, enabled, succeeded_at, failing_since, disabled_at, created_at, updated_at",
    event_types=jsontext.loads,
    enabled=bool,
)


def list_endpoints(tx: Tx) -> list[Json]:
    """Return endpoints, oldest first, without secrets.

    `health` tells the last try: `untried`, `working`, `failing`, or `disabled` by the service. `problem` is why it failed.
    """
    return _ENDPOINTS.all(tx, "ORDER BY number")


def get_endpoint(tx: Tx, endpoint_id: str) -> Json:
    return _ENDPOINTS.get(tx, endpoint_id)


def create_endpoint(tx: Tx, *, url: str, description: str = "", event_types: Sequence[str] | None = None, **stamp: Unpack[Stamp]) -> Json:
    """Create an enabled endpoint with a fresh secret; `event_types` None means all. The caller has vetted the URL. Raises BadRequest."""
    row: Json = {"id": stamp["ids"](), "url": _url(url), "description": require_description(description)}
    row |= {"event_types": _types(event_types), "enabled": 1, "secret": new_secret()}
    row |= dict.fromkeys(("created_at", "updated_at"), to_micros(stamp["now"]))
    insert(tx, "webhook_endpoint", row)
    logs.note(tx, "endpoint.created", row["id"], {"url": row["url"]}, now=stamp["now"])
    return get_endpoint(tx, row["id"])


def update_endpoint(tx: Tx, endpoint_id: str, changes: Mapping[str, Any], *, now: float) -> Json:
    """Change any of url, description, eventTypes, enabled. Raises NotFound, BadRequest."""
    endpoint = get_endpoint(tx, endpoint_id)
    columns: Json = {"updated_at": to_micros(now)}
    columns |= {"url": _url(changes["url"])} if "url" in changes else {}
    columns |= {"description": require_description(changes["description"])} if "description" in changes else {}
    columns |= {"event_types": _types(changes["eventTypes"])} if "eventTypes" in changes else {}
    columns |= {"enabled": int(changes["enabled"])} if "enabled" in changes else {}
    if columns.get("url", endpoint["url"]) != endpoint["url"]:
        # A new address has no history.
        columns |= dict.fromkeys(("tried_at", "succeeded_at", "failing_since", "problem"))
    if columns.get("enabled") or "url" in columns:
        # An endpoint that is enabled again gets as much time as a new one.
        columns |= {"disabled_at": None} | ({"failing_since": None, "problem": None} if endpoint["disabledAt"] else {})
    update(tx, "webhook_endpoint", columns, "id = ?", endpoint["id"])
    logs.note(tx, "endpoint.updated", endpoint["id"], {"url": endpoint["url"], **changes} | logs.differences(endpoint, changes), now=now)
    return get_endpoint(tx, endpoint_id)


def delete_endpoint(tx: Tx, endpoint_id: str) -> None:
    """Delete an endpoint with its deliveries and their history. Raises NotFound."""
    known_id = get_endpoint(tx, endpoint_id)["id"]
    tx.execute("DELETE FROM webhook_attempt WHERE delivery_id IN (SELECT id FROM webhook_delivery WHERE endpoint_id = ?)", (known_id,))
    for table, column in (("webhook_delivery", "endpoint_id"), ("webhook_endpoint", "id")):
        tx.execute(f"DELETE FROM {table} WHERE {column} = ?", (known_id,))
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


def _url(value: str) -> str:
    if not value.strip() or len(value) > MAX_URL:
        raise invalid("url", f"must be an address of at most {MAX_URL} characters")
    return value.strip()


def _types(value: Sequence[str] | None) -> str | None:
    if value is None:
        return None
    unknown = sorted(set(value) - EVENT_TYPES.keys())
    if unknown or not value:
        raise BadRequest(f"eventTypes must name some of: {', '.join(EVENT_TYPES)}", {"field": "eventTypes", "unknown": unknown})
    return jsontext.dumps([name for name in EVENT_TYPES if name in value])
