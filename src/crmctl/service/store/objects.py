"""Objects: the data structures of the organisation. Each has its own table of records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Unpack

from crmctl.models.jsontext import Json
from crmctl.service.faults import BadRequest, Conflict, Forbidden
from crmctl.service.store import logs, record_tables, removals
from crmctl.service.store.attributes import list_attributes, referring_attributes
from crmctl.service.store.record_tables import load_schema, require_description, require_name, require_slug, slug_from
from crmctl.service.store.tx import Rows, Stamp, Tx, required, to_micros, update

STANDARD, CUSTOM = "standard", "custom"


_OBJECTS = Rows("crm_object", "object", "id, type, plural_name, singular_name, description, slug, is_active, created_at, updated_at")


@dataclass(frozen=True)
class NewObject:
    """An object as the caller describes it, not checked yet."""

    plural_name: str
    singular_name: str | None = None
    description: str | None = None
    slug: str | None = None
    type: str = CUSTOM


def list_objects(tx: Tx, *, include_inactive: bool = False) -> list[Json]:
    """Return the active objects, oldest first."""
    active = "" if include_inactive else "WHERE is_active = 1 "
    return _OBJECTS.all(tx, f"{active}ORDER BY number")


def get_object(tx: Tx, object_id: str) -> Json:
    """Return an object with its active `attributes`, even if it is inactive. Raises NotFound."""
    crm_object = _OBJECTS.get(tx, object_id)
    return crm_object | {"attributes": list_attributes(tx, crm_object["id"])}


def find_object_by_slug(tx: Tx, slug: str) -> Json | None:
    """Return an object without its attributes, even if it is inactive."""
    return _OBJECTS.find(tx, "slug = ?", slug)


def id_of_slug(tx: Tx, slug: Any, field: str) -> str:
    """Return the id of the object that a field names. Raises BadRequest."""
    crm_object = find_object_by_slug(tx, slug) if isinstance(slug, str) else None
    if crm_object is None:
        raise BadRequest(f"{field} must be the slug of an object, not {slug!r}", {"field": field})
    return str(crm_object["id"])


def create_object(tx: Tx, new: NewObject, **stamp: Unpack[Stamp]) -> Json:
    """Create an object without attributes. The singular name defaults to the plural one, the slug derives from that. Raises BadRequest, and
    Conflict for a slug in use."""
    plural = require_name(new.plural_name, "pluralName")
    singular = plural if new.singular_name is None else require_name(new.singular_name, "singularName")
    text = require_description(new.description)
    known_slug = slug_from(plural, "object") if new.slug is None else require_slug(new.slug)
    if find_object_by_slug(tx, known_slug) is not None:
        raise Conflict(f"there is an object with the slug {known_slug!r} already", {"field": "slug", "slug": known_slug})
    at = to_micros(stamp["now"])
    row = (stamp["ids"](), new.type, plural, singular, text, known_slug, 1, at, at)
    number = required(tx.one(f"INSERT INTO crm_object ({_OBJECTS.columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING number", row))[0]
    tx.execute("INSERT INTO record_total (object_id, total) VALUES (?, 0)", (row[0],))
    record_tables.create_table(tx, number)
    logs.note(tx, "object.created", row[0], {"slug": known_slug}, now=stamp["now"])
    return _OBJECTS.show(row)


def update_object(tx: Tx, object_id: str, changes: Mapping[str, Any], *, now: float) -> Json:
    """Change any of pluralName, description, isActive. Raises NotFound, BadRequest, and Forbidden for a standard object."""
    crm_object = _get_custom(tx, object_id, "changed")
    columns: Json = {"updated_at": to_micros(now)}
    if "pluralName" in changes:
        columns["plural_name"] = require_name(changes["pluralName"], "pluralName")
    if "description" in changes:
        columns["description"] = require_description(changes["description"])
    if "isActive" in changes:
        columns["is_active"] = int(changes["isActive"])
    update(tx, "crm_object", columns, "id = ?", crm_object["id"])
    logs.note(
        tx, "object.updated", crm_object["id"], {"slug": crm_object["slug"], **changes} | logs.differences(crm_object, changes), now=now
    )
    return _OBJECTS.get(tx, object_id)


def delete_object(tx: Tx, object_id: str) -> None:
    """Delete an object. Its attributes and records disappear at once and are removed bit by bit, without an event per record. Raises
    NotFound, Forbidden for a standard object, Conflict while attributes of other objects refer to it."""
    crm_object = _get_custom(tx, object_id, "deleted")
    schema = load_schema(tx, crm_object["id"], tx.dialect.own_object)
    referring = [attribute for attribute in referring_attributes(tx, crm_object["id"]) if attribute["objectId"] != crm_object["id"]]
    if referring:
        raise Conflict(
            "other objects refer to this one; delete these reference attributes first: " + ", ".join(each["slug"] for each in referring),
            {"attributes": [{"objectId": each["objectId"], "attributeId": each["id"], "slug": each["slug"]} for each in referring]},
        )
    removals.begin_object(tx, schema)
    for table, key in (("attribute", "object_id"), ("record_total", "object_id"), ("crm_object", "id")):
        tx.execute(f"DELETE FROM {table} WHERE {key} = ?", (schema.object_id,))
    logs.note(tx, "object.deleted", crm_object["id"], {"slug": crm_object["slug"]})


def _get_custom(tx: Tx, object_id: str, action: str) -> Json:
    crm_object = _OBJECTS.get(tx, object_id)
    if crm_object["type"] == STANDARD:
        raise Forbidden(f"{crm_object['slug']} is a standard object and cannot be {action}")
    return crm_object
