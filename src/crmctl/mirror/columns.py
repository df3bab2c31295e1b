"""Which columns an object's table has, and what a record puts into them. Pure.

A column is named by its slug, never by another name: a slug that cannot be a column of its own is found in `_data` only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from crmctl.models import jsontext
from crmctl.models.attributes import Attribute, AttributeType
from crmctl.models.composites import JOINED_BY, usual_name
from crmctl.models.ids import is_uuid
from crmctl.models.numbers import plain_decimal
from crmctl.models.part_names import PART_NAMES

FIXED = ("_no", "id", "created_at", "updated_at", "_created", "_updated", "_data")
"""Columns of every table; no slug takes their names."""

MOST_COLUMNS = 1900
"""SQLite allows 2,000."""

_LARGEST = 2**63 - 1
_WITH_PARTS = (AttributeType.NAME, AttributeType.ADDRESS, AttributeType.CURRENCY)
_NUMBERS = (AttributeType.NUMBER, AttributeType.CURRENCY)
_MAIN_PARTS: dict[str, str] = {AttributeType.CURRENCY: "amount", AttributeType.PHONE_NUMBER: "number"}

SqlValue = str | int | float | None


@dataclass(frozen=True)
class TableColumn:
    """One column: of an attribute, or of a part of its values. `declared` is its type in SQL; `is_loose`: a value was not a number that
    SQLite holds exactly, so that the column must not turn text into numbers."""

    name: str
    declared: str
    attribute: Attribute
    part: str | None = None

    def value(self, data: Mapping[str, Any]) -> SqlValue:
        """What a record's data puts here."""
        given = data.get(self.attribute.slug)
        if given is None:
            return None
        if self.part is not None:
            return _part(self.attribute, self.part, given)
        return _shown(self.attribute, given)


def table_columns(attributes: Iterable[Attribute], loose: Iterable[str] = ()) -> list[TableColumn]:
    """The columns in order: attributes in display order, then parts of their values. `loose` names attributes whose numbers are not all
    held exactly."""
    ordered = sorted(attributes, key=lambda each: each.display_order if each.display_order is not None else 1 << 30)
    taken, untyped = set(FIXED), set(loose)
    columns: list[TableColumn] = []

    def add(name: str, declared: str, attribute: Attribute, part: str | None = None) -> None:
        if _lower(name) not in taken and can_be_named(name) and len(columns) < MOST_COLUMNS:
            taken.add(_lower(name))
            columns.append(TableColumn(name, declared, attribute, part))

    for attribute in ordered:
        add(attribute.slug, "" if attribute.slug in untyped else _declared(attribute), attribute)
    for attribute in ordered:
        if attribute.type in _WITH_PARTS and not attribute.is_list:
            for part in PART_NAMES[attribute.type]:
                if (attribute.type, part) != (AttributeType.CURRENCY, "amount"):
                    add(f"{attribute.slug}_{part}", "TEXT", attribute, part)
    return columns


def is_loose(column: TableColumn, value: SqlValue) -> bool:
    """Whether this value must stay text in a column of numbers, which would change it."""
    return column.declared == "NUMERIC" and isinstance(value, str)


def can_be_named(name: str) -> bool:
    """Whether SQLite can have a table or a column of this name, once quoted."""
    return bool(name) and "\0" not in name and name.isprintable() and name == clean_text(name)


def quoted(name: str) -> str:
    """A name as part of a statement, whatever it holds."""
    return '"' + name.replace('"', '""') + '"'


def clean_text(text: str) -> str:
    """Text that can be stored as UTF-8: half of a surrogate pair becomes a question mark."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text


def wire_text(wire: Mapping[str, Any]) -> str:
    """A resource as it came, as one line of JSON; what UTF-8 cannot hold is escaped."""
    text = jsontext.dumps(wire)
    try:
        text.encode()
    except UnicodeEncodeError:
        return "".join(letter if not 0xD800 <= ord(letter) < 0xE000 else f"\\u{ord(letter):04x}" for letter in text)
    return text


def searched_text(data: Mapping[str, Any]) -> str:
    """Every text in a record's data but ids, one a line."""
    return clean_text("\n".join(_texts(data)))


def _texts(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        if not is_uuid(value):
            yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


def _lower(name: str) -> str:
    """SQLite compares names without the case of ASCII letters."""
    return "".join(letter.lower() if letter.isascii() else letter for letter in name)


def _declared(attribute: Attribute) -> str:
    if attribute.is_list:
        return "TEXT"
    if attribute.type in _NUMBERS:
        return "NUMERIC"
    return "INTEGER" if attribute.type == AttributeType.CHECKBOX else "TEXT"


def _shown(attribute: Attribute, value: Any) -> SqlValue:
    if attribute.is_list or attribute.type == AttributeType.LIST or isinstance(value, list):
        return clean_text(jsontext.dumps(value))
    if isinstance(value, dict):
        return _of_parts(attribute, value)
    return _plain(value)


def _plain(value: Any) -> SqlValue:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int):
        return value if -_LARGEST <= value <= _LARGEST else str(value)
    if isinstance(value, float):
        return value
    if isinstance(value, Decimal):
        return plain_decimal(value)
    return clean_text(value) if isinstance(value, str) else clean_text(jsontext.dumps(value))


def _of_parts(attribute: Attribute, value: dict[str, Any]) -> SqlValue:
    """An object as one value: a name or an address as text, the amount, the number, the other record's id."""
    if attribute.type in JOINED_BY:
        parts = [_part(attribute, part, value) for part in PART_NAMES[attribute.type]]
        text = JOINED_BY[attribute.type].join(str(part) for part in parts if part not in (None, ""))
        return text or clean_text(jsontext.dumps(value))
    main = _MAIN_PARTS.get(attribute.type or "")
    if main is not None and (found := _part(attribute, main, value)) is not None:
        return found
    if attribute.type == AttributeType.REFERENCE and isinstance(value.get("id"), str):
        return clean_text(value["id"])
    return clean_text(jsontext.dumps(value))


def _part(attribute: Attribute, part: str, value: Any) -> SqlValue:
    if not isinstance(value, dict):
        return None
    found = next((item for name, item in value.items() if usual_name(attribute, name) == part and item is not None), None)
    return None if found is None else _plain(found)
