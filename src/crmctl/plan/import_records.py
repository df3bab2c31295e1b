"""Import a file, or apply a saved plan."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from crmctl.bulk_context import BulkContext
from crmctl.errors import CrmctlError
from crmctl.files.rows import spool_rows
from crmctl.files.sources import GivenInput, open_source
from crmctl.frozen import frozen
from crmctl.models.resources import Attribute
from crmctl.plan.final_count import LATE_FACTOR, LOOKS, NOTED_LOOKS, UNKNOWN_LAG, UNVERIFIED
from crmctl.plan.import_plan import ImportPlan, PlannedInput
from crmctl.plan.job_run import JobHooks, run_job
from crmctl.plan.job_start import ImportTarget, JobOptions, start_import, temporary_input, temporary_table
from crmctl.plan.requests import (
    GuardedRequest,
    ImportRequest,
    check_places,
    mirror_of,
    newest_page,
    resolve_target,
    sample_records,
    store_of,
    takes_turn,
)
from crmctl.plan.results import ImportResult
from crmctl.read.read_back import Reader
from crmctl.write.database import JobState
from crmctl.write.evidence import Evidence
from crmctl.write.journal import Journal, doubtful
from crmctl.write.methods import CONTROL_SECONDS

if TYPE_CHECKING:
    from crmctl.match.references import Reference
    from crmctl.plan.mirrored_records import MirroredRecords
    from crmctl.plan.plan_file import SavedPlan


RECENT_SECONDS = 300.0
"""Time in which lists catch up. An unfinished job that sent nothing since does not delay others."""


def import_records(context: BulkContext, request: ImportRequest) -> ImportResult:
    """Create a job for a file and run it. All rows are checked before anything is sent.

    The result holds the outcome of each row and the error that ended sending. Raises CrmctlError for an invalid request, an unknown object,
    an input that cannot be read or mapped, and a timeout while another import by key is running.
    """
    check_places(request.failed_copy, request.file if request.rows is None else None)
    store_of(context).prepare()
    delivery, guard, plan = request.delivery(), request.guard(), request.plan()
    mirror = mirror_of(context, request.mirror)
    target = resolve_target(context, request.object, mirror)
    with ExitStack() as stack:
        source = stack.enter_context(given_input(context, request))  # reading stdin to its end may take long
        stack.enter_context(takes_turn(context, target, request.lock_wait, by_key=bool(request.keys)))
        target, plan = prepared(context, request, target, plan, source.path, mirror)
        if _has_waited(context, target, plan):
            target = replace(target, newest=lambda: None)  # the newest page is outdated
        job_options = JobOptions(plan, request.again, keeps_overwritten=request.keeps_overwritten, guard=guard)
        job = start_import(store_of(context), target, source, job_options)
        return run_job(context, JobHooks(job), delivery, request.failed_copy)


def _has_waited(context: BulkContext, target: ImportTarget, plan: ImportPlan) -> bool:
    """Wait until the lists to look up keys in show what jobs of the last minutes created. Return whether that took time.

    An unfinished job never compared its records with its rows: a late list would hide them from the next look-up. If a job saw late
    lists, some of the service's nodes may still be late.
    """
    object_ids = {reference.object_id for reference in plan.references} | ({target.object_id} if plan.mapping.keys else set())
    clock, note, waits = context.clock, context.listener.progress.note, False
    for folder, sent_at in store_of(context).sent_since(clock.now() - RECENT_SECONDS) if object_ids else ():
        try:
            with closing(Journal(folder, clock)) as journal:
                header, settled_at = journal.header, sent_at + UNKNOWN_LAG * LATE_FACTOR
                if header.origin != context.origin or header.object_id not in object_ids or journal.is_running:
                    continue
                if journal.state is JobState.OPEN or journal.recall(UNVERIFIED):
                    waits = _await_rows(journal, Reader(context.service, header.object_id), settled_at, note) or waits
                if journal.recall("lag") and (seconds_left := settled_at - clock.now()) > 0:
                    note(f"waiting {seconds_left:.0f} s, because the lists of the service were late when job {header.job} ended")
                    clock.sleep(seconds_left)
                    waits = True
        except (CrmctlError, sqlite3.Error):
            continue  # another version's journal, or lists that cannot be read
    return waits


def _await_rows(journal: Journal, reader: Reader, settled_at: float, note: Callable[[str], None]) -> bool:
    clock, evidence = journal.clock, Evidence(reader, journal, tuple, journal.clock)
    in_flight = sum(doubt.size for doubt in doubtful(journal))
    until, looks = clock.now() + CONTROL_SECONDS, 0
    while clock.now() < until:
        unlisted = evidence.final_count().left if evidence.can_count else None
        is_settled = clock.now() >= settled_at
        if is_settled if unlisted is None else unlisted >= (0 if is_settled else in_flight):
            break
        looks += 1
        if looks == NOTED_LOOKS:
            note(f"waiting up to {CONTROL_SECONDS:.0f} s for the service's lists to show what job {journal.header.job} created")
        clock.sleep(LOOKS.gap(looks))
    return looks > 0


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
        target = resolve_target(context, name, mirror)
        return target.object_id, target.attributes

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
    with opened or temporary_input(store, request.file, context.stdin) as source:
        yield source


@frozen(kw_only=True)
class ApplyRequest(GuardedRequest):
    """A request to apply a plan. `input` is the new path of an import file that was moved."""

    file: str
    input: str | None = None
    again: bool = False
    mirror: str = "auto"


def apply_plan(context: BulkContext, request: ApplyRequest) -> ImportResult:
    """Check a plan against the current records and run it.

    Raises UsageError for an outdated plan, and the errors of an import.
    """
    check_places(request.failed_copy, request.file, request.input)
    delivery, guard, store = request.delivery(), request.guard(), store_of(context)
    store.prepare()
    with ExitStack() as stack:
        target, saved, source, planned = stack.enter_context(opened_plan(context, request))
        check_places(request.failed_copy, source.path)
        stack.enter_context(takes_turn(context, target, request.lock_wait, by_key=bool(planned.plan.mapping.keys)))
        _has_waited(context, target, planned.plan)
        job_options = JobOptions(planned.plan, request.again, saved.path, guard=guard)
        job = start_import(store, target, replace(source, name=str(source.path)), job_options)
        return run_job(context, JobHooks(job), delivery, request.failed_copy)


@contextmanager
def opened_plan(context: BulkContext, request: ApplyRequest) -> Iterator[tuple[ImportTarget, SavedPlan, GivenInput, PlannedInput]]:
    """Open a plan with its target and input. Raises UsageError for an outdated plan."""
    from crmctl.plan.plan_file import check_service, open_plan, read_plan

    store = store_of(context)
    with ExitStack() as stack:
        plan = stack.enter_context(temporary_input(store, request.file, context.stdin))
        moved = stack.enter_context(temporary_input(store, request.input, context.stdin)) if request.input else None
        saved = read_plan(plan.path)
        check_service(saved.path, saved.header.origin, context.origin)
        mirror = mirror_of(context, request.mirror)
        target = replace(resolve_target(context, saved.header.object_id, mirror), object=saved.header.object)
        yield target, saved, *open_plan(saved, target.attributes, moved)
