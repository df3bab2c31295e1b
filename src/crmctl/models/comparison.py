"""The one table of operators outside the service: whether a value as it was sent meets a condition. Agrees with the service, by test.

Empty is one thing: missing, null, "", [] and a composite in which every part is empty. An array matches when any element does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from crmctl.errors import RejectedError
from crmctl.models import jsontext
from crmctl.models.attributes import Attribute, AttributeType
from crmctl.models.composites import usual_name
from crmctl.models.filters import Operator
from crmctl.models.folded_text import address_text, fold, name_text
from crmctl.models.timestamps import micros_of

Key = Any
Test = Callable[[Any], bool]
"""Whether a value meets a condition."""

COMPLEMENTS = {
    Operator.NOT_EQUALS: Operator.EQUALS,
    Operator.NOT_CONTAINS: Operator.CONTAINS,
    Operator.IS_EMPTY: Operator.IS_NOT_EMPTY,
}
"""Operators that match exactly what another one does not."""

COMPARISONS = frozenset({Operator.GREATER_THAN, Operator.LESS_THAN, Operator.GREATER_THAN_OR_EQUAL, Operator.LESS_THAN_OR_EQUAL})
PATTERNS = frozenset({Operator.CONTAINS, Operator.STARTS_WITH, Operator.ENDS_WITH})
_ORDERED = COMPARISONS | {Operator.EQUALS}
_TRUTHS = frozenset({Operator.EQUALS, Operator.IS_TRUE, Operator.IS_FALSE})
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,6})?")
_NUMBERS = frozenset({AttributeType.NUMBER, AttributeType.CURRENCY})

_BY_OPERATOR: dict[Operator, Callable[[Key, Key], bool]] = {
    Operator.EQUALS: lambda left, right: bool(left == right),
    Operator.GREATER_THAN: lambda left, right: bool(left > right),
    Operator.LESS_THAN: lambda left, right: bool(left < right),
    Operator.GREATER_THAN_OR_EQUAL: lambda left, right: bool(left >= right),
    Operator.LESS_THAN_OR_EQUAL: lambda left, right: bool(left <= right),
    Operator.CONTAINS: lambda left, right: right in left,
    Operator.STARTS_WITH: lambda left, right: left.startswith(right),
    Operator.ENDS_WITH: lambda left, right: left.endswith(right),
}


def value_test(attribute: Attribute, operator: Operator, wanted: str) -> Test:
    """A test of the values of an attribute. Raises RejectedError for an operator its type does not have, and for a wanted value that is
    none of its type."""
    positive = COMPLEMENTS.get(operator, operator)
    is_complement = operator in COMPLEMENTS
    allowed = operators_of(attribute)
    if positive is not Operator.IS_NOT_EMPTY and positive not in allowed:
        raise RejectedError(f"{operator} does not apply to {attribute.slug}, a {attribute.type} attribute", code="operator_not_applicable")
    if positive is Operator.EQUALS and wanted == "" and Operator.CONTAINS in allowed:
        positive, is_complement = Operator.IS_NOT_EMPTY, not is_complement
    if positive is Operator.IS_NOT_EMPTY:
        return lambda value: bool(keys_of(attribute, value)) is not is_complement
    matches = _key_test(attribute, positive, wanted)
    keys = exact_keys if positive is Operator.EQUALS and Operator.CONTAINS in allowed else keys_of
    return lambda value: any(map(matches, keys(attribute, value))) is not is_complement


def operators_of(attribute: Attribute) -> frozenset[Operator]:
    """The operators that a type has, besides presence and complements."""
    if attribute.type in _NUMBERS or attribute.type == AttributeType.DATE:
        return _ORDERED
    return _TRUTHS if attribute.type == AttributeType.CHECKBOX else _ORDERED | PATTERNS


def keys_of(attribute: Attribute, value: Any) -> list[Key]:
    """What a value is compared by: one key, one for each element of an array, none for an empty value."""
    read = _READERS.get(attribute.type or "")
    if read is not None:
        return [key for element in elements_of(value) if (key := read(attribute, element)) is not None]
    return [fold(text) for text in exact_keys(attribute, value)]


def exact_keys(attribute: Attribute, value: Any) -> list[str]:
    """The texts of a value as `equals` compares them; ids have no case."""
    texts = [text for element in elements_of(value) if (text := text_of(attribute, element))]
    return [fold(text) for text in texts] if attribute.type == AttributeType.REFERENCE else texts


def text_of(attribute: Attribute, value: Any) -> str:
    """One value as the text it is searched by; a composite's parts in the order people write them."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if not isinstance(value, Mapping):
        return jsontext.dumps(value)
    if attribute.type == AttributeType.REFERENCE:
        return next((str(value[key]) for key in ("id", "recordId") if value.get(key)), "")
    texts = {part: inner if isinstance(inner, str) else "" if inner is None else jsontext.dumps(inner) for part, inner in value.items()}
    return address_text(texts) if attribute.type == AttributeType.ADDRESS else name_text(texts)


def number_key(attribute: Attribute, value: Any) -> Decimal | None:
    """The number of a value, of money its amount; None where there is none."""
    if isinstance(value, Mapping):
        value = next((inner for part, inner in value.items() if usual_name(attribute, part) == "amount"), None)
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal | str):
        return None
    try:
        number = Decimal(str(value).strip())
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


def elements_of(value: Any) -> list[Any]:
    """The elements of an array; of any other value itself."""
    return value if isinstance(value, list) else [] if value is None else [value]


def _micros(_attribute: Attribute, value: Any) -> int | None:
    return micros_of(value) if isinstance(value, str) else None


def _truth(value: Any) -> bool | None:
    return value if isinstance(value, bool) else {"true": True, "false": False}.get(str(value).lower())


_READERS: dict[str, Callable[[Attribute, Any], Key | None]] = {
    AttributeType.NUMBER: number_key,
    AttributeType.CURRENCY: number_key,
    AttributeType.DATE: _micros,
    AttributeType.CHECKBOX: lambda _, value: _truth(value),
}
"""Keys of the types that are not compared as text."""


def _key_test(attribute: Attribute, operator: Operator, wanted: str) -> Callable[[Key], bool]:
    if attribute.type == AttributeType.CHECKBOX:
        truth = operator is not Operator.IS_FALSE if operator is not Operator.EQUALS else _truth(wanted)
        if truth is None:
            raise RejectedError(f"{attribute.slug} is yes or no, so {wanted!r} says nothing of it", hint="true or false", code="bad_filter")
        return lambda key: key is truth
    if attribute.type in _NUMBERS and not _NUMBER.fullmatch(wanted.strip()):
        raise RejectedError(f"{attribute.slug} holds numbers, so {wanted!r} says nothing of it", code="bad_filter")
    right: Key = wanted
    if attribute.type in _NUMBERS:
        right = Decimal(wanted.strip())
    elif attribute.type == AttributeType.DATE:
        right = micros_of(wanted)
        if right is None:
            raise RejectedError(f"{attribute.slug} holds dates, so {wanted!r} says nothing of it", code="bad_filter")
    elif operator is not Operator.EQUALS or attribute.type == AttributeType.REFERENCE:
        right = fold(wanted)
    compare = _BY_OPERATOR[operator]
    return lambda key: compare(key, right)
