"""Columns of records in CSV and Excel: money in two, other composites by part, items of a list joined."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from crmctl.models.field_paths import Path, value_at
from crmctl.models.resources import Attribute, AttributeType
from crmctl.values.attribute_types import COMPOSITE_TYPES, PART_NAMES
from crmctl.values.composites import CURRENCY_SUFFIX, SEPARATOR, usual_name

_CODE = re.compile("[A-Z]{3}")


@dataclass(frozen=True)
class AttributeColumns:
    """The columns of one attribute: its own, unless no value needs it, and one for each of `parts`.

    A value that would not come back from its parts stays whole in the attribute's own column.
    """

    attribute: Attribute
    parts: Sequence[str] = ()
    has_own: bool = True

    @property
    def is_money(self) -> bool:
        return self.attribute.type == AttributeType.CURRENCY and bool(self.parts)

    @property
    def names(self) -> list[str]:
        slug = self.attribute.slug
        if self.is_money:
            return [slug, slug + CURRENCY_SUFFIX]
        return [*([slug] if self.has_own else []), *(f"{slug}.{part}" for part in self.parts)]

    def cells(self, value: Any) -> list[Any]:
        """Return the cells of a value, in the order of `names`."""
        if self.is_money:
            return _money(self.attribute, value) or [value, None]
        if self.parts and _has_plain_parts(self.attribute, value) and {*value} <= {*self.parts}:
            return [*([None] if self.has_own else []), *(value.get(part) for part in self.parts)]
        own = [_joined(value) if self.attribute.holds_items else value] if self.has_own else []
        return [*own, *[None] * len(self.parts)]


@dataclass(frozen=True)
class RecordColumns:
    """The columns of records: one for each place, by name, or those of its attribute in `spread`, by slug."""

    places: Mapping[str, Path]
    spread: Mapping[str, AttributeColumns]

    def of(self, path: Path) -> AttributeColumns | None:
        return self.spread.get(path[1]) if len(path) == 2 and path[0] == "data" else None

    @property
    def names(self) -> list[str]:
        columns = ((name, self.of(path)) for name, path in self.places.items())
        return [column for name, spread in columns for column in (spread.names if spread else [name])]

    def cells(self, record: Mapping[str, Any]) -> list[Any]:
        values: list[Any] = []
        for path in self.places.values():
            value, spread = value_at(record, path), self.of(path)
            values += spread.cells(value) if spread else [value]
        return values


def attribute_columns(
    attributes: Iterable[Attribute], samples: Iterable[Mapping[str, Any]], *, are_all: bool = False
) -> dict[str, AttributeColumns]:
    """Return the columns of composites and lists, by slug. Parts have the names that `samples`, the `data` of records, show.

    With `are_all` the samples are all records: an attribute then has no column of its own if its parts hold every value.
    """
    by_slug = {attribute.slug: attribute for attribute in attributes}
    spread = {slug: one for slug, one in by_slug.items() if one.type in COMPOSITE_TYPES and not one.is_list}
    money = {slug for slug, one in spread.items() if one.type == AttributeType.CURRENCY and slug + CURRENCY_SUFFIX not in by_slug}
    columns = {
        slug: AttributeColumns(one, ("amount", "currency") if slug in money else ())
        for slug, one in by_slug.items()
        if one.holds_items or slug in spread
    }
    keys: dict[str, set[str]] = {slug: set() for slug, one in spread.items() if one.type != AttributeType.CURRENCY}
    whole = set()
    for data in samples:
        for slug, names in keys.items():
            value = data.get(slug)
            if isinstance(value, Mapping) and _has_plain_parts(spread[slug], value):
                names.update(value)
            elif value is not None:
                whole.add(slug)
    for slug, names in keys.items():
        usual = list(PART_NAMES[spread[slug].type or ""])
        parts = sorted(names, key=lambda name: (usual.index(usual_name(spread[slug], name) or ""), name))
        columns[slug] = AttributeColumns(spread[slug], parts, has_own=not are_all or slug in whole or not parts)
    return columns


def _money(attribute: Attribute, value: Any) -> list[Any] | None:
    """Return amount and currency; None if the value holds anything else."""
    if not isinstance(value, Mapping) or len(value) != 2:
        return None
    by_name = {usual_name(attribute, key): part for key, part in value.items()}
    amount, currency = by_name.get("amount"), by_name.get("currency")
    is_number = isinstance(amount, int | float | Decimal) and not isinstance(amount, bool)
    return [amount, currency] if is_number and isinstance(currency, str) and _CODE.fullmatch(currency) else None


def _has_plain_parts(attribute: Attribute, value: Any) -> bool:
    """Whether a value is an object of texts under different known names."""
    if not isinstance(value, Mapping):
        return False
    names = [usual_name(attribute, key) for key in value]
    texts = [part for part in value.values() if part is not None]
    is_plain = bool(texts) and all(isinstance(part, str) and part.strip() for part in texts)
    return is_plain and None not in names and len({*names}) == len(names)


def _joined(value: Any) -> Any:
    """Return the items of a list of plain texts as one text; any other value as it is."""
    if not isinstance(value, list) or not value:
        return value
    is_plain = all(isinstance(item, str) and item and item == item.strip() and SEPARATOR not in item for item in value)
    return SEPARATOR.join(value) if is_plain and not value[0].startswith("[") else value
