"""Going on with a job: which one, and whether everything that decides its payloads is still what it was."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

from crmctl.bulk.journal.jobs import JobInfo, JobStore
from crmctl.bulk.journal.journal import Header
from crmctl.bulk.match.reference_resolution import FILE_NAME as REFERENCES
from crmctl.bulk.match.reference_resolution import ReferenceMap
from crmctl.bulk.rows.mapping import schema_digest
from crmctl.bulk.run.job_start import ImportJob
from crmctl.bulk.run.part_merges import FILE_NAME as MERGED
from crmctl.bulk.run.part_merges import MergedRows
from crmctl.bulk.run.plan import ImportPlan, PlannedInput, file_digest, open_input
from crmctl.bulk.sources.given_input import COPY_NAME, STDIN
from crmctl.errors import CrmctlError, UsageError
from crmctl.models.attributes import Attribute


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
    if schema_digest(attributes) != header.schema:
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
    return planned


def _forget(header: Header) -> str:
    return f"crmctl bulk jobs {header.job} --remove forgets the job"


def _changed(header: Header, what: str, hint: str | None = None) -> UsageError:
    return UsageError(f"job {header.job} cannot go on: {what}", hint=hint, code="job_changed")
