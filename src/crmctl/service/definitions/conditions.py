"""Conditions as definitions files spell them, shared by reports and workflows: the entries of a search body's `filters`."""

from __future__ import annotations

from collections.abc import Iterable

from crmctl.models.filters import Condition
from crmctl.service.shapes import Body
from crmctl.service.values.conditions import read_condition


class ConditionDefinition(Body):
    attribute_slug: str
    operator: str
    value: str | bool | int | float = "true"


def read_conditions(definitions: Iterable[ConditionDefinition]) -> list[Condition]:
    """Raises BadRequest for an unknown operator."""
    return [read_condition(each.attribute_slug, each.operator, each.value) for each in definitions]
