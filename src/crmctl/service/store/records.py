"""Read, write, scan records, and find them by label."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, Unpack

from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.models.resources import AttributeType
from crmctl.service.faults import BadRequest, Fault, NotFound, PreconditionFailed, shown
from crmctl.service.store import record_tables
from crmctl.service.store.condition_sql import Where, combine, compile_conditions, compile_part, holds_words
from crmctl.service.store.record_pages import Paging, PartOfList, Search, count_records, list_records, wire_of, write_list
from crmctl.service.store.record_tables import Schema, load_schema
from crmctl.service.store.record_writes import StoredRecord, Writing, check, check_all
from crmctl.service.store.tx import MAX_IN, Row, Stamp, Tx, all_in, required, to_wire
from crmctl.values.attribute_types import TYPES, Family, StoredAttribute
from crmctl.values.filters import Condition
from crmctl.values.folded_text import fold
from crmctl.values.operators import Kind, Operator
from crmctl.values.projection import project
from crmctl.values.value_readers import Invalid, canonical_uuid, read_name

__all__ = ["Paging", "PartOfList", "Search", "count_records", "list_records", "write_list"]

UPSERT = "upsert"

ANY_VERSION = "*"


def get_record(tx: Tx, object_id: str, record_id: str) -> Json:
    schema = load_schema(tx, object_id)
    row = tx.one(f"SELECT id, data, created_at, updated_at FROM {schema.table} WHERE id = ?", (canonical_uuid(record_id) or "",))
    if row is None:
        raise _no_record(record_id)
    return wire_of(schema, [row])[0]


def get_records(tx: Tx, object_id: str, record_ids: Sequence[str]) -> list[Json]:
    """Return those of the records that exist, in wire form and in this order."""
    schema = load_schema(tx, object_id)
    ids = [known_id for record_id in dict.fromkeys(record_ids) if (known_id := canonical_uuid(record_id))]
    rows = all_in(tx, f"SELECT id, data, created_at, updated_at FROM {schema.table} WHERE id IN {{}}", ids)
    by_id = {row[0]: row for row in rows}
    return wire_of(schema, [by_id[record_id] for record_id in ids if record_id in by_id])


def owners_of(tx: Tx, object_id: str, slug: str, values: Sequence[Any]) -> list[str | None]:
    """Return, for each value of a unique attribute, the id of the record that has it."""
    attribute = load_schema(tx, object_id).attributes[slug]
    keys: list[tuple[str, ...]] = []
    for value in values:
        try:
            keys.append(() if value is None else tuple(project(attribute, value).keys))
        except Invalid:
            keys.append(())
    sql = "SELECT key, record_id FROM unique_value WHERE attribute = ? AND key IN {}"
    owners: dict[str, str] = dict(all_in(tx, sql, {key for record_keys in keys for key in record_keys}, [attribute.number]))
    return [next((owners[key] for key in record_keys if key in owners), None) for record_keys in keys]


def version_of(record: Mapping[str, Any]) -> str:
    """Return the opaque version of a record in wire form. Every change gives another one."""
    seen = jsontext.dumps([record["id"], record["updatedAt"], record["data"]])
    return hashlib.blake2b(seen.encode(), digest_size=12).hexdigest()


def create_record(tx: Tx, object_id: str, data: Any, **stamp: Unpack[Stamp]) -> Json:
    """Create a record. Raises NotFound for the object, BadRequest naming every wrong attribute, Conflict (details: slug) for a unique value
    in use."""
    return _write_one(tx, object_id, None, data, **stamp)


def update_record(
    tx: Tx, object_id: str, record_id: str, data: Any, only_if: Collection[str] = (ANY_VERSION,), **stamp: Unpack[Stamp]
) -> Json:
    """Merge `data` into the record, attribute by attribute; null clears. Raises as create_record, NotFound for the record,
    PreconditionFailed unless its version is in `only_if`."""
    return _write_one(tx, object_id, record_id, data, only_if, **stamp)


def delete_record(tx: Tx, object_id: str, record_id: str, only_if: Collection[str] = (ANY_VERSION,), **stamp: Unpack[Stamp]) -> None:
    """Delete a record; references to it stay. Raises NotFound, PreconditionFailed unless its version is in `only_if`."""
    writing = Writing(tx, object_id, **stamp)
    record = _loaded(writing, record_id, only_if)
    writing.delete(record)
    writing.flush()


def bulk_write(tx: Tx, object_id: str, mode: str, items: Sequence[Any], **stamp: Unpack[Stamp]) -> Json:
    """Create records, or update the items that have an id (`upsert`). A bad item fails alone; later items see
    earlier ones. Returns `{created, updated, failed: [{index, error}]}`. Raises NotFound for the object."""
    failed: dict[int, str] = {}
    read: dict[int, tuple[Any, str | None]] = {}
    for index, item in enumerate(items):
        try:
            read[index] = _read_item(item, mode)
        except Fault as fault:
            failed[index] = fault.message
    writing = Writing(tx, object_id, **stamp)
    stored = writing.load(record_id for _, record_id in read.values() if record_id)
    changes = check_all(writing.schema, read, stored, failed)
    writing.prepare(list(changes.values()))
    counts = {"created": 0, "updated": 0}
    for index, change in changes.items():
        try:
            writing.apply(change)
        except Fault as fault:
            failed[index] = fault.message
        else:
            counts["updated" if change.record_id else "created"] += 1
    writing.flush()
    return counts | {"failed": [{"index": index, "error": failed[index]} for index in sorted(failed)]}


def bulk_delete(tx: Tx, object_id: str, record_ids: Sequence[str], **stamp: Unpack[Stamp]) -> int:
    """Delete records and return how many existed. Raises NotFound for the object."""
    writing = Writing(tx, object_id, **stamp)
    canonical = (canonical_uuid(record_id) for record_id in record_ids)
    existing = list(writing.load(record_id for record_id in canonical if record_id).values())
    for record in existing:
        writing.delete(record)
    writing.flush()
    return len(existing)


def _write_one(
    tx: Tx, object_id: str, record_id: str | None, data: Any, only_if: Collection[str] = (ANY_VERSION,), **stamp: Unpack[Stamp]
) -> Json:
    writing = Writing(tx, object_id, **stamp)
    stored = None if record_id is None else _loaded(writing, record_id, only_if)
    change = check(writing.schema, data, stored.id if stored else None, stored)
    writing.prepare([change])
    record = writing.apply(change)
    writing.flush()
    return record.wire(writing.schema.object_id)


def _loaded(writing: Writing, record_id: str, only_if: Collection[str]) -> StoredRecord:
    """Return the record, locked. Raises NotFound, PreconditionFailed."""
    known_id = canonical_uuid(record_id)
    record = writing.load([known_id]).get(known_id) if known_id else None
    if record is None:
        raise _no_record(record_id)
    if ANY_VERSION not in only_if and version_of(record.wire(writing.schema.object_id)) not in only_if:
        raise PreconditionFailed("the record was changed since it was read; read it again, and then decide")
    return record


def _read_item(item: Any, mode: str) -> tuple[Any, str | None]:
    """Return the data and, for an update, the canonical id of one item of a bulk request."""
    if not isinstance(item, dict):
        raise BadRequest("a record must be an object with data")
    if unknown := item.keys() - {"id", "data"}:
        raise BadRequest(f"{shown(min(unknown))} is not a field that is known here")
    given_id = item.get("id") if mode == UPSERT else None
    if given_id is None:
        return item.get("data"), None
    record_id = canonical_uuid(given_id)
    if record_id is None:
        raise BadRequest("id must be the id (UUID) of a record")
    return item.get("data"), record_id


def _no_record(record_id: str) -> NotFound:
    return NotFound(f"there is no record with the id {record_id}")


CHUNK = 5000


def exact(attribute: StoredAttribute) -> str:
    """Return the expression for the value as `equals` compares it: verbatim text."""
    column = record_tables.column(attribute)
    is_text = TYPES[attribute.type].family is Family.TEXT
    return f"coalesce({record_tables.exact_column(attribute)}, {column})" if is_text else column


def scan(tx: Tx, schema: Schema, conditions: Sequence[Condition], expressions: Sequence[str]) -> Iterator[Row]:
    """Yield `(seq, *expressions)` of every match in order of creation. Raises BadRequest as compile_condition does."""
    where = combine(compile_conditions(conditions, schema.attributes, tx.dialect))
    columns = ", ".join(["seq", *expressions])
    # The inner limit keeps an engine from looking up and sorting all matches of an index for every chunk.
    part = f"(SELECT * FROM {schema.table} WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT ?) AS part"
    ends = f"SELECT max(seq) FROM (SELECT seq FROM {schema.table} WHERE seq > ? ORDER BY seq LIMIT ?) AS part"
    after = 0
    while (last := required(tx.one(ends, (after, CHUNK)))[0]) is not None:
        yield from tx.all(f"SELECT {columns} FROM {part} WHERE {where.sql}", (after, last, CHUNK, *where.params))
        after = last


def records_at(tx: Tx, schema: Schema, sequences: Iterable[int]) -> Iterator[Json]:
    """Yield the data, id, created_at and updated_at of the records with these sequence numbers, in this order."""
    waiting = list(sequences)
    for start in range(0, len(waiting), MAX_IN):
        chunk = waiting[start : start + MAX_IN]
        sql = f"SELECT seq, id, created_at, updated_at, data FROM {schema.table} WHERE seq IN {{}}"
        by_sequence = {row[0]: row[1:] for row in all_in(tx, sql, chunk)}
        for sequence in chunk:
            if sequence not in by_sequence:
                continue  # deleted since the numbers were read
            record_id, created_at, updated_at, data = by_sequence[sequence]
            fields = {"id": record_id, "created_at": to_wire(created_at), "updated_at": to_wire(updated_at)}
            yield schema.values_in(data) | fields


LOOKED_THROUGH = 50_000
"""How many of the newest records are searched for a part of their name. All are searched for the beginning of an indexed value."""

_NAMES = ("name", "title", "subject")
_TEXTUAL = (AttributeType.NAME, AttributeType.TEXT, AttributeType.EMAIL, AttributeType.PHONE_NUMBER)


def naming_attributes(schema: Schema) -> list[StoredAttribute]:
    """Return the attributes that tell records apart for people, the best first."""
    single = [attribute for attribute in schema.attributes.values() if not attribute.holds_many and attribute.type in _TEXTUAL]

    def rank(attribute: StoredAttribute) -> int:
        if attribute.type == AttributeType.NAME:
            return 0
        if attribute.slug in _NAMES:
            return 1
        return 2 if attribute.is_unique or attribute.type == AttributeType.EMAIL else 3

    return sorted(single, key=rank)[:3]


def label_of(naming: Sequence[StoredAttribute], record_id: str, data: Mapping[str, Any]) -> str:
    """Return the first name that has a value, else the end of the id, whose beginning is the time."""
    for attribute in naming:
        value = data.get(attribute.slug)
        try:
            text = read_name(value) if isinstance(value, dict) else value
        except Invalid:
            continue
        if isinstance(text, str) and text.strip():
            return text.strip()[:120]
    return f"…{record_id[-8:]}"


def labels_of(tx: Tx, object_id: str, record_ids: Iterable[str]) -> dict[str, str]:
    """Return the labels of existing records by id. Raises NotFound for the object."""
    schema = load_schema(tx, object_id)
    naming = naming_attributes(schema)
    rows = all_in(tx, f"SELECT id, data FROM {schema.table} WHERE id IN {{}}", dict.fromkeys(record_ids))
    return {record_id: label_of(naming, record_id, schema.values_in(data)) for record_id, data in rows}


def find_by_label(tx: Tx, object_id: str, text: str, limit: int = 8) -> list[dict[str, str]]:
    """Return records whose names hold every word, `{id, label, about}`: first those that begin with one in an index, then the newest."""
    schema = load_schema(tx, object_id)
    naming, words = naming_attributes(schema), words_in_names(tx, object_id, text)
    if not naming or not words:
        return []
    holds, labels = combine(words), dict[str, str]()
    starts = dict.fromkeys([fold(text.strip()), *fold(text).split()[: len(words)]])
    for column, start in product([record_tables.column(attribute) for attribute in naming if attribute.is_indexed], starts):
        if len(labels) < limit:
            part = f"(SELECT * FROM {schema.table} WHERE {column} >= ? AND {column} < ? ORDER BY {column} LIMIT ?) AS part"
            sql = f"SELECT id, data FROM {part} WHERE {holds.sql} LIMIT ?"
            labels |= dict(tx.all(sql, (start, f"{start}\U0010fffd", CHUNK, *holds.params, limit)))
    if len(labels) < limit:
        newest = f"(SELECT * FROM {schema.table} ORDER BY seq DESC LIMIT ?) AS newest"
        sql = f"SELECT id, data FROM {newest} WHERE {holds.sql} ORDER BY seq DESC LIMIT ?"
        labels |= dict(tx.all(sql, (LOOKED_THROUGH, *holds.params, limit)))
    return [_described(naming, record_id, schema.values_in(data)) for record_id, data in list(labels.items())[:limit]]


def words_in_names(tx: Tx, object_id: str, text: str) -> list[Where]:
    """Return the conditions that a record's names hold every word of a search, in any order, with or without accents."""
    columns = [record_tables.column(attribute) for attribute in naming_attributes(load_schema(tx, object_id))]
    return holds_words(columns, text, tx.dialect)


def is_any_of(tx: Tx, object_id: str, slug: str, options: Sequence[str]) -> Where:
    """Return the condition that an attribute has one of the options."""
    attribute = load_schema(tx, object_id).attributes[slug]
    column = record_tables.column(attribute)
    return Where(f"{column} IN ({', '.join('?' * len(options))})", tuple(options), index=column if attribute.is_indexed else None)


def is_outside(tx: Tx, slug: str, first: str, after: str) -> Where:
    """Return the condition that `created_at` or `updated_at` is not in this span."""
    span = [Condition(slug, Operator.GREATER_THAN_OR_EQUAL, first), Condition(slug, Operator.LESS_THAN, after)]
    within = combine(compile_conditions(span, {}, tx.dialect))
    return Where(f"NOT ({within.sql})", within.params)


def part_condition(tx: Tx, object_id: str, condition: Condition) -> Where:
    """Return the condition on a part such as `address.city`. Raises BadRequest."""
    slug, _, part = condition.slug.partition(".")
    where = compile_part(condition, *tx.dialect.part("data", slug, part), tx.dialect)
    attribute, operator = load_schema(tx, object_id).attributes[slug], condition.operator
    is_text = attribute.row.family is Family.TEXT and operator.meaning.kind in (Kind.EQUALITY, Kind.PATTERN)
    if not is_text or operator.is_negation or not condition.value:
        return where
    # The column of the whole value is far cheaper to search than the part in its JSON.
    return combine([*compile_conditions([Condition(slug, Operator.CONTAINS, condition.value)], {slug: attribute}, tx.dialect), where])


def order_by(tx: Tx, object_id: str, slug: str) -> Where:
    """Return the expression that sorts records by an attribute: options as they are listed, money by currency, references by name."""
    schema = load_schema(tx, object_id)
    attribute = schema.attributes[slug]
    column = f"{schema.table}.{record_tables.column(attribute)}"
    if attribute.holds_many:
        return Where(column)
    if attribute.type == AttributeType.SELECT and attribute.options:
        places = " ".join(f"WHEN ? THEN {place}" for place, _ in enumerate(attribute.options))
        return Where(f"CASE {column} {places} END", attribute.options)
    if attribute.type == AttributeType.REFERENCE and attribute.target_id:
        target = load_schema(tx, attribute.target_id)
        names = [record_tables.column(attribute) for attribute in naming_attributes(target)]
        return Where(f"(SELECT {names[0]} FROM {target.table} AS named WHERE named.id = {column})" if names else column)
    if attribute.type == AttributeType.CURRENCY:
        currency = tx.dialect.member(tx.dialect.member(f"{schema.table}.data", slug), "currency")
        return Where(f"coalesce({currency}, '') || ' ' || {column}")
    return Where(column)


def called(tx: Tx, object_id: str, text: str) -> list[dict[str, str]]:
    """Return the records with exactly this name, or with another case of it, or those that find_by_label finds."""
    choices, name = find_by_label(tx, object_id, text), text.strip()
    same = [choice for choice in choices if choice["label"].casefold() == name.casefold()]
    return [choice for choice in same if choice["label"].strip() == name] or same or choices


def id_called(tx: Tx, object_id: str, text: str) -> str:
    """Return the id of the only record with this name. Raises BadRequest."""
    choices = called(tx, object_id, text)
    if len(choices) != 1:
        raise BadRequest(f"{text!r} fits several records" if choices else not_called(tx, object_id))
    return choices[0]["id"]


def not_called(tx: Tx, object_id: str) -> str:
    """Return the message for a name that `called` does not find. Of many records, only some were searched."""
    if count_records(tx, object_id, []) > LOOKED_THROUGH:
        return f"none of the newest {LOOKED_THROUGH:,} records has this name; give its id"
    return "no record has this name"


def _described(naming: Sequence[StoredAttribute], record_id: str, data: Mapping[str, Any]) -> dict[str, str]:
    label = label_of(naming, record_id, data)
    others = (data.get(attribute.slug) for attribute in naming)
    about = next((other for other in others if isinstance(other, str) and other and other != label), record_id[-8:])
    return {"id": record_id, "label": label, "about": about[:120]}
