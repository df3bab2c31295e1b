"""What a record is called on a page, and finding records by what they are called. Which attribute names it is decided here."""
# ruff: noqa: S608 - statements are put together from this package's own names only; values are always parameters

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from crmctl.models.attributes import AttributeType
from crmctl.models.folded_text import fold
from crmctl.service.store import record_tables, records
from crmctl.service.store.schema import Schema, load_schema
from crmctl.service.store.tx import Tx, all_in
from crmctl.service.values.attribute import StoredAttribute
from crmctl.service.values.composite import read_name
from crmctl.service.values.text import Invalid

LOOKED_THROUGH = 50_000
"""The newest records are searched for a part of their name; all of them by the beginning of what an index holds (an email address)."""

_NAMES = ("name", "title", "subject")
_TEXTUAL = (AttributeType.NAME, AttributeType.TEXT, AttributeType.EMAIL, AttributeType.PHONE_NUMBER)


def naming_attributes(schema: Schema) -> list[StoredAttribute]:
    """The attributes whose values tell one record from another for a person, the best first."""
    single = [attribute for attribute in schema.attributes.values() if not attribute.holds_many and attribute.type in _TEXTUAL]

    def rank(attribute: StoredAttribute) -> int:
        if attribute.type is AttributeType.NAME:
            return 0
        if attribute.slug in _NAMES:
            return 1
        return 2 if attribute.is_unique or attribute.type is AttributeType.EMAIL else 3

    return sorted(single, key=rank)[:3]


def label_of(naming: Sequence[StoredAttribute], record_id: str, data: Mapping[str, Any]) -> str:
    """The first of its names that has a value, else the end of its id, whose beginning is the time."""
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
    """By id, of those that exist. Raises NotFound for the object."""
    schema = load_schema(tx, object_id)
    naming = naming_attributes(schema)
    rows = all_in(tx, f"SELECT id, data FROM {schema.table} WHERE id IN {{}}", dict.fromkeys(record_ids))
    return {record_id: label_of(naming, record_id, schema.values_in(data)) for record_id, data in rows}


def find_by_label(tx: Tx, object_id: str, text: str, limit: int = 8) -> list[dict[str, str]]:
    """Records whose names hold the text, `{id, label, about}`: those that begin with it in an index first, then the newest."""
    schema = load_schema(tx, object_id)
    naming, key = naming_attributes(schema), fold(text.strip())
    if not naming or not key:
        return []
    found: dict[str, str] = {}
    for attribute in naming:
        if attribute.is_indexed and len(found) < limit:
            column = record_tables.column(attribute)
            sql = f"SELECT id, data FROM {schema.table} WHERE {column} >= ? AND {column} < ? ORDER BY {column} LIMIT ?"
            found |= dict(tx.all(sql, (key, f"{key}\U0010fffd", limit - len(found))))
    if len(found) < limit:
        newest = f"(SELECT * FROM {schema.table} ORDER BY seq DESC LIMIT ?) AS newest"
        holds = " OR ".join(tx.dialect.contains(record_tables.column(attribute)) for attribute in naming)
        sql = f"SELECT id, data FROM {newest} WHERE {holds} ORDER BY seq DESC LIMIT ?"
        found |= dict(tx.all(sql, (LOOKED_THROUGH, *[key] * len(naming), limit)))
    return [_described(naming, record_id, schema.values_in(data)) for record_id, data in list(found.items())[:limit]]


def called(tx: Tx, object_id: str, text: str) -> list[dict[str, str]]:
    """Those that are called exactly so; where there is none, those that find_by_label finds."""
    choices = find_by_label(tx, object_id, text)
    return [choice for choice in choices if choice["label"].casefold() == text.strip().casefold()] or choices


def not_called(tx: Tx, object_id: str) -> str:
    """What is known where `called` finds nothing: of many records not all were looked through."""
    if records.count_records(tx, object_id, []) > LOOKED_THROUGH:
        return f"none of the newest {LOOKED_THROUGH:,} records has this name; give its id"
    return "no record has this name"


def _described(naming: Sequence[StoredAttribute], record_id: str, data: Mapping[str, Any]) -> dict[str, str]:
    label = label_of(naming, record_id, data)
    others = (data.get(attribute.slug) for attribute in naming)
    about = next((other for other in others if isinstance(other, str) and other and other != label), record_id[-8:])
    return {"id": record_id, "label": label, "about": about[:120]}
