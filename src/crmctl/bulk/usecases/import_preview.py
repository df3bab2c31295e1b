"""Saying what an import would do, and keeping that as a plan."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crmctl.bulk.context import BulkContext
from crmctl.bulk.match.keys import key_rule
from crmctl.bulk.run.decisions import Decisions
from crmctl.bulk.run.dry_run import DryRun, DryRunOptions, dry_run
from crmctl.bulk.run.job_start import ImportTarget, JobOptions
from crmctl.bulk.run.plan import PlannedInput, open_input
from crmctl.bulk.run.plan_check import Prediction, describe
from crmctl.bulk.run.plan_file import check_plan_path, write_plan
from crmctl.bulk.run.request_limit import current_limit
from crmctl.bulk.sources.given_input import STDIN, is_stream
from crmctl.bulk.usecases.finding_log import FindingLog
from crmctl.bulk.usecases.import_records import Prepared, check_files, prepared
from crmctl.bulk.usecases.requests import ImportRequest
from crmctl.bulk.usecases.results import rejected_rows
from crmctl.bulk.usecases.targets import note_if_empty
from crmctl.errors import CrmctlError, ExitCode, UsageError


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


def preview_import(context: BulkContext, request: ImportRequest) -> ImportPreview:
    """Read, check and look up everything, make nothing; what would be done is kept where a plan is wanted.

    An existing plan is replaced when the listener agrees. Raises what `import_records` raises before its first row.
    """
    check_files(request)
    plan = request.plan()
    request.delivery(), request.guard()
    if request.plan_path is not None:
        _check_plan_place(context, request, request.plan_path)
    with prepared(context, request, plan) as ready:
        found = _predict(context, request, ready)
    note_if_empty(context, request.file, found.predicted.report.rows)
    return found


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
