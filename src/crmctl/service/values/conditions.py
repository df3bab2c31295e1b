"""Filter conditions as they come from a query, a search body or a definitions file, read into the shared Condition.

Slugs are checked against an object elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from crmctl.models import jsontext
from crmctl.models.filters import Condition, Operator
from crmctl.service.faults import BadRequest, shown
from crmctl.service.shapes import Body

MAX_CONDITIONS = 100
"""Of one search; SQLite's statements may be nested 1,000 levels deep, and every condition is one or more."""

_OPERATORS = {str(operator): operator for operator in Operator}


class ConditionDefinition(Body):
    """As in the `filters` of a search body."""

    attribute_slug: str
    operator: str
    value: str | bool | int | float = "true"


def too_many_conditions(count: int) -> BadRequest:
    """The refusal of more conditions than MAX_CONDITIONS."""
    return BadRequest(
        f"a search can have at most {MAX_CONDITIONS} filters, this one has {count}", {"field": "filters", "limit": MAX_CONDITIONS}
    )


def read_conditions(definitions: Iterable[ConditionDefinition]) -> list[Condition]:
    """Raises BadRequest for an unknown operator."""
    return [read_condition(each.attribute_slug, each.operator, each.value) for each in definitions]


def read_condition(slug: Any, operator: Any, value: Any) -> Condition:
    """`value` is text by the specification; a JSON number or boolean counts as its spelling. Raises BadRequest naming what is wrong."""
    if not isinstance(slug, str) or not slug:
        raise BadRequest("a filter needs an attribute slug", {"field": "attributeSlug"})
    if not isinstance(operator, str) or operator not in _OPERATORS:
        raise BadRequest(
            f"unknown operator {shown(str(operator))!r} in the filter on {shown(slug)!r}; the operators are: {', '.join(_OPERATORS)}",
            {"field": "operator", "slug": shown(slug), "valid": list(_OPERATORS)},
        )
    if isinstance(value, bool | int | float | Decimal):
        value = jsontext.dumps(value)
    if not isinstance(value, str):
        raise BadRequest(f"the filter on {shown(slug)!r} needs a value given as a string", {"field": "value", "slug": shown(slug)})
    return Condition(slug, _OPERATORS[operator], value)
