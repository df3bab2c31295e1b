"""The steps of a job besides its rows: keeping what updates overwrite, refusing what its plan does not say, a second look by key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from crmctl.bulk.journal.states import JobState
from crmctl.bulk.match.key_index import KeyIndex
from crmctl.bulk.read.read_back import Reader
from crmctl.bulk.rows.batches import Entry
from crmctl.bulk.rows.mapping import Mode
from crmctl.bulk.rows.validation import Payload
from crmctl.bulk.run.before_images import Later, must_be_read, read_before
from crmctl.bulk.run.context import Hooks, ImportRun
from crmctl.bulk.run.import_run import rows_of
from crmctl.bulk.run.job_start import PLAN_NAME, ImportJob
from crmctl.bulk.run.key_conflicts import RIVALS_UNKNOWN, KeyConflicts
from crmctl.bulk.run.missing_records import skip_missing
from crmctl.bulk.run.part_merges import MergedRows, MergeRun, Target
from crmctl.bulk.run.rows_to_send import chunks
from crmctl.bulk.send.context import ImportService
from crmctl.client.crm import Crm
from crmctl.errors import CrmctlError, InterruptedByUser, UsageError

if TYPE_CHECKING:
    from crmctl.bulk.run.plan_check import Expectation


@dataclass(frozen=True)
class JobHooks(Hooks):
    """The steps of a job in a folder."""

    job: ImportJob

    def service_of(self, service: Crm) -> ImportService:
        """What the job's batches are sent to."""
        return service

    @property
    def changes_rows(self) -> bool:
        return self._makes_parents or self.job.input.merged is not None

    @property
    def _makes_parents(self) -> bool:
        references = self.job.input.references
        return references is not None and bool(references.groups())

    @property
    def unlinked(self) -> int:
        """How many rows were written without their links."""
        references = self.job.input.references
        return references.unlinked_count if references is not None else 0

    def approve(self, run: ImportRun, entries: Iterable[Entry]) -> CrmctlError | None:
        journal = self.job.journal
        header = journal.header
        reader = run.reader()
        try:
            refusal = plan.refuse_rows(self.job.input, reader) if (plan := self._plan()) else None
            keeps_all = must_be_read(header.before_images, header.mode, header.keys)
            if refusal is None and self.job.input.merged is not None:
                self._merge(run, reader, keeps_all=keeps_all)
            elif refusal is None and keeps_all:
                read_before(run, reader, entries, *self._later)
        except CrmctlError as failure:
            return failure
        finally:
            journal.add_effort(reader.requests, 0.0)
        return self._refused(refusal)

    def approve_keys(self, run: ImportRun, index: KeyIndex) -> CrmctlError | None:
        assert run.resolver is not None
        if self.job.input.merged is not None:
            self.job.input.merged.restart()
        if self.job.input.kept is not None:
            self.job.input.kept.restart()
        return self._refused(plan.refuse_by_key(run.resolver, index) if (plan := self._plan()) else None)

    def _plan(self) -> Expectation | None:
        """What the job's plan says, if it has one."""
        path = self.job.journal.folder / PLAN_NAME
        if not path.exists():
            return None
        from crmctl.bulk.run.plan_check import Expectation

        return Expectation(path)

    def before_rows(self, run: ImportRun) -> CrmctlError | None:
        references = self.job.input.references
        if references is not None and self._makes_parents:
            from crmctl.bulk.run.parents import make_parents

            failure = make_parents(run, references)
            if failure is not None:
                return failure
        return self._merge_anew(run)

    def _merge(self, run: ImportRun, reader: Reader, *, keeps_all: bool) -> None:
        """Make parts whole for the first time; where a row is refused for it that means the job, as for any invalid row."""
        journal, merged = self.job.journal, self.job.input.merged
        assert merged is not None
        merged.restart()
        rejected = self._merging(run, reader, merged).merge(self._valid(), lambda row: row.id, keeps_all=keeps_all)
        if rejected and journal.header.plan["stop_on_error"]:
            journal.set_state(JobState.REJECTED)

    def _merge_anew(self, run: ImportRun) -> CrmctlError | None:
        """When a job goes on, rows that are not sent yet are merged into what their records hold now."""
        journal, merged = self.job.journal, self.job.input.merged
        if merged is None and self.job.input.may_merge:
            return UsageError(
                f"job {journal.header.job} was begun by an earlier crmctl, which replaced whole values where a row names parts of them",
                hint=f"import what is left anew: crmctl bulk jobs {journal.header.job} names the file of rows that were not sent",
                code="job_changed",
            )
        if merged is None or merged.is_current:
            return None
        reader = run.reader()
        target: Target = (lambda row: journal.target(row.ordinal)) if journal.header.keys else (lambda row: row.id)
        try:
            self._merging(run, reader, merged).merge(self._unsent(), target)
            merged.is_current = True
        except CrmctlError as failure:
            return failure
        finally:
            journal.add_effort(reader.requests, 0.0)
        return None

    def _merging(self, run: ImportRun, reader: Reader, merged: MergedRows) -> MergeRun:
        return MergeRun(run, reader, self.job.input.merger, merged, run.report, *self._later)

    def _valid(self) -> Iterator[Payload]:
        return (row for row in self.job.input.payloads() if not row.rejected)

    def _unsent(self) -> Iterator[Payload]:
        for chunk in chunks(self._valid()):
            taken = self.job.journal.taken(chunk[0].ordinal, chunk[-1].ordinal)
            yield from (row for row in chunk if row.parts and row.ordinal not in taken)

    def frees_rows(self, run: ImportRun) -> bool:
        with self._afterwards(run) as afterwards:
            try:
                if afterwards is None and self.job.journal.header.mode == Mode.UPDATE:
                    self._skip_missing(run)
                return afterwards is not None and afterwards.free_refused() > 0
            except CrmctlError as failure:
                self.job.journal.note("not looked again", failure.message)
                return False

    def _skip_missing(self, run: ImportRun) -> None:
        reader = run.reader()
        try:
            skip_missing(self.job.journal, reader, self.job.input.payloads(), run.report)
        finally:
            self.job.journal.add_effort(reader.requests, 0.0)

    def after_rows(self, run: ImportRun) -> CrmctlError | None:
        references = self.job.input.references
        if references is not None and references.link_count:
            from crmctl.bulk.run.links import link_rows

            again = rows_of(self.job.journal, self.job.input.to_send)
            if (failure := link_rows(run, references, again)) is not None:
                return failure
        with self._afterwards(run) as afterwards:
            try:
                if afterwards is not None:
                    afterwards.find_rivals()
            except InterruptedByUser as failure:
                return failure
            except CrmctlError as failure:
                self.job.journal.remember(RIVALS_UNKNOWN, failure.message)
        return None

    @contextmanager
    def _afterwards(self, run: ImportRun) -> Iterator[KeyConflicts | None]:
        """The second look at an import by key."""
        journal = self.job.journal
        reader = run.reader()
        try:
            yield KeyConflicts(run.resolver, journal, reader, self.job.input.payloads) if run.resolver is not None else None
        finally:
            journal.add_effort(reader.requests, 0.0)

    @property
    def _later(self) -> Sequence[Later]:
        references = self.job.input.references
        return [references.later_slugs] if references is not None else []

    def _refused(self, refusal: CrmctlError | None) -> CrmctlError | None:
        if refusal is not None:
            self.job.journal.set_state(JobState.REJECTED)
        return refusal
