"""Steps of a job before and after its rows are sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from crmctl.client.crm import Crm
from crmctl.errors import CrmctlError, RejectedError
from crmctl.files.mapping import Mode
from crmctl.files.spills import chunks
from crmctl.files.validation import Payload
from crmctl.frozen import frozen
from crmctl.models.findings import Finding, Severity
from crmctl.plan.import_plan import NO_RECORD, Target, before_image, finding_of_merge
from crmctl.plan.import_run import rows_of
from crmctl.plan.job_start import PLAN_NAME, ImportJob, ImportRun
from crmctl.write.database import JobState, RowState
from crmctl.write.in_flight import WriteBatch
from crmctl.write.journal import BEFORE, TARGET, WHOLE, Journal, entries_of

if TYPE_CHECKING:
    from crmctl.match.keys import KeyIndex
    from crmctl.plan.plan_file import Decisions
    from crmctl.read.read_back import Reader


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

    @property
    def unlinked(self) -> int:
        references = self.job.input.references
        return references.unlinked_count if references is not None else 0

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
            self._merge(run, self._unsent, target)
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

    def _unsent(self) -> Iterator[Payload]:
        return (row for row, entry in entries_of(self.job.journal, self._valid()) if row.parts and entry is None)

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
