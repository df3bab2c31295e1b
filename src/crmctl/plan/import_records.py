"""Import a file, or apply a saved plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from crmctl.bulk_context import BulkContext
from crmctl.files.rows import spool_rows
from crmctl.files.sources import GivenInput, open_source
from crmctl.models.resources import Attribute
from crmctl.plan.import_plan import Guard, ImportPlan, PlannedInput
from crmctl.plan.job_run import RunOptions, run_to_result
from crmctl.plan.job_start import ImportTarget, JobOptions, start_import, temporary_input, temporary_table
from crmctl.plan.requests import (
    ImportRequest,
    RunRequest,
    check_places,
    mirror_of,
    newest_page,
    resolve_target,
    sample_records,
    store_of,
    takes_turn,
)
from crmctl.plan.results import ImportResult

if TYPE_CHECKING:
    from crmctl.match.references import Reference
    from crmctl.plan.mirrored_records import MirroredRecords
    from crmctl.plan.plan_file import SavedPlan


def import_records(context: BulkContext, request: ImportRequest) -> ImportResult:
    """Create a job for a file and run it. All rows are checked before anything is sent.

    The result holds the outcome of each row and the error that ended sending. Raises CrmctlError for an invalid request, an unknown object,
    an input that cannot be read or mapped, and a timeout while another import by key is running.
    """
    check_places(request.failed_copy, request.file if request.rows is None else None)
    store_of(context).prepare()
    options, guard, plan = RunOptions(request.delivery(), request.failed_copy), request.guard(), request.plan()
    mirror = mirror_of(context, request.mirror)
    target = resolve_target(context, request.object, mirror)
    with ExitStack() as stack:
        given = stack.enter_context(given_input(context, request))  # reading stdin to its end may take long
        stack.enter_context(takes_turn(context, target, request.lock_wait, by_key=bool(request.keys)))
        target, plan = prepared(context, request, target, plan, given.path, mirror)
        if _has_waited(context, target, plan):
            target = replace(target, newest=None)  # the newest page is outdated
        made = JobOptions(plan, request.again, keeps_overwritten=request.keeps_overwritten, guard=guard)
        return run_to_result(context, start_import(store_of(context), target, given, made), options)


def _has_waited(context: BulkContext, target: ImportTarget, plan: ImportPlan) -> bool:
    """Wait until the lists to look up keys in show what earlier jobs created. Return whether that took time."""
    ids = {reference.object_id for reference in plan.references} | ({target.object_id} if plan.mapping.keys else set())
    if not ids:
        return False
    from crmctl.plan.final_count import await_unfinished

    return await_unfinished(context.service, store_of(context), context.origin, ids, context.listener.progress.note)


def prepared(
    context: BulkContext, request: ImportRequest, target: ImportTarget, plan: ImportPlan, path: Path, mirror: MirroredRecords | None
) -> tuple[ImportTarget, ImportPlan]:
    """Complete an import with its sample records and the objects that its rows refer to. Raises UsageError for an unreadable input."""
    if plan.feed is not None:
        from crmctl.plan.feed import Policy

        Policy.parse(plan.feed.on_conflict, [attribute.slug for attribute in target.attributes])
    if request.keys:
        target = replace(target, newest=newest_page(context, target))
    samples, directory = sample_records(context, target), context.directory

    def object_of(name: str) -> tuple[str, Sequence[Attribute]]:
        found = resolve_target(context, name, mirror)
        return found.object_id, found.attributes

    header = open_source(path, plan.source, name=request.file).header
    references: tuple[Reference, ...] = ()
    if request.references or any("." in column for column in header):
        from crmctl.match.references import parse_references, references_in

        named = tuple(request.references)
        named = (*named, *references_in(header, target.attributes, named, lambda of: directory.object(of).slug or of))
        references = parse_references(named, target.attributes, object_of)
    return target, replace(plan, values=replace(plan.values, samples=samples), references=references)


@contextmanager
def given_input(context: BulkContext, request: ImportRequest) -> Iterator[GivenInput]:
    """Provide the file, or a temporary copy of stdin or of the rows given."""
    store = store_of(context)
    opened = temporary_table(store, request.file, partial(spool_rows, request.rows)) if request.rows is not None else None
    with opened or temporary_input(store, request.file, context.stdin) as given:
        yield given


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


def apply_plan(context: BulkContext, request: ApplyRequest) -> ImportResult:
    """Check a plan against the current records and run it.

    Raises UsageError for an outdated plan, and the errors of an import.
    """
    check_places(request.failed_copy, request.file, request.input)
    options = RunOptions(request.delivery(), request.failed_copy)
    guard, store = request.guard(), store_of(context)
    store.prepare()
    with ExitStack() as stack:
        target, saved, given, planned = stack.enter_context(opened_plan(context, request))
        stack.enter_context(takes_turn(context, target, request.lock_wait, by_key=bool(planned.plan.mapping.keys)))
        _has_waited(context, target, planned.plan)
        made = JobOptions(planned.plan, request.again, saved.path, guard=guard)
        return run_to_result(context, start_import(store, target, replace(given, name=str(given.path)), made), options)


@contextmanager
def opened_plan(context: BulkContext, request: ApplyRequest) -> Iterator[tuple[ImportTarget, SavedPlan, GivenInput, PlannedInput]]:
    """Open a plan with its target and input. Raises UsageError for an outdated plan."""
    from crmctl.plan.plan_file import check_service, open_plan, read_plan

    store = store_of(context)
    with ExitStack() as stack:
        plan = stack.enter_context(temporary_input(store, request.file, context.stdin))
        moved = stack.enter_context(temporary_input(store, request.input, context.stdin)) if request.input else None
        saved = read_plan(plan.path)
        check_service(saved, context.origin)
        mirror = mirror_of(context, request.mirror)
        target = replace(resolve_target(context, saved.header.object_id, mirror), object=saved.header.object)
        yield target, saved, *open_plan(saved, target.attributes, moved)
