"""Run a job from check to result files."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from crmctl.bulk_context import BulkContext
from crmctl.client.crm import Crm
from crmctl.errors import CrmctlError, StorageError, UsageError
from crmctl.files.whole_files import check_place
from crmctl.plan.final_count import RunResult
from crmctl.plan.import_plan import Guard, ImportPlan
from crmctl.plan.import_run import rows_of, run_import
from crmctl.plan.job_hooks import JobHooks
from crmctl.plan.job_start import ImportJob, ImportRun
from crmctl.plan.requests import note_if_empty, store_of
from crmctl.plan.results import FindingLog, ImportResult, outcome_of, service_words, write_results
from crmctl.read.read_back import Reader
from crmctl.write.database import JobKind, JobState, RowState
from crmctl.write.in_flight import DeliveryOptions
from crmctl.write.jobs import JobInfo, JobStore, effort, summarize
from crmctl.write.journal import DOUBTED, FILE_NAME, Journal

if TYPE_CHECKING:
    from crmctl.plan.row_actions import Resolver

RESULTS_DUE = "results due"
"""Journal fact: the result files are not up to date."""


def run_or_leave_nothing(context: BulkContext, hooks: JobHooks, delivery: DeliveryOptions, failed_copy: Path | None = None) -> ImportResult:
    """Run a job the user just confirmed. If it fails before its first write, delete it and raise the error. Also raise the error of a job
    whose journal was removed meanwhile."""
    store, job = store_of(context), hooks.job.id
    result = run_job(context, hooks, delivery, failed_copy)
    info = next((info for info in store.list() if info.id == job), None)
    if result.error is not None and (info is None or (info.is_resumable and not info.has_sent)):
        if info is not None:
            store.remove(info)
        else:
            done = result.summary.counts[RowState.CREATED] + result.summary.counts[RowState.UPDATED]
            result.error.message += f"; carried out: {done:,} of {result.summary.rows:,} rows"
        if result.error.hint == f"crmctl bulk resume {job}":
            result.error.hint = "make room there, then give the command again" if result.error.code == "no_space" else None
        raise result.error
    return result


def run_job(context: BulkContext, hooks: JobHooks, delivery: DeliveryOptions, failed_copy: Path | None = None) -> ImportResult:
    """Check and send the rows of a job and write the result files. A resumed job continues where it stopped.

    `failed_copy` also gets the failed and rejected rows. Closes the job's journal and input. The result holds the outcome of rows and an
    error that ended sending. Raises CrmctlError if the input cannot be read, another process is working on the job, or a file cannot be
    written.
    """
    job, findings = hooks.job, FindingLog(context.listener.report)
    plan = ImportPlan.from_document(job.journal.header.plan)
    is_import = job.journal.header.kind == JobKind.IMPORT
    for note in (*job.input.source.dialect.told, *job.input.mapping.notes) if is_import else ():
        context.listener.note(note)
    with closing(job.journal) as journal, closing(job.input), ExitStack() as stack:
        if failed_copy is not None:
            _check_place(failed_copy, journal)
        before = summarize(journal).requests
        run = ImportRun(
            context.service, journal, delivery, context.clock, context.listener.progress,
            rows=job.rows, report=findings, resolver=_resolver(job, plan, stack), hooks=hooks,
            stop_on_error=plan.stop_on_error, guard=Guard(**journal.header.guard), newest=job.newest, at_hand=job.at_hand,
            write=hooks.writer(context.service),
        )  # fmt: skip
        try:
            journal.remember(RESULTS_DUE, True)
            result = run_import(run)
        except StorageError as failure:
            result = RunResult(failure)
        notes = [*result.notes, *(_look_back(context.service, job, delivery) if result.error is None else ())]
        unwritten: CrmctlError | None = None
        try:
            _write_results(job, failed_copy)
        except (UsageError, StorageError) as failure:
            unwritten = failure
        effort(journal, before + requests_made(context) - summarize(journal).requests)
        unlinked = hooks.unlinked
        notes += [f"written, but not linked to another row: {unlinked:,}; the failed file names the records"] if unlinked else []
        resumable = journal.state in (JobState.CHECKING, JobState.OPEN) or (unwritten is not None and bool(journal.recall(RESULTS_DUE)))
        resumable = resumable and (journal.folder / FILE_NAME).is_file()
        copy = failed_copy if unwritten is None else None
        error = result.error or unwritten
        outcome = outcome_of(journal, error, notes, is_resumable=resumable, failed_copy=copy, unlinked=unlinked)
    if is_import:
        note_if_empty(context, outcome.input, outcome.summary.rows)
    return replace(outcome, findings=findings)


def _resolver(job: ImportJob, plan: ImportPlan, until: ExitStack) -> Resolver | None:
    if not plan.mapping.keys:
        return None
    from crmctl.plan.row_actions import resolver_of

    feed = None
    if plan.feed is not None:
        from crmctl.plan.feed import feed_of

        feed = until.enter_context(feed_of(job.journal, plan.feed, job.input.shown_attributes))
    return resolver_of(job.input, feed)


def requests_made(context: BulkContext) -> int:
    """Return the number of requests in both lanes since the last call."""
    return context.crm.session.take_requests() + context.service.session.take_requests()


def _write_results(job: ImportJob, failed_copy: Path | None) -> None:
    """Write the result files, without the requested copy if it cannot be written. Raises the error for a missing file."""
    journal = job.journal
    try:
        job.check_input()
        write_results(journal, job.input.source, failed_copy)
        journal.remember(RESULTS_DUE, False)
    except (UsageError, StorageError) as failure:
        if failed_copy is None:
            failure.message = f"the result files of job {job.id} are not written: {failure.message}"
            raise
        _write_results(job, None)
        failed = next(iter(journal.folder.glob("failed.*")), None)
        failure.hint = f"{failed} holds the rows and the reasons" if failed is not None else "no row was refused"
        raise


def _look_back(service: Crm, job: ImportJob, options: DeliveryOptions) -> list[str]:
    """Capture ids if requested, and audit rows once in doubt when the audit is due. Return notes for the user."""
    journal = job.journal
    if journal.state is not JobState.FINISHED:
        return []
    notes: list[str] = []
    if not options.capture_ids and not journal.kept(DOUBTED):
        return notes
    from crmctl.plan.audit import audit, audit_due, capture_ids

    reader = Reader(service, journal.header.object_id)
    again = rows_of(journal, job.rows)
    try:
        if options.capture_ids and (unnamed := capture_ids(journal, reader, again)):
            notes.append(f"the ids of {unnamed} created rows cannot be told")
        due = audit_due(journal, options.settle)
        if due is not None and journal.clock.now() >= due:
            audit(journal, reader, again, options.settle)
    except CrmctlError as failure:
        notes.append(f"the records could not be read once more: {failure}")
    return notes


def finished_result(store: JobStore, job: JobInfo) -> ImportResult | None:
    """Return the outcome of a job with nothing left to do; None if it can be resumed, runs, or lacks result files."""
    if job.is_resumable or job.is_running:
        return None
    with closing(store.open(job)) as journal:
        if journal.recall(RESULTS_DUE):
            return None
        return outcome_of(journal, notes=[f"rows failed{service_words(reasons)}"] if (reasons := journal.refusals()) else [])


def _check_place(path: Path, journal: Journal) -> None:
    """Check the path of the copy before anything is sent. If it is invalid, a job that has not begun is rejected."""
    try:
        check_place(path, Path(journal.header.path))
    except UsageError:
        if not sum(journal.counts().values()):
            journal.state = JobState.REJECTED
        raise
