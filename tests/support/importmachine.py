"""Imports as a state machine: several jobs against one service, with faults, deaths, other clients, repair and undo in any order.

Every step and every commit compares the journal with the service.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from crmctl.client.crm import Crm
from crmctl.client.session import Session
from crmctl.config.credentials import Credential
from crmctl.errors import ServiceError
from crmctl.files.sources import GivenInput
from crmctl.models.resources import Attribute
from crmctl.plan.audit import audit
from crmctl.plan.import_plan import ImportPlan
from crmctl.plan.import_run import rows_of
from crmctl.plan.job_run import JobHooks, run_job
from crmctl.plan.job_start import ImportJob, ImportTarget, JobOptions, start_import
from crmctl.plan.results import write_results
from crmctl.plan.resume import reopen
from crmctl.plan.undo import WrittenRecords, carry_out, plan_undo
from crmctl.plan.undo_updates import Updates
from crmctl.read.read_back import Reader
from crmctl.read.stable_pages import SeenIds
from crmctl.write.database import JobState, RowState
from crmctl.write.jobs import JobStore
from crmctl.write.journal import Journal, surplus_records
from crmctl.write.send_context import DeliveryOptions
from tests.support.bulkcontext import QuietContext
from tests.support.bulkfiles import attribute
from tests.support.bulkjobs import Silent
from tests.support.bulkserver import OBJECT_ID
from tests.support.clock import FakeClock
from tests.support.faultruns import FOLDER, ORIGIN, POINTS, RECOGNITIONS, Killed, MortalJournal, misnamed
from tests.support.faultservice import FAULTS, READING, Fault, FaultService, Habits

SECRET = "sk-nobody-may-read-this"
OPTIONS = DeliveryOptions(concurrency=1, max_rows=3)
PER_JOB = 1000
TRIES = 8

AFTER_THE_HANDLER = [fault for fault in FAULTS if not fault.comes_first]
TROUBLE = st.lists(st.tuples(st.integers(0, 4), st.sampled_from(AFTER_THE_HANDLER)), max_size=2, unique_by=lambda pair: pair[0])
DEATH = st.none() | st.tuples(st.sampled_from(POINTS), st.integers(1, 3))


class WatchedJournal(MortalJournal):
    """Checks after every commit that the counts match the rows (I4)."""

    @contextmanager
    def _transaction(self, *, durable: bool = True) -> Any:
        with self._lock:
            with MortalJournal._transaction(self, durable=durable):
                yield
            counts = {state: count for state, count in self.counts().items() if count and state is not RowState.UNSENT}
            assert counts == Counter(entry.state for entry in self.rows(1, PER_JOB).values())


@dataclass
class Import:
    """One file and its job. `numbers` are the values of `n` by row, equal for twins; `edited` are ids of records that people changed."""

    name: str
    recognition: str
    numbers: list[int]
    invalid: frozenset[int]
    edited: set[str] = field(default_factory=set)
    undone: bool = False


class Imports(RuleBasedStateMachine):
    """The rules are possible events; the invariants must hold between them."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.service = FaultService(self.clock)
        self.temporary = tempfile.TemporaryDirectory(dir=FOLDER)
        self.folder = Path(self.temporary.name)
        self.store = JobStore(self.folder / "state", self.clock)
        self.imports: list[Import] = []

    # -- rules -----------------------------------------------------------------------------------------------------------------------

    @initialize(habits=st.sampled_from([habits for habits in READING if habits.stopped is None]))
    def meet_a_service(self, habits: Habits) -> None:
        self.service.habits = habits

    @precondition(lambda self: len(self.imports) < 3)
    @rule(recognition=st.sampled_from(RECOGNITIONS), rows=st.integers(1, 9), invalid=st.frozensets(st.integers(0, 8), max_size=2))
    def begin(self, recognition: str, rows: int, invalid: frozenset[int]) -> None:
        first = PER_JOB * (len(self.imports) + 1)
        numbers = [first + (n // 2 if recognition == "twins" else n) for n in range(rows)]
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow(["n", "note", "email"])
        writer.writerows(["?" if at in invalid else n, f"row {n}", f"p{n}@acme.com"] for at, n in enumerate(numbers))
        file = self.folder / f"{first}.csv"
        file.write_text(text.getvalue())
        plan = ImportPlan(stop_on_error=False)
        target = ImportTarget("people", OBJECT_ID, ORIGIN, self._attributes(recognition), self._crm())
        job = start_import(self.store, target, GivenInput.at(file), JobOptions(plan))
        job.journal.close()
        self.imports.append(Import(job.id, recognition, numbers, invalid))

    @precondition(lambda self: self._in(JobState.CHECKING, JobState.OPEN))
    @rule(which=st.integers(0, 2), trouble=TROUBLE, death=DEATH)
    def go_on(self, which: int, trouble: Sequence[tuple[int, Fault]], death: tuple[str, int] | None) -> None:
        open_jobs = self._in(JobState.CHECKING, JobState.OPEN)
        self.service.faults = {self.service.writes + at: fault for at, fault in trouble}
        self._run(open_jobs[which % len(open_jobs)], death)
        self.service.faults.clear()

    @rule(seconds=st.sampled_from([1, 30, 1000]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule()
    def a_stranger_creates(self) -> None:
        number = len(self.service.records)
        self.service.create({"n": -PER_JOB - number, "note": "somebody", "email": f"s{number}@else.org"})

    @precondition(lambda self: self.done)
    @rule(which=st.integers(0, 2), row=st.integers(0, 8))
    def a_stranger_edits(self, which: int, row: int) -> None:
        jobs = self.done
        job = jobs[which % len(jobs)]
        for record in self._records_of(job)[row : row + 1]:
            self.clock.advance(1)
            record["data"] = record["data"] | {"note": "by hand"}
            record["updatedAt"] = "2099-01-01T00:00:00Z"
            job.edited.add(record["id"])

    @precondition(lambda self: self.done)
    @rule(which=st.integers(0, 2))
    def repair(self, which: int) -> None:
        jobs = self.done
        self._audit(jobs[which % len(jobs)])

    @precondition(lambda self: self.done)
    @rule(which=st.integers(0, 2))
    def undo(self, which: int) -> None:
        jobs = self.done
        job = jobs[which % len(jobs)]
        others = [record["wire"] for record in self.service.records if record["wire"] not in self._records_of(job)]
        with closing(self._open(job)) as opened, SeenIds() as ids, Updates(self._attributes(job.recognition)) as updates:
            journal, again = opened.journal, rows_of(opened.journal, opened.input.payloads)
            if not journal.counts()[RowState.CREATED]:
                return
            try:
                written = WrittenRecords(journal, again, ids, updates)
                undo = plan_undo(written, Reader(self._crm(), OBJECT_ID))
            except ServiceError:
                assert self.service.habits.broken, "reads failed unexpectedly"
                return
            carry_out(written, undo, self._crm(), Silent())
        left = self._records_of(job)
        assert {record["id"] for record in left} >= job.edited, "the undo deleted a record that people changed"
        assert [record["wire"] for record in self.service.records if record["wire"] not in left] == others, (
            "the undo changed a foreign record"
        )
        assert undo.left or not left
        job.undone = True

    # -- invariants ------------------------------------------------------------------------------------------------------------------

    @invariant()
    def every_row_is_where_the_journal_says(self) -> None:
        for job in (job for job in self.imports if not job.undone):
            with closing(self._journal(job)) as journal:
                entries = journal.rows(1, PER_JOB)
            there = self._there(job)
            created = Counter(job.numbers[row - 1] for row, entry in entries.items() if entry.state is RowState.CREATED)
            assert not created - there, f"lost: {created - there}"

    @invariant()
    def no_file_holds_the_key(self) -> None:
        for file in self.folder.rglob("*"):
            assert not file.is_file() or SECRET.encode() not in file.read_bytes(), file

    def teardown(self) -> None:
        """With a working service every job ends, and every row exists once or is reported."""
        try:
            self.service.settle()
            self.service.habits = dataclasses.replace(self.service.habits, broken=0)
            for _ in range(TRIES):
                for job in self._in(JobState.CHECKING, JobState.OPEN):
                    self._run(job, None)
                self.clock.advance(1000)
            for job in (job for job in self.imports if not job.undone and self._state(job) is not JobState.CHECKING):
                self._audit(job)
                self._count(job)
        finally:
            self.temporary.cleanup()

    # -- helpers ---------------------------------------------------------------------------------------------------------------------

    def _run(self, job: Import, death: tuple[str, int] | None) -> None:
        with closing(self._open(job)) as opened:
            journal: Any = opened.journal
            journal.step, journal.left = death or ("", 0)
            try:
                run_job(QuietContext(self._crm(), self.clock), JobHooks(opened), OPTIONS)
            except Killed:
                self.clock.advance(1)
                return
        with closing(self._open(job)) as opened:
            self._rebuild_results(opened)

    def _rebuild_results(self, job: ImportJob) -> None:
        """Delete the result files and check that crmctl recreates them exactly (I6)."""
        names = [path for path in job.journal.folder.iterdir() if path.suffix == ".csv"]
        before = {path: path.read_bytes() for path in names}
        for path in names:
            path.unlink()
        write_results(job.journal, job.input.source)
        assert {path: path.read_bytes() for path in job.journal.folder.iterdir() if path.suffix == ".csv"} == before

    @property
    def done(self) -> list[Import]:
        return [job for job in self._in(JobState.FINISHED) if not job.undone]

    def _audit(self, job: Import) -> None:
        with closing(self._open(job)) as opened, suppress(ServiceError):
            audit(opened.journal, Reader(self._crm(), OBJECT_ID), rows_of(opened.journal, opened.input.payloads))

    def _count(self, job: Import) -> None:
        with closing(self._journal(job)) as journal:
            entries, duplicates, counts = journal.rows(1, PER_JOB), surplus_records(journal), journal.counts()
        assert sum(counts.values()) == len(job.numbers)
        wanted, open_rows, extra = Counter[int](), Counter[int](), Counter[int]()
        for row, n in enumerate(job.numbers, 1):
            state = entries[row].state if row in entries else RowState.UNSENT
            wanted[n] += state not in (RowState.FAILED, RowState.REJECTED, RowState.UNSENT)
            open_rows[n] += state is RowState.IN_DOUBT
            extra[n] += len(duplicates.get(row, ()))
        there = self._there(job)
        for n in wanted:
            assert wanted[n] - open_rows[n] <= there[n] <= wanted[n] + extra[n], (
                f"{job}: {n} exists {there[n]} times instead of {wanted[n]}"
            )
            assert extra[n] <= max(0, there[n] - wanted[n] + open_rows[n]), f"{job}: {extra[n]} records of {n} are called duplicates"
        assert not misnamed(self.service, dict(enumerate(job.numbers, 1)), entries, duplicates), f"{job}: an id belongs to another row"

    def _there(self, job: Import) -> Counter[int]:
        return Counter(record["data"]["n"] for record in self._records_of(job))

    def _records_of(self, job: Import) -> list[dict[str, Any]]:
        return [record["wire"] for record in self.service.records if record["wire"]["data"]["n"] in job.numbers]

    def _in(self, *states: JobState) -> list[Import]:
        return [job for job in self.imports if self._state(job) in states]

    def _state(self, job: Import) -> JobState:
        with closing(self._journal(job)) as journal:
            return journal.state

    def _journal(self, job: Import) -> Journal:
        return WatchedJournal(self.folder / "state" / "jobs" / job.name, self.clock)

    def _open(self, job: Import) -> ImportJob:
        ready = reopen(self.store, self.store.find(job.name), ORIGIN, self._attributes(job.recognition))
        ready.journal.close()
        return _Closing(self._journal(job), ready.input)

    def _crm(self) -> Crm:
        return Crm(Session(ORIGIN, Credential(SECRET, "test", ORIGIN), self.service, clock=self.clock, random=lambda: 0.5))

    @staticmethod
    def _attributes(recognition: str) -> list[Attribute]:
        unique = {"isUnique": True} if recognition == "unique" else {}
        return [attribute("n", "number"), attribute("note"), attribute("email", "email", **unique)]


class _Closing(ImportJob):
    def close(self) -> None:
        self.journal.close()
