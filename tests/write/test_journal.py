"""The journal: what it refuses, what survives a crash, and that its counts always add up."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crmctl.errors import CrmctlError, UsageError
from crmctl.files.validation import Batch, entry_of
from crmctl.write import database as lease
from crmctl.write.database import BatchState, RowState
from crmctl.write.journal import FILE_NAME, Journal
from crmctl.write.verdicts import Verdict, refuse_all
from tests.support.bulkjobs import Prepared, header, new_journal
from tests.support.clock import FakeClock


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with closing(new_journal(tmp_path / "job")) as journal:
        journal.conclude([], 1000)
        yield journal


def rows(first: int, last: int) -> Batch:
    return Batch(tuple(entry_of(Prepared(n, {"n": n}), with_id=False) for n in range(first, last + 1)))


CONFIRMED = Verdict(BatchState.CONFIRMED, created=10)
DOUBT = Verdict(BatchState.IN_DOUBT, reason="timeout")
REFUSED = Verdict(BatchState.PLANNED, reason="401")
SPLIT = Verdict(BatchState.BISECT, reason="400")


@pytest.mark.parametrize("verdict", [CONFIRMED, DOUBT, refuse_all(rows(1, 10), "no"), None])
def test_a_row_that_may_be_in_the_service_cannot_be_sent_again(journal: Journal, verdict: Verdict | None) -> None:
    journal.begin(1, rows(1, 10))
    if verdict is not None:
        journal.settle(1, rows(1, 10), verdict)
    with pytest.raises(CrmctlError, match="second time"):
        journal.begin(2, rows(10, 12))
    assert [batch.number for batch in journal.batches()] == [1]
    assert journal.rows(1, 1000).keys() == set(range(1, 11))


@pytest.mark.parametrize("verdict", [REFUSED, SPLIT])
def test_a_row_that_was_certainly_not_applied_can(journal: Journal, verdict: Verdict) -> None:
    journal.begin(1, rows(1, 10))
    journal.settle(1, rows(1, 10), verdict)
    assert journal.rows(1, 1000) == {}
    journal.begin(2, rows(1, 10))
    journal.settle(2, rows(1, 10), CONFIRMED)
    assert journal.counts()[RowState.CREATED] == 10


def test_a_rejected_row_and_a_row_twice_in_a_batch_cannot_be_sent(journal: Journal) -> None:
    journal.conclude([(5, RowState.REJECTED, None, "bad")])
    for batch in (rows(5, 5), Batch(rows(1, 1).entries * 2)):
        with pytest.raises(CrmctlError):
            journal.begin(1, batch)
    assert not journal.has_sent


def test_an_outcome_is_written_once(journal: Journal) -> None:
    journal.begin(1, rows(1, 10))
    journal.settle(1, rows(1, 10), DOUBT)
    with pytest.raises(CrmctlError, match="twice"):
        journal.settle(1, rows(1, 10), CONFIRMED)
    assert journal.counts()[RowState.IN_DOUBT] == 10


def test_sending_is_on_disk_before_begin_returns(journal: Journal) -> None:
    journal.begin(1, rows(1, 10))
    with closing(sqlite3.connect(journal.folder / FILE_NAME)) as other:
        assert other.execute("SELECT state, size FROM batch").fetchall() == [("SENDING", 10)]
    with closing(Journal(journal.folder, FakeClock())) as after_a_crash:
        with after_a_crash.hold():
            assert [batch.state for batch in after_a_crash.batches()] == [BatchState.IN_DOUBT]
        assert after_a_crash.counts()[RowState.IN_DOUBT] == 10


def test_a_batch_is_on_disk_before_it_is_sent(journal: Journal) -> None:
    """SQLite reports its commit mode while it commits."""
    modes: list[tuple[str, int]] = []
    database = journal._db

    def see(statement: str) -> None:
        words = statement.split()
        if words[:2] == ["PRAGMA", "synchronous"]:
            modes.append((words[-1], 0))
        elif words[:1] == ["INSERT"] and words[2] == "batch" and modes:
            modes[-1] = (modes[-1][0], 1)

    database.set_trace_callback(see)
    journal.begin(1, rows(1, 10))
    database.set_trace_callback(None)
    assert modes == [("FULL", 1)]


SIZES = st.lists(st.tuples(st.integers(1, 20), st.sampled_from([CONFIRMED, DOUBT, REFUSED, SPLIT, None]), st.integers(0, 20)), max_size=12)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(steps=SIZES)
def test_the_counts_add_up_at_every_commit(tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, Verdict | None, int]]) -> None:
    with closing(new_journal(tmp_path_factory.mktemp("jobs") / "job")) as journal:
        journal.conclude([(300, RowState.REJECTED, None, "bad")], 300)
        first = 1
        for number, (size, verdict, failing) in enumerate(steps, 1):
            batch = rows(first, first + size - 1)
            first += size
            journal.begin(number, batch)
            assert sum(journal.counts().values()) == 300
            if verdict is CONFIRMED:
                failures = dict.fromkeys(range(min(failing, size)), "no")
                journal.settle(number, batch, Verdict(BatchState.CONFIRMED, size - len(failures), 0, failures))
            elif verdict is not None:
                journal.settle(number, batch, verdict)
            counts = journal.counts()
            assert sum(counts.values()) == 300
            entries = journal.rows(1, 300)
            for state in RowState:
                if state is not RowState.UNSENT:
                    assert sum(entry.state is state for entry in entries.values()) == counts[state]
            assert len(entries) == 300 - counts[RowState.UNSENT]


def test_opening_checks_folder_and_version_and_returns_the_header(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    with closing(new_journal(folder)), closing(Journal(folder, FakeClock())) as again:
        assert again.header == header()
    assert (folder.stat().st_mode & 0o777, (folder / FILE_NAME).stat().st_mode & 0o777) == (0o700, 0o600), "rows are private"
    with pytest.raises(UsageError):
        Journal(tmp_path, FakeClock())
    with closing(sqlite3.connect(folder / FILE_NAME)) as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(UsageError, match=f"job job was written by crmctl {header().version}") as refused:
        Journal(folder, FakeClock())
    assert refused.value.hint == f"finish it with that version: pipx run crmctl=={header().version} bulk resume job"
    with closing(sqlite3.connect(folder / FILE_NAME, isolation_level=None)) as db:
        db.execute("UPDATE job SET header = 'not JSON'")
    with pytest.raises(UsageError, match="job job was written by another version of crmctl"):
        Journal(folder, FakeClock())


def set_holder(journal: Journal, holder: lease.Holder, beat: float) -> None:
    with closing(sqlite3.connect(journal.folder / FILE_NAME)) as db, db:
        db.execute("INSERT OR REPLACE INTO lease VALUES (1, ?, ?, ?, ?, ?)", (holder.host, holder.boot, holder.pid, holder.started, beat))


def test_a_lease_is_held_by_the_living_only(journal: Journal) -> None:
    clock = FakeClock()
    me = lease.Holder.this_process()
    parent = lease.Holder(me.host, me.boot, os.getppid(), lease.start_time(os.getppid()))
    holders = {
        "alive": (parent, clock.now() - 9999),
        "id used again": (lease.Holder(me.host, me.boot, parent.pid, "1"), clock.now()),
        "before the reboot": (lease.Holder(me.host, "another boot", parent.pid, parent.started), clock.now()),
        "other host": (lease.Holder("elsewhere", "x", 1, "1"), clock.now() - 10),
        "other host, silent": (lease.Holder("elsewhere", "x", 1, "1"), clock.now() - 1000),
    }
    held = {}
    for name, (holder, beat) in holders.items():
        set_holder(journal, holder, beat)
        held[name] = journal.is_running
    assert held == {"alive": True, "id used again": False, "before the reboot": False, "other host": True, "other host, silent": False}
    with journal.hold():
        journal.claim()
        assert journal.is_running
    assert not journal.is_running


def test_the_dead_have_no_start_time() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # dead, but not yet reaped
    assert lease.start_time(child) == ""
    os.waitpid(child, 0)
    assert lease.start_time(child) == ""
    assert lease.start_time(os.getpid()).isdigit()


def test_values_are_kept_by_kind_and_come_in_order(journal: Journal) -> None:
    journal.keep("one", [(7, ["k7"]), (3, {"n": 1}), (501, "x")])
    journal.keep("other", [(7, 1)])
    journal.keep("one", [(3, None), (7, ["k8"])])
    assert journal.kept("one") == {7: ["k8"], 501: "x"}
    assert list(journal.kept("one")) == [7, 501]
    assert (journal.kept("one", 1, 500), journal.kept("other")) == ({7: ["k8"]}, {7: 1})


def test_every_kind_of_row_has_its_own_count(tmp_path: Path) -> None:
    with closing(new_journal(tmp_path / "mixed")) as journal:
        journal.conclude(((row, RowState.REJECTED, None, "bad") for row in (1, 2, 500)), 500)
        journal.conclude(((row, RowState.REJECTED, None, "bad") for row in (501, 600)), 100)
        journal.conclude(
            [(3, RowState.UNCHANGED, "a", None), (4, RowState.SKIPPED, None, "why"), (5, RowState.REJECTED, None, "ambiguous")]
        )
        journal.begin(1, rows(11, 20))
        journal.settle(1, rows(11, 20), Verdict(BatchState.CONFIRMED, created=5, updated=3, failures={0: "no", 9: "no"}))
        journal.begin(2, rows(21, 30))
        journal.settle(2, rows(21, 30), DOUBT)
        journal.begin(3, rows(31, 40))
        journal.settle(3, rows(31, 40), REFUSED)
        counts = journal.counts()
        assert counts == {
            RowState.CREATED: 5, RowState.UPDATED: 3, RowState.UNCHANGED: 1, RowState.FAILED: 2, RowState.REJECTED: 6,
            RowState.SKIPPED: 1, RowState.IN_DOUBT: 10, RowState.UNSENT: 572,
        }  # fmt: skip
        assert sum(counts.values()) == 600
        assert {ordinal for ordinal, row in journal.rows(1, 600).items() if row.state is RowState.REJECTED} == {1, 2, 5, 500, 501, 600}
