"""One import under faults, resumed until nothing changes, compared with the service's ground truth about every row.

A scenario is data; only `play` runs it. Nothing waits: the clock is injected.
"""

from __future__ import annotations

import dataclasses
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

from crmctl.client.crm import Crm
from crmctl.client.session import Session
from crmctl.client.transport import Request, Response
from crmctl.config.credentials import Credential
from crmctl.plan.audit import audit, capture_ids
from crmctl.plan.import_run import rows_of, run_import
from crmctl.plan.job_start import ImportRun
from crmctl.read.read_back import Reader
from crmctl.write.database import JobState, RowState
from crmctl.write.journal import Journal, RowEntry, surplus_records
from crmctl.write.send_context import DeliveryOptions
from crmctl.write.sender import Delivery
from tests.support.bulkjobs import NO_HOOKS, Prepared, Silent, header
from tests.support.clock import START, FakeClock
from tests.support.faultservice import FAULTS, READING, Fault, FaultService, Habits

ROWS, BATCH = 20, 5
ORIGIN = "http://127.0.0.1"
RECOGNITIONS = ("unique", "content", "twins")
POINTS = ("before begin", "after begin", "before again", "before settle", "after settle", "before resolve", "after resolve")
RUNS = 12

FOLDER = Path("/dev/shm") if Path("/dev/shm").is_dir() else None


MOST_SECONDS = 86_400.0
"""A job that waits longer, by its clock, would wait for ever."""


class MovingClock(FakeClock):
    """A clock whose moments are all different, as in reality, so that the order of requests shows. Raises if a job waits for ever."""

    def now(self) -> float:
        self.advance(0.00001)
        return super().now()

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        assert super().now() < START + MOST_SECONDS, "the job waits for ever"


@contextmanager
def repeatable_turns(senders: int = 1) -> Iterator[None]:
    """Make plays reproducible: the thread that watches rows in doubt waits for the sending thread. Several senders do not
    wait.
    """
    if senders > 1:
        yield
        return

    release = Delivery._release

    def release_and_wait(delivery: Delivery) -> None:
        release(delivery)
        while delivery._busy:
            delivery._receive()

    with patch.object(Delivery, "_release", release_and_wait):
        yield


class Killed(BaseException):
    """The process is dead: nothing may be written after this."""


class MortalJournal(Journal):
    """A journal that dies at one of its steps (`step`, the `left`-th time), as a process would, and stays dead."""

    step = ""
    left = 0
    dead = False

    def begin(self, number: int, *args: Any, **kwargs: Any) -> None:
        is_again = any(batch.number == number for batch in self.batches())
        self._around("again" if is_again else "begin", lambda: Journal.begin(self, number, *args, **kwargs))

    def settle(self, *args: Any, **kwargs: Any) -> None:
        self._around("settle", lambda: Journal.settle(self, *args, **kwargs))

    def resolve(self, *args: Any, **kwargs: Any) -> None:
        self._around("resolve", lambda: Journal.resolve(self, *args, **kwargs))

    def _around(self, name: str, work: Any) -> None:
        self._reach(f"before {name}")
        work()
        self._reach(f"after {name}")

    def _reach(self, step: str) -> None:
        if step == self.step:
            self.left -= 1
            if self.left == 0:
                self.dead = True
                raise Killed

    @contextmanager
    def _transaction(self, *, durable: bool = True) -> Any:
        if self.dead:
            raise Killed
        with Journal._transaction(self, durable=durable):
            yield


@dataclass(frozen=True)
class Scenario:
    """`faults` are by number of the write; `deaths` are step and count for the first runs; `settle` is in seconds."""

    recognition: str
    faults: tuple[tuple[int, Fault], ...] = ()
    habits: Habits = field(default_factory=Habits)
    deaths: tuple[tuple[str, int], ...] = ()
    settle: float = 120.0

    @property
    def is_beyond_promise(self) -> bool:
        """Whether crmctl cannot be right: lists are old while a refused write is applied, or stopped while a proxy repeats a request."""
        has_stopped = self.habits.stopped is not None
        refusals = [fault for _, fault in self.faults if fault.applies != "no" and fault.reply[0] == "4" and fault.reply != "408"]
        repeated = any(fault.applies == "twice" for _, fault in self.faults)
        return bool((has_stopped or self.habits.lag) and refusals) or (has_stopped and repeated)

    def __str__(self) -> str:
        events = [f"write {number}: {fault.name}" for number, fault in self.faults] + [f"killed {step} {n}" for step, n in self.deaths]
        return f"{self.recognition}, {self.habits.name}; {'; '.join(events) or 'no fault'}"


@dataclass(frozen=True)
class Outcome:
    """Rows that do not exist exactly once. The job names those `in_doubt` and `duplicates`, but not those `lost` and `doubled`. `wronged`
    are false duplicates and ids of other rows, whose deletion would lose a row.
    """

    lost: int
    doubled: int
    in_doubt: int
    duplicates: int
    requests: int
    wronged: int = 0

    @property
    def is_right(self) -> bool:
        return not (self.lost or self.doubled or self.wronged)


def rows_for(recognition: str) -> list[Prepared]:
    def data(n: int) -> dict[str, Any]:
        same = n // 2 if recognition == "twins" else n
        return {"n": same, "note": f"row {same}", "email": f"p{same}@acme.com"}

    return [Prepared(n, data(n)) for n in range(1, ROWS + 1)]


def play(scenario: Scenario) -> Outcome:
    """Run the import, again after every death or stop, until it has finished or makes no progress; then audit and count."""
    clock = MovingClock()
    service = FaultService(clock, dict(scenario.faults), scenario.habits)
    rows = rows_for(scenario.recognition)
    slugs = {"unique": {"unique": "email"}}.get(scenario.recognition, {})
    with tempfile.TemporaryDirectory(dir=FOLDER) as name:
        folder = Path(name) / "job"
        Journal.create(folder, dataclasses.replace(header(origin=ORIGIN), **slugs), clock).close()
        deaths = list(scenario.deaths)
        for _ in range(RUNS):
            with closing(MortalJournal(folder, clock)) as journal:
                journal.step, journal.left = deaths.pop(0) if deaths else ("", 0)
                before, trouble = journal.counts(), len(service.faults)
                died = run_once(service, journal, rows, scenario, clock)
                stuck = not died and journal.counts() == before and len(service.faults) == trouble
            if died:
                clock.advance(1)
            elif stuck or not deaths:
                with closing(Journal(folder, clock)) as journal:
                    if stuck or journal.state is JobState.FINISHED:
                        break
        service.settle()
        service.habits = dataclasses.replace(service.habits, broken=0)
        clock.advance(1000)
        with closing(Journal(folder, clock)) as journal:
            audit_job(service, journal, rows, clock)
            return _count(service, journal, rows)


class ConcurrentService:
    """A service that several senders call at once; it takes the requests one by one, in any order."""

    def __init__(self, service: Any) -> None:
        self._service = service
        self._turn = threading.Lock()

    def send(self, request: Request) -> Response:
        time.sleep(random.uniform(0.0, 0.002))
        with self._turn:
            answer: Response = self._service.send(request)
        time.sleep(random.uniform(0.0, 0.002))
        return answer

    def upload(self, *upload: object) -> Response:
        raise NotImplementedError

    def close(self) -> None:
        """Nothing is open."""


def client_of(service: Any, clock: FakeClock, senders: int = 1) -> Crm:
    transport: Any = service if senders == 1 else ConcurrentService(service)
    return Crm(Session(ORIGIN, Credential("key", "test", ORIGIN), transport, clock=clock, random=lambda: 0.5))


def run_once(service: FaultService, journal: Journal, rows: list[Prepared], scenario: Scenario, clock: FakeClock) -> bool:
    """Run the job once. Return whether the process died."""
    options = DeliveryOptions(concurrency=1, max_rows=BATCH, settle=scenario.settle)
    try:
        run_import(ImportRun(client_of(service, clock), journal, options, clock, Silent(), rows=lambda: rows, hooks=NO_HOOKS))
    except Killed:
        return True
    return False


def audit_job(service: FaultService, journal: Journal, rows: list[Prepared], clock: FakeClock) -> None:
    reader = Reader(client_of(service, clock), journal.header.object_id)
    again = rows_of(journal, lambda: rows)
    audit(journal, reader, again)
    if journal.header.unique:
        capture_ids(journal, reader, again)


def _count(service: FaultService, journal: Journal, rows: list[Prepared]) -> Outcome:
    """Count every row in the service; equal rows are counted together."""
    there = Counter(record["wire"]["data"]["n"] for record in service.records)
    entries = journal.rows(1, ROWS)
    duplicates = surplus_records(journal)
    wanted: Counter[int] = Counter()
    open_rows: Counter[int] = Counter()
    extra: Counter[int] = Counter()
    for row in rows:
        n = row.data["n"]
        state = entries[row.ordinal].state if row.ordinal in entries else RowState.UNSENT
        wanted[n] += state is not RowState.FAILED
        open_rows[n] += state is RowState.IN_DOUBT
        extra[n] += len(duplicates.get(row.ordinal, ()))
    lost = sum(max(0, wanted[n] - open_rows[n] - there[n]) for n in wanted)
    doubled = sum(max(0, there[n] - wanted[n] - extra[n]) for n in wanted)
    wronged = sum(max(0, extra[n] - max(0, there[n] - wanted[n] + open_rows[n])) for n in wanted)
    wronged += misnamed(service, {row.ordinal: row.data["n"] for row in rows}, entries, duplicates)
    return Outcome(lost, doubled, sum(open_rows.values()), sum(extra.values()), service.writes + service.reads, wronged)


def misnamed(
    service: FaultService, numbers: Mapping[int, int], entries: Mapping[int, RowEntry], duplicates: Mapping[int, Sequence[str]]
) -> int:
    """Count the ids a job reports for the wrong row, or twice. `numbers`: the value of `n` by row."""
    there = {record["wire"]["id"]: record["wire"]["data"]["n"] for record in service.records}
    named = [(row, entry.record_id) for row, entry in entries.items() if entry.record_id is not None]
    named += [(row, record_id) for row, extra in duplicates.items() for record_id in extra]
    return sum(there.get(record_id) != numbers[row] for row, record_id in named) + len(named) - len({record_id for _, record_id in named})


def single_faults() -> list[Scenario]:
    """Return every fault at the first, a middle and the last write with all reading habits, and every death.

    Lists that stand still cannot show what another client doubled.
    """
    found = [
        Scenario(recognition, ((at, fault),), habits)
        for recognition, fault, habits, at in product(RECOGNITIONS, FAULTS, READING, (0, 1, 3))
        if (at or not fault.comes_first) and not (fault.applies == "twice" and habits.stopped is not None)
    ]
    return found + [Scenario(recognition, deaths=((step, n),)) for recognition, step, n in product(RECOGNITIONS, POINTS, (1, 2, 4))]


def fault_pairs() -> list[Scenario]:
    """Return all sequences of two faults, of a fault and a death, and of two deaths."""
    found = [Scenario(which, ((1, one), (2, two))) for which, one, two in product(RECOGNITIONS, FAULTS, FAULTS)]
    found += [
        Scenario(which, ((1, fault),), deaths=((step, n),)) for which, fault, step, n in product(RECOGNITIONS, FAULTS, POINTS, (1, 2))
    ]
    return found + [Scenario(which, deaths=((one, 2), (two, 1))) for which, one, two in product(RECOGNITIONS, POINTS, POINTS)]
