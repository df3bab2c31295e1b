"""Strings: what a stored string may hold, and the plain string types."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

MAX_TEXT = 100_000
MAX_EMAIL = 320
MAX_PHONE = 100

_EMAIL = re.compile(r"[^@\s]+@[^@\s]+")


class Invalid(ValueError):
    """A value its attribute does not take; the text completes the sentence "<slug> ..."."""


def require_text(value: Any, limit: int = MAX_TEXT) -> str:
    """Returns the string; raises Invalid for anything that is not one or that no database could hold."""
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
    """Whether all are strings that `require_text` gives back as they are; False may also mean that it takes longer to tell."""
    try:
        joined = "\0".join(values)
        if not joined.isascii():
            joined.encode()
    except (TypeError, UnicodeEncodeError):
        return False
    return joined.count("\0") == len(values) - 1 and max(map(len, values)) <= limit


def read_text(value: Any) -> str:
    return require_text(value)


def read_email(value: Any) -> str:
    text = require_text(value, MAX_EMAIL)
    if text and not _EMAIL.fullmatch(text):
        raise Invalid("must be an email address such as ada@example.com")
    return text


def read_phone(value: Any) -> str:
    return require_text(value, MAX_PHONE)


def read_texts(values: Sequence[Any]) -> Sequence[str]:
    return values if plain_texts(values) else [read_text(value) for value in values]


def read_emails(values: Sequence[Any]) -> Sequence[str]:
    return values if plain_texts(values, MAX_EMAIL) and all(map(_EMAIL.fullmatch, values)) else [read_email(value) for value in values]


def read_phones(values: Sequence[Any]) -> Sequence[str]:
    return values if plain_texts(values, MAX_PHONE) else [read_phone(value) for value in values]
