"""Conditions on the data of one event, judged by the very SQL that filters lists, so that they mean the same to the letter."""
# ruff: noqa: S608 - statements are put together from this package's own names only; values are always parameters

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from crmctl.models.attributes import AttributeType
from crmctl.models.filters import Condition
from crmctl.service.faults import BadRequest, shown
from crmctl.service.store import record_tables
from crmctl.service.store.conditions import combine, compile_condition
from crmctl.service.store.schema import Schema
from crmctl.service.store.tx import Tx
from crmctl.service.values.attribute import StoredAttribute
from crmctl.service.values.projection import project
from crmctl.service.values.text import Invalid


@dataclass(frozen=True)
class ConditionSource:
    """What conditions can be about. `column` names the column of `table` that holds such values."""

    table: str
    attributes: Mapping[str, StoredAttribute]
    column: Callable[[StoredAttribute], str]


ACTIVITIES = ConditionSource("activity", {"title": StoredAttribute("", 0, "title", AttributeType.TEXT)}, lambda attribute: attribute.slug)
"""Of its data, an activity's event carries the title."""


def records_of(schema: Schema) -> ConditionSource:
    return ConditionSource(schema.table, schema.attributes, record_tables.column)


def check(tx: Tx, source: ConditionSource, conditions: Sequence[Condition]) -> None:
    """Raises BadRequest naming the slug for an unknown one, an operator its type does not have, or a value of the wrong kind."""
    for condition in conditions:
        if condition.slug not in source.attributes:
            valid = list(source.attributes)
            raise BadRequest(
                f"unknown attribute {shown(condition.slug)!r} in a condition; conditions can use: {', '.join(valid)}",
                {"field": "attributeSlug", "slug": shown(condition.slug), "valid": valid},
            )
        compile_condition(condition, source.attributes, tx.dialect)


def hold(tx: Tx, source: ConditionSource, conditions: Sequence[Condition], data: Mapping[str, Any]) -> bool:
    """Whether all conditions are true of the data. Raises BadRequest where they cannot be judged any more."""
    if not conditions:
        return True
    check(tx, source, conditions)
    columns: list[str] = []
    values: list[str | None] = []
    for slug in dict.fromkeys(condition.slug for condition in conditions):
        attribute = source.attributes[slug]
        try:
            projection = project(attribute, data.get(slug))
        except Invalid as problem:
            raise BadRequest(f"{slug} {problem}", {"field": slug}) from None
        stored = source.column(attribute)
        columns += [f"{stored} AS {record_tables.column(attribute)}", f"{stored} AS {record_tables.exact_column(attribute)}"]
        values += [projection.column, projection.exact]
    # The empty first half lends the one row its types and the way its text compares.
    marks = ", ".join("?" * len(values))
    row = f"SELECT {', '.join(columns)} FROM {source.table} WHERE 1 = 0 UNION ALL SELECT {marks}"
    where = combine([compile_condition(condition, source.attributes, tx.dialect) for condition in conditions])
    return tx.one(f"SELECT 1 FROM ({row}) AS event WHERE {where.sql}", (*values, *where.params)) is not None
