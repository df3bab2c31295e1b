"""Run a job from check to result files, with the steps of its kind before and after its rows are sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from crmctl.bulk_context import BulkContext
from crmctl.client.crm import Crm
from crmctl.errors import CrmctlError, RejectedError, StorageError, UsageError
from crmctl.files.mapping import Mode
from crmctl.files.spills import chunks
from crmctl.files.validation import Payload
from crmctl.frozen import frozen
from crmctl.models.findings import Finding, Severity
from crmctl.plan.final_count import RunResult
from crmctl.plan.import_plan import NO_RECORD, Guard, ImportPlan, Target, before_image, finding_of_merge
from crmctl.plan.import_run import rows_of, run_import
from crmctl.plan.job_start import PLAN_NAME, ImportJob, ImportRun
from crmctl.plan.requests import note_if_empty, store_of
from crmctl.plan.results import FindingLog, ImportResult, outcome_of, service_words, write_results
from crmctl.read.read_back import Reader
from crmctl.write.database import JobKind, JobState, RowState
from crmctl.write.jobs import JobInfo, JobStore, effort, summarize
from crmctl.write.journal import BEFORE, DOUBTED, FILE_NAME, TARGET, WHOLE, Journal, entries_of
from crmctl.write.send_context import DeliveryOptions, WriteBatch

if TYPE_CHECKING:
    from crmctl.match.keys import KeyIndex
    from crmctl.plan.plan_file import Decisions
    from crmctl.plan.row_actions import Resolver


@frozen
class JobHooks:
    """The steps of an import job around the sending of its rows. An error of a step stops the run."""

    job: ImportJob

    def writer(self, service: Crm) -> WriteBatch | None:
        return None

    @property
    def changes_rows(self) -> bool:
        """Whether rows are completed after the check."""
        return self._makes_parents or self.job.input.merged is not None

    @property
    def _makes_parents(self) -> bool:
        references = self.job.input.references
        return references is not None and bool(references.groups())

    def approve(self, run: ImportRun) -> None:
        """Approve the valid rows after the check, before anything is sent."""
        journal, merged = self.job.journal, self.job.input.merged
        self._check_plan(lambda now: now.add_rows(self.job.input, run.reader()))
        if merged is not None or journal.header.keeps_overwritten:
            rejected = self._merge(run, self._valid, lambda row: row.id, keeps_all=journal.header.keeps_overwritten)
            if rejected and journal.header.plan["stop_on_error"]:
                journal.state = JobState.REJECTED

    def approve_keys(self, run: ImportRun, index: KeyIndex) -> None:
        resolver = run.resolver
        assert resolver is not None
        if self.job.input.kept is not None:
            self.job.input.kept.restart()
        self._check_plan(lambda now: now.add_outcomes(resolver, index))

    def _check_plan(self, add: Callable[[Decisions], None]) -> None:
        """Reject the job if its rows differ from its saved plan, if it has one. Raises RejectedError."""
        path = self.job.journal.folder / PLAN_NAME
        if not path.exists():
            return
        from crmctl.plan.plan_file import check_rows

        try:
            check_rows(path, add)
        except RejectedError:
            self.job.journal.state = JobState.REJECTED
            raise

    def before_rows(self, run: ImportRun) -> None:
        references = self.job.input.references
        if references is not None and self._makes_parents:
            from crmctl.plan.relations import make_parents

            make_parents(run, references)

    def compare_unsent(self, run: ImportRun) -> None:
        """Merge the unsent rows of a resumed job into the current values of their records. Fail other rows whose records changed."""
        from crmctl.plan.undo_updates import fail_changed

        journal = self.job.journal
        if self.job.input.merged is not None:
            target: Target = (lambda row: journal.recall(row.ordinal, TARGET)) if journal.header.keys else (lambda row: row.id)
            self._merge(run, lambda: (row for row, entry in entries_of(journal, self._valid()) if row.parts and entry is None), target)
        fail_changed(self.job, run.reader(), run.progress.note)

    def _merge(self, run: ImportRun, rows: Callable[[], Iterator[Payload]], target: Target, *, keeps_all: bool = False) -> bool:
        """Complete the values of rows that give parts, and keep before images of these rows, with `keeps_all` of all rows.

        Return whether a row was rejected because its parts do not fit the current value. Repeatable; raises reading errors. Nothing is
        stored for a missing record, because the service will refuse its row.
        """
        from crmctl.read.records import read_known

        journal, references, rejected = self.job.journal, self.job.input.references, False
        later = references.later_slugs if references is not None else lambda _: ()
        ids = (target(row) for row in rows() if row.parts or keeps_all)
        with read_known(run.reader(), filter(None, ids), run.progress) as records:
            for chunk in chunks(rows()) if len(records) else ():
                images, wholes = [], []
                for row in chunk:
                    record = records.get(target(row) or "") if row.parts or keeps_all else None
                    if record is None:
                        continue
                    try:
                        values = self.job.input.merger.merge_all(row.parts, record.data)
                    except RejectedError as error:
                        finding = finding_of_merge(error).at(row.ordinal, row.first_line, row.last_line)
                        run.report(finding)
                        journal.conclude([(row.ordinal, RowState.REJECTED, None, finding.message)])
                        rejected = True
                        continue
                    wholes += [(row.ordinal, values)] if values else []
                    images.append((row.ordinal, before_image(row.data | values, record.data, later(row.ordinal))))
                journal.keep(BEFORE, images)
                journal.keep(WHOLE, wholes)
        return rejected

    def _valid(self) -> Iterator[Payload]:
        return (row for row in self.job.input.payloads() if not row.rejected)

    def _ids(self) -> Iterator[str]:
        return (row.id for row in self._valid() if row.id is not None)

    def frees_rows(self, run: ImportRun) -> bool:
        """Whether refused rows may be sent again after all rows were sent."""
        journal = self.job.journal
        try:
            if run.resolver is not None:
                from crmctl.plan.row_actions import free_refused

                return free_refused(run.resolver, journal, run.reader(), self.job.input.payloads(in_full=True)) > 0
            if journal.header.mode == Mode.UPDATE:
                _skip_missing(journal, run.reader(), self.job.input.payloads(), run.report)
        except CrmctlError:
            pass  # the refused rows stay as the service left them
        return False

    def after_rows(self, run: ImportRun) -> None:
        references = self.job.input.references
        if references is not None and references.link_count:
            from crmctl.plan.relations import link_rows

            link_rows(run, references, rows_of(self.job.journal, self.job.input.to_send))


NOT_THERE = "no record has this id"

MOST_CHECKED = 1_000
"""The maximum number of refused rows to check; with more, the service's own messages stay."""


def _skip_missing(journal: Journal, reader: Reader, payloads: Iterable[Payload], report: Callable[[Finding], None]) -> None:
    """Read the records of refused rows and mark rows without a record as skipped. Raises reading errors."""
    if not 0 < journal.counts()[RowState.FAILED] <= MOST_CHECKED:
        return
    from crmctl.read.records import find

    entries = entries_of(journal, payloads)
    refused = [row for row, entry in entries if entry is not None and entry.state is RowState.FAILED and row.id]
    existing = {record.id.lower() for record in find(reader, (str(row.id) for row in refused))}
    missing = [row for row in refused if str(row.id).lower() not in existing]
    for row in missing:
        finding = Finding(NO_RECORD, f"skipped: {NOT_THERE}", hint="it was deleted, or belongs elsewhere", severity=Severity.WARNING)
        report(finding.at(row.ordinal, row.first_line, row.last_line).on("id", row.id))
    journal.conclude((row.ordinal, RowState.UNSENT, None, None) for row in missing)
    journal.conclude((row.ordinal, RowState.SKIPPED, None, NOT_THERE) for row in missing)


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
    plan = job.input.plan
    is_import = job.journal.header.kind == JobKind.IMPORT
    for note in (*job.input.source.dialect.told, *job.input.mapping.notes) if is_import else ():
        context.listener.note(note)
    with closing(job.journal) as journal, closing(job.input), ExitStack() as stack:
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
        unlinked = job.input.references.unlinked_count if job.input.references is not None else 0
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


def seconds_for(context: BulkContext, requests: int) -> float:
    """Return the seconds that so many requests of a bulk command take from now on, by what the reads before told of the rate limit."""
    return context.service.session.time_for(requests)


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
