"""Objects and their attributes: the data structures of the organisation. Each object has its own table of records.

Of an attribute the name, the options of a select, and whether it is active can change. The data of deleted ones is removed piece by piece.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Unpack

from crmctl.frozen import frozen
from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.models.resources import AttributeType
from crmctl.service.faults import BadRequest, Conflict, Forbidden, Held, NotFound
from crmctl.service.store import logs, record_tables, records
from crmctl.service.store.preferences import option_colours, set_option_colours
from crmctl.service.store.record_tables import (
    RESERVED_SLUGS,
    SLUG,
    invalid,
    load_schema,
    require_description,
    require_name,
    require_slug,
    slug_from,
)
from crmctl.service.store.records import Paging
from crmctl.service.store.tx import Rows, Stamp, Tx, insert, required, to_micros, update
from crmctl.values.attribute_types import TYPES, StoredAttribute
from crmctl.values.filters import Condition
from crmctl.values.operators import Operator, holds_text
from crmctl.values.value_readers import canonical_uuid

STANDARD, CUSTOM = "standard", "custom"

_OBJECTS = Rows("crm_object", "object", "id, type, plural_name, singular_name, description, slug, is_active, created_at, updated_at")


@frozen
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
    return _OBJECTS.find(tx, "slug = ?", slug) if SLUG.fullmatch(slug) else None


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
    last = required(tx.one("SELECT coalesce(max(number), 0) FROM crm_object"))[0]
    known_slug = slug_from(plural, f"object_{last + 1}") if new.slug is None else require_slug(new.slug)
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
    """Delete an object with its attributes and records, without an event per record. Raises NotFound, Forbidden for a standard object,
    Conflict while attributes of other objects refer to it, Held while others use its table."""
    crm_object = _get_custom(tx, object_id, "deleted")
    schema = load_schema(tx, crm_object["id"], tx.dialect.own_object)
    referring = [attribute for attribute in referring_attributes(tx, crm_object["id"]) if attribute["objectId"] != crm_object["id"]]
    if referring:
        names = ", ".join(attribute["slug"] for attribute in referring)
        wire = [{"objectId": attribute["objectId"], "attributeId": attribute["id"], "slug": attribute["slug"]} for attribute in referring]
        raise Conflict(f"other objects refer to this one; delete these reference attributes first: {names}", {"attributes": wire})
    record_tables.drop_table(tx, schema.number)
    for table in ("attribute", "attribute_removal"):
        numbers = f"SELECT number FROM {table} WHERE object_id = ? AND is_unique = 1"
        tx.execute(f"DELETE FROM unique_value WHERE attribute IN ({numbers})", (schema.object_id,))
        tx.execute(f"DELETE FROM {table} WHERE object_id = ?", (schema.object_id,))
    tx.execute("DELETE FROM record_total WHERE object_id = ?", (schema.object_id,))
    tx.execute("DELETE FROM crm_object WHERE id = ?", (schema.object_id,))
    logs.note(tx, "object.deleted", crm_object["id"], {"slug": crm_object["slug"]})


def _get_custom(tx: Tx, object_id: str, action: str) -> Json:
    crm_object = _OBJECTS.get(tx, object_id)
    if crm_object["type"] == STANDARD:
        raise Forbidden(f"{crm_object['slug']} is a standard object and cannot be {action}")
    return crm_object


MAX_ATTRIBUTES = 250
"""Most attributes of an object, which take two columns each; SQLite allows 2,000 columns in a table, PostgreSQL 1,600."""

MAX_OPTIONS = 1000

_ATTRIBUTES = Rows(
    "attribute",
    "attribute",
    "id, object_id, name, slug, type, display_order, config, is_required, is_unique, is_list, is_active, created_at, updated_at",
    config=jsontext.loads,
)


@frozen
class NewAttribute:
    """An attribute as the caller describes it, not checked yet."""

    name: str
    type: str
    slug: str | None = None
    is_required: bool = False
    is_unique: bool = False
    is_list: bool = False
    config: Json | None = None


def list_attributes(tx: Tx, object_id: str, include_inactive: bool = False) -> list[Json]:
    """Return the attributes in display order. Raises NotFound for an unknown object."""
    schema = load_schema(tx, object_id)
    active = "" if include_inactive else " AND is_active = 1"
    return _ATTRIBUTES.all(tx, f"WHERE object_id = ?{active} ORDER BY display_order, number", (schema.object_id,))


def get_attribute(tx: Tx, object_id: str, attribute_id: str) -> Json:
    keys = (canonical_uuid(attribute_id) or "", canonical_uuid(object_id) or "")
    attribute = _ATTRIBUTES.find(tx, "id = ? AND object_id = ?", *keys)
    if attribute is None:
        raise NotFound(f"the object {object_id} has no attribute with the id {attribute_id}")
    return attribute


def create_attribute(tx: Tx, object_id: str, new: NewAttribute, **stamp: Unpack[Stamp]) -> Json:
    """Create an attribute. Existing records start without a value, also of a required one. Raises NotFound, BadRequest, Conflict for a slug
    in use, Held while a deleted attribute's values are being removed."""
    schema = load_schema(tx, object_id, tx.dialect.own_object)
    known_name = require_name(new.name, "name")
    if new.type not in list(TYPES):
        raise BadRequest(f"type must be one of: {', '.join(TYPES)}", {"field": "type", "valid": list(TYPES)})
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
        raise Held(f"the deleted attribute {known_slug!r} is still being taken out of the records; nothing was done, try again")
    settings = _require_config(tx, new.type, new.config)
    row: Json = {"id": stamp["ids"](), "object_id": schema.object_id, "name": known_name, "slug": known_slug, "type": str(new.type)}
    row |= {"is_required": int(new.is_required), "is_unique": int(new.is_unique), "is_list": int(new.is_list)}
    row |= {"is_active": 1, "display_order": last + 1, "config": settings}
    insert(tx, "attribute", row | dict.fromkeys(("created_at", "updated_at"), to_micros(stamp["now"])))
    vacant = _take_vacancy(tx, schema.number)
    record_tables.add_attribute(tx, schema.number, load_schema(tx, object_id).attributes[known_slug], vacant)
    created = _ATTRIBUTES.get(tx, row["id"])
    _note(tx, "created", created, now=stamp["now"])
    return created


def update_attribute(tx: Tx, object_id: str, attribute_id: str, changes: Mapping[str, Any], *, now: float) -> Json:
    """Change name, isActive or both. Records keep and show the values of an inactive attribute, but take no new ones, and no filter knows
    it. Raises NotFound, BadRequest."""
    columns: Json = {"updated_at": to_micros(now)}
    if "isActive" in changes:
        load_schema(tx, object_id, tx.dialect.own_object)
        columns["is_active"] = int(changes["isActive"])
    attribute = get_attribute(tx, object_id, attribute_id)
    if "name" in changes:
        columns["name"] = require_name(changes["name"], "name")
    if {**attribute, **changes} != attribute:
        update(tx, "attribute", columns, "id = ?", attribute["id"])
        _note(tx, "updated", attribute, changes, now=now)
    return get_attribute(tx, object_id, attribute_id)


def delete_attribute(tx: Tx, object_id: str, attribute_id: str) -> None:
    """Delete an attribute. Its values disappear at once and are removed from the records bit by bit, without events and without touching
    updatedAt. Raises NotFound."""
    schema = load_schema(tx, object_id, tx.dialect.own_object)
    attribute = get_attribute(tx, object_id, attribute_id)
    stored = schema.every[attribute["slug"]]
    tx.execute("DELETE FROM attribute WHERE number = ?", (stored.number,))
    _begin_removal(tx, schema.object_id, schema.number, stored)
    _note(tx, "deleted", attribute)


def _note(tx: Tx, done: str, attribute: Json, new: Mapping[str, Any] | None = None, now: float | None = None) -> None:
    about = {name: (attribute | dict(new or {}))[name] for name in ("objectId", "slug", "name", "type", "isActive")}
    changed = {} if new is None else logs.differences(attribute, new)
    logs.note(tx, f"attribute.{done}", attribute["id"], about | changed, now=now)


def referring_attributes(tx: Tx, object_id: str) -> list[Json]:
    references = _ATTRIBUTES.all(tx, "WHERE type = ? ORDER BY number", (str(AttributeType.REFERENCE),))
    return [attribute for attribute in references if attribute["config"]["allowed_object_id"] == object_id]


def _require_config(tx: Tx, type: str, config: Json | None) -> str | None:
    """Return the config as it is stored. Each type takes exactly its own keys."""
    settings = config or {}
    keys: dict[str, str] = {AttributeType.SELECT: "options", AttributeType.REFERENCE: "allowed_object_id"}
    expected = keys.get(type)
    if expected is None:
        if settings:
            raise invalid("config", f"must be left out: {type} attributes have none")
        return None
    if set(settings) != {expected}:
        raise invalid("config", f"must hold {expected!r} and nothing else for a {type} attribute")
    if type == AttributeType.SELECT:
        return jsontext.dumps({expected: _require_options(settings[expected])})
    try:
        target = load_schema(tx, str(settings[expected]), tx.dialect.share_object)
    except NotFound:
        raise invalid("config.allowed_object_id", "must be the id of an existing object") from None
    return jsontext.dumps({expected: target.object_id})


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


MOST_RENAMED = 10_000
"""Records that get the new name of an option."""

ADD, RENAME, RETIRE = "add", "rename", "retire"


def options_of(attribute: Json) -> list[str]:
    return list((attribute["config"] or {}).get("options", ()))


def edit_options(tx: Tx, object_id: str, attribute_id: str, edits: Mapping[str, Any], **stamp: Unpack[Stamp]) -> Json:
    """Add, rename and retire options; new ones come last. Records keep retired values. Raises NotFound, BadRequest."""
    attribute = get_attribute(tx, object_id, attribute_id)
    slug, options = attribute["slug"], options_of(attribute)
    added, renamed, retired = edits.get(ADD, []), edits.get(RENAME, {}), edits.get(RETIRE, [])
    if not options:
        raise BadRequest(f"{slug} is not a select: only selects have options")
    for field, names in ((RENAME, renamed), (RETIRE, retired)):
        if unknown := [name for name in names if name not in options]:
            raise BadRequest(f"{unknown[0]!r} is no option of {slug} ({', '.join(options)})", {"field": field, "valid": options})
    if twice := [name for name in retired if name in renamed]:
        raise BadRequest(f"{twice[0]!r} cannot be renamed and retired at once", {"field": RETIRE})
    new = [renamed.get(option, option) for option in options if option not in retired] + added
    if taken := [name for place, name in enumerate(new) if name in new[:place]]:
        raise BadRequest(f"{slug} has the option {taken[0]!r} already", {"field": ADD if taken[0] in added else RENAME})
    colours = option_colours(tx).get(attribute["id"], {})
    set_option_colours(tx, attribute["id"], {renamed.get(name, name): colour for name, colour in colours.items() if name not in retired})
    return change_options(tx, attribute, new, {was: name for was, name in renamed.items() if was != name}, **stamp)


def change_options(tx: Tx, attribute: Json, options: Sequence[str], renamed: Mapping[str, str], **stamp: Unpack[Stamp]) -> Json:
    """Replace the options of a select, and give the records that hold a renamed one its new name; others keep values that are no option
    any more. Raises NotFound, BadRequest, also for too many records."""
    object_id, new = attribute["objectId"], {"options": list(options)}
    # Before the records are read: a record written meanwhile would keep the old name.
    load_schema(tx, object_id, tx.dialect.own_object)
    items, attribute = _renamed_records(tx, attribute, renamed), get_attribute(tx, object_id, attribute["id"])
    config = _require_config(tx, attribute["type"], new)
    if attribute["config"] != new:
        update(tx, "attribute", {"config": config, "updated_at": to_micros(stamp["now"])}, "id = ?", attribute["id"])
        _note(tx, "updated", attribute | attribute["config"], new, now=stamp["now"])
    if failed := records.bulk_write(tx, object_id, records.UPSERT, items, **stamp)["failed"]:
        raise BadRequest(f"a record cannot be changed: {failed[0]['error']}", {"field": "options"})
    return get_attribute(tx, object_id, attribute["id"])


def _renamed_records(tx: Tx, attribute: Json, renamed: Mapping[str, str]) -> list[Json]:
    """Return the changes that give records with a renamed option its new name. Raises BadRequest for too many records."""
    slug, items = attribute["slug"], dict[str, Json]()
    for was in renamed:
        rows, total = records.list_records(tx, attribute["objectId"], [Condition(slug, Operator.EQUALS, was)], Paging(limit=MOST_RENAMED))
        if total > MOST_RENAMED:
            problem = f"{total:,} records have the option {was!r}, which is too many to rename at once"
            raise BadRequest(f"{problem}; add a new option and use crmctl bulk update", {"field": "options"})
        for row in rows:
            value = row["data"][slug]
            new = [renamed.get(name, name) for name in value] if isinstance(value, list) else renamed[value]
            items[row["id"]] = {"id": row["id"], "data": {slug: new}}
    return list(items.values())


PIECE = 500
"""Most rows of a piece, so that no other writer waits long. An object with no more records is finished at once."""


class _Removal(NamedTuple):
    """The records up to `done` are finished; those after `last` never had the attribute."""

    number: int
    object_id: str
    object_number: int
    slug: str
    is_indexed: int
    is_unique: int
    done: int
    last: int


_REMOVAL = ", ".join(_Removal._fields)


def _begin_removal(tx: Tx, object_id: str, object_number: int, attribute: StoredAttribute) -> None:
    """Begin to remove a deleted attribute. The caller keeps all other writers away from the object."""
    table = record_tables.table_name(object_number)
    last: int = required(tx.one(f"SELECT coalesce(max(seq), 0) FROM {table}"))[0]
    flags = (int(attribute.is_indexed), int(attribute.is_unique))
    removal = _Removal(attribute.number, object_id, object_number, attribute.slug, *flags, 0, last)
    insert(tx, "attribute_removal", {**removal._asdict(), "is_vacant": 0})
    few: int = required(tx.one(f"SELECT count(*) FROM (SELECT 1 FROM {table} LIMIT ?) AS counted", (PIECE + 1,)))[0]
    if few <= PIECE:
        _take_values_out(tx, removal)
        tx.execute("UPDATE attribute_removal SET done = last WHERE number = ?", (attribute.number,))
        _forget_unique_values(tx, removal)


def is_removal_waiting(tx: Tx) -> bool:
    return tx.one("SELECT 1 FROM attribute_removal WHERE is_vacant = 0 LIMIT 1") is not None


def take_out(tx: Tx) -> bool:
    """Take one piece of the oldest removal that no other process works on, and return whether there was one. Raises Busy when a reader
    holds the table."""
    for number, object_id in tx.all("SELECT number, object_id FROM attribute_removal WHERE is_vacant = 0 ORDER BY number"):
        if tx.dialect.share_object:
            tx.one(tx.dialect.share_object, (object_id,))
        claim = f"SELECT {_REMOVAL} FROM attribute_removal WHERE number = ? AND is_vacant = 0{tx.dialect.for_claim('attribute_removal')}"
        row = tx.one(claim, (number,))
        if row is not None:
            _take_piece(tx, _Removal(*row))
            return True
    return False


def _take_vacancy(tx: Tx, object_number: int) -> int | None:
    """Return the number of a deleted attribute whose columns are empty, for the caller's use."""
    row = tx.one("SELECT min(number) FROM attribute_removal WHERE object_number = ? AND is_vacant = 1", (object_number,))
    number: int | None = required(row)[0]
    if number is not None:
        tx.execute("DELETE FROM attribute_removal WHERE number = ?", (number,))
    return number


def _take_piece(tx: Tx, removal: _Removal) -> None:
    if removal.is_indexed:
        record_tables.drop_index(tx, removal.object_number, record_tables.columns_of(removal.number)[0])
        tx.execute("UPDATE attribute_removal SET is_indexed = 0 WHERE number = ?", (removal.number,))
    elif removal.done < removal.last:
        tx.execute("UPDATE attribute_removal SET done = ? WHERE number = ?", (_take_values_out(tx, removal), removal.number))
    elif not removal.is_unique or _forget_unique_values(tx, removal) < PIECE:
        tx.execute("UPDATE attribute_removal SET is_vacant = 1 WHERE number = ?", (removal.number,))


def _take_values_out(tx: Tx, removal: _Removal) -> int:
    """Remove values from the next records, and return up to which they are removed."""
    table = record_tables.table_name(removal.object_number)
    column, exact = record_tables.columns_of(removal.number)
    part = f"SELECT seq FROM {table} WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT ?"
    end: int | None = required(tx.one(f"SELECT max(seq) FROM ({part}) AS part", (removal.done, removal.last, PIECE)))[0]
    if end is None:
        return removal.last
    # The text search only narrows the rows to rewrite. A record written since has no value, but has the column.
    touched = f"seq > ? AND seq <= ? AND ({column} IS NOT NULL OR {holds_text('data', tx.dialect.engine)})"
    where = (removal.done, end, f'"{removal.slug}":')
    if tx.dialect.for_update:
        # In the order in which writers lock them.
        tx.all(f"SELECT id FROM {table} WHERE {touched} ORDER BY id{tx.dialect.for_update}", where)
    strip = f"UPDATE {table} SET data = {tx.dialect.without_key('data')}, {column} = NULL, {exact} = NULL WHERE {touched}"
    tx.execute(strip, (tx.dialect.key_parameter(removal.slug), *where))
    return end


def _forget_unique_values(tx: Tx, removal: _Removal) -> int:
    some = "SELECT key FROM unique_value WHERE attribute = ? LIMIT ?"
    sql = f"DELETE FROM unique_value WHERE attribute = ? AND key IN ({some})"
    return tx.execute(sql, (removal.number, removal.number, PIECE))
