"""Names and addresses: a string, or an object of strings. Searched as one text, parts in the order people write them."""

from __future__ import annotations

from typing import Any

from crmctl.service.values.text import Invalid, require_text

MAX_PARTS = 30
MAX_PART_NAME = 100

_NAME_ORDER = (
    "title",
    "prefix",
    "full",
    "fullName",
    "full_name",
    "first",
    "firstName",
    "first_name",
    "given",
    "middle",
    "middleName",
    "middle_name",
)
_NAME_LATER = ("last", "lastName", "last_name", "family", "suffix")
_ADDRESS_ORDER = ("name", "line1", "street", "address", "line2", "street2", "city", "state", "region", "postalCode", "postal_code", "zip")
_ADDRESS_LATER = ("country", "countryCode", "country_code")

_NAME_RANK = {part: rank for rank, part in enumerate((*_NAME_ORDER, *_NAME_LATER))}
_ADDRESS_RANK = {part: rank for rank, part in enumerate((*_ADDRESS_ORDER, *_ADDRESS_LATER))}


def _read_parts(value: Any, rank: dict[str, int], separator: str, example: str) -> str:
    if isinstance(value, str):
        return require_text(value)
    if not isinstance(value, dict):
        raise Invalid(f"must be a string, or an object of strings such as {example}")
    if len(value) > MAX_PARTS:
        raise Invalid(f"must have at most {MAX_PARTS} parts")
    for part, text in value.items():
        require_text(part, MAX_PART_NAME)
        if text is not None:
            try:
                require_text(text)
            except Invalid as error:
                raise Invalid(f"has a part {part!r} that {error}") from None
    parts = sorted(value, key=lambda part: rank.get(part, len(rank)))
    return separator.join(value[part] for part in parts if value[part])


def read_name(value: Any) -> str:
    return _read_parts(value, _NAME_RANK, " ", '{"first": "Ada", "last": "Lovelace"}')


def read_address(value: Any) -> str:
    return _read_parts(value, _ADDRESS_RANK, ", ", '{"street": "1 Main St", "city": "Paris"}')
