"""One import under faults, resumed until nothing changes any more, and what the service's ground truth says about every row.

A scenario is data; `play` is the only way to run one. Nothing waits: the clock is injected.
"""

from __future__ import annotations

import dataclasses
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from crmctl.write.in_flight import DeliveryOptions
from crmctl.write.journal import Journal, RowEntry, surplus_records
from crmctl.write.sender import Delivery, Task
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
"""A job that waits for longer, by its clock, would wait for ever."""


class MovingClock(FakeClock):
    """No two moments are the same, as in life: what was sent after something else is seen to be. Raises where nobody ever ends waiting."""

    def now(self) -> float:
        self.advance(0.00001)
        return super().now()

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        assert super().now() < START + MOST_SECONDS, "the job waits for what never comes"


@contextmanager
def repeatable_turns(senders: int = 1) -> Iterator[None]:
    """Let the thread that looks after rows in doubt wait for the thread that sends, so that a play is the same each time. Several
    senders do not wait."""
    if senders > 1:
        yield
        return

    def and_wait(work: Callable[..., None]) -> Callable[..., None]:
        def work_and_wait(delivery: Delivery, *given: Task | None) -> None:
            work(delivery, *given)
            answered = delivery._queue.all_tasks_done
            with answered:
                while given != (None,) and delivery._queue.unfinished_tasks and any(thread.is_alive() for thread in delivery._threads):
                    answered.wait(0.01)

        return work_and_wait

    with patch.object(Delivery, "_put", and_wait(Delivery._put)), patch.object(Delivery, "_tend", and_wait(Delivery._tend)):
        yield


class Killed(BaseException):
    """The process is gone: nothing is written after this."""


class MortalJournal(Journal):
    """Dies at one of its steps (`step`, the `left`-th time), as a process would, and stays dead."""

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
    """`faults` by number of the write; `deaths` are step and count for the first runs; `settle` in seconds."""

    recognition: str
    faults: tuple[tuple[int, Fault], ...] = ()
    habits: Habits = field(default_factory=Habits)
    deaths: tuple[tuple[str, int], ...] = ()
    settle: float = 120.0

    @property
    def is_beyond_promise(self) -> bool:
        """Whether lists are old while a refusal is carried out, which is believed then, or have stopped while a proxy repeats a request."""
        has_stopped = self.habits.stopped is not None
        refusals = [fault for _, fault in self.faults if fault.applies != "no" and fault.reply[0] == "4" and fault.reply != "408"]
        repeated = any(fault.applies == "twice" for _, fault in self.faults)
        return bool((has_stopped or self.habits.lag) and refusals) or (has_stopped and repeated)

    def __str__(self) -> str:
        told = [f"write {number}: {fault.name}" for number, fault in self.faults] + [f"killed {step} {n}" for step, n in self.deaths]
        return f"{self.recognition}, {self.habits.name}; {'; '.join(told) or 'no fault'}"


@dataclass(frozen=True)
class Outcome:
    """Rows that are not there exactly once. `in_doubt` and `duplicates` are named by the job, `lost` and `doubled` are not. `wronged` are
    duplicates that are none, and ids that are not those of their rows: who deletes them loses a row."""

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
    """Run the import, and again after every death or stop, until it is finished or does not get on; then audit and count."""
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
            look_back(service, journal, rows, clock)
            return _count(service, journal, rows)


class Crowd:
    """A service that several senders ask at once: it takes the requests one after the other, in any order."""

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
    transport: Any = service if senders == 1 else Crowd(service)
    return Crm(Session(ORIGIN, Credential("key", "test", ORIGIN), transport, clock=clock, random=lambda: 0.5))


def run_once(service: FaultService, journal: Journal, rows: list[Prepared], scenario: Scenario, clock: FakeClock) -> bool:
    """Whether the process died."""
    options = DeliveryOptions(concurrency=1, max_rows=BATCH, settle=scenario.settle)
    try:
        run_import(ImportRun(client_of(service, clock), journal, options, clock, Silent(), rows=lambda: rows, hooks=NO_HOOKS))
    except Killed:
        return True
    return False


def look_back(service: FaultService, journal: Journal, rows: list[Prepared], clock: FakeClock) -> None:
    reader = Reader(client_of(service, clock), journal.header.object_id)
    again = rows_of(journal, lambda: rows)
    audit(journal, reader, again)
    if journal.header.unique:
        capture_ids(journal, reader, again)


def _count(service: FaultService, journal: Journal, rows: list[Prepared]) -> Outcome:
    """Count every row on the service, rows that are alike together."""
    there = Counter(one["wire"]["data"]["n"] for one in service.records)
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
    """How many ids a job tells of rows that are not those of their records, or tells twice. `numbers`: what rows hold as `n`."""
    there = {one["wire"]["id"]: one["wire"]["data"]["n"] for one in service.records}
    told = [(row, entry.record_id) for row, entry in entries.items() if entry.record_id is not None]
    told += [(row, record_id) for row, extra in duplicates.items() for record_id in extra]
    return sum(there.get(record_id) != numbers[row] for row, record_id in told) + len(told) - len({record_id for _, record_id in told})


def singles() -> list[Scenario]:
    """Every fault at the first, a middle and the last write, with every way reading behaves; every death.

    What somebody else doubled cannot be seen in lists that have stopped.
    """
    found = [
        Scenario(recognition, ((at, fault),), habits)
        for recognition, fault, habits, at in product(RECOGNITIONS, FAULTS, READING, (0, 1, 3))
        if (at or not fault.comes_first) and not (fault.applies == "twice" and habits.stopped is not None)
    ]
    return found + [Scenario(recognition, deaths=((step, n),)) for recognition, step, n in product(RECOGNITIONS, POINTS, (1, 2, 4))]


def pairs() -> list[Scenario]:
    """Every two faults one after the other, every fault with every death, every two deaths."""
    found = [Scenario(which, ((1, one), (2, two))) for which, one, two in product(RECOGNITIONS, FAULTS, FAULTS)]
    found += [
        Scenario(which, ((1, fault),), deaths=((step, n),)) for which, fault, step, n in product(RECOGNITIONS, FAULTS, POINTS, (1, 2))
    ]
    return found + [Scenario(which, deaths=((one, 2), (two, 1))) for which, one, two in product(RECOGNITIONS, POINTS, POINTS)]
