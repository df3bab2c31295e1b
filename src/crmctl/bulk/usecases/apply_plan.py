"""Doing exactly what a saved plan says, or nothing; or showing it as it compares with what is there now."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from crmctl.bulk.context import BulkContext
from crmctl.bulk.run.decisions import Decision, Decisions, compare, examples
from crmctl.bulk.run.dry_run import DryRun, DryRunOptions, dry_run
from crmctl.bulk.run.guards import Guard
from crmctl.bulk.run.job_start import ImportTarget, temporary_input
from crmctl.bulk.run.plan_check import Applicable, check_service, open_plan, refusal
from crmctl.bulk.run.plan_file import PlanHeader, read_plan
from crmctl.bulk.run.request_limit import current_limit
from crmctl.bulk.usecases.finding_log import FindingLog
from crmctl.bulk.usecases.job_run import RunOptions, run_to_result
from crmctl.bulk.usecases.requests import RunRequest
from crmctl.bulk.usecases.results import ImportResult
from crmctl.bulk.usecases.targets import check_places, mirror_of, resolve_target, store_of, takes_turn
from crmctl.errors import RejectedError

EXAMPLES = 10
"""How many rows a preview shows."""


@dataclass(frozen=True, kw_only=True)
class ApplyRequest(RunRequest):
    """A plan to carry out. `input`: where the file to import is, when it was moved."""

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
    """A plan, and what it would do now. `error`: why it is not carried out, or None."""

    path: Path
    header: PlanHeader
    predicted: DryRun
    examples: Sequence[Decision]
    differences: Sequence[dict[str, Any]]
    error: RejectedError | None

    def to_document(self) -> dict[str, Any]:
        """The JSON form, every key always present."""
        return {
            **self.predicted.to_document(),
            "plan": str(self.path),
            "createdAt": self.header.created_at,
            "planned": dict(self.header.summary),
            "examples": [decision.to_document() for decision in self.examples],
            "differences": list(self.differences),
        }


def apply_plan(context: BulkContext, request: ApplyRequest) -> ImportResult:
    """Check a plan against what is there now, and do what it says.

    Raises UsageError for a plan that does not fit any more, and what an import raises.
    """
    check_places(request.failed_copy, request.file, request.input)
    options = RunOptions(request.delivery(), request.failed_copy)
    guard, store = request.guard(), store_of(context)
    store.prepare()
    with ExitStack() as stack:
        target, ready = stack.enter_context(_opened(context, request))
        stack.enter_context(takes_turn(context, target, request.lock_wait, by_key=bool(ready.plan.mapping.keys)))
        job = ready.start(store, target, again=request.again, guard=guard)
        return run_to_result(context, job, options)


def preview_plan(context: BulkContext, request: ApplyRequest) -> PlanPreview:
    """Compare a plan with what is there now. Sends nothing. Raises UsageError for a plan that does not fit any more."""
    check_places(request.failed_copy, request.file, request.input)
    guard = request.guard()
    request.delivery()
    with _opened(context, request) as (target, ready), Decisions() as now:
        saved = ready.saved
        options = DryRunOptions(context.clock, current_limit(context), saved.header.before_images, now, context.state)
        found = dry_run(target, ready.input, options, FindingLog(context.listener.report))
        differences = compare(saved.decisions(), now)
        shown = examples(saved.decisions(), EXAMPLES)
        error = refusal(differences) or guard.refusal(found.changes, found.report.rows)
        return PlanPreview(saved.path, saved.header, found, shown, differences.listed, error)


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
