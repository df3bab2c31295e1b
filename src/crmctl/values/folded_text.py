"""Fold texts for every comparison but equality."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping
from functools import cache, lru_cache

_NAME = (
    "amount number title prefix full fullName full_name first firstName first_name given "
    "middle middleName middle_name last lastName last_name family suffix"
)
_ADDRESS = "name line1 street address line2 street2 city state region postalCode postal_code zip country countryCode country_code"
"""Parts in the order people write them."""


def fold(text: str) -> str:
    """Return the text without case and composition (casefolded NFC). Every operator but `equals` compares folded texts."""
    if text.isascii():
        return text.lower()
    # Decomposed first, so that letters with the same accents fold alike however they were composed.
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", text).casefold())


@cache
def capitals() -> tuple[str, str]:
    """Return the accented, Greek and Cyrillic capitals, and their small letters: an SQL engine may fold ASCII only."""
    letters = [letter for letter in map(chr, range(0xC0, 0x530)) if len(fold(letter)) == 1 and fold(letter) != letter]
    return "".join(letters), "".join(map(fold, letters))


@cache
def _accented() -> dict[str, str]:
    """Return the folded letters that look like each plain letter, itself included."""
    variants: dict[str, str] = {}
    for letter in map(chr, (*range(0xC0, 0x250), *range(0x1E00, 0x1F00))):
        plain = _STROKED.get(letter) or unicodedata.normalize("NFD", letter)[0]
        if letter == fold(letter) and plain.isascii() and plain.isalpha() and plain != letter:
            variants[plain] = variants.get(plain, plain) + letter
    return variants


_STROKED = {"ø": "o", "ł": "l", "đ": "d", "ħ": "h", "ŧ": "t", "ı": "i"}


def word_patterns(text: str, quote: Callable[[str], str]) -> list[tuple[str, str]]:
    """Return each word without accents, and a pattern that also matches its accented letters; `quote` escapes any other character."""
    patterns = []
    for word in dict.fromkeys(fold(text).split()):
        plain = "".join(_STROKED.get(letter, letter) for letter in unicodedata.normalize("NFD", word) if not unicodedata.combining(letter))
        patterns.append((plain, "".join(f"[{_accented()[letter]}]" if letter in _accented() else quote(letter) for letter in plain)))
    return patterns


def name_text(parts: Mapping[str, str | None]) -> str:
    """Return a name, money or a phone number as one text, its parts in the order people write them."""
    return _joined(parts, _NAME, " ")


def address_text(parts: Mapping[str, str | None]) -> str:
    """Return an address as one text, its parts in the order people write them."""
    return _joined(parts, _ADDRESS, ", ")


def _joined(parts: Mapping[str, str | None], order: str, separator: str) -> str:
    return separator.join([text for part in _in_order(tuple(parts), order) if (text := parts[part])])


@lru_cache(2048)
def _in_order(parts: tuple[str, ...], order: str) -> list[str]:
    """Return the parts in order, cached because nearly all values have the same parts."""
    ranks = {part: rank for rank, part in enumerate(order.split())}
    return sorted(parts, key=lambda part: ranks.get(part, len(ranks)))
