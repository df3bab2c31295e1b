"""Filters: the fourteen operators, one condition, and its two wire forms (specification 4.3). No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Operator(StrEnum):
    """The filter operators of the specification, spelled as on the wire."""

    EQUALS = "equals"
    NOT_EQUALS = "notEquals"
    CONTAINS = "contains"
    NOT_CONTAINS = "notContains"
    STARTS_WITH = "startsWith"
    ENDS_WITH = "endsWith"
    GREATER_THAN = "greaterThan"
    LESS_THAN = "lessThan"
    GREATER_THAN_OR_EQUAL = "greaterThanOrEqual"
    LESS_THAN_OR_EQUAL = "lessThanOrEqual"
    IS_EMPTY = "isEmpty"
    IS_NOT_EMPTY = "isNotEmpty"
    IS_TRUE = "isTrue"
    IS_FALSE = "isFalse"

    @property
    def takes_value(self) -> bool:
        return self not in VALUELESS


VALUELESS = frozenset({Operator.IS_EMPTY, Operator.IS_NOT_EMPTY, Operator.IS_TRUE, Operator.IS_FALSE})
"""Operators whose value on the wire is always `true`."""


@dataclass(frozen=True)
class Condition:
    """One condition on an attribute; `value` is `true` for the operators that take none."""

    slug: str
    operator: Operator
    value: str = "true"

    def to_query(self) -> tuple[str, str]:
        """The query parameter of List Records: `filter[<slug>][<operator>]` and its value, not yet percent-encoded."""
        return f"filter[{self.slug}][{self.operator}]", self.value

    def to_search(self) -> dict[str, str]:
        """The entry in the `filters` of a search body."""
        return {"attributeSlug": self.slug, "operator": str(self.operator), "value": self.value}
