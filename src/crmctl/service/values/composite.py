"""Names and addresses: a string, or an object of strings. Searched as one text, parts in the order people write them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from crmctl.models.folded_text import address_text, name_text
from crmctl.service.values.text import Invalid, plain_texts, require_text

MAX_PARTS = 30
MAX_PART_NAME = 100


def _read_parts(value: Any, joined: Callable[[Mapping[str, str | None]], str], example: str) -> str:
    if isinstance(value, str):
        return require_text(value)
    if not isinstance(value, dict):
        raise Invalid(f"must be a string, or an object of strings such as {example}")
    if len(value) > MAX_PARTS:
        raise Invalid(f"must have at most {MAX_PARTS} parts")
    for part, text in value.items():
        require_text(part, MAX_PART_NAME)
        if text is not None and not (type(text) is str and len(text) <= MAX_PART_NAME and text.isascii() and "\x00" not in text):
            try:
                require_text(text)
            except Invalid as error:
                raise Invalid(f"has a part {part!r} that {error}") from None
    return joined(value)


def read_name(value: Any) -> str:
    return _read_parts(value, name_text, '{"first": "Ada", "last": "Lovelace"}')


def read_address(value: Any) -> str:
    return _read_parts(value, address_text, '{"street": "1 Main St", "city": "Paris"}')


def read_names(values: Sequence[Any]) -> Sequence[str]:
    return [name_text(value) for value in values] if _are_plain(values) else [read_name(value) for value in values]


def read_addresses(values: Sequence[Any]) -> Sequence[str]:
    return [address_text(value) for value in values] if _are_plain(values) else [read_address(value) for value in values]


def _are_plain(values: Sequence[Any]) -> bool:
    """Whether all are objects of the same few plain texts."""
    parts = values[0].keys() if isinstance(values[0], dict) else ()
    if not 0 < len(parts) <= MAX_PARTS or not plain_texts(list(parts), MAX_PART_NAME):
        return False
    if not all(isinstance(value, dict) and value.keys() == parts for value in values):
        return False
    return plain_texts([text for value in values for text in value.values()])
