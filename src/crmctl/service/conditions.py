"""Read filter conditions from a query, a search body or a definitions file. The store checks their slugs."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from crmctl.models import jsontext
from crmctl.service.faults import BadRequest, Body, shown
from crmctl.values.filters import Condition
from crmctl.values.operators import OPERATORS

MAX_CONDITIONS = 100
"""Most conditions of one search. SQLite nests statements at most 1,000 levels deep, and a condition adds at least one."""


class ConditionDefinition(Body):
    """An entry in the `filters` of a search body."""

    attribute_slug: str
    operator: str
    value: str | bool | int | float = "true"


def too_many_conditions(count: int) -> BadRequest:
    return BadRequest(
        f"a search can have at most {MAX_CONDITIONS} filters, this one has {count}", {"field": "filters", "limit": MAX_CONDITIONS}
    )


def read_conditions(definitions: Iterable[ConditionDefinition]) -> list[Condition]:
    """Raises BadRequest for an unknown operator."""
    return [read_condition(each.attribute_slug, each.operator, each.value) for each in definitions]


def read_condition(slug: Any, operator: Any, value: Any) -> Condition:
    """Read one condition. `value` is text by the specification; JSON numbers and booleans count as text. Raises BadRequest."""
    if not isinstance(slug, str) or not slug:
        raise BadRequest("a filter needs an attribute slug", {"field": "attributeSlug"})
    if not isinstance(operator, str) or operator not in OPERATORS:
        raise BadRequest(
            f"unknown operator {shown(str(operator))!r} in the filter on {shown(slug)!r}; the operators are: {', '.join(OPERATORS)}",
            {"field": "operator", "slug": shown(slug), "valid": list(OPERATORS)},
        )
    if isinstance(value, bool | int | float | Decimal):
        value = jsontext.dumps(value)
    if not isinstance(value, str):
        raise BadRequest(f"the filter on {shown(slug)!r} needs a value given as a string", {"field": "value", "slug": shown(slug)})
    return Condition(slug, OPERATORS[operator], value)
