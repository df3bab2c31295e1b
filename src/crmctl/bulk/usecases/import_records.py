"""Importing the records of a file, or only saying what that would do, and keeping that as a plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from crmctl.bulk.context import BulkContext
from crmctl.bulk.match.keys import key_rule
from crmctl.bulk.match.references import parse_references, references_in
from crmctl.bulk.run.decisions import Decisions
from crmctl.bulk.run.dry_run import DryRun, DryRunOptions, dry_run
from crmctl.bulk.run.job_start import ImportTarget, JobOptions, start_import, temporary_input, temporary_rows
from crmctl.bulk.run.plan import ImportPlan, PlannedInput, open_input
from crmctl.bulk.run.plan_check import Prediction, describe
from crmctl.bulk.run.plan_file import check_plan_path, write_plan
from crmctl.bulk.run.three_way import Policy
from crmctl.bulk.sources.given_input import STDIN, GivenInput, is_stream
from crmctl.bulk.sources.open_source import open_source
from crmctl.bulk.usecases.finding_log import FindingLog
from crmctl.bulk.usecases.job_run import RunOptions, run_to_result
from crmctl.bulk.usecases.requests import ImportRequest
from crmctl.bulk.usecases.results import ImportResult, rejected_rows
from crmctl.bulk.usecases.targets import (
    check_places,
    current_limit,
    last_turn,
    mirror_of,
    newest_page,
    note_if_empty,
    resolve_target,
    sample_records,
    store_of,
    takes_turn,
)
from crmctl.errors import CrmctlError, ExitCode, UsageError
from crmctl.models.attributes import Attribute


@dataclass(frozen=True)
class ImportPreview:
    """What an import would do. `error`: why it would not be done as it is; `plan`: the file that keeps what was decided."""

    input: str
    predicted: DryRun
    findings: FindingLog = field(default_factory=FindingLog)
    error: CrmctlError | None = None
    plan: Path | None = None

    def to_document(self) -> dict[str, Any]:
        """The JSON form, every key always present."""
        return {**self.predicted.to_document(), "plan": str(self.plan) if self.plan is not None else None}

    def raise_for_error(self) -> None:
        """Raises the error because of which the import would not be done; nothing when it would."""
        if self.error is not None:
            raise self.error


def import_records(context: BulkContext, request: ImportRequest) -> ImportResult:
    """Make a job of a file and run it; all rows are checked before anything is sent.

    What happens to rows is in the result, an error that ended sending too. Raises CrmctlError for a request that means nothing, an object
    that is not there, an input that cannot be read or mapped, and when another import by key does not end in time.
    """
    _check(request)
    store_of(context).prepare()
    options, guard = RunOptions(request.delivery(), request.failed_copy), request.guard()
    with ExitStack() as stack:
        ready = stack.enter_context(_prepared(context, request, request.plan()))
        before = stack.enter_context(takes_turn(context, ready.target, request.lock_wait, by_key=bool(request.keys)))
        if before != ready.last_turn:
            # Another import had its turn since: what is new was not read.
            ready = replace(ready, target=replace(ready.target, newest=None))
        made = JobOptions(ready.plan, request.again, request.marker, request.before_images, guard=guard)
        return run_to_result(context, start_import(store_of(context), ready.target, ready.given, made), options)


def preview_import(context: BulkContext, request: ImportRequest) -> ImportPreview:
    """Read, check and look up everything, make nothing; what would be done is kept where a plan is wanted.

    An existing plan is replaced when the listener agrees. Raises what `import_records` raises before its first row.
    """
    _check(request)
    plan = request.plan()
    request.delivery(), request.guard()
    if request.plan_path is not None:
        _check_plan_place(context, request, request.plan_path)
    with _prepared(context, request, plan) as ready:
        found = _predict(context, request, ready)
    note_if_empty(context, request.file, found.predicted.report.rows)
    return found


@dataclass(frozen=True)
class _Prepared:
    """An import before its job: where records go, the input, and what decides its payloads."""

    target: ImportTarget
    given: GivenInput
    plan: ImportPlan
    last_turn: str | None = None


@contextmanager
def _prepared(context: BulkContext, request: ImportRequest, plan: ImportPlan) -> Iterator[_Prepared]:
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
        yield _Prepared(target, given, replace(plan, values=replace(plan.values, samples=samples), references=references), turn)


def _check(request: ImportRequest) -> None:
    check_places(request.failed_copy, request.file if request.rows is None else None)


@contextmanager
def _given(context: BulkContext, request: ImportRequest) -> Iterator[GivenInput]:
    store = store_of(context)
    opened = temporary_rows(store, request.rows, request.file) if request.rows is not None else None
    with opened or temporary_input(store, request.file, context.stdin) as given:
        yield given


def _check_plan_place(context: BulkContext, request: ImportRequest, path: Path) -> None:
    """Raises UsageError for an input, or a place, of which no plan can be made."""
    file = request.file
    if request.rows is not None or is_stream(file):
        hint = f"save it first: ... > rows.csv, then crmctl bulk import OBJECT rows.csv --plan {path}"
        named = "stdin" if file == STDIN else file
        raise UsageError(f"a plan of {named} could not be applied: its rows are gone by then", hint=hint, code="unusable_input")
    check_plan_path(path, Path(file))
    if path.exists():
        context.listener.confirm(f"Replace {path}")


def _predict(context: BulkContext, request: ImportRequest, ready: _Prepared) -> ImportPreview:
    target, findings = ready.target, FindingLog(context.listener.report)
    with ExitStack() as stack:
        key_rule(ready.plan.mapping.keys, target.attributes)
        plan = ready.plan.frozen(target.attributes)
        planned = open_input(plan, ready.given.path, request.file, target.attributes)
        for note in (*planned.source.dialect.told, *planned.mapping.notes):
            context.listener.note(note)
        decisions = stack.enter_context(Decisions()) if request.plan_path is not None else None
        options = DryRunOptions(context.clock, current_limit(context), request.before_images, decisions, context.state)
        found = dry_run(target, planned, options, findings)
        invalid = rejected_rows(found.report.rejected) if found.exit_code is not ExitCode.OK else None
        unexpected = request.guard().refusal(found.changes, found.report.rows)
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
        header = describe(predicted.target, predicted.planned, options, Prediction(predicted.found.prediction, now))
        write_plan(path, header, predicted.decisions)
    return path
