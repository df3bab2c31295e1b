"""Attributes: the fields of an object. Everything but the name, and whether it is active, is fixed once the attribute exists."""
# ruff: noqa: S608 - statements are put together from this package's own names only; values are always parameters

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Unpack

from crmctl.models import jsontext
from crmctl.models.attributes import AttributeType
from crmctl.service.faults import BadRequest, Conflict, NotFound
from crmctl.service.store import attribute_removals, audit_log, record_tables
from crmctl.service.store.checks import RESERVED_SLUGS, invalid, require_flag, require_name, require_slug, slug_from
from crmctl.service.store.schema import load_schema
from crmctl.service.store.stamp import Stamp
from crmctl.service.store.timestamps import to_micros, to_wire
from crmctl.service.store.tx import Tx, required
from crmctl.service.values.choices import canonical_uuid

MAX_ATTRIBUTES = 250
"""Per object; SQLite allows 2,000 columns in a table, PostgreSQL 1,600, and an attribute has two."""

MAX_OPTIONS = 1000


class _Row(NamedTuple):
    """The columns of an attribute."""

    id: str
    object_id: str
    name: str
    slug: str
    type: str
    is_required: int
    is_unique: int
    is_list: int
    is_active: int
    display_order: int
    config: str | None
    created_at: int
    updated_at: int

    def wire(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "objectId": self.object_id,
            "name": self.name,
            "slug": self.slug,
            "type": self.type,
            "isRequired": bool(self.is_required),
            "isUnique": bool(self.is_unique),
            "isList": bool(self.is_list),
            "isActive": bool(self.is_active),
            "displayOrder": self.display_order,
            "config": None if self.config is None else jsontext.loads(self.config),
            "createdAt": to_wire(self.created_at),
            "updatedAt": to_wire(self.updated_at),
        }


_COLUMNS = ", ".join(_Row._fields)


@dataclass(frozen=True)
class NewAttribute:
    """As a caller describes it; nothing of it is checked yet."""

    name: str
    type: str
    slug: str | None = None
    is_required: bool = False
    is_unique: bool = False
    is_list: bool = False
    config: dict[str, Any] | None = None


def list_attributes(tx: Tx, object_id: str, include_inactive: bool = False) -> list[dict[str, Any]]:
    """In display order. Raises NotFound for an unknown object."""
    schema = load_schema(tx, object_id)
    active = "" if include_inactive else " AND is_active = 1"
    rows = tx.all(f"SELECT {_COLUMNS} FROM attribute WHERE object_id = ?{active} ORDER BY display_order, number", (schema.object_id,))
    return [_Row(*row).wire() for row in rows]


def get_attribute(tx: Tx, object_id: str, attribute_id: str) -> dict[str, Any]:
    """Raises NotFound, also when the attribute belongs to another object."""
    keys = (canonical_uuid(attribute_id) or "", canonical_uuid(object_id) or "")
    row = tx.one(f"SELECT {_COLUMNS} FROM attribute WHERE id = ? AND object_id = ?", keys)
    if row is None:
        raise NotFound(f"the object {object_id} has no attribute with the id {attribute_id}")
    return _Row(*row).wire()


def create_attribute(tx: Tx, object_id: str, new: NewAttribute, **stamp: Unpack[Stamp]) -> dict[str, Any]:
    """Existing records start without a value, also for a required attribute.

    Raises NotFound, BadRequest, Conflict for a slug in use, StillLeaving for one that is being taken out of the records.
    """
    schema = load_schema(tx, object_id, tx.dialect.own_object)
    known_name = require_name(new.name, "name")
    known_type = _require_type(new.type)
    count, last = required(
        tx.one("SELECT count(*), coalesce(max(display_order), 0) FROM attribute WHERE object_id = ?", (schema.object_id,))
    )
    if count >= MAX_ATTRIBUTES:
        raise BadRequest(f"an object can have at most {MAX_ATTRIBUTES} attributes")
    known_slug = slug_from(known_name, f"attribute_{last + 1}") if new.slug is None else require_slug(new.slug)
    if known_slug in RESERVED_SLUGS:
        raise invalid("slug" if new.slug is not None else "name", f"must not give the slug {known_slug!r}, a field of every record")
    if tx.one("SELECT 1 FROM attribute WHERE object_id = ? AND slug = ?", (schema.object_id, known_slug)):
        raise Conflict(f"the object has an attribute with the slug {known_slug!r} already", {"field": "slug", "slug": known_slug})
    if known_slug in schema.leaving:
        raise attribute_removals.still_leaving(known_slug)
    settings = _require_config(tx, known_type, new.config)
    given = ((new.is_required, "isRequired"), (new.is_unique, "isUnique"), (new.is_list, "isList"))
    flags = [int(require_flag(flag, field)) for flag, field in given]
    at = to_micros(stamp["now"])
    row = (stamp["ids"](), schema.object_id, known_name, known_slug, str(known_type), *flags, 1, last + 1, settings, at, at)
    tx.execute(f"INSERT INTO attribute ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
    vacant = attribute_removals.take_vacancy(tx, schema.number)
    record_tables.add_attribute(tx, schema.number, load_schema(tx, object_id).attributes[known_slug], vacant)
    _note(tx, "created", _Row(*row).wire(), now=stamp["now"])
    return _Row(*row).wire()


def update_attribute(tx: Tx, object_id: str, attribute_id: str, *, name: str, now: float) -> dict[str, Any]:
    """Raises NotFound and BadRequest."""
    found = get_attribute(tx, object_id, attribute_id)
    row = (require_name(name, "name"), to_micros(now), found["id"])
    tx.execute("UPDATE attribute SET name = ?, updated_at = ? WHERE id = ?", row)
    _note(tx, "updated", found | {"name": row[0]}, now=now)
    return get_attribute(tx, object_id, attribute_id)


def set_active(tx: Tx, object_id: str, attribute_id: str, is_active: bool, *, now: float) -> dict[str, Any]:
    """Records keep the values of an inactive attribute, and show them; they take no new ones, and no filter knows it. Raises NotFound."""
    load_schema(tx, object_id, tx.dialect.own_object)
    found = get_attribute(tx, object_id, attribute_id)
    if found["isActive"] != is_active:
        tx.execute("UPDATE attribute SET is_active = ?, updated_at = ? WHERE id = ?", (int(is_active), to_micros(now), found["id"]))
        _note(tx, "updated", found | {"isActive": is_active}, now=now)
    return get_attribute(tx, object_id, attribute_id)


def delete_attribute(tx: Tx, object_id: str, attribute_id: str) -> None:
    """Nobody sees its values from here on; they are taken out of the records bit by bit, without touching their updatedAt and without
    events. Raises NotFound."""
    schema = load_schema(tx, object_id, tx.dialect.own_object)
    found = get_attribute(tx, object_id, attribute_id)
    attribute = schema.every[found["slug"]]
    tx.execute("DELETE FROM attribute WHERE number = ?", (attribute.number,))
    attribute_removals.begin(tx, schema.object_id, schema.number, attribute)
    _note(tx, "deleted", found)


def _note(tx: Tx, done: str, attribute: dict[str, Any], now: float | None = None) -> None:
    about = {name: attribute[name] for name in ("objectId", "slug", "name", "type", "isActive")}
    audit_log.note(tx, f"attribute.{done}", attribute["id"], about, now=now)


def referring_attributes(tx: Tx, object_id: str) -> list[dict[str, Any]]:
    """The reference attributes, of any object, that point to this object."""
    rows = tx.all(f"SELECT {_COLUMNS} FROM attribute WHERE type = ? ORDER BY number", (str(AttributeType.REFERENCE),))
    return [found for found in (_Row(*row).wire() for row in rows) if found["config"]["allowed_object_id"] == object_id]


def _require_type(type: Any) -> AttributeType:
    try:
        return AttributeType(type)
    except ValueError:
        valid = [str(each) for each in AttributeType]
        raise BadRequest(f"type must be one of: {', '.join(valid)}", {"field": "type", "valid": valid}) from None


def _require_config(tx: Tx, type: AttributeType, config: Any) -> str | None:
    """The config as it is stored; every type takes exactly the keys it knows."""
    if config is not None and not isinstance(config, dict):
        raise invalid("config", "must be an object or null")
    given = config or {}
    known = {AttributeType.SELECT: "options", AttributeType.REFERENCE: "allowed_object_id"}.get(type)
    if known is None:
        if given:
            raise invalid("config", f"must be left out: {type} attributes have none")
        return None
    if set(given) != {known}:
        raise invalid("config", f"must hold {known!r} and nothing else for a {type} attribute")
    value = _require_options(given[known]) if type is AttributeType.SELECT else _require_target(tx, given[known])
    return jsontext.dumps({known: value})


def _require_options(options: Any) -> list[str]:
    field = "config.options"
    if not isinstance(options, list) or not options:
        raise invalid(field, "must be a non-empty array of strings")
    if len(options) > MAX_OPTIONS:
        raise invalid(field, f"must have at most {MAX_OPTIONS:,} entries")
    checked = [require_name(option, field) for option in options]
    if len(set(checked)) < len(checked):
        raise invalid(field, "must not name an option twice")
    return checked


def _require_target(tx: Tx, object_id: Any) -> str:
    try:
        return load_schema(tx, str(object_id), tx.dialect.share_object).object_id
    except NotFound:
        raise invalid("config.allowed_object_id", "must be the id of an existing object") from None
