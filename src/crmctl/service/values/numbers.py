"""Numbers and money: exact at any size.

A number's key is text that sorts as the number does, so both engines compare it alike and without loss.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from crmctl.service.values.text import Invalid, require_text

MAX_DIGITS = 1000
"""Most digits, and most places the decimal point may be moved."""

_BIAS = 5000
_PLAIN = 10**15
"""Whole numbers below it, which most are, need no Decimal."""

_COMPLEMENT = str.maketrans("0123456789", "9876543210")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,6})?")
_MAX_BITS = int(MAX_DIGITS * math.log2(10)) + 1


def number_key(number: int | float | Decimal) -> str:
    """Text that orders as the numbers do; equal numbers (1, 1.0, 1e0) have one key. Raises Invalid beyond MAX_DIGITS."""
    if type(number) is int and 0 < number < _PLAIN:
        figures_of_it = str(number)
        return f"2{_BIAS + len(figures_of_it) - 1:04d}{figures_of_it.rstrip('0')}"
    exact = Decimal(repr(number)) if isinstance(number, float) else Decimal(number)
    if not exact.is_finite():
        raise Invalid("must be a finite number")
    if not exact:
        return "1"
    sign, figures, _ = exact.as_tuple()
    magnitude = exact.adjusted()
    if len(figures) > MAX_DIGITS or abs(magnitude) > MAX_DIGITS:
        raise Invalid(f"must be a number of at most {MAX_DIGITS} digits")
    digits = "".join(map(str, figures)).rstrip("0")
    if sign:
        # A negative number is the complement; the tilde sorts after every digit, so that more digits mean less.
        return f"0{_BIAS - magnitude:04d}{digits.translate(_COMPLEMENT)}~"
    return f"2{_BIAS + magnitude:04d}{digits}"


def number_of(key: str) -> Decimal:
    """The number a key stands for, exactly."""
    if key == "1":
        return Decimal(0)
    digits = key[5:] if key[0] == "2" else key[5:-1].translate(_COMPLEMENT)
    magnitude = int(key[1:5]) - _BIAS if key[0] == "2" else _BIAS - int(key[1:5])
    return Decimal(f"{'' if key[0] == '2' else '-'}{digits}E{magnitude - len(digits) + 1}")


def read_number(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise Invalid("must be a number")
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        raise Invalid(f"must be a number of at most {MAX_DIGITS} digits")
    return number_key(value)


def read_numbers(values: Sequence[Any]) -> list[str]:
    return [number_key(value) if type(value) is int and 0 < value < _PLAIN else read_number(value) for value in values]


def read_currency(value: Any) -> str:
    """A number, or `{amount, currency}`; the key is the amount's."""
    if not isinstance(value, dict):
        try:
            return read_number(value)
        except Invalid as error:
            raise Invalid(f"{error}, or an object of amount and currency" if str(error) == "must be a number" else str(error)) from None
    strange = value.keys() - {"amount", "currency"}
    if strange or "amount" not in value:
        raise Invalid("must be a number, or an object of amount and currency")
    currency = value.get("currency")
    if currency is not None:
        try:
            require_text(currency, 20)
        except Invalid as error:
            raise Invalid(f"has a currency that {error}") from None
    try:
        return read_number(value["amount"])
    except Invalid as error:
        raise Invalid(f"has an amount that {error}") from None


def parse_number(text: str) -> str:
    """The key of a number written as text (a filter's value); raises Invalid."""
    text = text.strip()
    if len(text) > 2 * MAX_DIGITS or not _NUMBER.fullmatch(text):
        raise Invalid("needs a number")
    return number_key(Decimal(text))
