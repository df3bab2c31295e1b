"""Giving many records the same values: those are read first, somebody agrees, and a job writes what would really change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from crmctl.bulk.context import BulkContext
from crmctl.bulk.journal.states import JobKind, RowState
from crmctl.bulk.journal.summary import Summary
from crmctl.bulk.read.known_records import KnownRecords
from crmctl.bulk.rows.batches import Entry
from crmctl.bulk.rows.cell_values import ValueOptions
from crmctl.bulk.rows.mapping import MappingOptions, Mode
from crmctl.bulk.rows.phones import check_region
from crmctl.bulk.rows.validation import Payload
from crmctl.bulk.run.before_images import BeforeImages
from crmctl.bulk.run.guards import Guard
from crmctl.bulk.run.job_start import ImportTarget, JobOptions, start_import, temporary_ids
from crmctl.bulk.run.plan import ImportPlan, PlannedInput, open_input
from crmctl.bulk.run.record_changes import ChangeForecast, Changing, ValueChange
from crmctl.bulk.run.request_limit import current_limit
from crmctl.bulk.run.row_actions import RowAction
from crmctl.bulk.run.update_hooks import Approve, UpdateHooks, agree
from crmctl.bulk.sources.given_input import GivenInput
from crmctl.bulk.sources.rows import SourceOptions
from crmctl.bulk.usecases.finding_log import FindingLog
from crmctl.bulk.usecases.job_run import RunOptions, run_or_leave_nothing
from crmctl.bulk.usecases.requests import RunRequest, check_choice
from crmctl.bulk.usecases.results import ImportResult, rejected_rows
from crmctl.bulk.usecases.selected_records import Selection
from crmctl.bulk.usecases.targets import resolve_target, sample_records, store_of
from crmctl.client.http.session import encode_json
from crmctl.errors import CrmctlError, UsageError
from crmctl.models import jsontext
from crmctl.models.assignments import parse_assignments
from crmctl.models.composites import currency_code
from crmctl.models.records import BULK_LIMIT

__all__ = ["ChangeForecast", "UpdatePreview", "UpdateRequest", "ValueChange", "agree", "preview_update", "update"]


@dataclass(frozen=True, kw_only=True)
class UpdateRequest(RunRequest):
    """The values of `set_values` (`slug=value`) for all records of the selection. The rest are the options of `crmctl bulk update`."""

    object: str
    selection: Selection
    set_values: Sequence[str]
    expect: int | None = None
    max_changes: str | None = None
    on_error: str = "stop"
    default_region: str | None = None
    currency: str | None = None

    def guard(self) -> Guard:
        return Guard.parse(self.expect, self.max_changes)

    def plan(self) -> ImportPlan:
        """How an id becomes what is sent."""
        check_choice("--on-error", self.on_error, ("stop", "continue"))
        values = ValueOptions(default_region=check_region(self.default_region), currency=currency_code(self.currency))
        mapping = MappingOptions(Mode.UPSERT, set_values=tuple(self.set_values))
        return ImportPlan(SourceOptions(format="csv", delimiter=","), mapping, values, self.on_error == "stop")


@dataclass(frozen=True)
class UpdatePreview:
    """What an update would do: its forecast, the first request in full, and why it would not be done as it is."""

    object_id: str
    forecast: ChangeForecast
    first: Sequence[Entry]
    reads: int
    seconds: float
    findings: FindingLog = field(default_factory=FindingLog)
    error: CrmctlError | None = None

    @property
    def requests(self) -> int:
        """All of them, the reading that was done just now included."""
        return self.reads + self.forecast.requests

    def to_document(self) -> dict[str, Any]:
        """The JSON form, every key always present: a summary, the first request, and some changes with what they overwrite."""
        forecast = self.forecast
        counts = dict.fromkeys(RowState, 0) | {
            RowState.UNSENT: forecast.changes, RowState.UNCHANGED: forecast.unchanged, RowState.REJECTED: forecast.rejected,
        }  # fmt: skip
        return {
            **Summary(None, forecast.object, JobKind.UPDATE, counts, self.requests, 0.0, {}).to_document(),
            "dryRun": True,
            "method": "POST",
            "path": f"/api/v1/objects/{self.object_id}/records/bulk",
            "body": {"mode": "upsert", "records": [jsontext.loads(entry.encoded) for entry in self.first]},
            "estimatedSeconds": round(self.seconds, 1),
            "samples": [change.to_document() for change in forecast.samples],
        }

    def raise_for_error(self) -> None:
        """Raises the error because of which the update would not be done; nothing when it would."""
        if self.error is not None:
            raise self.error


def update(context: BulkContext, request: UpdateRequest, approve: Approve) -> ImportResult:
    """Read the records, show what would change to `approve`, which raises to leave it, and write it as a job.

    What happens to records is in the result. Raises CrmctlError for what keeps the job from beginning, and what `approve` raises: then no
    job is left.
    """
    _check(request)
    store = store_of(context)
    store.prepare()
    delivery, plan = request.delivery(), request.plan()
    target = resolve_target(context, request.object)
    with ExitStack() as stack:
        known = stack.enter_context(KnownRecords())
        given, plan, guard, reads = stack.enter_context(_prepared(context, request, target, plan, known))
        made = JobOptions(plan, before_images=BeforeImages.YES, kind=JobKind.UPDATE, guard=guard)
        job = start_import(store, target, given, made)
        job.journal.add_effort(reads, 0.0)
        options = RunOptions(delivery, request.failed_copy, lambda job: UpdateHooks(job, approve, known))
        return run_or_leave_nothing(context, job, options)


def preview_update(context: BulkContext, request: UpdateRequest) -> UpdatePreview:
    """Read the records and say what would change. Makes nothing. Raises what `update` raises before it asks."""
    _check(request)
    request.delivery(), request.guard()
    plan, target = request.plan(), resolve_target(context, request.object)
    with ExitStack() as stack:
        known = stack.enter_context(KnownRecords())
        given, plan, guard, reads = stack.enter_context(_prepared(context, request, target, plan, known))
        planned = open_input(plan.frozen(target.attributes), given.path, given.name, target.attributes)
        forecast, findings = ChangeForecast(request.object, target.attributes), FindingLog(context.listener.report)
        first = _compare(planned, known, forecast, findings)
        seconds = current_limit(context).time_for(forecast.requests)
    error = rejected_rows(forecast.rejected) if forecast.rejected else None
    return UpdatePreview(
        target.object_id, forecast, first, reads, seconds, findings, error or guard.refusal(forecast.changes, forecast.rows)
    )


def _check(request: UpdateRequest) -> None:
    request.selection.check()
    if not request.set_values:
        raise UsageError("nothing to write", hint="say what to write with --set slug=value")


@contextmanager
def _prepared(
    context: BulkContext, request: UpdateRequest, target: ImportTarget, plan: ImportPlan, known: KnownRecords
) -> Iterator[tuple[GivenInput, ImportPlan, Guard, int]]:
    """The records are read, and their ids are the rows of a file."""
    samples = sample_records(context, target)
    plan = replace(plan, values=replace(plan.values, samples=samples))
    parse_assignments(request.set_values, target.attributes)  # before the first record is read
    reads = request.selection.read(context, target.object_id, known)
    guard = request.guard()
    if guard.percent:
        total = context.crm.list_records(target.object_id, limit=1).total or len(known)
        guard = Guard(guard.expect, int((guard.most or 0) * total / 100))
    ids = (record.id if (record := known.get(one)) is not None else one for one in known.ids())
    with temporary_ids(store_of(context), ids, request.selection.name) as given:
        yield given, plan, guard, reads


def _compare(planned: PlannedInput, known: KnownRecords, forecast: ChangeForecast, findings: FindingLog) -> Sequence[Entry]:
    """Count what rows do; the first ones as they would be sent."""
    first: list[Entry] = []

    def valid() -> Iterator[Payload]:
        for row in planned.payloads():
            for finding in row.findings:
                findings(finding)
            if row.rejected:
                forecast.rows, forecast.rejected = forecast.rows + 1, forecast.rejected + 1
            else:
                yield row

    for change in Changing.of(planned).changes(valid(), known.get):
        forecast.add(change)
        if change.finding is not None:
            findings(change.finding)
        if change.action is RowAction.UPDATE and change.record is not None and len(first) < BULK_LIMIT:
            body = {"data": dict(change.sent), "id": change.record.id}
            first.append(Entry(change.ordinal, encode_json(body), change.record.id))
    return first
