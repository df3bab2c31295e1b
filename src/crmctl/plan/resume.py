"""List, resume and repair the jobs of this machine."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from crmctl.bulk_context import BulkContext
from crmctl.errors import CrmctlError, PartialError, RejectedError, UsageError
from crmctl.files.sources import COPY_NAME, STDIN
from crmctl.files.whole_files import check_place
from crmctl.frozen import frozen
from crmctl.match.references import FILE_NAME as REFERENCES
from crmctl.match.references import ReferenceMap
from crmctl.models.resources import BULK_LIMIT, Attribute, Record
from crmctl.plan import audit
from crmctl.plan.changes import Approve, UpdateHooks, agree
from crmctl.plan.deletions import DeleteHooks
from crmctl.plan.edit import EditHooks, Editing
from crmctl.plan.feed import FILE_NAME as KEPT
from crmctl.plan.feed import KeptValues
from crmctl.plan.import_plan import ImportPlan, PlannedInput, file_digest, open_input
from crmctl.plan.import_run import rows_of
from crmctl.plan.job_run import JobHooks, finished_result, run_job
from crmctl.plan.job_start import ImportJob
from crmctl.plan.requests import RunRequest, check_places, resolve_target, store_of, takes_turn
from crmctl.plan.results import ImportResult, duplicates_text, lacks_files, write_results
from crmctl.read.read_back import Reader
from crmctl.write.database import JobKind, JobState
from crmctl.write.jobs import JobInfo, JobStore, refuse_running
from crmctl.write.journal import DUPLICATE, Header, Journal
from crmctl.write.send_context import DeliveryOptions
from crmctl.write.steps import Step, StepKind, StepSender, take_steps


@frozen(kw_only=True)
class ResumeRequest(RunRequest):
    """A job to resume: the named one, with `last` the newest resumable one, else the only resumable one.

    `allow_older`: resume a job even if a newer job by the same key has finished. `trusts_lists`: send rows in doubt again that
    settled lists do not show.
    """

    job: str | None = None
    last: bool = False
    allow_older: bool = False
    trusts_lists: bool = False

    def delivery(self) -> DeliveryOptions:
        return replace(super().delivery(), trusts_lists=self.trusts_lists)


def preview_resume(context: BulkContext, request: ResumeRequest) -> dict[str, Any]:
    """Return the JSON form of a job with the minimum number of requests it still takes. Raises the errors of `choose_job`."""
    check_places(request.failed_copy)
    job = choose_job(store_of(context), request.job, last=request.last).to_document()
    return {"dryRun": True, **job, "requests": -(-int(job["unsent"]) // BULK_LIMIT)}


def resume(
    context: BulkContext, request: ResumeRequest, begins: Callable[[], None] = lambda: None, approve: Approve = agree
) -> ImportResult:
    """Resume a job. If it has finished, return its result again and write missing or requested result files.

    Call `begins` if work remains, and `approve` with the changes of an update the user has not confirmed yet. Raises UsageError for a job
    that cannot be resumed, and the errors of an import.
    """
    store = store_of(context)
    store.prepare()
    job = choose_job(store, request.job, last=request.last)
    if request.failed_copy is not None:
        check_place(request.failed_copy, Path(job.header.path))
    finished = finished_result(store, job)
    if finished is not None and request.failed_copy is None and not lacks_files(finished.summary):
        return finished
    if finished is None and not request.allow_older:
        _refuse_older(store, job)
    begins()
    check_service(job.header, context.origin)
    target = resolve_target(context, job.header.object_id)
    ready = reopen(store, job, context.origin, target.attributes if finished is None else None)
    target = replace(target, object=job.header.object)
    with takes_turn(context, target, request.lock_wait, by_key=bool(job.header.keys)):
        result = run_job(context, _hooks(context, ready, approve), request.delivery(), request.failed_copy)
    if isinstance(result.error, RejectedError) and (shown := job.header.shown) is not None:
        result.error.hint = f"crmctl records edit {target.object} {shown['id']} shows it as it is now"
    return result


def _refuse_older(store: JobStore, job: JobInfo) -> None:
    """Raise UsageError if a newer job by the same key has finished, because old values would overwrite new ones."""
    header = job.header
    for other in store.list() if header.keys else ():
        newer = other.header
        same = (newer.origin, newer.object_id, newer.keys) == (header.origin, header.object_id, header.keys)
        if same and newer.created_at > header.created_at and other.state is JobState.FINISHED:
            raise UsageError(
                f"job {job.id} is older than job {other.id}, which has finished: its rows would overwrite newer values",
                hint=f"crmctl bulk undo {job.id} ends it; crmctl bulk resume {job.id} --allow-older skips records changed since",
                code="older_job",
            )


def _hooks(context: BulkContext, job: ImportJob, approve: Approve) -> JobHooks:
    header = job.journal.header
    if header.shown is not None:
        return EditHooks(job, Editing(context.service, header.object, Record.parse(header.shown)))
    if header.kind == JobKind.UPDATE:
        return UpdateHooks(job, approve)
    return DeleteHooks(job) if header.kind == JobKind.DELETE else JobHooks(job)


def reopen_finished(context: BulkContext, reference: str) -> ImportJob:
    """Open a job to read it, not to resume it. Raises UsageError if the job is running or its input has changed."""
    store = store_of(context)
    info = store.find(reference)
    refuse_running(info)
    try:
        return reopen(store, info, context.origin)
    except CrmctlError as error:
        error.hint = error.hint or "the rows of a job are recognised by its input: put the file back as it was"
        raise


def choose_job(store: JobStore, reference: str | None, *, last: bool = False) -> JobInfo:
    """Return the job to resume: the named one, with `last` the newest resumable job (or the newest job), else the only resumable one.

    Raises UsageError if there is no such job or, with a list, if there are several. Raises NotFoundError for an unknown name.
    """
    if reference is not None:
        return store.find(reference)
    jobs = store.list()
    resumable = [job for job in jobs if job.is_resumable] or (jobs[:1] if last else [])
    if not resumable:
        if (later := next((job for job in store.damaged() if job.hint is not None), None)) is not None:
            raise later.error
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


def reopen(store: JobStore, job: JobInfo, origin: str, attributes: Sequence[Attribute] | None = None) -> ImportJob:
    """Reopen a job with the attributes it began with. Raises UsageError that names what changed since: service, input or mapping.

    With the current `attributes`, also raises it if one that the job writes was deleted or holds other values than before.
    """
    header = job.header
    check_service(header, origin)
    source = reopen_input(header, job.folder)
    with ExitStack() as unless_open:
        unless_open.enter_context(closing(source))
        if attributes is not None and header.kind != JobKind.DELETE:
            _refuse_other_attributes(header, source, attributes)
        journal = store.open(job)
        reopened = ImportJob(journal, source.of_job(journal))
        unless_open.pop_all()
    return reopened


def _refuse_other_attributes(header: Header, source: PlannedInput, attributes: Sequence[Attribute]) -> None:
    """Raise UsageError if an attribute that the job writes was deleted or holds other values. The service judges options by itself."""
    before, now = ({attribute.slug: attribute for attribute in several} for several in (_attributes_of(header), attributes))
    gone = [slug for slug in source.mapping.written if slug not in now]
    other = [slug for slug in source.mapping.written if slug in now and _values_of(now[slug]) != _values_of(before[slug])]
    if gone:
        reason_given = f"{header.object} has no attribute {', '.join(gone)} any more"
        hint = f"create it again as it was, with crmctl attributes create {header.object}, then repeat this command"
        raise _changed(header, reason_given, f"{hint}; crmctl bulk undo {header.job} needs no attribute")
    if other:
        reason_given = f"attribute{'s' if len(other) > 1 else ''} {', '.join(other)} of {header.object} changed"
        raise _changed(header, reason_given, f"change it back, then repeat this command; crmctl bulk undo {header.job} works without")


def _attributes_of(header: Header) -> list[Attribute]:
    return [Attribute.parse(wire) for wire in header.attributes]


def _values_of(attribute: Attribute) -> tuple[object, ...]:
    return attribute.type, attribute.holds_items, attribute.target_object_id


def check_service(header: Header, origin: str) -> None:
    if header.origin != origin:
        raise _changed(header, f"it belongs to {header.origin}, and this profile to {origin}", "crmctl auth switch PROFILE, or --profile")


def reopen_input(header: Header, folder: Path) -> PlannedInput:
    """Open the input of a job again, with the files of its folder. Raises UsageError if it is missing, changed or maps differently."""
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
        hint = "put the file back as it was, then repeat this command; importing the new content may write rows of this job again"
        raise _changed(header, f"the file {header.input} has changed", hint)
    try:
        plan = ImportPlan.from_document(header.plan)
        planned = open_input(plan, path, header.input, _attributes_of(header))
    except CrmctlError as error:
        raise _changed(header, f"its mapping does not fit any more: {error.message}") from error
    if planned.mapping.digest != header.mapping:
        raise _changed(header, "its columns map to other attributes than before")
    if plan.references:
        if not (folder / REFERENCES).is_file():
            raise _changed(header, f"{folder / REFERENCES}, which says what its rows refer to, is gone", _forget(header))
        planned = replace(planned, references=ReferenceMap(plan.references, folder, missing=plan.missing_references))
    if plan.feed is not None:
        if not (folder / KEPT).is_file():
            raise _changed(header, f"{folder / KEPT}, which says what its rows leave out, is gone", _forget(header))
        planned = replace(planned, kept=KeptValues(folder))
    return planned


def _forget(header: Header) -> str:
    return f"crmctl bulk jobs {header.job} --remove forgets the job"


def _changed(header: Header, what: str, hint: str | None = None) -> UsageError:
    return UsageError(f"job {header.job} cannot go on: {what}", hint=hint, code="job_changed")


def remove_job(context: BulkContext, reference: str, *, keep: bool = False) -> str:
    """Delete a job's journal and result files after confirmation. With `keep`, delete nothing. Return the job's id."""
    store = store_of(context)
    job = store.find_any(reference)
    lost = "; it can still be resumed" if isinstance(job, JobInfo) and job.is_resumable and job.has_sent else ""
    context.listener.confirm(f"Remove the journal and the result files of job {job.id}{lost}")
    if not keep:
        store.remove(job)
    return job.id


@frozen
class RepairRequest:
    """A repair of `job` (its id or part of it). crmctl asks before it deletes anything; with `dry_run` it does not."""

    job: str
    delete_duplicates: bool = False
    dry_run: bool = False


@frozen
class RepairResult:
    """Outcome of a repair. `left`: rows that still exist more than once; `way`: the advice for them."""

    job: str
    found: audit.Audit
    deleted: int = 0
    left: int = 0
    way: str = ""

    def to_document(self) -> dict[str, Any]:
        audit_result = self.found
        return {
            "job": self.job, "checked": audit_result.checked, "unreadable": audit_result.unreadable, "final": audit_result.final,
            "duplicates": audit_result.to_document(), "deleted": self.deleted,
        }  # fmt: skip

    def raise_for_error(self) -> None:
        """Raise PartialError for rows that exist more than once or could not be read back."""
        if self.left:
            raise PartialError(duplicates_text(self.left), hint=self.way, details=self.found.to_document())
        if unread := self.found.unreadable:
            message = f"{unread:,} row{'' if unread == 1 else 's'} in doubt could not be read back"
            raise PartialError(message, hint=f"crmctl bulk repair {self.job} looks again", code="unreadable_list")


def repair(context: BulkContext, request: RepairRequest) -> RepairResult:
    """Read back the rows that were in doubt and journal the findings. Raises read errors, and UsageError for a job in use or changed."""
    job = reopen_finished(context, request.job)
    deleted = 0
    with closing(job.journal) as journal, closing(job.input), journal.hold():
        reader, again = Reader(context.service, journal.header.object_id), rows_of(journal, job.input.payloads)
        audit_result = audit.audit(journal, reader, again)
        way = f"crmctl bulk repair {job.id} --delete-duplicates"
        if audit_result.duplicates:
            as_written = audit.review(journal, reader, again)
            audit_result = replace(audit_result, duplicates=audit.known_duplicates(journal))
            if request.delete_duplicates and audit_result.duplicates:
                deleted = _delete(context, journal, as_written, dry_run=request.dry_run)
            if not as_written or not audit.is_provable(journal.header) or deleted:
                way = f"another client changed or created them: look at them, and crmctl bulk delete {journal.header.object} --ids FILE"
        duplicates = len(audit.known_duplicates(journal))
        write_results(journal, job.input.source)
    return RepairResult(job.id, audit_result, deleted, duplicates, way)


def _delete(context: BulkContext, journal: Journal, as_written: Collection[str], *, dry_run: bool) -> int:
    if not audit.is_provable(journal.header):
        hint = f"look at the records, and delete them with crmctl bulk delete {journal.header.object} --ids FILE"
        raise UsageError("these rows have no unique attribute: another client may have created the records", hint=hint, code="not_ours")
    if not as_written:
        return 0
    count = len(as_written)
    context.listener.confirm(f"Delete {count:,} record{'' if count == 1 else 's'} that {'is' if count == 1 else 'are'} there a second time")
    if dry_run:
        return 0

    def forget(record_ids: Iterable[str]) -> None:
        journal.keep(DUPLICATE, ((record_id, None) for record_id in record_ids))

    steps = [Step(StepKind.DELETE, journal.header.object_id, record_id, number=n) for n, record_id in enumerate(as_written)]
    outcome = take_steps(StepSender(context.service, context.clock), context.listener.progress, steps, count, forget)
    if outcome.error is not None:
        raise outcome.error
    return outcome.done
