"""Records that clearly do not meet what the service was asked for: it does not heed a condition, or its lists are behind.

Services differ in how they compare: by case, accents, blanks, the order of letters, labels of options. What depends on that is not clear.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from crmctl.errors import RejectedError
from crmctl.models.attributes import Attribute, AttributeType
from crmctl.models.comparison import Test, elements_of, text_of, value_test
from crmctl.models.filters import Condition, Operator
from crmctl.models.folded_text import fold
from crmctl.models.records import Record

TEXTS = (AttributeType.TEXT, AttributeType.EMAIL, AttributeType.SELECT)

_HOLDS: dict[Operator, Callable[[str, str], bool]] = {
    Operator.EQUALS: lambda text, wanted: text == wanted,
    Operator.CONTAINS: lambda text, wanted: wanted in text,
    Operator.STARTS_WITH: lambda text, wanted: text.startswith(wanted),
    Operator.ENDS_WITH: lambda text, wanted: text.endswith(wanted),
}


def stray_finder(attributes: Iterable[Attribute], conditions: Sequence[Condition]) -> Callable[[Record], str | None]:
    """What finds out of a record which of the conditions it clearly does not meet, in words."""
    known = {attribute.slug: attribute for attribute in attributes}
    tests = [(one, known[one.slug], test) for one in conditions if one.slug in known and (test := _test(known[one.slug], one)) is not None]

    def find(record: Record) -> str | None:
        for condition, attribute, may_meet in tests:
            value = record.data.get(condition.slug)
            if not may_meet(value):
                shown = ", ".join(map(repr, filter(None, [text_of(attribute, value)]))) or "nothing"
                return f"the service was asked for {condition.slug} {condition.operator} {condition.value!r} and answered with {shown}"
        return None

    return find


def _test(attribute: Attribute, condition: Condition) -> Test | None:
    """Whether a value may meet the condition; None where nothing is clear."""
    if attribute.type == AttributeType.NUMBER:
        return _number_test(attribute, condition)
    if attribute.type == AttributeType.CHECKBOX:
        wanted = {Operator.IS_TRUE: True, Operator.IS_FALSE: False}.get(condition.operator)
        return None if wanted is None else lambda value: value is not (not wanted)
    if attribute.type not in TEXTS:
        return None
    if condition.operator is Operator.NOT_EQUALS:
        return lambda value: value != condition.value
    wished, holds = _loose(condition.value), _HOLDS.get(condition.operator)
    if holds is None or not wished:
        return None
    if attribute.type == AttributeType.SELECT and wished not in map(_loose, attribute.options):
        return None  # perhaps by its label
    return lambda value: not _is_text(value) or any(holds(_loose(element), wished) for element in elements_of(value))


def _number_test(attribute: Attribute, condition: Condition) -> Test | None:
    try:
        meets = value_test(attribute, condition.operator, condition.value)
    except RejectedError:
        return None
    return lambda value: isinstance(value, bool | str | list | dict) or meets(value)


def _is_text(value: Any) -> bool:
    return all(isinstance(element, str) for element in elements_of(value))


def _loose(text: str) -> str:
    """Without case, accents and repeated or outer blanks."""
    letters = (letter for letter in unicodedata.normalize("NFKD", fold(text)) if not unicodedata.combining(letter))
    return " ".join("".join(letters).split())
