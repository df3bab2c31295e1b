"""Conditions on a part of a composite (`address.city=Rome`): the service's operator on the whole narrows, the rest is decided here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from crmctl.client.queries.record_filter import AnyOf, Criterion, Narrowing, RecordFilter
from crmctl.errors import UsageError
from crmctl.models import jsontext
from crmctl.models.attributes import Attribute, AttributeType
from crmctl.models.comparison import COMPARISONS, COMPLEMENTS, PATTERNS, elements_of, value_test
from crmctl.models.composites import usual_name
from crmctl.models.filters import Clause, Condition, Operator
from crmctl.models.folded_text import fold
from crmctl.models.records import Record

_BARE = {AttributeType.CURRENCY: "amount", AttributeType.PHONE_NUMBER: "number"}
"""The part that a value which is not an object stands for."""


def parts_of(attribute: Attribute, value: Any, part: str) -> list[Any]:
    """What a value, or each element of an array, holds as this part, however it is spelled there."""
    found = []
    usual = usual_name(attribute, part)
    for element in elements_of(value):
        if isinstance(element, Mapping):
            keys = [part] if part in element else [key for key in element if usual is not None and usual_name(attribute, key) == usual]
            found += [element[key] for key in keys if element[key] not in (None, "")]
        elif usual is not None and usual == _BARE.get(AttributeType(attribute.type or "")):
            found.append(element)
    return found


def part_filter(attribute: Attribute, part: str, clause: Clause) -> RecordFilter:
    """Raises UsageError for an operator that the part does not have."""
    return RecordFilter(narrowings=_narrowings(attribute, part, clause), criteria=(_criterion(attribute, part, clause),))


def _is_amount(attribute: Attribute, part: str) -> bool:
    return attribute.type == AttributeType.CURRENCY and usual_name(attribute, part) == "amount"


def _criterion(attribute: Attribute, part: str, clause: Clause) -> Criterion:
    kind = AttributeType.NUMBER if _is_amount(attribute, part) else AttributeType.TEXT
    stand_in = Attribute(id="", slug=clause.target, type=kind, is_list=True)
    positive = COMPLEMENTS.get(clause.operator, clause.operator)
    tests = [value_test(stand_in, positive, value) for value in clause.values]
    is_complement = clause.operator in COMPLEMENTS
    undecided: set[str] = set()

    def admits(record: Record) -> bool:
        value = record.data.get(attribute.slug)
        parts = parts_of(attribute, value, part)
        if not parts and any(isinstance(one, str) and _may_hold(one, clause, positive) for one in elements_of(value)):
            undecided.add(record.id)
        return any(test(parts) for test in tests) is not is_complement

    def remark() -> str | None:
        if not undecided:
            return None
        have = "1 record has" if len(undecided) == 1 else f"{len(undecided):,} records have"
        hold = " that holds it" if positive in PATTERNS | {Operator.EQUALS} else ""
        return f"{have} {attribute.slug} as one text{hold}: it has no parts, so {clause.target} says nothing of it"

    return Criterion(admits, remark)


def _may_hold(text: str, clause: Clause, positive: Operator) -> bool:
    return positive not in PATTERNS | {Operator.EQUALS} or any(fold(value) in fold(text) for value in clause.values)


def _narrowings(attribute: Attribute, part: str, clause: Clause) -> tuple[Narrowing, ...]:
    slug, operator = attribute.slug, clause.operator

    def text_of_part(value: Any) -> str | None:
        found = parts_of(attribute, value, part) if any(isinstance(one, Mapping) for one in elements_of(value)) else []
        return next((one if isinstance(one, str) else jsontext.dumps(one) for one in found), None)

    if operator in COMPLEMENTS or (operator is Operator.EQUALS and "" in clause.values):
        return ()  # what does not have it is found by no operator that looks for it
    if attribute.type == AttributeType.CURRENCY:
        if not _is_amount(attribute, part):
            return (Narrowing(slug, (Condition(slug, Operator.IS_NOT_EMPTY),), lambda _: None),)
        return (Narrowing(slug, tuple(Condition(slug, operator, value) for value in clause.values), text_of_part),)
    if operator in COMPARISONS or operator is Operator.IS_NOT_EMPTY:
        return (Narrowing(slug, (Condition(slug, Operator.IS_NOT_EMPTY),), lambda _: None),)
    if operator in PATTERNS | {Operator.EQUALS}:
        return (Narrowing(slug, tuple(Condition(slug, Operator.CONTAINS, value) for value in clause.values), text_of_part),)
    raise UsageError(f"{operator} does not apply to {clause.target}", hint="parts are texts", code="bad_filter")


def any_of(conditions: tuple[Condition, ...], attributes: Mapping[str, Attribute], *, is_disjoint: bool = False) -> AnyOf:
    """Conditions of which one must hold."""
    tests = [(each.slug, value_test(attributes[each.slug], each.operator, each.value)) for each in conditions]
    return AnyOf(conditions, lambda record: any(test(record.data.get(slug)) for slug, test in tests), is_disjoint)
