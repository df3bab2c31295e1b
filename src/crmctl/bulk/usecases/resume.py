"""Going on with a job: which one, whether everything that decides its payloads is still what it was, and what is left of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from crmctl.bulk.context import BulkContext
from crmctl.bulk.journal.jobs import JobInfo, JobStore, refuse_running
from crmctl.bulk.journal.journal import Header
from crmctl.bulk.journal.states import JobKind
from crmctl.bulk.match.reference_resolution import FILE_NAME as REFERENCES
from crmctl.bulk.match.reference_resolution import ReferenceMap
from crmctl.bulk.rows.mapping import schema_digest
from crmctl.bulk.run.delete_hooks import DeleteHooks
from crmctl.bulk.run.edit_hooks import EditHooks, kept_text
from crmctl.bulk.run.feed import FILE_NAME as KEPT
from crmctl.bulk.run.feed import KeptValues
from crmctl.bulk.run.job_hooks import JobHooks
from crmctl.bulk.run.job_start import ImportJob
from crmctl.bulk.run.part_merges import FILE_NAME as MERGED
from crmctl.bulk.run.part_merges import MergedRows
from crmctl.bulk.run.plan import ImportPlan, PlannedInput, file_digest, open_input
from crmctl.bulk.run.update_hooks import Approve, UpdateHooks, agree
from crmctl.bulk.send.edited_record import Editing
from crmctl.bulk.sources.given_input import COPY_NAME, STDIN
from crmctl.bulk.usecases.job_run import RunOptions, finished_result, run_to_result
from crmctl.bulk.usecases.requests import RunRequest
from crmctl.bulk.usecases.results import ImportResult, result_of
from crmctl.bulk.usecases.targets import check_places, resolve_target, store_of, takes_turn
from crmctl.errors import CrmctlError, RejectedError, UsageError
from crmctl.models.attributes import Attribute
from crmctl.models.records import BULK_LIMIT, Record


@dataclass(frozen=True, kw_only=True)
class ResumeRequest(RunRequest):
    """A job to go on with: the named one, with `last` the newest one that can be resumed, else the only one."""

    job: str | None = None
    last: bool = False


@dataclass(frozen=True)
class ResumePreview:
    """What is left of a job. `requests`: how many at least."""

    job: JobInfo

    @property
    def requests(self) -> int:
        return -(-int(self.job.to_document()["unsent"]) // BULK_LIMIT)

    def to_document(self) -> dict[str, Any]:
        """The JSON form, every key always present."""
        return {"dryRun": True, **self.job.to_document(), "requests": self.requests}


def preview_resume(context: BulkContext, request: ResumeRequest) -> ResumePreview:
    """What a job would still send. Raises what `choose_job` raises."""
    check_places(request.failed_copy)
    return ResumePreview(choose_job(store_of(context), request.job, last=request.last))


def resume(
    context: BulkContext, request: ResumeRequest, begins: Callable[[], None] = lambda: None, approve: Approve = agree
) -> ImportResult:
    """Go on with a job; one that is finished only gives its result again. `begins` is called when there is something to do, `approve` with
    what an update is about to change where nobody has agreed to it yet.

    Raises UsageError for a job that cannot go on, and what an import raises.
    """
    check_places(request.failed_copy)
    store = store_of(context)
    store.prepare()
    job = choose_job(store, request.job, last=request.last)
    if (finished := finished_result(store, job)) is not None:
        return result_of(finished, job.header.input)
    begins()
    check_service(job.header, context.origin)
    target = resolve_target(context, job.header.object_id)
    ready = reopen(store, job, context.origin, target.attributes)
    options = RunOptions(request.delivery(), failed_copy=request.failed_copy, hooks=hooks_of(context, job.header, approve))
    target = replace(target, object=job.header.object)
    with takes_turn(context, target, request.lock_wait, by_key=bool(job.header.keys)):
        text = kept_text(ready.journal)
        result = run_to_result(context, ready, options)
    if isinstance(result.error, RejectedError) and text is not None:
        result.error.hint = f"{text}; crmctl bulk jobs {job.id} --remove forgets the job"
    return result


def hooks_of(context: BulkContext, header: Header, approve: Approve = agree) -> Callable[[ImportJob], JobHooks]:
    """The steps of a kind of job besides its rows."""
    if header.shown is not None:
        editing = Editing(context.service, header.object, Record.parse(header.shown))
        return lambda job: EditHooks(job, editing)
    if header.kind == JobKind.UPDATE:
        return lambda job: UpdateHooks(job, approve)
    return DeleteHooks if header.kind == JobKind.DELETE else JobHooks


def reopen_finished(context: BulkContext, reference: str) -> ImportJob:
    """A job to be looked at, not to go on with. Raises UsageError while it runs, and for an input that is not what it was."""
    store = store_of(context)
    info = store.find(reference)
    refuse_running(info)
    check_service(info.header, context.origin)
    target = resolve_target(context, info.header.object_id)
    try:
        return reopen(store, info, context.origin, target.attributes)
    except CrmctlError as error:
        error.hint = error.hint or "the rows of a job are recognised by its input: put the file back as it was"
        raise


def choose_job(store: JobStore, reference: str | None, *, last: bool = False) -> JobInfo:
    """The job to resume: the named one, with `last` the newest resumable one (or the newest at all), else the only resumable one.

    Raises UsageError, with the list, when there are several, or none; NotFoundError for a name that fits no job.
    """
    if reference is not None:
        return store.find(reference)
    jobs = store.list()
    resumable = [job for job in jobs if job.is_resumable] or (jobs[:1] if last else [])
    if not resumable:
        raise UsageError("there is no job to resume", hint="crmctl bulk jobs lists all jobs", code="nothing_to_resume")
    if len(resumable) > 1 and not last:
        listed = "; ".join(f"{job.id} ({job.header.input} into {job.header.object})" for job in resumable)
        raise UsageError(
            f"several jobs can be resumed: {listed}",
            hint="name one, or --last for the newest",
            code="ambiguous_job",
            details={"jobs": [job.to_document() for job in resumable]},
        )
    return resumable[0]


def reopen(store: JobStore, job: JobInfo, origin: str, attributes: Sequence[Attribute]) -> ImportJob:
    """A job ready to go on: same service, same input, same attributes, same mapping.

    `attributes` are the object's attributes as they are now. Raises UsageError that says what has changed.
    """
    header = job.header
    check_service(header, origin)
    if schema_digest(attributes) != header.schema and header.kind != JobKind.DELETE:
        raise _changed(header, f"the attributes of {header.object} have changed")
    source = reopen_input(header, attributes, job.folder)
    with ExitStack() as unless_open:
        unless_open.enter_context(closing(source))
        reopened = ImportJob(store.open(job), source)
        unless_open.pop_all()
    return reopened


def check_service(header: Header, origin: str) -> None:
    """Raises UsageError for a job of another service."""
    if header.origin != origin:
        raise _changed(header, f"it belongs to {header.origin}, and this profile to {origin}", "crmctl auth switch PROFILE, or --profile")


def reopen_input(header: Header, attributes: Sequence[Attribute], folder: Path) -> PlannedInput:
    """The input of a job, to be read again, with what is in its folder.

    Raises UsageError when it is not there, not the same any more, or maps differently.
    """
    path = Path(header.path)
    is_copy = path == folder.absolute() / COPY_NAME
    came_from = "stdin" if header.input == STDIN else header.input
    try:
        sha256, size = file_digest(path, str(path))
    except UsageError as error:
        if is_copy:
            raise _changed(header, f"its rows came from {came_from}, and the copy of them is gone", _forget(header)) from error
        raise _changed(header, error.message, f"put the file back where it was; or {_forget(header)}") from error
    if is_copy and (sha256, size) != (header.sha256, header.size):
        raise _changed(header, f"its rows came from {came_from}, and the copy of them, {path}, is damaged", _forget(header))
    if (sha256, size) != (header.sha256, header.size):
        raise _changed(
            header, f"the file {header.input} has changed", f"import the new content with crmctl bulk import {header.object} FILE"
        )
    try:
        plan = ImportPlan.from_document(header.plan)
        planned = open_input(plan, path, header.input, attributes)
    except CrmctlError as error:
        raise _changed(header, f"its mapping does not fit any more: {error.message}") from error
    if planned.mapping.digest != header.mapping:
        raise _changed(header, "its columns map to other attributes than before")
    if plan.references:
        if not (folder / REFERENCES).is_file():
            raise _changed(header, f"{folder / REFERENCES}, which says what its rows refer to, is gone", _forget(header))
        planned = replace(planned, references=ReferenceMap(plan.references, folder, missing=plan.missing_references))
    if planned.may_merge and "currency" in header.plan["values"]:
        if not (folder / MERGED).is_file():
            raise _changed(header, f"{folder / MERGED}, which holds the values its rows are merged into, is gone", _forget(header))
        planned = replace(planned, merged=MergedRows(folder))
    if plan.feed is not None:
        if not (folder / KEPT).is_file():
            raise _changed(header, f"{folder / KEPT}, which says what its rows leave out, is gone", _forget(header))
        planned = replace(planned, kept=KeptValues(folder))
    return planned


def _forget(header: Header) -> str:
    return f"crmctl bulk jobs {header.job} --remove forgets the job"


def _changed(header: Header, what: str, hint: str | None = None) -> UsageError:
    return UsageError(f"job {header.job} cannot go on: {what}", hint=hint, code="job_changed")
