"""Import a file, preview it, or apply a saved plan."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from crmctl.bulk_context import BulkContext
from crmctl.errors import CrmctlError, ExitCode, RejectedError, UsageError
from crmctl.files.rows import spool_rows
from crmctl.files.sources import STDIN, GivenInput, is_stream, open_source
from crmctl.match.keys import key_rule
from crmctl.match.references import parse_references, references_in
from crmctl.models.resources import Attribute
from crmctl.plan.dry_run import DryRun, DryRunOptions, current_limit, dry_run
from crmctl.plan.import_plan import Guard, ImportPlan, PlannedInput, open_input
from crmctl.plan.job_run import RunOptions, requests_made, run_to_result
from crmctl.plan.job_start import ImportTarget, JobOptions, header_of, start_import, temporary_input, temporary_table
from crmctl.plan.plan_file import (
    Applicable,
    Decision,
    Decisions,
    SavedPlan,
    check_plan_path,
    check_service,
    compare,
    examples,
    open_plan,
    read_plan,
    write_plan,
)
from crmctl.plan.requests import (
    ImportRequest,
    RunRequest,
    check_places,
    last_turn,
    mirror_of,
    newest_page,
    note_if_empty,
    resolve_target,
    sample_records,
    store_of,
    takes_turn,
)
from crmctl.plan.results import FindingLog, ImportResult, rejected_rows
from crmctl.plan.three_way import Policy


def import_records(context: BulkContext, request: ImportRequest) -> ImportResult:
    """Create a job for a file and run it. All rows are checked before anything is sent.

    The result holds the outcome of each row and the error that ended sending. Raises CrmctlError for an invalid request, an unknown object,
    an input that cannot be read or mapped, and a timeout while another import by key is running.
    """
    check_files(request)
    store_of(context).prepare()
    options, guard = RunOptions(request.delivery(), request.failed_copy), request.guard()
    with ExitStack() as stack:
        ready = stack.enter_context(prepared(context, request, request.plan()))
        before = stack.enter_context(takes_turn(context, ready.target, request.lock_wait, by_key=bool(request.keys)))
        if _has_waited(context, ready.target, ready.plan) or before != ready.last_turn:
            # Another import has run in the meantime, so the newest page is outdated.
            ready = replace(ready, target=replace(ready.target, newest=None))
        made = JobOptions(ready.plan, request.again, request.marker, request.before_images, guard=guard)
        return run_to_result(context, start_import(store_of(context), ready.target, ready.given, made), options)


def _has_waited(context: BulkContext, target: ImportTarget, plan: ImportPlan) -> bool:
    """Wait until the lists to look up keys in show what earlier jobs created. Return whether that took time."""
    ids = {reference.object_id for reference in plan.references} | ({target.object_id} if plan.mapping.keys else set())
    if not ids:
        return False
    from crmctl.plan.final_count import await_unfinished

    return await_unfinished(context.service, store_of(context), context.origin, ids, context.listener.progress.note)


@dataclass(frozen=True)
class Prepared:
    """An import that has no job yet: its target, input and plan."""

    target: ImportTarget
    given: GivenInput
    plan: ImportPlan
    last_turn: str | None = None


@contextmanager
def prepared(context: BulkContext, request: ImportRequest, plan: ImportPlan) -> Iterator[Prepared]:
    mirror = mirror_of(context, request.mirror)
    target = resolve_target(context, request.object, mirror)
    if plan.feed is not None:
        Policy.parse(plan.feed.on_conflict, [attribute.slug for attribute in target.attributes])
    turn = last_turn(context, target) if request.keys else None
    if request.keys:
        target = replace(target, newest=newest_page(context, target))
    samples, directory = sample_records(context, target), context.directory

    def object_of(name: str) -> tuple[str, Sequence[Attribute]]:
        found = resolve_target(context, name, mirror)
        return found.object_id, found.attributes

    with _given(context, request) as given:
        header = open_source(given.path, plan.source, name=request.file).header
        named = tuple(request.references)
        named = (*named, *references_in(header, target.attributes, named, lambda of: directory.object(of).slug or of))
        references = parse_references(named, target.attributes, object_of)
        yield Prepared(target, given, replace(plan, values=replace(plan.values, samples=samples), references=references), turn)


def check_files(request: ImportRequest) -> None:
    check_places(request.failed_copy, request.file if request.rows is None else None)


@contextmanager
def _given(context: BulkContext, request: ImportRequest) -> Iterator[GivenInput]:
    store = store_of(context)
    opened = temporary_table(store, request.file, partial(spool_rows, request.rows)) if request.rows is not None else None
    with opened or temporary_input(store, request.file, context.stdin) as given:
        yield given


@dataclass(frozen=True)
class ImportPreview:
    """A preview of an import. `error` is the error that would stop it; `plan` is the saved plan file."""

    input: str
    predicted: DryRun
    findings: FindingLog = field(default_factory=FindingLog)
    error: CrmctlError | None = None
    plan: Path | None = None

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form. Every key is present."""
        return {**self.predicted.to_document(), "plan": str(self.plan) if self.plan is not None else None}

    def raise_for_error(self) -> None:
        """Raise the error that would stop the import, if any."""
        if self.error is not None:
            raise self.error


def preview_import(context: BulkContext, request: ImportRequest) -> ImportPreview:
    """Check and look up all rows without writing anything to the service. Save a plan if the user asked for one.

    An existing plan file is replaced if the listener confirms. Raises the errors `import_records` raises before its first row.
    """
    check_files(request)
    plan = request.plan()
    request.delivery(), request.guard()
    requests_made(context)
    if request.plan_path is not None:
        _check_plan_place(context, request, request.plan_path)
    with prepared(context, request, plan) as ready:
        found = _predict(context, request, ready)
    note_if_empty(context, request.file, found.predicted.report.rows)
    return found


def _check_plan_place(context: BulkContext, request: ImportRequest, path: Path) -> None:
    """Raise UsageError if the input or the path of the plan does not allow saving a plan."""
    file = request.file
    if request.rows is not None or is_stream(file):
        hint = f"save it first: ... > rows.csv, then crmctl bulk import OBJECT rows.csv --plan {path}"
        named = "stdin" if file == STDIN else file
        raise UsageError(f"a plan of {named} could not be applied: its rows are gone by then", hint=hint, code="unusable_input")
    check_plan_path(path, Path(file))
    if path.exists():
        context.listener.confirm(f"Replace {path}")


def _predict(context: BulkContext, request: ImportRequest, ready: Prepared) -> ImportPreview:
    target, findings = ready.target, FindingLog(context.listener.report)
    with ExitStack() as stack:
        key_rule(ready.plan.mapping.keys, target.attributes)
        plan = ready.plan.frozen(target.attributes)
        planned = open_input(plan, ready.given.path, request.file, target.attributes)
        for note in (*planned.source.dialect.told, *planned.mapping.notes):
            context.listener.note(note)
        decisions = stack.enter_context(Decisions()) if request.plan_path is not None else None
        options = DryRunOptions(context.clock, current_limit(context), request.before_images, decisions, context.state)
        found = dry_run(target, planned, options, findings).after(requests_made(context), options.limit)
        invalid = rejected_rows(found.report.rejected) if found.exit_code is not ExitCode.OK else None
        unexpected = None
        try:
            request.guard().check(found.changes, found.report.rows)
        except RejectedError as refused:
            unexpected = refused
        stopped = unexpected is not None or found.report.is_fatal or (invalid is not None and plan.stop_on_error)
        saved = None
        if decisions is not None and not stopped:
            saved = _save(request, _Predicted(target, planned, found, decisions), context.clock.now())
    return ImportPreview(request.file, found, findings, invalid or unexpected, saved)


@dataclass(frozen=True)
class _Predicted:
    target: ImportTarget
    planned: PlannedInput
    found: DryRun
    decisions: Decisions


def _save(request: ImportRequest, predicted: _Predicted, now: float) -> Path | None:
    path = request.plan_path
    if path is not None:
        options = JobOptions(predicted.planned.plan, request.again, request.marker, request.before_images)
        write_plan(path, header_of(predicted.target, predicted.planned, options, now), predicted.found.prediction, predicted.decisions)
    return path


EXAMPLES = 10
"""The number of rows a preview shows."""


@dataclass(frozen=True, kw_only=True)
class ApplyRequest(RunRequest):
    """A request to apply a plan. `input` is the new path of an import file that was moved."""

    file: str
    input: str | None = None
    expect: int | None = None
    max_changes: str | None = None
    again: bool = False
    mirror: str = "auto"

    def guard(self) -> Guard:
        return Guard.parse(self.expect, self.max_changes)


@dataclass(frozen=True)
class PlanPreview:
    """A saved plan and its predicted effect now. `error` is the error that would stop it."""

    path: Path
    saved: SavedPlan
    predicted: DryRun
    examples: Sequence[Decision]
    differences: Sequence[dict[str, Any]]
    error: RejectedError | None

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form. Every key is present."""
        return {
            **self.predicted.to_document(),
            "plan": str(self.path),
            "createdAt": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.saved.header.created_at)),
            "planned": dict(self.saved.summary),
            "examples": [decision.to_document() for decision in self.examples],
            "differences": list(self.differences),
        }


def apply_plan(context: BulkContext, request: ApplyRequest) -> ImportResult:
    """Check a plan against the current records and run it.

    Raises UsageError for an outdated plan, and the errors of an import.
    """
    check_places(request.failed_copy, request.file, request.input)
    options = RunOptions(request.delivery(), request.failed_copy)
    guard, store = request.guard(), store_of(context)
    store.prepare()
    with ExitStack() as stack:
        target, ready = stack.enter_context(_opened(context, request))
        stack.enter_context(takes_turn(context, target, request.lock_wait, by_key=bool(ready.plan.mapping.keys)))
        _has_waited(context, target, ready.plan)
        job = ready.start(store, target, again=request.again, guard=guard)
        return run_to_result(context, job, options)


def preview_plan(context: BulkContext, request: ApplyRequest) -> PlanPreview:
    """Compare a plan with the current records without writing any. Raises UsageError for an outdated plan."""
    check_places(request.failed_copy, request.file, request.input)
    guard = request.guard()
    request.delivery()
    requests_made(context)
    with _opened(context, request) as (target, ready), Decisions() as now:
        saved = ready.saved
        options = DryRunOptions(context.clock, current_limit(context), saved.header.before_images, now, context.state)
        found = dry_run(target, ready.input, options, FindingLog(context.listener.report)).after(requests_made(context), options.limit)
        differences = compare(saved.decisions(), now)
        shown = examples(saved.decisions(), EXAMPLES)
        error = differences.refusal if differences.count else None
        try:
            guard.check(found.changes, found.report.rows)
        except RejectedError as refused:
            error = error or refused
        return PlanPreview(saved.path, saved, found, shown, differences.listed, error)


@contextmanager
def _opened(context: BulkContext, request: ApplyRequest) -> Iterator[tuple[ImportTarget, Applicable]]:
    store = store_of(context)
    with ExitStack() as stack:
        plan = stack.enter_context(temporary_input(store, request.file, context.stdin))
        moved = stack.enter_context(temporary_input(store, request.input, context.stdin)) if request.input else None
        saved = read_plan(plan.path)
        check_service(saved, context.origin)
        mirror = mirror_of(context, request.mirror)
        target = replace(resolve_target(context, saved.header.object_id, mirror), object=saved.header.object)
        yield target, open_plan(saved, target.attributes, moved)
