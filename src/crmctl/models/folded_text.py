"""Texts as every comparison but equality sees them. The service and what is decided without it share this."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping

_NAME = (
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
    "last",
    "lastName",
    "last_name",
    "family",
    "suffix",
)
_ADDRESS = (
    "name",
    "line1",
    "street",
    "address",
    "line2",
    "street2",
    "city",
    "state",
    "region",
    "postalCode",
    "postal_code",
    "zip",
    "country",
    "countryCode",
    "country_code",
)
_NAME_RANK = {part: rank for rank, part in enumerate(_NAME)}
_ADDRESS_RANK = {part: rank for rank, part in enumerate(_ADDRESS)}


def fold(text: str) -> str:
    """Case and composition removed (casefolded NFC): two texts that fold alike are alike to every operator but `equals`."""
    if text.isascii():
        return text.lower()
    # Decomposed first, so that letters with the same accents fold alike however they were composed.
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", text).casefold())


def name_text(parts: Mapping[str, str | None]) -> str:
    """A name as one text, its parts in the order people write them."""
    return _joined(parts, _NAME_RANK, " ")


def address_text(parts: Mapping[str, str | None]) -> str:
    """An address as one text, its parts in the order people write them."""
    return _joined(parts, _ADDRESS_RANK, ", ")


def _joined(parts: Mapping[str, str | None], rank: Mapping[str, int], separator: str) -> str:
    ordered = sorted(parts, key=lambda part: rank.get(part, len(rank)))
    return separator.join(text for part in ordered if (text := parts[part]))
