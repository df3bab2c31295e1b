"""Objects: the data structures of the organisation. Each has its own table of records."""
# ruff: noqa: S608 - statements are put together from this package's own names only; values are always parameters

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Unpack

from crmctl.service.faults import BadRequest, Conflict, Forbidden, NotFound
from crmctl.service.store import audit_log, object_removals, record_tables
from crmctl.service.store.attributes import list_attributes, referring_attributes
from crmctl.service.store.checks import require_description, require_flag, require_name, require_slug, slug_from
from crmctl.service.store.schema import load_schema
from crmctl.service.store.stamp import Stamp
from crmctl.service.store.timestamps import to_micros, to_wire
from crmctl.service.store.tx import Tx, required
from crmctl.service.values.choices import canonical_uuid

STANDARD, CUSTOM = "standard", "custom"


class _Row(NamedTuple):
    """The columns of an object."""

    id: str
    type: str
    plural_name: str
    singular_name: str
    description: str
    slug: str
    is_active: int
    created_at: int
    updated_at: int

    def wire(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": self.type,
            "pluralName": self.plural_name,
            "singularName": self.singular_name,
            "description": self.description,
            "slug": self.slug,
            "isActive": bool(self.is_active),
            "createdAt": to_wire(self.created_at),
            "updatedAt": to_wire(self.updated_at),
        }


_COLUMNS = ", ".join(_Row._fields)


@dataclass(frozen=True)
class NewObject:
    """As a caller describes it; nothing of it is checked yet."""

    plural_name: str
    singular_name: str | None = None
    description: str | None = None
    slug: str | None = None
    type: str = CUSTOM


def list_objects(tx: Tx, *, include_inactive: bool = False) -> list[dict[str, Any]]:
    """Active objects, oldest first."""
    active = "" if include_inactive else "WHERE is_active = 1 "
    return [_Row(*row).wire() for row in tx.all(f"SELECT {_COLUMNS} FROM crm_object {active}ORDER BY number")]


def get_object(tx: Tx, object_id: str) -> dict[str, Any]:
    """The object with its active `attributes`; inactive objects too. Raises NotFound."""
    found = _get(tx, object_id)
    return found | {"attributes": list_attributes(tx, found["id"])}


def find_object_by_slug(tx: Tx, slug: str) -> dict[str, Any] | None:
    """Without attributes; inactive objects too."""
    row = tx.one(f"SELECT {_COLUMNS} FROM crm_object WHERE slug = ?", (slug,))
    return None if row is None else _Row(*row).wire()


def create_object(tx: Tx, new: NewObject, **stamp: Unpack[Stamp]) -> dict[str, Any]:
    """A new object without attributes. The singular name defaults to the plural one, the slug is derived from that.

    Raises BadRequest, and Conflict for a slug in use.
    """
    plural = require_name(new.plural_name, "pluralName")
    singular = plural if new.singular_name is None else require_name(new.singular_name, "singularName")
    text = require_description(new.description)
    known_slug = slug_from(plural, "object") if new.slug is None else require_slug(new.slug)
    if find_object_by_slug(tx, known_slug) is not None:
        raise Conflict(f"there is an object with the slug {known_slug!r} already", {"field": "slug", "slug": known_slug})
    at = to_micros(stamp["now"])
    row = (stamp["ids"](), new.type, plural, singular, text, known_slug, 1, at, at)
    number = required(tx.one(f"INSERT INTO crm_object ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING number", row))[0]
    tx.execute("INSERT INTO record_total (object_id, total) VALUES (?, 0)", (row[0],))
    record_tables.create_table(tx, number)
    audit_log.note(tx, "object.created", row[0], {"slug": known_slug}, now=stamp["now"])
    return _Row(*row).wire()


_UPDATABLE: dict[str, tuple[str, Callable[[Any, str], Any]]] = {
    "pluralName": ("plural_name", require_name),
    "description": ("description", require_description),
    "isActive": ("is_active", lambda value, field: int(require_flag(value, field))),
}


def update_object(tx: Tx, object_id: str, changes: Mapping[str, Any], *, now: float) -> dict[str, Any]:
    """`changes`: any of pluralName, description, isActive. Raises NotFound, BadRequest, and Forbidden for a standard object."""
    found = _get_custom(tx, object_id, "changed")
    strange = [field for field in changes if field not in _UPDATABLE]
    if strange:
        raise BadRequest(f"{', '.join(strange)} cannot be changed; what can is: {', '.join(_UPDATABLE)}", {"field": strange[0]})
    columns = {_UPDATABLE[field][0]: _UPDATABLE[field][1](value, field) for field, value in changes.items()} | {
        "updated_at": to_micros(now)
    }
    assignments = ", ".join(f"{column} = ?" for column in columns)
    tx.execute(f"UPDATE crm_object SET {assignments} WHERE id = ?", (*columns.values(), found["id"]))
    audit_log.note(tx, "object.updated", found["id"], {"slug": found["slug"], **changes}, now=now)
    return _get(tx, object_id)


def delete_object(tx: Tx, object_id: str) -> None:
    """Nobody sees its attributes and records from here on; they are taken away bit by bit, without an event per record.

    Raises NotFound, Forbidden for a standard object, Conflict while attributes of other objects refer to it.
    """
    found = _get_custom(tx, object_id, "deleted")
    schema = load_schema(tx, found["id"], tx.dialect.own_object)
    referring = [attribute for attribute in referring_attributes(tx, found["id"]) if attribute["objectId"] != found["id"]]
    if referring:
        raise Conflict(
            "other objects refer to this one; delete these reference attributes first: " + ", ".join(each["slug"] for each in referring),
            {"attributes": [{"objectId": each["objectId"], "attributeId": each["id"], "slug": each["slug"]} for each in referring]},
        )
    object_removals.begin(tx, schema)
    for table, key in (("attribute", "object_id"), ("record_total", "object_id"), ("crm_object", "id")):
        tx.execute(f"DELETE FROM {table} WHERE {key} = ?", (schema.object_id,))
    audit_log.note(tx, "object.deleted", found["id"], {"slug": found["slug"]})


def _get(tx: Tx, object_id: str) -> dict[str, Any]:
    row = tx.one(f"SELECT {_COLUMNS} FROM crm_object WHERE id = ?", (canonical_uuid(object_id) or "",))
    if row is None:
        raise NotFound(f"there is no object with the id {object_id}")
    return _Row(*row).wire()


def _get_custom(tx: Tx, object_id: str, action: str) -> dict[str, Any]:
    found = _get(tx, object_id)
    if found["type"] == STANDARD:
        raise Forbidden(f"{found['slug']} is a standard object and cannot be {action}")
    return found
