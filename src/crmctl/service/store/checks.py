"""Checks of the small texts that name things: names, descriptions, slugs. Raise BadRequest with the wire name of the field."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

from crmctl.service.faults import BadRequest
from crmctl.service.values.choices import UUID
from crmctl.service.values.text import Invalid, require_text

MAX_NAME = 200
MAX_DESCRIPTION = 10_000
MAX_SLUG = 64

RESERVED_SLUGS = frozenset({"id", "created_at", "updated_at"})
"""Filters and sorting know these as fields of every record."""

_SLUG = re.compile(r"[a-z0-9][a-z0-9_-]*")


def invalid(field: str, problem: object) -> BadRequest:
    return BadRequest(f"{field} {problem}", {"field": field})


def require_name(value: Any, field: str) -> str:
    """A string with something to see in it."""
    text = _text(value, field, MAX_NAME)
    if not text.strip():
        raise invalid(field, "must not be empty")
    return text


def require_description(value: Any, field: str = "description") -> str:
    """A string; null counts as the empty one."""
    return _text("" if value is None else value, field, MAX_DESCRIPTION)


def require_flag(value: Any, field: str) -> bool:
    if not isinstance(value, bool):
        raise invalid(field, "must be true or false")
    return value


def require_slug(value: Any) -> str:
    text = _text(value, "slug", MAX_SLUG)
    if not _SLUG.fullmatch(text):
        raise invalid("slug", "must consist of lower-case letters, digits, underscores and hyphens, and start with a letter or digit")
    if UUID.fullmatch(text):
        raise invalid("slug", "must not look like an id")
    return text


def slug_from(name: str, fallback: str) -> str:
    """Lower-case ASCII with underscores; the fallback when a name has no such letters."""
    ascii_name = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    slug = re.sub(r"[^a-z0-9]+", "_", ascii_name).strip("_")[:MAX_SLUG].rstrip("_")
    return slug or fallback


def _text(value: Any, field: str, limit: int) -> str:
    try:
        return require_text(value, limit)
    except Invalid as error:
        raise invalid(field, error) from None
