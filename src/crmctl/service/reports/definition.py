"""What a report asks: its shape in a definitions file, and that shape checked against the object it is about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from crmctl.models.filters import Condition
from crmctl.service.faults import BadRequest, shown
from crmctl.service.shapes import Body
from crmctl.service.store.conditions import compile_condition
from crmctl.service.store.schema import Schema
from crmctl.service.store.tx import Tx
from crmctl.service.values.attribute import StoredAttribute
from crmctl.service.values.conditions import ConditionDefinition, read_conditions
from crmctl.service.values.kinds import KINDS, Family

FIELDS_OF_EVERY_RECORD = ("id", "created_at", "updated_at")
SORTABLE_FIELDS = FIELDS_OF_EVERY_RECORD[1:]

DEFAULT_LIMIT = 10_000
MOST_RESULTS = 100_000

_MEASURED = {
    "sum": (Family.NUMBER,),
    "avg": (Family.NUMBER,),
    "min": (Family.NUMBER, Family.DATE),
    "max": (Family.NUMBER, Family.DATE),
}


class MeasureDefinition(Body):
    function: Literal["count", "sum", "avg", "min", "max"]
    attribute: str | None = None


class SortDefinition(Body):
    """`field` is a column of the results; a report of records may also sort by other attributes of the object."""

    field: str
    order: Literal["asc", "desc"] = "asc"


class ReportDefinition(Body):
    """Either `columns` (one result per record; all attributes when left out) or `groupBy` and `measures` (one result per group)."""

    name: str
    object: str
    description: str | None = None
    filters: list[ConditionDefinition] = Field(default_factory=list)
    columns: list[str] | None = None
    group_by: str | None = None
    measures: list[MeasureDefinition] = Field(default_factory=list)
    sort: SortDefinition | None = None
    limit: int | None = Field(None, ge=1, le=MOST_RESULTS)

    def question(self) -> dict[str, Any]:
        """What is asked, in canonical form: the definition without its name, description and object."""
        asked = self.model_dump(by_alias=True, exclude_none=True, exclude={"name", "object", "description"})
        asked["filters"] = [condition.to_search() for condition in read_conditions(self.filters)]
        return {field: value for field, value in asked.items() if value or field == "columns"}


@dataclass(frozen=True)
class Measure:
    """One computed column; `attribute` is None for the count of records."""

    name: str
    function: str
    attribute: StoredAttribute | None


@dataclass(frozen=True)
class Plan:
    """A report ready to run on one object. `measures` is empty for a report of records."""

    schema: Schema
    conditions: Sequence[Condition]
    columns: Sequence[str]
    group: StoredAttribute | None
    measures: Sequence[Measure]
    sort: str | None
    descending: bool
    limit: int


def plan_report(tx: Tx, definition: ReportDefinition, schema: Schema) -> Plan:
    """Raises BadRequest naming the field at fault."""
    conditions = read_conditions(definition.filters)
    for condition in conditions:
        compile_condition(condition, schema.attributes, tx.dialect)
    group = None if definition.group_by is None else _attribute(schema, definition.group_by, "groupBy")
    grouped = bool(definition.measures) or group is not None
    measures = [_measure(schema, each) for each in definition.measures or ([MeasureDefinition(function="count")] if grouped else [])]
    if grouped and definition.columns is not None:
        raise BadRequest("columns cannot be combined with groupBy or measures", {"field": "columns"})
    names = ([group.slug] if group else []) + [measure.name for measure in measures] if grouped else _columns(schema, definition.columns)
    _refuse_repeats(names)
    sort = definition.sort
    if sort is not None:
        _check_sort(schema, sort.field, names, grouped=grouped)
    return Plan(
        schema,
        conditions,
        names,
        group,
        measures,
        sort.field if sort else None,
        sort is not None and sort.order == "desc",
        definition.limit or DEFAULT_LIMIT,
    )


def _columns(schema: Schema, wanted: list[str] | None) -> list[str]:
    if wanted is None:
        return list(schema.attributes)
    if not wanted:
        raise BadRequest("columns must name at least one attribute", {"field": "columns"})
    for slug in wanted:
        if slug not in FIELDS_OF_EVERY_RECORD:
            _attribute(schema, slug, "columns")
    return wanted


def _measure(schema: Schema, wanted: MeasureDefinition) -> Measure:
    function, slug = wanted.function, wanted.attribute
    if slug is None:
        if function != "count":
            raise BadRequest(f"measures: {function} needs an attribute", {"field": "measures"})
        return Measure("count", function, None)
    attribute = _attribute(schema, slug, "measures")
    if function in _MEASURED and KINDS[attribute.type].family not in _MEASURED[function]:
        kinds = "numbers and currencies" if len(_MEASURED[function]) == 1 else "numbers, currencies and dates"
        raise BadRequest(f"measures: {function} takes {kinds} only, and {slug} is of type {attribute.type}", {"field": "measures"})
    return Measure(f"{function}_{slug}", function, attribute)


def _check_sort(schema: Schema, field: str, names: Sequence[str], *, grouped: bool) -> None:
    if grouped:
        if field not in names:
            raise BadRequest(f"sort.field must be one of: {', '.join(names)}", {"field": "sort.field"})
        return
    if field not in SORTABLE_FIELDS and _attribute(schema, field, "sort.field").holds_many:
        raise BadRequest(f"sort.field: {field} holds several values and cannot be sorted by", {"field": "sort.field"})


def _attribute(schema: Schema, slug: str, field: str) -> StoredAttribute:
    if slug not in schema.attributes:
        valid = ", ".join(schema.attributes)
        raise BadRequest(f"{field}: unknown attribute {shown(slug)!r}; the attributes are: {valid}", {"field": field})
    return schema.attributes[slug]


def _refuse_repeats(names: Sequence[str]) -> None:
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise BadRequest(f"two columns of the results are called {repeated}", {"field": "columns"})
