"""Proof that a row is absent: differing clocks, lists that stand still, refusals after the commit, and earlier records."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from crmctl.client.crm import Crm
from crmctl.client.session import Session
from crmctl.client.transport import HttpTransport, Response
from crmctl.config.credentials import Credential
from crmctl.plan.import_run import RunResult
from crmctl.write.database import RowState
from crmctl.write.journal import DOUBTED, Journal
from crmctl.write.send_context import DeliveryOptions
from tests.support.bulkjobs import Silent, header, new_journal, prepared, run
from tests.support.bulkserver import BulkServer
from tests.support.clock import FakeClock
from tests.support.faultruns import Scenario, play
from tests.support.faultservice import FAULTS, READING, Fault, FaultServer, FaultService, Habits

ONE = DeliveryOptions(concurrency=1)
APPLIED = Fault("drop, applied all", "all", "drop")
NOT_APPLIED = Fault("drop, applied no", "no", "drop")
HABITS = {habits.name: habits for habits in READING}
CLOCKS = ["a node 6 s behind", "a node 5 min behind", "a node 2 min ahead", "the clock steps back 60 s", "times without a zone", "no times"]
STOPPED = [habits for habits in READING if habits.stopped is not None]
AFTER_COMMIT = [fault for fault in FAULTS if fault.reply in ("400", "403", "404", "413", "417", "422") and fault.applies != "no"]


def import_over_socket(
    folder: Path, service: FaultService, rows: int, options: DeliveryOptions = ONE
) -> tuple[RunResult, Counter[RowState]]:
    """Run a job; return the states of its rows."""
    with closing(new_journal(folder)) as journal, FaultServer(service) as server:
        session = Session(server.origin, Credential("key", "test", server.origin), HttpTransport(), clock=service.clock)
        result = run(Crm(session), journal, prepared(rows), options, clock=service.clock)
        session.close()
        return result, Counter({state: count for state, count in journal.counts().items() if count})


def values(service: FaultService) -> Counter[Any]:
    return Counter(one["wire"]["data"]["n"] for one in service.records)


# -- differing clocks ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.parametrize("fault", [APPLIED, NOT_APPLIED], ids=str)
@pytest.mark.parametrize("name", CLOCKS)
def test_no_clock_makes_a_lost_answer_a_doubled_or_doubtful_row(name: str, fault: Fault, at: int) -> None:
    for recognition in ("content", "unique"):
        outcome = play(Scenario(recognition, ((at, fault),), HABITS[name]))
        assert (outcome.lost, outcome.doubled, outcome.in_doubt) == (0, 0, 0), recognition


@pytest.mark.parametrize("fault", [APPLIED, NOT_APPLIED], ids=str)
def test_a_node_that_is_behind_is_found_out_over_a_socket(tmp_path: Path, fault: Fault) -> None:
    service = FaultService(FakeClock(), {1: fault}, Habits(nodes=(0.0, 0.0, -6.0)))
    _, states = import_over_socket(tmp_path / "job", service, 1000)
    assert states == {RowState.CREATED: 1000}
    assert values(service) == Counter(range(1, 1001))


def test_times_without_a_zone_cost_nothing_more(tmp_path: Path) -> None:
    reads = []
    for number, times in enumerate(("zone", "bare")):
        service = FaultService(FakeClock(), {5: NOT_APPLIED}, Habits(times=times))
        for old in range(6_000):
            service.create({"n": -old})
        service.clock.sleep(3600)
        _, states = import_over_socket(tmp_path / str(number), service, 2000)
        assert states == {RowState.CREATED: 2000}
        reads.append(service.reads)
    assert max(reads) <= 44
    assert abs(reads[0] - reads[1]) <= 4, "the order of two threads may cost a look while sending and one at the end"


# -- lists that prove nothing --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [APPLIED, NOT_APPLIED, *AFTER_COMMIT[:2]], ids=str)
@pytest.mark.parametrize("habits", STOPPED, ids=lambda habits: habits.name)
def test_nothing_is_absent_from_lists_that_have_stopped(habits: Habits, fault: Fault) -> None:
    outcome = play(Scenario("content", ((3, fault),), habits))
    assert (outcome.lost, outcome.doubled) == (0, 0)
    assert outcome.in_doubt >= 5, "rows that were accepted after the lists stopped are in doubt, too"


@pytest.mark.parametrize("fault", [APPLIED, NOT_APPLIED], ids=str)
def test_a_list_without_any_new_record_proves_nothing(tmp_path: Path, fault: Fault) -> None:
    """After the only request, lists that stand still look like a request that was never carried out."""
    service = FaultService(FakeClock(), {0: fault}, Habits(stopped=0))
    _, states = import_over_socket(tmp_path / "job", service, 50)
    assert states == {RowState.IN_DOUBT: 50}
    assert service.writes == 1


class Meeting(FaultService):
    """Answer the first write once a second one is under way, or after a moment without one."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.is_second_there = threading.Event()
        self.posts = 0

    def answer(self, method: str, url: str, body: bytes, timeout: float = 30.0) -> Response:
        self.posts += method == "POST"
        if method == "POST" and self.posts == 2:
            self.is_second_there.set()
        if method == "POST" and self.posts == 1:
            self.is_second_there.wait(0.5)
            self.clock.sleep(1)
        return super().answer(method, url, body, timeout)


def test_the_last_batch_goes_alone_and_settles_rows_in_doubt(tmp_path: Path) -> None:
    """Two batches that were under way together prove nothing about each other."""
    service = Meeting(FakeClock(), {0: NOT_APPLIED})
    _, states = import_over_socket(tmp_path / "job", service, 150, DeliveryOptions())
    assert states == {RowState.CREATED: 150}
    assert values(service) == Counter(range(1, 151))


@pytest.mark.parametrize("fault", [APPLIED, NOT_APPLIED, AFTER_COMMIT[0], Fault("400", "no", "400")], ids=str)
def test_progress_counts_every_row_once_and_a_long_wait_is_announced(tmp_path: Path, fault: Fault) -> None:
    service, shown = FaultService(FakeClock(), {1: fault}), Silent()
    with closing(new_journal(tmp_path / "job")) as journal, FaultServer(service) as server:
        session = Session(server.origin, Credential("key", "test", server.origin), HttpTransport(), clock=service.clock)
        run(Crm(session), journal, prepared(450), ONE, clock=service.clock, progress=shown)
        session.close()
    assert shown.done == 450
    waits = [note for note in shown.notes if note.startswith("waiting up to")]
    assert len(waits) == 1 if fault is NOT_APPLIED else len(waits) <= 1
    assert all(wait.endswith("s to see whether 100 rows in doubt are there") for wait in waits)


def test_the_reason_for_doubt_is_named(tmp_path: Path) -> None:
    result, _ = import_over_socket(tmp_path / "job", FaultService(FakeClock(), {0: NOT_APPLIED}), 5)
    assert [note for note in result.notes if "nothing that was created since" in note]


def test_newer_records_settle_rows_in_doubt(tmp_path: Path) -> None:
    """Three requests in a row are lost: crmctl sends one more, whose effect settles them."""
    service = FaultService(FakeClock(), dict.fromkeys((0, 1, 2), NOT_APPLIED))
    _, states = import_over_socket(tmp_path / "job", service, 1000)
    assert states == {RowState.CREATED: 1000}
    assert values(service) == Counter(range(1, 1001))


@pytest.mark.parametrize("fault", [APPLIED, NOT_APPLIED], ids=str)
def test_a_service_without_totals_still_settles_doubts(tmp_path: Path, fault: Fault) -> None:
    service = FaultService(FakeClock(), {1: fault}, Habits(total=False, times="none"))
    result, states = import_over_socket(tmp_path / "job", service, 1000)
    assert states == {RowState.CREATED: 1000}
    assert values(service) == Counter(range(1, 1001))
    assert "does not say how many" in " ".join(result.notes)


def test_the_final_count_reports_copies(tmp_path: Path) -> None:
    """A count that fits brings no message."""
    notes = []
    for number, last in enumerate(("all", "twice")):
        service = FaultService(FakeClock(), {1: NOT_APPLIED, 3: Fault("taken", last, "good")})
        result, _ = import_over_socket(tmp_path / str(number), service, 400)
        notes.append(" ".join(result.notes))
    assert notes[0] == ""
    assert "400 rows were created, and the service has 500 more records" in notes[1]


# -- earlier records -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", ["zone", "bare", "none"])
@pytest.mark.parametrize("fault", [APPLIED, NOT_APPLIED], ids=str)
def test_records_like_the_rows_that_were_there_before_are_not_the_rows(tmp_path: Path, times: str, fault: Fault) -> None:
    service = FaultService(FakeClock(), {1: fault}, Habits(times=times))
    for n in [*range(101, 201), *range(-150, 0)]:
        service.create({"n": n})
    service.clock.sleep(60)
    _, states = import_over_socket(tmp_path / "job", service, 500)
    lost = [n for n in range(101, 201) if values(service)[n] != 2]
    assert not lost or states[RowState.IN_DOUBT] >= len(lost)
    assert states[RowState.CREATED] + states[RowState.IN_DOUBT] == 500
    if times != "none" or fault is NOT_APPLIED:
        assert states == {RowState.CREATED: 500}


def test_records_like_the_rows_from_just_before_the_job_are_not_the_rows(tmp_path: Path) -> None:
    """crmctl reads them with the new records, since clocks may differ by as much; they are not among the newest ones of the baseline."""
    service = FaultService(FakeClock(), {1: NOT_APPLIED})
    for n in [*range(101, 201), *range(-150, 0)]:
        service.create({"n": n})
    service.clock.sleep(1)
    _, states = import_over_socket(tmp_path / "job", service, 300)
    assert states == {RowState.CREATED: 300}
    assert [n for n in range(101, 201) if values(service)[n] != 2] == []


# -- refusals ----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", AFTER_COMMIT, ids=lambda fault: fault.name)
def test_rows_refused_after_their_commit_are_found(fault: Fault) -> None:
    for recognition in ("content", "unique"):
        outcome = play(Scenario(recognition, ((1, fault),)))
        assert (outcome.lost, outcome.doubled, outcome.in_doubt) == (0, 0, 0), recognition


@pytest.mark.parametrize("rows", [100, 350])
def test_one_bad_row_is_found_with_few_requests_and_without_waiting(tmp_path: Path, rows: int) -> None:
    clock = FakeClock()
    server = BulkServer()
    with closing(Journal.create(tmp_path / "job", header(), clock)) as journal:
        server.refuse_batch = lambda records: (400, "row 42 is odd") if any(one["data"]["n"] == 42 for one in records) else None
        run(server.crm(clock), journal, prepared(rows), ONE, clock=clock)
        assert len(server.writes) <= -(-rows // 100) + 15
        assert len(server.reads) <= 12
        assert server.values("n") == Counter(n for n in range(1, rows + 1) if n != 42)
        assert (journal.counts()[RowState.FAILED], journal.counts()[RowState.CREATED]) == (1, rows - 1)
        assert journal.rows(42, 42)[42].error == "row 42 is odd"
        assert journal.kept(DOUBTED) == {}
    assert sum(clock.slept) < 30


def test_a_bad_row_in_every_batch_costs_one_or_two_reads_a_refusal(tmp_path: Path) -> None:
    refused = []

    def refuse(records: list[dict[str, Any]]) -> tuple[int, str] | None:
        if any(one["data"]["n"] % 100 == 7 for one in records):
            refused.append(len(records))
            return 422, "odd"
        return None

    clock = FakeClock()
    server = BulkServer()
    with closing(Journal.create(tmp_path / "job", header(), clock)) as journal:
        server.refuse_batch = refuse
        run(server.crm(clock), journal, prepared(1000), clock=clock)
        assert (journal.counts()[RowState.FAILED], journal.counts()[RowState.CREATED]) == (10, 990)
        assert len(server.reads) <= 2 * len(refused)
    assert sum(clock.slept) < 60
