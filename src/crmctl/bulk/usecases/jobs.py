"""The bulk jobs of this machine: listing them, showing one, removing one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from crmctl.bulk.context import BulkContext
from crmctl.bulk.journal.jobs import DamagedJob, JobInfo
from crmctl.bulk.merge.merge_journal import MODE
from crmctl.bulk.usecases.resume import choose_job
from crmctl.bulk.usecases.targets import store_of


@dataclass(frozen=True)
class JobList:
    """`jobs`, the newest first, and those whose journal cannot be read."""

    jobs: Sequence[JobInfo]
    damaged: Sequence[DamagedJob]


def list_jobs(context: BulkContext) -> JobList:
    store = store_of(context)
    return JobList(store.list(), store.damaged())


def find_job(context: BulkContext, reference: str) -> JobInfo:
    """A job by its id, the beginning or the end of it, or `last`. Raises NotFoundError; UsageError for several, and a damaged one."""
    return store_of(context).find(reference)


def merge_job(context: BulkContext, reference: str | None, *, last: bool = False) -> JobInfo | None:
    """The job that is meant, where it is one that merges. Raises what choosing raises."""
    store = store_of(context)
    job = store.find(reference) if reference is not None else choose_job(store, None, last=last)
    return job if job.header.mode == MODE else None


def remove_job(context: BulkContext, reference: str, *, keep: bool = False) -> str:
    """Delete a job's journal and result files when the listener agrees; with `keep` only say which job it is. Returns its id."""
    store = store_of(context)
    found = store.find_any(reference)
    lost = "; it can still be resumed" if isinstance(found, JobInfo) and found.is_resumable and found.has_sent else ""
    context.listener.confirm(f"Remove the journal and the result files of job {found.id}{lost}")
    if not keep:
        store.remove(found)
    return found.id
