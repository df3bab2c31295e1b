"""The shape of one object as the record code needs it: its table and its attributes, read inside the transaction that uses them."""

# ruff: noqa: S608 - statements are put together from this package's own names only; values are always parameters

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from crmctl.models import jsontext
from crmctl.models.attributes import AttributeType
from crmctl.service.faults import NotFound
from crmctl.service.store import record_tables
from crmctl.service.store.tx import Tx
from crmctl.service.values.attribute import Attribute
from crmctl.service.values.choices import canonical_uuid


@dataclass(frozen=True)
class Schema:
    """`attributes` by slug, in display order, active ones only."""

    object_id: str
    number: int
    attributes: Mapping[str, Attribute]

    @property
    def table(self) -> str:
        return record_tables.table_name(self.number)

    @cached_property
    def unique(self) -> tuple[Attribute, ...]:
        return tuple(attribute for attribute in self.attributes.values() if attribute.is_unique)

    @cached_property
    def required(self) -> tuple[Attribute, ...]:
        return tuple(attribute for attribute in self.attributes.values() if attribute.is_required)


def load_schema(tx: Tx, object_id: str, lock: str = "") -> Schema:
    """`lock` is a suffix of the dialect: for_share before writing records, for_update before changing attributes. Raises NotFound."""
    row = tx.one(f"SELECT number, id FROM crm_object WHERE id = ?{lock}", (canonical_uuid(object_id) or "",))
    if row is None:
        raise NotFound(f"there is no object with the id {object_id}")
    number, known_id = row
    attributes = tx.all(
        "SELECT id, number, slug, type, is_required, is_unique, is_list, config FROM attribute "
        "WHERE object_id = ? AND is_active = 1 ORDER BY display_order, number",
        (known_id,),
    )
    return Schema(known_id, number, {row[2]: _attribute(*row) for row in attributes})


def _attribute(id: str, number: int, slug: str, type: str, is_required: int, is_unique: int, is_list: int, config: str | None) -> Attribute:
    settings: dict[str, Any] = jsontext.loads(config) if config else {}
    return Attribute(
        id=id,
        number=number,
        slug=slug,
        type=AttributeType(type),
        is_required=bool(is_required),
        is_unique=bool(is_unique),
        is_list=bool(is_list),
        options=tuple(settings.get("options", ())),
        target_id=settings.get("allowed_object_id"),
    )
