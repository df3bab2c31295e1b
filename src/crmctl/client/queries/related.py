"""Conditions on the record that a reference names (`company.domain=acme.com`): those records are looked up first, then their ids."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from crmctl.client.queries.record_filter import AnyOf, Criterion, RecordFilter
from crmctl.errors import UsageError
from crmctl.models.attributes import Attribute
from crmctl.models.comparison import COMPLEMENTS, elements_of
from crmctl.models.filters import Clause, Condition, Operator
from crmctl.models.records import Record

MOST_EXCLUDED = 20
"""So many ids at most go into one request as what a reference must not be."""


def reference_ids(value: Any) -> list[str]:
    """The ids that a value names, in lower case."""
    found = []
    for element in elements_of(value):
        one = next((element[key] for key in ("id", "recordId") if element.get(key)), None) if isinstance(element, Mapping) else element
        if isinstance(one, str) and one:
            found.append(one.lower())
    return found


def related_filter(attribute: Attribute, rest: str, clause: Clause, look_up: Callable[[str, Clause], list[str]]) -> RecordFilter:
    """`look_up` gives the ids of an object's records that meet a condition. Raises UsageError where nobody says which object it is."""
    target = attribute.target_object_id
    if target is None:
        raise UsageError(f"the service does not say what {attribute.slug} refers to", hint=f"{attribute.slug}=ID", code="unknown_attribute")
    positive = COMPLEMENTS.get(clause.operator, clause.operator)
    ids = look_up(target, replace(clause, target=rest, operator=positive))
    return _with_ids(attribute.slug, ids, is_complement=clause.operator in COMPLEMENTS, is_single=not attribute.is_list)


def _with_ids(slug: str, ids: list[str], *, is_complement: bool, is_single: bool) -> RecordFilter:
    wanted = frozenset(ids)

    def refers(record: Record) -> bool:
        return not wanted.isdisjoint(reference_ids(record.data.get(slug)))

    if not is_complement:
        if len(ids) <= 1:
            return RecordFilter(tuple(Condition(slug, Operator.EQUALS, one) for one in ids), is_impossible=not ids)
        return RecordFilter(choices=(AnyOf(tuple(Condition(slug, Operator.EQUALS, one) for one in ids), refers, is_disjoint=is_single),))
    if len(ids) <= MOST_EXCLUDED:
        return RecordFilter(tuple(Condition(slug, Operator.NOT_EQUALS, one) for one in ids), needs_body=len(ids) > 1)
    return RecordFilter(criteria=(Criterion(lambda record: not refers(record)),))
