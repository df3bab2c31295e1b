"""Whole imports under every kind of trouble: the records of the service and the states in the journal."""

from __future__ import annotations

import dataclasses
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from crmctl.client.crm import Crm
from crmctl.client.session import AttemptObserver, Session
from crmctl.client.transport import HttpTransport
from crmctl.config.credentials import Credential
from crmctl.errors import RejectedError
from crmctl.files.validation import Batch, entry_of
from crmctl.write.database import JobState, RowState
from crmctl.write.jobs import effort, exit_code
from crmctl.write.journal import BEFORE, Journal
from crmctl.write.send_context import DeliveryOptions
from crmctl.write.sender import EntrySpool
from tests.support.bulkjobs import Prepared, new_journal, prepared, run
from tests.support.bulkserver import BulkServer, Fault
from tests.support.clock import FakeClock
from tests.support.patience import wait_until

ONE = DeliveryOptions(concurrency=1)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with closing(new_journal(tmp_path / "job")) as journal:
        yield journal


def once(*numbers: int) -> Counter[int]:
    return Counter(numbers)


def test_every_row_is_sent_once_in_requests_of_100(journal: Journal) -> None:
    server = BulkServer()
    result = run(server.crm(), journal, prepared(250))
    assert sorted(len(write["records"]) for write in server.writes) == [50, 100, 100]
    assert server.values("n") == once(*range(1, 251))
    assert result.error is None
    assert journal.state is JobState.FINISHED
    assert journal.counts()[RowState.CREATED] == 250
    assert effort(journal)[0] == 3, "the writes; the session counts the reads"


def test_an_invalid_row_stops_everything_before_anything_is_sent(journal: Journal) -> None:
    server = BulkServer()
    run(server.crm(), journal, prepared(150, bad=[120]))
    assert server.writes == []
    counts = journal.counts()
    assert (counts[RowState.REJECTED], counts[RowState.UNSENT]) == (1, 149)
    assert journal.state is JobState.REJECTED
    assert exit_code(counts) == 9


def test_continuing_sends_the_valid_rows(journal: Journal) -> None:
    server = BulkServer()
    run(server.crm(), journal, prepared(150, bad=[1, 120]), stop_on_error=False)
    assert server.values("n") == once(*(n for n in range(1, 151) if n not in (1, 120)))
    assert journal.rows(120, 120)[120].error == "n: not a number"
    assert journal.state is JobState.FINISHED
    assert exit_code(journal.counts()) == 10


def test_rows_the_service_refuses_are_kept_with_its_words(journal: Journal) -> None:
    server = BulkServer()
    server.refuse_row = lambda data: "taken" if data["n"] in (7, 203) else None
    run(server.crm(), journal, prepared(250))
    assert journal.rows(1, 250)[203] == journal.rows(203, 203)[203]
    assert (journal.rows(203, 203)[203].state, journal.rows(203, 203)[203].error) == (RowState.FAILED, "taken")
    assert journal.counts()[RowState.FAILED] == 2


def test_a_job_of_which_the_service_takes_nothing_is_rejected(journal: Journal) -> None:
    server = BulkServer()
    server.refuse_row = lambda data: "taken"
    run(server.crm(), journal, prepared(20))
    assert journal.counts()[RowState.FAILED] == 20
    assert exit_code(journal.counts()) == 9


def test_one_bad_row_in_a_batch_refused_as_a_whole_is_found_by_halving(journal: Journal) -> None:
    server = BulkServer()
    server.refuse_batch = lambda records: (400, "bad row") if any(r["data"]["n"] == 42 for r in records) else None
    run(server.crm(), journal, prepared(200), ONE)
    assert server.values("n") == once(*(n for n in range(1, 201) if n != 42))
    assert len(server.writes) <= 2 + 14
    assert journal.rows(42, 42)[42].error == "bad row"
    assert exit_code(journal.counts()) == 10


def test_a_refusal_that_is_believed_later_is_not_sent_as_a_whole_again(journal: Journal) -> None:
    """While other batches are in flight, crmctl cannot prove that a refused batch left nothing: it waits, then sends halves."""
    server = BulkServer()
    server.refuse_batch = lambda records: (400, "bad row") if any(r["data"]["n"] == 42 for r in records) else None
    run(server.crm(), journal, prepared(500), ONE)
    assert server.values("n") == once(*(n for n in range(1, 501) if n != 42))
    assert len(server.writes) <= 5 + 14


def test_requests_that_are_too_large_are_halved_and_later_ones_start_smaller(journal: Journal) -> None:
    server = BulkServer()
    server.refuse_batch = lambda records: (413, "too large") if len(records) > 60 else None
    run(server.crm(), journal, prepared(1000), ONE)
    assert server.values("n") == once(*range(1, 1001))
    assert sum(len(write["records"]) > 60 for write in server.writes) <= 4
    assert journal.counts()[RowState.CREATED] == 1000


@pytest.mark.parametrize("applies", [True, False])
@pytest.mark.parametrize(
    "fault",
    [
        Fault(drop=True),
        Fault(status=500),
        Fault(status=502, body=b"<html>bad gateway</html>"),
        Fault(status=503),
        Fault(status=408),
        Fault(status=200, body=b"{cut"),
        Fault(status=200, body={"created": 99, "updated": 0, "failed": []}),
        Fault(status=200, body={"created": 99, "updated": 0, "failed": [{"index": 100, "error": "x"}]}),
        Fault(status=200, body={"created": 98, "updated": 0, "failed": [{"index": 3, "error": "x"}, {"index": 3, "error": "x"}]}),
        Fault(status=200, body={"created": 0, "updated": 100, "failed": []}),
    ],
    ids=lambda fault: "drop" if fault.drop else f"{fault.status}",
)
def test_a_create_of_unknown_outcome_is_read_back_and_only_absent_rows_are_sent_again(
    journal: Journal, fault: Fault, applies: bool
) -> None:
    server = BulkServer()
    server.faults[1] = dataclasses.replace(fault, applies=applies)
    result = run(server.crm(), journal, prepared(300), ONE)
    assert server.values("n") == once(*range(1, 301))
    assert len(server.writes) == (3 if applies else 4)
    assert result.error is None
    assert journal.counts()[RowState.CREATED] == 300
    assert exit_code(journal.counts()) == 0
    assert journal.state is JobState.FINISHED
    ids = {entry.record_id for entry in journal.rows(101, 200).values()}
    assert (None in ids) is not applies


def test_an_update_that_was_carried_out_is_not_repeated(tmp_path: Path) -> None:
    server = BulkServer()
    with closing(new_journal(tmp_path / "job", mode="upsert")) as journal:
        ids = server.seed([{"n": 0} for _ in range(100)])
        rows = [dataclasses.replace(row, id=ids[row.ordinal - 1]) for row in prepared(100)]
        server.faults[0] = Fault(applies=True, drop=True)
        run(server.crm(), journal, rows)
        assert server.values("n") == once(*range(1, 101))
        assert (len(server.writes), len(server.reads)) == (1, 2)
        assert journal.counts()[RowState.UPDATED] == 100


@pytest.mark.parametrize(("status", "state"), [(403, RowState.IN_DOUBT), (422, RowState.UPDATED)])
def test_an_update_that_was_refused_after_it_was_carried_out_has_not_failed(tmp_path: Path, status: int, state: RowState) -> None:
    server = BulkServer()
    server.faults = {number: Fault(applies=True, status=status) for number in range(9)}
    with closing(new_journal(tmp_path / "job", mode="upsert")) as journal:
        ids = server.seed([{"n": 0} for _ in range(3)], lambda _: "2027-01-15T08:00:00Z")
        run(server.crm(), journal, [dataclasses.replace(row, id=ids[row.ordinal - 1]) for row in prepared(3)])
        assert server.values("n") == once(1, 2, 3)
        assert journal.counts()[state] == 3


@pytest.mark.parametrize("applies", [True, False])
def test_an_update_whose_answer_was_lost_overwrites_no_edit(tmp_path: Path, applies: bool) -> None:
    """Another client changes row 7 before crmctl reads it back: row 7 is in doubt and named, all others exist once."""
    server = BulkServer()
    with closing(new_journal(tmp_path / "job", mode="upsert")) as journal:
        ids = server.seed([{"n": -n} for n in range(1, 11)])
        rows = [dataclasses.replace(row, id=ids[row.ordinal - 1]) for row in prepared(10)]
        server.faults[0] = Fault(applies=applies, drop=True)
        page = server.page

        def edited(query: dict[str, list[str]]) -> dict[str, Any]:
            if not server.writes:
                journal.keep(BEFORE, ((row.ordinal, {"n": -row.ordinal}) for row in rows))
            else:
                server.records[6]["data"] = {"n": 700}
            return page(query)

        server.page = edited  # type: ignore[method-assign]
        run(server.crm(), journal, rows)
        assert server.values("n") == once(*range(1, 7), 700, *range(8, 11))
        counts = journal.counts()
        assert (counts[RowState.UPDATED], counts[RowState.IN_DOUBT]) == (9, 1)
        assert journal.rows(7, 7)[7].state is RowState.IN_DOUBT
        assert len(server.writes) == (1 if applies else 2)


def test_a_late_resume_overwrites_no_later_change(tmp_path: Path) -> None:
    clock = FakeClock()
    server = BulkServer()
    with closing(new_journal(tmp_path / "job", mode="upsert", clock=clock)) as journal:
        ids = server.seed([{"n": 0} for _ in range(3)], lambda _: "2027-01-01T00:00:00Z")
        rows = [dataclasses.replace(row, id=ids[row.ordinal - 1]) for row in prepared(3)]
        server.faults = {n: Fault(status=401) for n in range(1)}
        run(server.crm(clock), journal, rows, ONE, clock=clock)
        journal.begin(9, Batch(tuple(entry_of(row, with_id=True) for row in rows)))
        server.records[0]["data"]["n"] = 1
        server.records[1] |= {"data": {"n": 77}, "updatedAt": "2030-01-01T00:00:00Z"}
        clock.advance(3600)
        run(server.crm(clock), journal, rows, ONE, clock=clock)
        assert [record["data"]["n"] for record in server.records] == [1, 77, 3]
        assert journal.rows(2, 2)[2].state is RowState.IN_DOUBT
        assert journal.counts()[RowState.UPDATED] == 2


@pytest.mark.parametrize(("status", "code"), [(401, 4), (403, 4), (404, 3)])
def test_an_error_every_batch_would_meet_stops_and_the_job_can_go_on(journal: Journal, status: int, code: int) -> None:
    server = BulkServer()
    server.faults[1] = Fault(status=status)
    result = run(server.crm(), journal, prepared(500), ONE)
    assert result.error is not None
    assert result.error.exit_code == code
    assert len(server.writes) == 2
    assert journal.counts()[RowState.UNSENT] == 400
    run(server.crm(), journal, prepared(500), ONE)
    assert server.values("n") == once(*range(1, 501))
    assert journal.state is JobState.FINISHED


def test_a_rate_limit_that_does_not_clear_leaves_the_rest_unsent(journal: Journal) -> None:
    server = BulkServer()
    server.faults[1] = Fault(status=429, headers={"Retry-After": "1000"})
    result = run(server.crm(max_wait=5), journal, prepared(300), ONE)
    assert result.error is not None
    assert result.error.exit_code == 5
    assert journal.counts()[RowState.UNSENT] == 200


def test_a_429_that_clears_costs_an_attempt_and_nothing_else(journal: Journal) -> None:
    server = BulkServer()
    server.faults[0] = Fault(status=429, headers={"Retry-After": "1"})
    run(server.crm(), journal, prepared(100))
    assert server.values("n") == once(*range(1, 101))
    assert effort(journal)[0] == 2
    assert journal.state is JobState.FINISHED


def test_without_a_connection_nothing_was_sent(journal: Journal) -> None:
    server = BulkServer()
    origin = server.origin
    with closing(HttpTransport()) as transport:
        crm = Crm(Session(origin, Credential("key", "test", origin), transport, clock=FakeClock(), max_wait=1))
        result = run(crm, journal, prepared(300))
    assert result.error is not None
    assert result.error.exit_code == 6
    assert journal.counts()[RowState.UNSENT] == 300


def test_enough_failed_rows_stop_the_sending(journal: Journal) -> None:
    server = BulkServer()
    server.refuse_row = lambda data: "no" if data["n"] % 10 == 0 else None
    result = run(server.crm(), journal, prepared(1000), DeliveryOptions(concurrency=1, max_failures=15))
    assert len(server.writes) == 2
    assert "max-failures" in result.notes[0]
    assert journal.counts()[RowState.UNSENT] == 800
    assert exit_code(journal.counts()) == 10


def test_a_stopped_job_ends_its_senders(journal: Journal) -> None:
    server = BulkServer()
    server.refuse_batch = lambda records: (403, "forbidden")
    before = set(threading.enumerate())
    run(server.crm(), journal, prepared(100), DeliveryOptions(concurrency=4))
    wait_until(lambda: not [thread for thread in set(threading.enumerate()) - before if thread.name.endswith("(_work)")])
    assert journal.counts()[RowState.UNSENT] == 100


def test_doubts_without_end_stop_the_sending_and_the_rows_that_are_absent_can_be_sent_later(journal: Journal) -> None:
    server = BulkServer()
    server.faults = {n: Fault(status=500) for n in range(100)}
    result = run(server.crm(), journal, prepared(1000), ONE)
    assert len(server.writes) == 6
    assert "unknown" in result.notes[0]
    # Lists that show nothing newer than these requests prove nothing: crmctl waits for a request that succeeds.
    assert journal.counts()[RowState.IN_DOUBT] == 600
    server.faults.clear()
    run(server.crm(), journal, prepared(1000), ONE)
    assert server.values("n") == once(*range(1, 1001))
    assert journal.state is JobState.FINISHED


def test_a_service_that_fails_for_a_minute_only_delays(journal: Journal) -> None:
    server = BulkServer()
    server.faults = {n: Fault(status=503, applies=n % 2 == 0) for n in (2, 3, 4, 5)}
    result = run(server.crm(), journal, prepared(1000), ONE)
    assert server.values("n") == once(*range(1, 1001))
    assert result.notes == ()
    assert journal.state is JobState.FINISHED


def test_a_service_that_refuses_everything_ends_the_job(journal: Journal) -> None:
    server = BulkServer()
    server.refuse_batch = lambda records: (400, "unsupported")
    run(server.crm(), journal, prepared(10_000), ONE)
    assert len(server.writes) <= 3 * 70
    assert journal.counts()[RowState.FAILED] == 300
    assert journal.counts()[RowState.UNSENT] == 9700


def test_an_interrupted_check_sends_nothing_and_starts_over(journal: Journal) -> None:
    class Impatient(list[Prepared]):
        def __iter__(self) -> Iterator[Prepared]:
            for row in super().__iter__():
                if row.ordinal == 700:
                    signal.raise_signal(signal.SIGINT)
                yield row

    server = BulkServer()
    result = run(server.crm(), journal, Impatient(prepared(2000)))
    assert result.error is not None
    assert result.error.exit_code == 130
    assert (server.writes, journal.state) == ([], JobState.CHECKING)
    run(server.crm(), journal, prepared(2000))
    assert server.values("n") == once(*range(1, 2001))
    assert journal.counts()[RowState.CREATED] == 2000


class Broken(list[Prepared]):
    def __iter__(self) -> Iterator[Prepared]:
        yield from self[:1700]
        raise RejectedError("unreadable from here on")


def test_a_job_that_goes_on_does_not_read_its_input_again(journal: Journal) -> None:
    server = BulkServer()
    server.faults[1] = Fault(status=401)
    run(server.crm(), journal, prepared(2000), ONE)
    run(server.crm(), journal, Broken(prepared(2000)), ONE)
    assert server.values("n") == once(*range(1, 2001))
    assert journal.state is JobState.FINISHED
    assert not (journal.folder / "rows").exists()


def test_an_input_that_breaks_while_a_job_goes_on_leaves_the_journal_right(journal: Journal) -> None:
    server = BulkServer()
    server.faults[1] = Fault(status=401)
    run(server.crm(), journal, prepared(2000), ONE)
    EntrySpool.discard(journal.folder)
    with pytest.raises(RejectedError, match="unreadable"):
        run(server.crm(), journal, Broken(prepared(2000)), ONE)
    counts = journal.counts()
    assert len(server.records) == counts[RowState.CREATED]
    assert counts[RowState.IN_DOUBT] == 0
    run(server.crm(), journal, prepared(2000))
    assert server.values("n") == once(*range(1, 2001))


def test_requests_in_flight_end_when_another_one_stops_the_job(journal: Journal) -> None:
    gate = threading.Event()
    server = BulkServer()
    server.faults[0] = Fault(applies=True, hold=gate, status=200, body={"created": 100, "updated": 0, "failed": []})
    server.refuse_batch = lambda records: gate.set() or (403, "not any more") if len(server.writes) > 3 else None
    result = run(server.crm(), journal, prepared(2000), DeliveryOptions(concurrency=2))
    assert result.error is not None
    assert result.error.exit_code == 4
    assert journal.counts()[RowState.CREATED] == len(server.records) >= 300
    assert journal.counts()[RowState.IN_DOUBT] == 0


def test_a_sender_that_crashes_ends_the_run_and_leaves_its_batch_in_doubt(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(_crm: Crm, _object: str, _records: object, *, watch: AttemptObserver, **_options: object) -> None:
        watch.sending()
        raise ZeroDivisionError

    server = BulkServer()
    monkeypatch.setattr(Crm, "bulk_write", crash)
    with pytest.raises(ZeroDivisionError):
        run(server.crm(), journal, prepared(250), DeliveryOptions(concurrency=2))
    assert {row.state for row in journal.rows(1, 250).values()} <= {RowState.IN_DOUBT, RowState.UNSENT}
    assert journal.counts()[RowState.IN_DOUBT] in (100, 200)
