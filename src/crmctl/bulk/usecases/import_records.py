"""Importing the records of a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from crmctl.bulk.context import BulkContext
from crmctl.bulk.match.references import parse_references, references_in
from crmctl.bulk.run.job_start import ImportTarget, JobOptions, start_import, temporary_input, temporary_rows
from crmctl.bulk.run.plan import ImportPlan
from crmctl.bulk.run.three_way import Policy
from crmctl.bulk.sources.given_input import GivenInput
from crmctl.bulk.sources.open_source import open_source
from crmctl.bulk.usecases.job_run import RunOptions, run_to_result
from crmctl.bulk.usecases.requests import ImportRequest
from crmctl.bulk.usecases.results import ImportResult
from crmctl.bulk.usecases.targets import (
    check_places,
    last_turn,
    mirror_of,
    newest_page,
    resolve_target,
    sample_records,
    store_of,
    takes_turn,
)
from crmctl.models.attributes import Attribute


def import_records(context: BulkContext, request: ImportRequest) -> ImportResult:
    """Make a job of a file and run it; all rows are checked before anything is sent.

    What happens to rows is in the result, an error that ended sending too. Raises CrmctlError for a request that means nothing, an object
    that is not there, an input that cannot be read or mapped, and when another import by key does not end in time.
    """
    check_files(request)
    store_of(context).prepare()
    options, guard = RunOptions(request.delivery(), request.failed_copy), request.guard()
    with ExitStack() as stack:
        ready = stack.enter_context(prepared(context, request, request.plan()))
        before = stack.enter_context(takes_turn(context, ready.target, request.lock_wait, by_key=bool(request.keys)))
        if before != ready.last_turn:
            # Another import had its turn since: what is new was not read.
            ready = replace(ready, target=replace(ready.target, newest=None))
        made = JobOptions(ready.plan, request.again, request.marker, request.before_images, guard=guard)
        return run_to_result(context, start_import(store_of(context), ready.target, ready.given, made), options)


@dataclass(frozen=True)
class Prepared:
    """An import before its job: where records go, the input, and what decides its payloads."""

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
    opened = temporary_rows(store, request.rows, request.file) if request.rows is not None else None
    with opened or temporary_input(store, request.file, context.stdin) as given:
        yield given
