"""One run of a job from start to summary: the import itself, then the result files. What a command calls."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crmctl.bulk.atomic_file import check_place
from crmctl.bulk.context import BulkContext
from crmctl.bulk.findings import Finding
from crmctl.bulk.journal.jobs import JobInfo, JobStore, summarize
from crmctl.bulk.journal.journal import Journal
from crmctl.bulk.journal.states import JobKind, JobState
from crmctl.bulk.journal.summary import exit_code
from crmctl.bulk.read.read_back import Reader, Unusable
from crmctl.bulk.run.audit import audit, audit_due, known_duplicates
from crmctl.bulk.run.context import ImportRun
from crmctl.bulk.run.created_ids import capture_ids
from crmctl.bulk.run.feed import feed_of
from crmctl.bulk.run.guards import Guard
from crmctl.bulk.run.import_run import RunResult, rows_of, run_import
from crmctl.bulk.run.job_hooks import JobHooks
from crmctl.bulk.run.job_start import ImportJob
from crmctl.bulk.run.key_conflicts import RIVALS_UNKNOWN
from crmctl.bulk.run.plan import ImportPlan
from crmctl.bulk.run.result_files import write_results
from crmctl.bulk.run.row_actions import resolver_of
from crmctl.bulk.send.context import DeliveryOptions, ImportService
from crmctl.bulk.usecases.finding_log import FindingLog
from crmctl.bulk.usecases.results import ImportResult, JobResult, result_of, service_words
from crmctl.bulk.usecases.targets import note_if_empty, store_of
from crmctl.errors import CrmctlError, ExitCode, StorageError, UsageError

RESULTS_DUE = "results due"
"""The journal's fact: the result files do not yet show what is in it."""


@dataclass(frozen=True)
class RunOptions:
    """How a job is sent, and where its failed and rejected rows are copied to. `hooks` makes the steps of a job besides its rows."""

    delivery: DeliveryOptions = field(default_factory=DeliveryOptions)
    failed_copy: Path | None = None
    hooks: Callable[[ImportJob], JobHooks] = JobHooks


def run_to_result(context: BulkContext, job: ImportJob, options: RunOptions) -> ImportResult:
    """Do what is left of a job. What happens to rows is in the result; raises what `run_job` raises."""
    if job.journal.header.kind == JobKind.IMPORT:
        for note in (*job.input.source.dialect.told, *job.input.mapping.notes):
            context.listener.note(note)
    file, findings = job.journal.header.input, FindingLog(context.listener.report)
    result = run_job(context, job, options, findings)
    if job.journal.header.kind == JobKind.IMPORT:
        note_if_empty(context, file, result.summary.rows)
    return result_of(result, file, findings)


def run_or_leave_nothing(context: BulkContext, job: ImportJob, options: RunOptions) -> ImportResult:
    """The same for a job that somebody has just been asked about: one that ends before it begins to write leaves nothing behind, and its
    error is raised."""
    store = store_of(context)
    result = run_to_result(context, job, options)
    info = store.find(job.id)
    if result.error is not None and info.is_resumable and not info.has_sent:
        store.remove(info)
        if result.error.hint == f"crmctl bulk resume {job.id}":
            result.error.hint = "make room there, then give the command again" if result.error.code == "no_space" else None
        raise result.error
    return result


def run_job(context: BulkContext, job: ImportJob, options: RunOptions, report: Callable[[Finding], None]) -> JobResult:
    """Check, send, write the result files; a job that was begun goes on where it was. Closes the job's journal and input.

    What happens to rows, and an error that ends sending, is in the result. Raises CrmctlError when the input cannot be read, when another
    process works on the job, or when a file cannot be written.
    """
    plan = ImportPlan.from_document(job.journal.header.plan)
    with closing(job.journal) as journal, closing(job.input), feed_of(journal, plan.feed, job.input.shown_attributes) as feed:
        if options.failed_copy is not None:
            _check_place(options.failed_copy, journal)
        hooks = options.hooks(job)
        service = hooks.service_of(context.service)
        run = ImportRun(
            service, journal, options.delivery, context.clock, context.listener.progress,
            rows=job.input.to_send, report=report, resolver=resolver_of(job.input, journal.header.object_id, feed), hooks=hooks,
            stop_on_error=plan.stop_on_error, guard=Guard(**journal.header.guard), newest=job.newest, at_hand=job.at_hand,
        )  # fmt: skip
        try:
            journal.remember(RESULTS_DUE, True)
            result = run_import(run)
        except StorageError as failure:
            result = RunResult(failure)
        notes = [*result.notes, *(_look_back(service, job, options.delivery) if result.error is None else ())]
        unwritten = _write_results(job, options.failed_copy)
        error = result.error or unwritten
        summary = summarize(journal)
        code = exit_code(summary.counts, error)
        if error is None and journal.state is JobState.REJECTED:
            code = ExitCode.REJECTED  # rows that hold everything already are no success of a job that sends nothing
        if (unlinked := hooks.unlinked) and code is ExitCode.REJECTED:
            code = ExitCode.PARTIAL
        notes += [f"written, but not linked to another row: {unlinked:,}; the failed file names the records"] if unlinked else []
        duplicates, rivals = known_duplicates(journal), known_rivals(journal)
        if (duplicates or rivals) and code is ExitCode.OK:
            code = ExitCode.PARTIAL
        resumable = journal.state in (JobState.CHECKING, JobState.OPEN) or (unwritten is not None and bool(journal.recall(RESULTS_DUE)))
        return JobResult(summary, code, error, tuple(notes), resumable, len(duplicates), rivals, journal.refusals())


def _write_results(job: ImportJob, failed_copy: Path | None) -> CrmctlError | None:
    """Write the result files; where a copy that was asked for cannot be written, without it. Returns why something is not there."""
    journal = job.journal
    try:
        write_results(journal, job.input.source, failed_copy)
        journal.remember(RESULTS_DUE, False)
        return None
    except (UsageError, StorageError) as failure:
        if failed_copy is None:
            failure.message = f"the result files of job {job.id} are not written: {failure.message}"
            return failure
        rest = _write_results(job, None)
        if rest is None:
            failed = next(iter(journal.folder.glob("failed.*")), None)
            failure.hint = f"{failed} holds the rows and the reasons" if failed is not None else "no row was refused"
        return rest or failure


def _look_back(service: ImportService, job: ImportJob, options: DeliveryOptions) -> list[str]:
    """What is done when nothing is left to send: ids where they are wanted, and the audit of rows once in doubt when it is time for it."""
    journal = job.journal
    if journal.state is not JobState.FINISHED:
        return []
    notes = []
    if (unknown := journal.recall(RIVALS_UNKNOWN)) is not None:
        notes.append(f"nobody can say whether somebody else created records with the same keys meanwhile: {unknown}")
    reader = Reader(service, journal.header.object_id)
    again = rows_of(journal, job.input.to_send)
    try:
        if options.capture_ids and (unnamed := capture_ids(journal, reader, again)):
            notes.append(f"the ids of {unnamed} created rows cannot be told")
        due = audit_due(journal, options.settle)
        if due is not None and journal.clock.now() >= due:
            audit(journal, reader, again, options.settle)
    except (CrmctlError, Unusable) as failure:
        notes.append(f"the records could not be read once more: {failure}")
    finally:
        journal.add_effort(reader.requests, 0.0)
    return notes


def finished_result(store: JobStore, job: JobInfo) -> JobResult | None:
    """The result of a job with nothing left to do: exit 0 for a finished one, 9 for one whose input was rejected.

    None for any other, and for one whose result files are still to be written.
    """
    if job.is_resumable or job.is_running:
        return None
    with closing(store.open(job)) as journal:
        if journal.recall(RESULTS_DUE):
            return None
        duplicates, rivals = len(known_duplicates(journal)), known_rivals(journal)
        finished = ExitCode.PARTIAL if duplicates or rivals else ExitCode.OK
        code = ExitCode.REJECTED if job.state is JobState.REJECTED else finished
        refusals = journal.refusals()
        notes = (f"rows failed{service_words(refusals)}",) if refusals else ()
        return JobResult(summarize(journal), code, notes=notes, duplicates=duplicates, rivals=rivals, refusals=refusals)


def known_rivals(journal: Journal) -> list[dict[str, Any]]:
    """Rows whose key somebody else's record has too: the row, the key, and all records that have it."""
    return [{"row": row, "key": key, "ids": ids} for row, (key, ids) in journal.rivals().items()]


def _check_place(path: Path, journal: Journal) -> None:
    """Better now than after everything was sent. A job that has not begun is then none to resume."""
    try:
        check_place(path, Path(journal.header.path))
    except UsageError:
        if not sum(journal.counts().values()):
            journal.set_state(JobState.REJECTED)
        raise
