"""Preview an import or a saved plan."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import field
from itertools import islice
from pathlib import Path
from typing import Any

from crmctl.bulk_context import BulkContext
from crmctl.errors import CrmctlError, RejectedError, UsageError
from crmctl.files.mapping import Mode
from crmctl.files.payloads import RowBuilder
from crmctl.files.sources import STDIN, is_stream
from crmctl.files.validation import Batch, Batcher, Entry, Payload, ValidationReport, entry_of, validate
from crmctl.frozen import frozen
from crmctl.match.key_lookups import Lookup
from crmctl.match.keys import KeyIndex, Wanted, key_rule
from crmctl.match.references import ParentGroup
from crmctl.models.findings import Finding
from crmctl.models.resources import BULK_LIMIT, PAGE_LIMIT
from crmctl.plan.feed import Feed, FeedBases
from crmctl.plan.import_plan import ImportPlan, PlannedInput, RowAction, open_input, unexpected_changes
from crmctl.plan.import_records import ApplyRequest, given_input, opened_plan, prepared
from crmctl.plan.job_run import requests_made, seconds_for
from crmctl.plan.job_start import ImportTarget, JobOptions, header_of, with_references
from crmctl.plan.plan_file import Decision, Decisions, SavedPlan, check_plan_path, compare, write_plan
from crmctl.plan.requests import ImportRequest, check_places, mirror_of, note_if_empty, resolve_target
from crmctl.plan.results import FindingLog, rejected_rows
from crmctl.plan.row_actions import AMBIGUOUS, Resolution, Resolver, resolver_of
from crmctl.read.read_back import Reader
from crmctl.read.records import reading_cost
from crmctl.write.database import RowState
from crmctl.write.jobs import FeedCounts, Summary
from crmctl.write.send_context import write_requests

Report = Callable[[Finding], None]

LISTED_CHOICES = 1000
"""The maximum number of conflicting values to list. All of them are counted."""


@frozen
class DryRun:
    """The predicted effect of an import.

    The summary counts rows to be written as unsent. `requests` is exact unless the service refuses a row. `predicted` counts rows by
    action; an import without a key does not look for existing records. `parents` are the records to create before the rows that refer to
    them.
    """

    summary: Summary
    report: ValidationReport
    seconds: float = 0.0
    predicted: Mapping[str, int] = field(default_factory=dict)
    parents: Sequence[ParentGroup] = ()
    choices: Sequence[dict[str, Any]] = ()
    """The values that differ between the file and the record, with the side that wins."""

    @property
    def changes(self) -> int:
        return self.summary.counts[RowState.UNSENT]

    @property
    def prediction(self) -> dict[str, Any]:
        """The numbers stored in a plan."""
        document = self.to_document()
        return {name: document[name] for name in ("rows", "predicted", "parents", "requests", "estimatedSeconds")}

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form: a summary with `dryRun`, `estimatedSeconds`, `predicted`, `parents`, `choices` and `report`."""
        return {
            **self.summary.to_document(),
            "dryRun": True,
            "estimatedSeconds": round(self.seconds, 1),
            "predicted": dict(self.predicted),
            "parents": [{"object": group.reference.object, "key": group.reference.key, "create": group.size} for group in self.parents],
            "choices": list(self.choices),
            "report": self.report.to_document(),
        }


def dry_run(
    context: BulkContext, target: ImportTarget, planned: PlannedInput, report: Report, decisions: Decisions | None = None
) -> DryRun:
    """Validate the whole input and count the requests of an import, which starts with the reads of this dry run, without writing anything.

    `report` receives each finding. With a key, the dry run looks up the records as the import would. `decisions` collects the action of
    each row; with it, the dry run also reads the records that rows name by id.
    """
    lister, clock, started = target.service, context.clock, context.clock.monotonic()
    with ExitStack() as looked_up:
        planned = with_references(planned, target)
        looked_up.enter_context(closing(planned))
        forecast = _Forecast(planned, decisions)
        resolver = resolver_of(planned, _feed(planned, target, context, looked_up))
        if resolver is None:
            checked = _check(planned, report, forecast.write_valid)
            if decisions is not None:
                decisions.see_records(Reader(lister, target.object_id))
        else:
            lookup = Lookup(lister, target.object_id, tell=target.tell, newest=target.newest(), at_hand=target.at_hand)
            checked = _look_up(planned, resolver, lookup, forecast, report)
        actions = forecast.actions
        creates, changes = actions[RowAction.CREATE], actions[RowAction.CREATE] + actions[RowAction.UPDATE]
        later = int(resolver is None and changes > 0)  # the baseline
        later += bool(creates)  # the comparison at the end
        if not planned.mapping.options.keys and forecast.merges:
            later += reading_cost(lister, target.object_id, forecast.merges).requests
        requests = requests_made(context) + forecast.requests + later + _around(planned, creates)
        counts = dict.fromkeys(RowState, 0) | {
            RowState.UNSENT: changes,
            RowState.UNCHANGED: actions[RowAction.UNCHANGED],
            RowState.SKIPPED: actions[RowAction.SKIP],
            RowState.REJECTED: checked.rejected,
        }
        summary = Summary(
            None, target.object, str(planned.mapping.options.mode), counts, requests, clock.monotonic() - started, {}, forecast.values
        )
        parents = planned.references.groups() if planned.references is not None else ()
        predicted = {str(action): actions[action] for action in RowAction if action is not RowAction.REJECT}
        predicted |= {"invalid": checked.rejected - forecast.ambiguous, "ambiguous": forecast.ambiguous}
        return DryRun(summary, checked, seconds_for(context, requests), predicted, parents, forecast.choices)


def _feed(planned: PlannedInput, target: ImportTarget, context: BulkContext, until: ExitStack) -> Feed | None:
    plan = planned.plan.feed
    if plan is None:
        return None
    bases = until.enter_context(closing(FeedBases(context.state, (target.origin, target.object_id, plan.name))))
    return Feed.of(plan, bases, planned.shown_attributes)


def _around(planned: PlannedInput, creates: int) -> int:
    """Count the requests that create parents before the rows and set links after them."""
    references = planned.references
    if references is None:
        return 0
    requests = sum(-(-group.size // BULK_LIMIT) + 3 + -(-group.size // PAGE_LIMIT) for group in references.groups())
    links = references.link_count
    return requests + (write_requests(links) + -(-creates // PAGE_LIMIT) if links else 0)


def _check(planned: PlannedInput, report: Report, visit: Callable[[Payload], None]) -> ValidationReport:
    builder = RowBuilder(planned.mapping, planned.attributes, planned.values)
    return validate(planned.source, builder, report, visit, planned.references.translate if planned.references is not None else iter)


def _look_up(planned: PlannedInput, resolver: Resolver, lookup: Lookup, forecast: _Forecast, report: Report) -> ValidationReport:
    with KeyIndex(resolver.rule) as index:

        def keep(payload: Payload) -> None:
            if not payload.findings or not payload.rejected:
                index.want_all([payload])
            elif forecast.decisions is not None:
                forecast.decisions.add_row(payload, Mode.CREATE)

        checked = _check(planned, report, keep)
        lookup.fill(index)
        for row, outcome in resolver.outcomes(index):
            forecast.add(row, outcome, resolver, index)
            if outcome.finding is not None:
                if outcome.action is RowAction.REJECT:
                    checked.reject(outcome.finding)
                report(outcome.finding)
        return checked


class _Forecast:
    """Counts the actions of rows and the requests they need."""

    def __init__(self, planned: PlannedInput, decisions: Decisions | None) -> None:
        self.decisions = decisions
        self._mode = planned.mapping.options.mode
        self._batcher = Batcher()
        self._requests = 0
        self.actions: Counter[RowAction] = Counter()
        self.ambiguous = 0
        self.values = FeedCounts() if planned.plan.feed is not None else None
        self.choices: list[dict[str, Any]] = []
        self.merges = 0
        """Number of rows with an id that change parts of values."""

    def write_valid(self, payload: Payload) -> None:
        if self.decisions is not None:
            self.decisions.add_row(payload, self._mode)
        if not payload.findings or not payload.rejected:
            action = RowAction.UPDATE if self._mode is not Mode.CREATE and payload.id else RowAction.CREATE
            if action is RowAction.CREATE and self._mode is Mode.UPDATE:
                self.actions[RowAction.SKIP] += 1
                return
            self.merges += action is RowAction.UPDATE and bool(payload.parts)
            self._write(action, entry_of(payload, with_id=self._mode is not Mode.CREATE))

    def add(self, row: Wanted, outcome: Resolution, resolver: Resolver, index: KeyIndex) -> None:
        if self.decisions is not None:
            self.decisions.add_outcome(row, outcome, resolver, index)
        if (merge := outcome.merge) is not None:
            before = self.values or FeedCounts()
            self.values = FeedCounts(before.kept + merge.kept, before.conflicts + merge.conflicts)
            self.choices += [
                {"row": row.ordinal, "line": row.line, **choice.to_document()}
                for choice in merge.chosen[: LISTED_CHOICES - len(self.choices)]
            ]
        if outcome.action in (RowAction.CREATE, RowAction.UPDATE):
            self._write(outcome.action, Entry.of(row.ordinal, row.data, outcome.record_id))
            return
        self.actions[outcome.action] += 1
        self.ambiguous += outcome.finding is not None and outcome.finding.code == AMBIGUOUS

    def _write(self, action: RowAction, entry: Entry) -> None:
        self.actions[action] += 1
        self._requests += sum(map(_requests_of, self._batcher.full([entry])))

    @property
    def requests(self) -> int:
        last = self._batcher.flush()
        self._requests += _requests_of(last) if last is not None else 0
        return self._requests


def _requests_of(batch: Batch) -> int:
    """Count the request of a batch, and the look at one of the records it updates."""
    return 1 + any(entry.id is not None for entry in batch.entries)


@frozen
class ImportPreview:
    """A preview of an import. `error` is the error that would stop it; `plan` is the saved plan file."""

    input: str
    predicted: DryRun
    findings: FindingLog = field(default_factory=FindingLog)
    error: CrmctlError | None = None
    plan: Path | None = None

    def to_document(self) -> dict[str, Any]:
        return {**self.predicted.to_document(), "plan": str(self.plan) if self.plan is not None else None}

    def raise_for_error(self) -> None:
        if self.error is not None:
            raise self.error


def preview_import(context: BulkContext, request: ImportRequest) -> ImportPreview:
    """Check and look up all rows without writing anything to the service. Save a plan if the user asked for one.

    An existing plan file is replaced if the listener confirms. Raises the errors `import_records` raises before its first row.
    """
    check_places(request.failed_copy, request.file if request.rows is None else None)
    plan = request.plan()
    request.delivery(), request.guard()
    requests_made(context)
    if request.plan_path is not None:
        _check_plan_place(context, request, request.plan_path)
    mirror = mirror_of(context, request.mirror)
    target = resolve_target(context, request.object, mirror)
    with given_input(context, request) as source:
        target, plan = prepared(context, request, target, plan, source.path, mirror)
        preview = _predict(context, request, target, plan.frozen(target.attributes), source.path)
    note_if_empty(context, request.file, preview.predicted.report.rows)
    return preview


def _check_plan_place(context: BulkContext, request: ImportRequest, path: Path) -> None:
    """Raise UsageError if the input or the path of the plan does not allow saving a plan."""
    file = request.file
    if request.rows is not None or is_stream(file):
        hint = f"save it first: ... > rows.csv, then crmctl bulk import OBJECT rows.csv --plan {path}"
        named = "stdin" if file == STDIN else file
        raise UsageError(f"a plan of {named} could not be applied: its rows are gone by then", hint=hint, code="unusable_input")
    check_plan_path(path, Path(file))
    if path.is_file():
        context.listener.confirm(f"Replace {path}")


def _predict(context: BulkContext, request: ImportRequest, target: ImportTarget, plan: ImportPlan, path: Path) -> ImportPreview:
    findings = FindingLog(context.listener.report)
    with ExitStack() as stack:
        key_rule(plan.mapping.keys, target.attributes)
        planned = open_input(plan, path, request.file, target.attributes)
        for note in (*planned.source.dialect.told, *planned.mapping.notes):
            context.listener.note(note)
        decisions = stack.enter_context(Decisions()) if request.plan_path is not None else None
        preview = dry_run(context, target, planned, findings, decisions)
        invalid = rejected_rows(preview.report.rejected) if preview.report.rejected else None
        problem = request.guard().problem(preview.changes, preview.report.rows)
        unexpected = unexpected_changes(problem, preview.changes) if problem is not None else None
        stopped = unexpected is not None or preview.report.is_fatal or (invalid is not None and plan.stop_on_error)
        saved: Path | None = None
        if decisions is not None and request.plan_path is not None and not stopped:
            saved = request.plan_path
            job_options = JobOptions(plan, request.again)
            write_plan(saved, header_of(target, planned, job_options, context.clock.now()), preview.prediction, decisions)
    return ImportPreview(request.file, preview, findings, invalid or unexpected, saved)


SHOWN_ROWS = 10
"""The number of rows a preview shows."""


@frozen
class PlanPreview:
    """A saved plan and its predicted effect now. `error` is the error that would stop it."""

    path: Path
    saved: SavedPlan
    predicted: DryRun
    examples: Sequence[Decision]
    differences: Sequence[dict[str, Any]]
    error: RejectedError | None

    def to_document(self) -> dict[str, Any]:
        return {
            **self.predicted.to_document(),
            "plan": str(self.path),
            "createdAt": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.saved.header.created_at)),
            "planned": dict(self.saved.summary),
            "examples": [decision.to_document() for decision in self.examples],
            "differences": list(self.differences),
        }


def preview_plan(context: BulkContext, request: ApplyRequest) -> PlanPreview:
    """Compare a plan with the current records without writing any. Raises UsageError for an outdated plan."""
    check_places(request.failed_copy, request.file, request.input)
    guard = request.guard()
    request.delivery()
    requests_made(context)
    with opened_plan(context, request) as (target, saved, _, planned), Decisions() as now:
        preview = dry_run(context, target, planned, FindingLog(context.listener.report), now)
        differences = compare(saved.decisions(), now)
        quiet = (str(RowAction.UNCHANGED), str(RowAction.SKIP))
        shown = [*islice((decision for decision in saved.decisions() if decision.action not in quiet), SHOWN_ROWS)]
        error = differences.refusal if differences.count else None
        if error is None and (problem := guard.problem(preview.changes, preview.report.rows)) is not None:
            error = unexpected_changes(problem, preview.changes)
        return PlanPreview(saved.path, saved, preview, shown, differences.listed, error)
