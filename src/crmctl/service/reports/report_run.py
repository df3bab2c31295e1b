"""Run a report on a snapshot, while others write, and store its results in a transaction of their own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.service.context import Context
from crmctl.service.faults import BadRequest, NotFound
from crmctl.service.reports.report_definition import Group, Plan, ReportDefinition, aggregate, arrange, measured, plain_number, plan_report
from crmctl.service.store import records as scanning
from crmctl.service.store import reports
from crmctl.service.store.record_tables import load_schema
from crmctl.service.store.tx import Tx
from crmctl.values.attribute_types import TYPES, Family, StoredAttribute
from crmctl.values.value_readers import number_of

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
    sequences = scanning.first_sequences(tx, plan.schema, plan.conditions, (plan.sort, plan.descending), plan.limit + 1)
    records = scanning.records_at(tx, plan.schema, sequences[: plan.limit])
    return ({column: record.get(column) for column in plan.columns} for record in records), len(sequences) > plan.limit


def _grouped(tx: Tx, plan: Plan) -> tuple[Iterator[Json], bool]:
    expressions = [scanning.exact(plan.group)] if plan.group else []
    expressions += [scanning.comparable(measure.attribute) if measure.attribute else "NULL" for measure in plan.measures]
    expressions += [tx.dialect.member("data", attribute.slug) for attribute in plan.money]
    groups = aggregate(plan, scanning.scan(tx, plan.schema, plan.conditions, expressions))
    shown = arrange(plan, groups)
    return _group_results(tx, plan, shown), len(groups) > plan.limit


def _group_results(tx: Tx, plan: Plan, groups: list[Group]) -> Iterator[Json]:
    """Yield the results. A group is shown by its period, or by the value of its first record, as it is stored."""
    labels = _labels(tx, plan, groups)
    for label, group in zip(labels, groups, strict=True):
        measures = {measure.name: measured(measure, group, tally) for measure, tally in zip(plan.measures, group.tallies, strict=True)}
        currency = {} if plan.currency is None else {plan.currency: group.currency}
        yield ({} if plan.group is None else {plan.group.slug: label}) | currency | measures


def _labels(tx: Tx, plan: Plan, groups: list[Group]) -> Iterator[Any]:
    attribute = plan.group
    if attribute is None or attribute.holds_many or plan.period:
        return (None if attribute is None or group.key is None else _element(attribute, group.key) for group in groups)
    firsts = scanning.records_at(tx, plan.schema, (group.first for group in groups))
    return (first.get(attribute.slug) if group.key is not None else None for first, group in zip(firsts, groups, strict=True))


def _element(attribute: StoredAttribute, key: str) -> Any:
    """Return one of several values from its key."""
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
