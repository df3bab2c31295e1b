"""The shape of one object as the record code needs it: its table and its attributes, read inside the transaction that uses them."""
# ruff: noqa: S608 - statements are put together from this package's own names only; values are always parameters

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from crmctl.models import jsontext
from crmctl.models.attributes import AttributeType
from crmctl.service.faults import NotFound
from crmctl.service.store import record_tables
from crmctl.service.store.tx import Tx
from crmctl.service.values.attribute import StoredAttribute
from crmctl.service.values.choices import canonical_uuid


@dataclass(frozen=True)
class Schema:
    """`attributes` by slug, in display order, active ones only. Records keep the values of `inactive` ones.

    `leaving` are slugs of deleted attributes that records may still hold: see attribute_removals.
    """

    object_id: str
    number: int
    attributes: Mapping[str, StoredAttribute]
    inactive: Mapping[str, StoredAttribute] = field(default_factory=dict)
    leaving: frozenset[str] = frozenset()

    @property
    def table(self) -> str:
        return record_tables.table_name(self.number)

    def values_in(self, document: str) -> dict[str, Any]:
        """The data of a stored record, without what is leaving."""
        data: dict[str, Any] = jsontext.loads(document)
        for slug in self.leaving:
            data.pop(slug, None)
        return data

    @cached_property
    def every(self) -> Mapping[str, StoredAttribute]:
        """Inactive ones too."""
        return {**self.attributes, **self.inactive}

    @cached_property
    def unique(self) -> tuple[StoredAttribute, ...]:
        return tuple(attribute for attribute in self.attributes.values() if attribute.is_unique)

    @cached_property
    def holding_unique(self) -> tuple[StoredAttribute, ...]:
        """All whose values are nobody else's, inactive ones too."""
        return (*self.unique, *(attribute for attribute in self.inactive.values() if attribute.is_unique))

    @cached_property
    def required(self) -> tuple[StoredAttribute, ...]:
        return tuple(attribute for attribute in self.attributes.values() if attribute.is_required)


def load_schema(tx: Tx, object_id: str, lock: str = "") -> Schema:
    """`lock` is a statement of the dialect: share_object before writing records, own_object before changing attributes. Raises NotFound."""
    known_id = canonical_uuid(object_id) or ""
    if lock:
        tx.one(lock, (known_id,))
    # After the lock and in one statement: whoever held it before may have changed anything.
    rows = tx.all(
        "SELECT o.number, a.is_active, a.id, a.number, a.slug, a.type, a.is_required, a.is_unique, a.is_list, a.config, a.display_order "
        "FROM crm_object AS o LEFT JOIN attribute AS a ON a.object_id = o.id WHERE o.id = ? "
        f"UNION ALL SELECT object_number, {_LEAVING}, NULL, number, slug, NULL, 0, 0, 0, NULL, 0 FROM attribute_removal "
        "WHERE object_id = ? AND done < last ORDER BY 11, 4",
        (known_id, known_id),
    )
    if not rows:
        raise NotFound(f"there is no object with the id {object_id}")
    active, inactive = ({row[4]: _Row(*row[2:10]).attribute() for row in rows if row[1] == flag} for flag in (1, 0))
    return Schema(known_id, rows[0][0], active, inactive, frozenset(row[4] for row in rows if row[1] == _LEAVING))


_LEAVING = -1
"""In place of whether an attribute is active."""


class _Row(NamedTuple):
    """What is read of an attribute."""

    id: str
    number: int
    slug: str
    type: str
    is_required: int
    is_unique: int
    is_list: int
    config: str | None

    def attribute(self) -> StoredAttribute:
        settings: dict[str, Any] = jsontext.loads(self.config) if self.config else {}
        return StoredAttribute(
            id=self.id,
            number=self.number,
            slug=self.slug,
            type=AttributeType(self.type),
            is_required=bool(self.is_required),
            is_unique=bool(self.is_unique),
            is_list=bool(self.is_list),
            options=tuple(settings.get("options", ())),
            target_id=settings.get("allowed_object_id"),
        )
