"""Define and run reports. A run reads a snapshot while others write, and its results are stored in a transaction of their own."""

from __future__ import annotations

import decimal
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from typing import Any, Literal

from pydantic import Field

from crmctl.frozen import frozen
from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.service.context import Context
from crmctl.service.faults import BadRequest, Body, NotFound, shown
from crmctl.service.store import records as scanning
from crmctl.service.store import reports
from crmctl.service.store.condition_sql import ConditionDefinition, Where, compile_condition, read_conditions
from crmctl.service.store.record_pages import SORTS, Search
from crmctl.service.store.record_tables import Schema, column, load_schema
from crmctl.service.store.tx import Tx
from crmctl.values.attribute_types import TYPES, Family, StoredAttribute
from crmctl.values.filters import Condition
from crmctl.values.folded_text import fold
from crmctl.values.projection import keys_in
from crmctl.values.value_readers import MAX_DIGITS, number_of

FIELDS_OF_EVERY_RECORD = ("id", "created_at", "updated_at")
SORTABLE_FIELDS = FIELDS_OF_EVERY_RECORD[1:]

CURRENCY = "currency"
"""Column of the results that measure amounts: one row per group and currency, so that currencies are never added."""

DEFAULT_LIMIT = 10_000
MOST_RESULTS = 100_000

_MEASURED = {
    "sum": (Family.NUMBER,),
    "avg": (Family.NUMBER,),
    "min": (Family.NUMBER, Family.DATE),
    "max": (Family.NUMBER, Family.DATE),
}

Period = Literal["day", "week", "month", "quarter", "year"]


class MeasureDefinition(Body):
    function: Literal["count", "sum", "avg", "min", "max"]
    attribute: str | None = None


class SortDefinition(Body):
    """`field` is a column of the results. A report of records may also sort by other attributes of the object."""

    field: str
    order: Literal["asc", "desc"] = "asc"


class ReportDefinition(Body):
    """Either `columns` (one result per record; all attributes when left out) or `groupBy` and `measures` (one result per group).

    `groupPeriod` groups dates by day, week, month, quarter or year.
    """

    name: str
    object: str
    description: str | None = None
    filters: list[ConditionDefinition] = Field(default_factory=list)
    columns: list[str] | None = None
    group_by: str | None = None
    group_period: Period | None = None
    measures: list[MeasureDefinition] = Field(default_factory=list)
    sort: SortDefinition | None = None
    limit: int | None = Field(None, ge=1, le=MOST_RESULTS)

    def question(self) -> Json:
        """Return the definition in canonical form, without its name, description and object."""
        question = self.model_dump(by_alias=True, exclude_none=True, exclude={"name", "object", "description"})
        question["filters"] = [condition.to_search() for condition in read_conditions(self.filters)]
        return {field: value for field, value in question.items() if value or field == "columns"}


@frozen
class Measure:
    """A computed column; `attribute` is None for the count of records."""

    name: str
    function: str
    attribute: StoredAttribute | None


@frozen
class Plan:
    """A report ready to run on one object. `measures` is empty for a report of records.

    `money` are the attributes whose amounts are measured, or make the groups, and `currency` the column that tells theirs apart.
    """

    schema: Schema
    conditions: Sequence[Condition]
    columns: Sequence[str]
    group: StoredAttribute | None
    period: Period | None
    measures: Sequence[Measure]
    money: Sequence[StoredAttribute]
    currency: str | None
    sort: str | None
    descending: bool
    limit: int


def plan_report(tx: Tx, definition: ReportDefinition, schema: Schema) -> Plan:
    """Check a definition against an object. Raises BadRequest naming the field at fault."""
    conditions = read_conditions(definition.filters)
    for condition in conditions:
        compile_condition(condition, schema.attributes, tx.dialect)
    group = None if definition.group_by is None else _attribute(schema, definition.group_by, "groupBy")
    if definition.group_period and (group is None or TYPES[group.type].family is not Family.DATE):
        raise BadRequest("groupPeriod needs a groupBy that is a date", {"field": "groupPeriod"})
    grouped = bool(definition.measures) or group is not None
    measures = [_measure(schema, measure) for measure in definition.measures or ([MeasureDefinition(function="count")] if grouped else [])]
    if grouped and definition.columns is not None:
        raise BadRequest("columns cannot be combined with groupBy or measures", {"field": "columns"})
    money = _money(group, measures)
    currency = None if not money else CURRENCY if group is None or group.slug != CURRENCY else f"{CURRENCY}_code"
    computed = ([group.slug] if group else []) + ([currency] if currency else []) + [measure.name for measure in measures]
    names = computed if grouped else _columns(schema, definition.columns)
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise BadRequest(f"two columns of the results are called {repeated}", {"field": "columns"})
    order: tuple[str | None, bool] = (None, False)
    if sort := definition.sort:
        if grouped and sort.field not in names:
            raise BadRequest(f"sort.field must be one of: {', '.join(names)}", {"field": "sort.field"})
        if not grouped and sort.field not in SORTABLE_FIELDS and _attribute(schema, sort.field, "sort.field").holds_many:
            raise BadRequest(f"sort.field: {sort.field} holds several values and cannot be sorted by", {"field": "sort.field"})
        order = sort.field, sort.order == "desc"
    limit = definition.limit or DEFAULT_LIMIT
    return Plan(schema, conditions, names, group, definition.group_period, measures, money, currency, *order, limit)


def _money(group: StoredAttribute | None, measures: Sequence[Measure]) -> list[StoredAttribute]:
    """Return the attributes of type currency whose amounts are compared or added."""
    measured = [measure.attribute for measure in measures if measure.function != "count"]
    amounts = {attribute.slug: attribute for attribute in (group, *measured) if attribute is not None and attribute.type == "currency"}
    return list(amounts.values())


def _columns(schema: Schema, columns: list[str] | None) -> list[str]:
    if columns is None:
        return list(schema.attributes)
    if not columns:
        raise BadRequest("columns must name at least one attribute", {"field": "columns"})
    for slug in columns:
        if slug not in FIELDS_OF_EVERY_RECORD:
            _attribute(schema, slug, "columns")
    return columns


def _measure(schema: Schema, definition: MeasureDefinition) -> Measure:
    function, slug = definition.function, definition.attribute
    if slug is None:
        if function != "count":
            raise BadRequest(f"measures: {function} needs an attribute", {"field": "measures"})
        return Measure("count", function, None)
    attribute = _attribute(schema, slug, "measures")
    if function in _MEASURED and TYPES[attribute.type].family not in _MEASURED[function]:
        kinds = "numbers and currencies" if len(_MEASURED[function]) == 1 else "numbers, currencies and dates"
        raise BadRequest(f"measures: {function} takes {kinds} only, and {slug} is of type {attribute.type}", {"field": "measures"})
    return Measure(f"{function}_{slug}", function, attribute)


def _attribute(schema: Schema, slug: str, field: str) -> StoredAttribute:
    if slug not in schema.attributes:
        valid = ", ".join(schema.attributes)
        raise BadRequest(f"{field}: unknown attribute {shown(slug)!r}; the attributes are: {valid}", {"field": field})
    return schema.attributes[slug]


MOST_GROUPS = 100_000

# Wide enough that no sum of values the service takes is ever rounded.
_EXACT = decimal.Context(prec=4 * MAX_DIGITS)
_AVERAGE = decimal.Context(prec=28)


@dataclass
class Tally:
    """A measure of a group so far; `extreme` is the key of its minimum or maximum."""

    measure: Measure
    count: int = 0
    total: Decimal = Decimal(0)
    extreme: str | None = None

    def add(self, keys: Sequence[str]) -> None:
        function = self.measure.function
        if function == "count":
            self.count += bool(keys)
            return
        self.count += len(keys)
        for key in keys:
            if function in ("sum", "avg"):
                self.total = _EXACT.add(self.total, number_of(key))
            else:
                self.extreme = key if self.extreme is None else (min if function == "min" else max)(self.extreme, key)

    def result(self, records: int) -> int | Decimal | str | None:
        """Return the result for a group of so many records. The sum of nothing is 0; its average, minimum and maximum are None."""
        attribute = self.measure.attribute
        match self.measure.function:
            case "count":
                return records if attribute is None else self.count
            case "sum":
                return plain_number(self.total)
            case "avg":
                return plain_number(_AVERAGE.divide(self.total, Decimal(self.count))) if self.count else None
        if self.extreme is None or attribute is None or TYPES[attribute.type].family is not Family.NUMBER:
            return self.extreme
        return plain_number(number_of(self.extreme))


@dataclass
class Group:
    """`key` and `currency` are None for records without a value; `first` is the sequence number of its first record."""

    key: str | None
    currency: str | None
    first: int
    records: int = 0
    tallies: list[Tally] = field(default_factory=list)


def aggregate(plan: Plan, rows: Iterable[Sequence[Any]]) -> list[Group]:
    """Compute the groups from rows `(seq, key of the group if there is one, keys of the measures..., values of `plan.money`...)`.

    A record with several values, or with amounts in several currencies, is in several groups.
    """
    groups: dict[tuple[str | None, str | None], Group] = {}
    first = 1 if plan.group is None else 2
    last = first + len(plan.measures)
    for row in rows:
        currencies = {attribute.slug: _currencies(value) for attribute, value in zip(plan.money, row[last:], strict=True)}
        codes = dict.fromkeys(code for several in currencies.values() for code in several) or {None: None}
        for key in _group_keys(plan, row):
            for code in codes:
                group = groups.get((key, code))
                if group is None:
                    if len(groups) >= MOST_GROUPS:
                        raise BadRequest(f"the report has more than {MOST_GROUPS:,} groups; filter it or group by something coarser")
                    group = groups[key, code] = Group(key, code, row[0], 0, list(map(Tally, plan.measures)))
                group.records += 1
                for tally, stored in zip(group.tallies, row[first:last], strict=True):
                    if stored is not None and (attribute := tally.measure.attribute) is not None:
                        keys, amounts = keys_in(attribute, stored), currencies.get(attribute.slug)
                        tally.add(keys if amounts is None else [k for k, c in zip(keys, amounts, strict=True) if c == code])
    if plan.group is None and not groups:
        return [Group(None, None, 0, 0, list(map(Tally, plan.measures)))]
    return list(groups.values())


def _currencies(value: str | float | None) -> list[str | None]:
    """Return the currency of each amount in a stored value, which is a number, or JSON of an object or an array of both."""
    if value is None:
        return []
    parsed = jsontext.loads(value) if isinstance(value, str) else value
    amounts = [amount for amount in parsed if amount is not None] if isinstance(parsed, list) else [parsed]
    return [(amount.get(CURRENCY) or "").strip().upper() or None if isinstance(amount, dict) else None for amount in amounts]


def plain_number(number: Decimal) -> int | Decimal:
    """Return an integer if it is one, otherwise a decimal without zeros at the end."""
    return int(number) if number == number.to_integral_value(context=_EXACT) else number.normalize(_EXACT)


def arrange(plan: Plan, groups: list[Group]) -> list[Group]:
    """Sort the groups as the report asks, by group and currency by default, and return at most `limit`.

    Options come in their own order, empty values last.
    """
    places = {option: place for place, option in enumerate(plan.group.options if plan.group else ())}
    by_group = plan.sort is None or (plan.group is not None and plan.sort == plan.group.slug)
    by_currency = plan.currency is not None and plan.sort == plan.currency
    ordered = _sorted(groups, lambda group: group.currency, descending=False)
    ordered = _sorted(
        ordered,
        lambda group: None if group.key is None else (places.get(group.key, len(places)), fold(group.key), group.key),
        descending=by_group and plan.descending,
    )
    if by_currency:
        ordered = _sorted(ordered, lambda group: group.currency, descending=plan.descending)
    elif not by_group:
        position = next(index for index, measure in enumerate(plan.measures) if measure.name == plan.sort)
        ordered = _sorted(ordered, lambda group: group.tallies[position].result(group.records), descending=plan.descending)
    return ordered[: plan.limit]


def _sorted(groups: list[Group], order: Any, *, descending: bool) -> list[Group]:
    values = [(order(group), group) for group in groups]
    present = sorted((pair for pair in values if pair[0] is not None), key=lambda pair: pair[0], reverse=descending)
    return [group for _, group in present] + [group for value, group in values if value is None]


def _group_keys(plan: Plan, row: Sequence[Any]) -> Sequence[str | None]:
    if plan.group is None or row[1] is None:
        return (None,)
    keys = keys_in(plan.group, row[1]) if plan.group.holds_many else (row[1],)
    return tuple(dict.fromkeys(keys if plan.period is None else (period_of(key, plan.period) for key in keys)))


def period_of(key: str, period: Period) -> str:
    """Return the period of a date's key: `2026-01-31`, `2026-W05` (ISO 8601), `2026-01`, `2026-Q1` or `2026`."""
    match period:
        case "week":
            year, week, _ = date.fromisoformat(key[:10]).isocalendar()
            return f"{year:04}-W{week:02}"
        case "quarter":
            return f"{key[:4]}-Q{(int(key[5:7]) + 2) // 3}"
        case _:
            return key[: {"day": 10, "month": 7, "year": 4}[period]]


MOST_BYTES = 32 * 1024 * 1024
"""Most bytes of a run's results as JSON."""


def run_report(context: Context, report_id: str, *, within: float | None = None) -> Json:
    """Run a report and return the run's metadata; its status is `failed` if the report cannot be computed any more.

    Raises NotFound, and Busy when computing takes longer than `within` seconds.
    """
    started_at = context.clock.now()
    outcome = context.engine.read(lambda tx: _compute(tx, report_id), within=within)

    def keep(tx: Tx) -> Json:
        run = reports.add_run(tx, report_id, outcome, started_at=started_at, ids=context.ids, now=context.clock.now())
        reports.make_room(tx, context.settings.quotas.results)
        return run

    return context.engine.write(keep)


def _compute(tx: Tx, report_id: str) -> reports.ReportOutcome:
    report = reports.get_report(tx, report_id)
    try:
        if report["object"] is None:
            raise BadRequest("the object of the report has been deleted")
        definition = ReportDefinition.model_validate({"name": "", "object": "", **report["definition"]})
        plan = plan_report(tx, definition, load_schema(tx, report["object"]["id"]))
        results, truncated = _grouped(tx, plan) if plan.measures else _listed(tx, plan)
        text, count = _written(results)
    except (BadRequest, NotFound) as fault:
        return reports.ReportOutcome([], "[]", 0, error=fault.message)
    return reports.ReportOutcome(list(plan.columns), text, count, truncated)


def _listed(tx: Tx, plan: Plan) -> tuple[Iterator[Json], bool]:
    """Return one result per record, with its values as they are stored, and whether there are more."""
    # The newest come first unless the report says otherwise.
    sort, is_descending = plan.sort or SORTS[0], plan.descending or plan.sort is None
    order = Where(sort if sort in SORTS else column(plan.schema.attributes[sort]))
    sequences = Search(tx, plan.schema.object_id, plan.conditions).sequences(order, is_descending, plan.limit + 1)
    records = scanning.records_at(tx, plan.schema, sequences[: plan.limit])
    return ({column: record.get(column) for column in plan.columns} for record in records), len(sequences) > plan.limit


def _grouped(tx: Tx, plan: Plan) -> tuple[Iterator[Json], bool]:
    expressions = [scanning.exact(plan.group)] if plan.group else []
    expressions += [column(measure.attribute) if measure.attribute else "NULL" for measure in plan.measures]
    expressions += [tx.dialect.member("data", attribute.slug) for attribute in plan.money]
    groups = aggregate(plan, scanning.scan(tx, plan.schema, plan.conditions, expressions))
    shown = arrange(plan, groups)
    return _group_results(tx, plan, shown), len(groups) > plan.limit


def _group_results(tx: Tx, plan: Plan, groups: list[Group]) -> Iterator[Json]:
    """Yield the results. A group is shown by its period, or by the value of its first record, as it is stored."""
    labels = _labels(tx, plan, groups)
    for label, group in zip(labels, groups, strict=True):
        measures = {tally.measure.name: tally.result(group.records) for tally in group.tallies}
        currency = {} if plan.currency is None else {plan.currency: group.currency}
        yield ({} if plan.group is None else {plan.group.slug: label}) | currency | measures


def _labels(tx: Tx, plan: Plan, groups: list[Group]) -> Iterator[Any]:
    attribute = plan.group
    if attribute is None or attribute.holds_many or plan.period:
        return (None if attribute is None or group.key is None else _element(attribute, group.key) for group in groups)
    firsts = scanning.records_at(tx, plan.schema, (group.first for group in groups))
    return (first.get(attribute.slug) if group.key is not None else None for first, group in zip(firsts, groups, strict=True))


def _element(attribute: StoredAttribute, key: str) -> Any:
    family = TYPES[attribute.type].family
    if family is Family.NUMBER:
        return plain_number(number_of(key))
    return key == "true" if family is Family.TRUTH else key


def _written(results: Iterable[Json]) -> tuple[str, int]:
    """Return the results as a JSON array, and their number. Raises BadRequest when they are too large to be stored."""
    parts: list[str] = []
    size = 0
    for result in results:
        parts.append(jsontext.dumps(result))
        size += len(parts[-1].encode())
        if size > MOST_BYTES:
            raise BadRequest(f"the results are larger than {MOST_BYTES // 1024 // 1024} MB; choose fewer columns or a lower limit")
    return "[" + ",".join(parts) + "]", len(parts)
