"""Check a value of each attribute type and return its text form."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Container, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from crmctl.models import jsontext
from crmctl.values.folded_text import address_text, name_text

MAX_TEXT = 100_000
MAX_EMAIL = 320
MAX_PHONE = 100

_EMAIL = re.compile(r"[^@\s]+@[^@\s]+")


class Invalid(ValueError):
    """A value that does not fit its attribute. The message completes the sentence "<slug> ..."."""


def require_text(value: Any, limit: int = MAX_TEXT) -> str:
    """Return the string. Raises Invalid for any other value, and for strings that databases cannot hold."""
    if type(value) is str and len(value) <= limit and value.isascii() and "\x00" not in value:
        return value
    if not isinstance(value, str):
        raise Invalid("must be a string")
    if len(value) > limit:
        raise Invalid(f"must have at most {limit:,} characters")
    if "\x00" in value:
        raise Invalid("must not contain a NUL character")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise Invalid("must not contain half of a surrogate pair") from None
    return value


def plain_texts(values: Sequence[Any], limit: int = MAX_TEXT) -> bool:
    """Whether `require_text` accepts all values. False may also mean that only a slower check can tell."""
    try:
        joined = "\0".join(values)
        if not joined.isascii():
            joined.encode()
    except (TypeError, UnicodeEncodeError):
        return False
    return joined.count("\0") == len(values) - 1 and max(map(len, values)) <= limit


def read_email(value: Any) -> str:
    text = require_text(value, MAX_EMAIL)
    if text and not _EMAIL.fullmatch(text):
        raise Invalid("must be an email address such as ada@example.com")
    return text


def read_phone(value: Any) -> str:
    return require_text(value, MAX_PHONE)


def read_texts(values: Sequence[Any]) -> Sequence[str]:
    return values if plain_texts(values) else list(map(require_text, values))


def read_emails(values: Sequence[Any]) -> Sequence[str]:
    return values if plain_texts(values, MAX_EMAIL) and all(map(_EMAIL.fullmatch, values)) else list(map(read_email, values))


def read_phones(values: Sequence[Any]) -> Sequence[str]:
    return values if plain_texts(values, MAX_PHONE) else list(map(read_phone, values))


MAX_DIGITS = 1000
"""Most digits of a number, and most places its decimal point may move."""

_BIAS = 5000
_PLAIN = 10**15
"""Smaller whole numbers, the usual case, need no Decimal."""

_COMPLEMENT = str.maketrans("0123456789", "9876543210")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,6})?")
_MAX_BITS = int(MAX_DIGITS * math.log2(10)) + 1


def number_key(number: int | float | Decimal) -> str:
    """Return a text that sorts as the number does. Equal numbers (1, 1.0, 1e0) have one key. Raises Invalid beyond MAX_DIGITS."""
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
    """Return the exact number of a key."""
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
    """Return the key of a number, or of the amount in `{amount, currency}`."""
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
    """Return the key of a number in a filter. Raises Invalid."""
    text = text.strip()
    if len(text) > 2 * MAX_DIGITS or not _NUMBER.fullmatch(text):
        raise Invalid(f"needs a number, not {text[:80]!r}")
    return number_key(Decimal(text))


UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE | re.ASCII)

TRUE, FALSE = "true", "false"


def canonical_uuid(value: Any) -> str | None:
    """Return a UUID in its usual spelling in lower case; None for anything else."""
    return value.lower() if isinstance(value, str) and UUID.fullmatch(value) else None


def read_checkbox(value: Any) -> str:
    if value is True:
        return TRUE
    if value is False:
        return FALSE
    raise Invalid("must be true or false")


def read_option(option_set: Container[str], options: Sequence[str], value: Any) -> str:
    if isinstance(value, str) and value in option_set:
        return value
    raise Invalid(f"must be one of: {', '.join(options[:20])}{', ...' if len(options) > 20 else ''}")


def read_reference(value: Any) -> str:
    """Return the canonical id. The store checks that the record exists."""
    record_id = canonical_uuid(value)
    if record_id is None:
        raise Invalid("must be the id (UUID) of a record")
    return record_id


def read_element(value: Any) -> str:
    """Return one element of a list attribute: a string, or a number in its JSON spelling."""
    if isinstance(value, str):
        return require_text(value)
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise Invalid("must hold strings or numbers only")
    read_number(value)
    return jsontext.dumps(value)


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
    """Whether all values are objects of plain texts with the same few keys."""
    parts = values[0].keys() if isinstance(values[0], dict) else ()
    if not 0 < len(parts) <= MAX_PARTS or not plain_texts(list(parts), MAX_PART_NAME):
        return False
    if not all(isinstance(value, dict) and value.keys() == parts for value in values):
        return False
    return plain_texts([text for value in values for text in value.values()])


_DAY = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_INSTANT = re.compile(
    r"\d{4}-\d{2}-\d{2}(?:[T ](?!24)\d{2}:\d{2}(?::\d{2}(?:[.,]\d{1,9})?)?(?:Z|[+-]\d{2}:?[0-5]\d)?)?", re.ASCII | re.IGNORECASE
)


def parse_instant(text: str) -> datetime:
    """Return the naive UTC time of a date or timestamp, cut at microseconds. Raises Invalid, also for 2023-02-30."""
    if not _INSTANT.fullmatch(text):
        raise Invalid("must be a date (2026-01-31) or an ISO 8601 timestamp (2026-01-31T09:30:00Z)")
    try:
        when = datetime.fromisoformat(text.upper())
        return (when if when.tzinfo is None else when.astimezone(UTC)).replace(tzinfo=None)
    except (ValueError, OverflowError):
        raise Invalid("is not a real date or time") from None


def date_key(text: str) -> str:
    """Return ISO 8601 in UTC at a fixed width, which sorts as time does. Raises Invalid."""
    if len(text) == 10 and _DAY.fullmatch(text):
        # Most dates are days.
        try:
            date.fromisoformat(text)
        except ValueError:
            raise Invalid("is not a real date or time") from None
        return f"{text}T00:00:00.000000Z"
    return parse_instant(text).isoformat(timespec="microseconds") + "Z"


def read_date(value: Any) -> str:
    if not isinstance(value, str):
        raise Invalid("must be a date as a string (2026-01-31)")
    return date_key(value)
