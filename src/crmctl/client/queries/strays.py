"""Records that clearly do not meet what the service was asked for: it does not heed a condition, or its lists are behind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from crmctl.errors import RejectedError
from crmctl.models.attributes import Attribute
from crmctl.models.comparison import COMPLEMENTS, Test, keys_of, text_of, value_test
from crmctl.models.filters import Condition, Operator
from crmctl.models.folded_text import fold
from crmctl.models.records import Record

SURE = ("text", "email", "select", "number", "checkbox")
"""Types whose operators mean the same to every service; upper and lower case may or may not."""


def stray_finder(attributes: Iterable[Attribute], conditions: Sequence[Condition]) -> Callable[[Record], str | None]:
    """What finds out of a record which of the conditions it does not meet, in words."""
    known = {attribute.slug: attribute for attribute in attributes if attribute.type in SURE}
    tests = [(one, known[one.slug], test) for one in conditions if one.slug in known and (test := _test(known[one.slug], one)) is not None]

    def find(record: Record) -> str | None:
        for condition, attribute, test in tests:
            value = record.data.get(condition.slug)
            if not (test(value) or (isinstance(value, str) and test(value.strip()))):
                shown = ", ".join(map(repr, filter(None, [text_of(attribute, value)]))) or "nothing"
                return f"the service was asked for {condition.slug} {condition.operator} {condition.value!r} and answered with {shown}"
        return None

    return find


def _test(attribute: Attribute, condition: Condition) -> Test | None:
    operator, wanted = condition.operator, fold(condition.value.strip())
    try:
        exact = value_test(attribute, operator, condition.value)
    except RejectedError:
        return None
    if COMPLEMENTS.get(operator, operator) is not Operator.EQUALS or attribute.type in ("number", "checkbox"):
        return exact
    is_wanted = operator is Operator.EQUALS
    return lambda value: exact(value) or (wanted in [key.strip() for key in keys_of(attribute, value)]) is is_wanted
