"""Decide whether two values are equal.

A value has several spellings (1, 1.0), a service changes some details of it (capitals, blanks), and a key has one form for all of them.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from decimal import Decimal
from functools import lru_cache
from typing import Any

from crmctl.errors import RejectedError
from crmctl.models import jsontext
from crmctl.models.ids import reference_id, reference_ids
from crmctl.models.numbers import canonical_number
from crmctl.models.resources import Attribute, AttributeType
from crmctl.values.attribute_types import Trait, typed, types_with

_MIDNIGHT = re.compile(r"(\d{4}-\d\d-\d\d)T00:00(:00(\.0+)?)?(Z|\+00:00)?")

_FOLDED = types_with(Trait.FOLDED)
_REWRITTEN = types_with(Trait.REWRITTEN)
_WITH_KEY_FORM = frozenset({AttributeType.PHONE_NUMBER, AttributeType.REFERENCE})

_NUMBER = re.compile(r"-?\d{1,40}(\.\d{1,40})?")
"""A number as a service may store it: as text."""


def is_unchanged(data: Mapping[str, Any], current: Mapping[str, Any], attributes: Mapping[str, Attribute]) -> bool:
    """Whether a record already has all values to be sent, perhaps in another spelling."""
    return all(has_value(attributes.get(slug), value, current.get(slug)) for slug, value in data.items())


def has_value(attribute: Attribute | None, sent: Any, current: Any) -> bool:
    kind = attribute.type if attribute is not None else None
    stored = _shown(kind, current)
    if _shown(kind, sent) == stored or (isinstance(sent, str) and _shown(kind, sent.strip()) == stored):
        return True
    if kind == AttributeType.REFERENCE:
        ids = [*reference_ids(sent)]
        return bool(ids) and ids == [*reference_ids(current)]
    if kind == AttributeType.PHONE_NUMBER and type(sent) is not type(current):
        form = key_form(kind, sent)
        return form is not None and form == key_form(kind, current)
    return False


def _shown(kind: str | None, value: Any) -> Any:
    """Return a value in a form that its spellings share; None if it is empty."""
    if isinstance(value, str):
        if kind in (AttributeType.EMAIL, AttributeType.DATE):
            return canonical(value)
        if kind == AttributeType.NUMBER and _NUMBER.fullmatch(value):
            return Decimal(value)
        return unicodedata.normalize("NFC", value) or None
    if isinstance(value, dict):
        part = AttributeType.NUMBER if kind == AttributeType.CURRENCY else None
        return {name: item for name in sorted(value) if (item := _shown(part, value[name])) is not None} or None
    if isinstance(value, list):
        return [_shown(kind, item) for item in value] or None
    if isinstance(value, bool) or value is None:
        return value
    return Decimal(canonical_number(value))


def base_form(attribute: Attribute | None, value: Any) -> str:
    """Return one text for all spellings of a value in the service's answers. The case of text matters."""
    kind = attribute.type if attribute is not None else None
    if kind in _WITH_KEY_FORM and not isinstance(value, list):
        return key_form(kind, value) or ""
    form = canonical(value) if kind in _REWRITTEN - _WITH_KEY_FORM else _stripped(_shown(kind, value))
    if isinstance(form, Decimal):
        form = canonical_number(form)
    return "" if form is None else jsontext.dumps(form, sort_keys=True)


def _stripped(value: Any) -> Any:
    if isinstance(value, str):
        return value.strip() or None
    if isinstance(value, dict):
        return {name: _stripped(item) for name, item in value.items()}
    return [_stripped(item) for item in value] if isinstance(value, list) else value


def canonical(value: Any) -> Any:
    """Return a value without the details that services change. None for an empty value."""
    return _reduced(value, _canonical_text)


def as_written(value: Any) -> Any:
    """Return a value as written, with numbers in one JSON form. None for an empty value."""
    return _reduced(value, str)


def token_of(value: Any) -> str:
    """Return one text for all values with the same canonical form."""
    value = canonical(value)
    return value if isinstance(value, str) else jsontext.dumps(value)


def _reduced(value: Any, of_text: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return of_text(value) or None
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int | float | Decimal):
        return canonical_number(value)
    if isinstance(value, dict):
        return {name: item for name in sorted(value) if (item := _reduced(value[name], of_text)) is not None} or None
    if isinstance(value, list):
        return [item for element in value if (item := _reduced(element, of_text)) is not None] or None
    return value


@lru_cache(maxsize=10_000)
def _canonical_text(value: str) -> str:
    text = unicodedata.normalize("NFC", value.strip().casefold())
    midnight = _MIDNIGHT.fullmatch(text.upper())
    return midnight[1] if midnight else text


def is_same(attribute: Attribute | None, value: Any, current: Any) -> bool:
    """Whether two values from the service are equal. Blank values are, and references to the same records."""
    if value == current or canonical(value) is None:
        return value == current or canonical(current) is None
    if attribute is None:
        return ids_only(value) is not None and ids_only(value) == ids_only(current)
    return attribute.type == AttributeType.REFERENCE and as_sent(attribute, value) == as_sent(attribute, current) is not None


def alike(attribute: Attribute | None, written: Any, current: Any) -> bool:
    """Whether a service that stored the written value may return the current one."""
    if is_same(attribute, written, current) or has_value(attribute, written, current):
        return True
    if attribute is None or attribute.type not in _REWRITTEN:
        return False
    if canonical(_money(attribute, written)) == canonical(_money(attribute, current)):
        return True
    form = key_form(attribute.type, written)
    return attribute.type == AttributeType.PHONE_NUMBER and form is not None and form == key_form(attribute.type, current)


def _money(attribute: Attribute, value: Any) -> Any:
    """Return money given as text as an import sends it, any other value unchanged."""
    with suppress(RejectedError):
        return typed(value, attribute) if attribute.type == AttributeType.CURRENCY and isinstance(value, str) else value
    return value


def key_of(data: Mapping[str, Any], types: Iterable[tuple[str, str | None]]) -> str | None:
    """Return the normal form of a key, given its attributes with their types. None if a part of it is blank."""
    parts = [key_form(kind, data.get(slug)) for slug, kind in types]
    return None if None in parts else jsontext.dumps(parts)


def key_form(kind: str | None, value: Any) -> str | None:
    """Return one text for all spellings of a value; None for a blank value.

    Letters are composed and outer blanks removed. E-mail addresses lose their case, phone numbers keep only digits, numbers and dates get
    one form.
    """
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if kind == AttributeType.PHONE_NUMBER:
        return _digits(value) or None
    if kind == AttributeType.REFERENCE:
        value = reference_id(value)
    if kind == AttributeType.NUMBER and isinstance(value, int | float | Decimal):
        return canonical_number(value)
    if value is None or isinstance(value, dict | list):
        return None
    text = unicodedata.normalize("NFC", str(value).strip())
    if kind in _FOLDED:
        text = str(canonical(text) or "")
    return text or None


def _digits(value: Any) -> str:
    if isinstance(value, dict):
        return "".join(_digits(item) for item in value.values() if isinstance(item, str))
    return "".join(letter for letter in str(value or "") if letter.isdigit())


def as_sent(attribute: Attribute | None, value: Any) -> Any:
    """Return a value from the service in the form it accepts: references by id, and a single one without the list that services show."""
    if attribute is None or attribute.type != AttributeType.REFERENCE:
        return value
    ids = ids_only(value)
    return ids[0] if attribute.is_list is False and isinstance(ids, list) and len(ids) == 1 else ids


def ids_only(value: Any) -> Any:
    if isinstance(value, list):
        return [ids_only(item) for item in value]
    return reference_id(value)
