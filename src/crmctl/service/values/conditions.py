"""Filter conditions as they come from a query or a search body, read into the shared Condition.

Slugs are checked against an object elsewhere.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from crmctl.models import jsontext
from crmctl.models.filters import Condition, Operator
from crmctl.service.faults import BadRequest, shown

_OPERATORS = {str(operator): operator for operator in Operator}


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
