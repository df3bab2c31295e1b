"""Exact numbers: read them from text, check that they can be sent, and write all spellings in one form."""

from __future__ import annotations

import math
import re
from decimal import Context, Decimal
from functools import lru_cache
from typing import Any

from crmctl.errors import RejectedError

Number = int | float | Decimal

MAX_DIGITS = 1000
"""Most digits of a number, whole and decimal ones together."""

_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_COMMA_NUMBER = r"[+-]?(?:[0-9]+|[0-9]{1,3}(?:\.[0-9]{3})+)(?:,[0-9]+)?"
_COMMA_AS_DECIMAL = r"[+-]?[0-9.]*,(?:[0-9]{1,2}|[0-9]{4,})|[+-]?[0-9]{1,3}(?:\.[0-9]{3})+,[0-9]+"
_EXACT_TEXT = 16
"""A text of this length with a sign or a point has at most 15 digits, which a float always holds."""

_LARGEST_INT = 10**MAX_DIGITS


def read_number(text: str, *, decimal_comma: bool = False) -> Number:
    """An exact number: int where it is whole, float where a float holds it exactly, else Decimal.

    Raises RejectedError for anything else, for more than 1,000 digits, and for `1e999`, which is beyond what programs hold.
    """
    if len(text) < _EXACT_TEXT and text.isdigit() and text.isascii():
        return int(text)
    stripped = text.strip()
    if decimal_comma:
        if not re.fullmatch(_COMMA_NUMBER, stripped):
            hint = "with a decimal comma a point only groups thousands: 1.234,5" if "." in stripped else "for example 1234,5"
            raise RejectedError("not a number with a decimal comma", hint=hint, code="invalid_number")
        stripped = stripped.replace(".", "").replace(",", ".")
    elif not _NUMBER.fullmatch(stripped):
        raise _not_a_number(stripped)
    if "e" in stripped or "E" in stripped:
        return _scientific(stripped)
    if _has_too_many_digits(stripped):
        raise _too_long()
    if "." not in stripped:
        return int(stripped)
    if len(stripped) <= _EXACT_TEXT:
        short = float(stripped)
        return int(short) if short.is_integer() else short
    exact = Decimal(stripped)
    if exact == exact.to_integral_value():
        return int(exact)
    near = float(stripped)
    return near if Decimal(repr(near)) == exact else exact


def _scientific(text: str) -> Number:
    mantissa, _, exponent = text.lower().partition("e")
    if _has_too_many_digits(mantissa) or len(exponent.lstrip("+-0")) > len(str(MAX_DIGITS)):
        raise _too_long() if exponent.startswith("-") or _has_too_many_digits(mantissa) else _beyond_range()
    exact, near = Decimal(text), float(text)
    check_number(exact)
    return near if math.isfinite(near) and Decimal(repr(near)) == exact else exact


def _has_too_many_digits(text: str) -> bool:
    return len(text) > MAX_DIGITS and len(text.lstrip("+-0").replace(".", "")) > MAX_DIGITS


def check_number(number: Number) -> None:
    """Raises RejectedError for a number that cannot be sent: more than 1,000 digits, not finite, or, written with an exponent, beyond the
    range of a double, which other programs read as infinity."""
    if isinstance(number, int):
        if not -_LARGEST_INT < number < _LARGEST_INT:
            raise _too_long()
        return
    if isinstance(number, float):
        if not math.isfinite(number):
            raise _beyond_range()
        return
    exponent = number.as_tuple().exponent
    if not isinstance(exponent, int) or (exponent > 0 and math.isinf(float(number))):
        raise _beyond_range()
    digits = len(number.as_tuple().digits)
    if (digits + exponent if exponent > 0 else max(digits, -exponent)) > MAX_DIGITS:
        raise _too_long()


def check_numbers(value: Any) -> None:
    """Check every number inside a JSON value."""
    if isinstance(value, dict):
        for item in value.values():
            check_numbers(item)
    elif isinstance(value, list):
        for item in value:
            check_numbers(item)
    elif isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        check_number(value)


SHORT = 10**15
"""Whole numbers below it need no decimal arithmetic."""


def decimal_of(value: Any) -> Decimal | None:
    """Return a number, or the number in a text; None for anything else, booleans and infinity included."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal | str):
        return None
    try:
        number = Decimal(str(value).strip())
    except ArithmeticError:
        return None
    return number if number.is_finite() else None


@lru_cache(maxsize=10_000, typed=True)
def canonical_number(number: Number) -> str:
    """Return one text for all spellings of a number (1, 1.0, 1e0, and -0 for 0)."""
    if type(number) is int and abs(number) < SHORT:
        return str(number)
    exact = Decimal(number) if isinstance(number, int) else Decimal(str(number))
    if not exact:
        return "0"
    return plain_decimal(exact.normalize(Context(prec=len(exact.as_tuple().digits))))


def plain_decimal(number: Decimal) -> str:
    """Return a decimal in plain digits; beyond 1,000 digits with an exponent."""
    return f"{number:f}" if abs(number.adjusted()) <= MAX_DIGITS else str(number)


def _not_a_number(text: str) -> RejectedError:
    if re.fullmatch(_COMMA_AS_DECIMAL, text):
        return RejectedError(
            "not a number: a comma as decimal mark was not declared", hint="write 1234.5, or give --decimal-comma", code="decimal_comma"
        )
    if re.fullmatch(r"[+-]?[0-9][0-9,.'\s]*", text):
        return RejectedError(
            "not a number: thousands separators can be misread",
            hint="write 1234.5 without them, or give --decimal-comma for 1.234,5",
            code="invalid_number",
        )
    return RejectedError("not a number", hint="digits with an optional decimal point, for example 1234.5", code="invalid_number")


def _too_long() -> RejectedError:
    return RejectedError(f"more than {MAX_DIGITS:,} digits", code="invalid_number")


def _beyond_range() -> RejectedError:
    return RejectedError("a number beyond the range of a double, which ends at 1.8e308", code="invalid_number")


def size_text(count: int) -> str:
    """Return a size such as `312 bytes`, `1.5 KB` or `10 GB`. Each unit is 1,024 times the one before."""
    if count < 1024:
        return f"{count:,} byte{'' if count == 1 else 's'}"
    size, units = count / 1024, ["KB", "MB", "GB"]
    while size >= 1024 and len(units) > 1:
        size, units = size / 1024, units[1:]
    return f"{size:,.1f}".removesuffix(".0") + f" {units[0]}"


def counted(count: int, noun: str) -> str:
    """Return a number and its noun, given in the singular."""
    plural = f"{noun[:-1]}ies" if noun.endswith("y") and noun[-2] not in "aeiou" else f"{noun}s"
    return f"{count:,} {noun if count == 1 else plural}"
