"""Reading back: what counts as evidence."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from crmctl.write.database import RowState
from crmctl.write.journal import Journal
from crmctl.write.send_context import DeliveryOptions
from tests.support.bulkjobs import Prepared, Silent, header, prepared, run
from tests.support.bulkserver import BulkServer, Fault
from tests.support.clock import FakeClock

ONE = DeliveryOptions(concurrency=1)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with closing(Journal.create(tmp_path / "job", header(), FakeClock())) as journal:
        yield journal


def test_rows_that_are_all_there_cost_few_requests_and_bring_their_ids(journal: Journal) -> None:
    server = BulkServer()
    server.faults[1] = Fault(applies=True, status=502, body=b"<html>")
    run(server.crm(), journal, prepared(300), ONE)
    assert len(server.reads) <= 9
    there = {record["data"]["n"]: record["id"] for record in server.records}
    assert {row: entry.record_id for row, entry in journal.rows(101, 200).items()} == {row: there[row] for row in range(101, 201)}


def test_records_from_before_the_job_are_not_read_again(tmp_path: Path) -> None:
    """Records of the same second, however many, existed when the job began."""
    unique = dataclasses.replace(header(), unique="n")
    server = BulkServer()
    with closing(Journal.create(tmp_path / "job", unique, FakeClock())) as journal:
        for number in range(5000):
            server.add({"n": -number})
        server.faults[2] = Fault(drop=True)
        run(server.crm(), journal, prepared(300), ONE)
        assert journal.counts()[RowState.CREATED] == 300
        assert len(server.reads) < 50


def rows_alike() -> list[Prepared]:
    return [Prepared(n, {"n": 0 if n in (5, 105) else n}) for n in range(1, 201)]


def test_indistinguishable_rows_are_left_to_the_user(tmp_path: Path) -> None:
    server = BulkServer()
    with closing(Journal.create(tmp_path / "job", header(), FakeClock())) as journal:
        server.faults[1] = Fault(status=500)
        run(server.crm(), journal, rows_alike(), ONE)
        assert journal.rows(105, 105)[105].state is RowState.IN_DOUBT
        assert "just like" in str(journal.rows(105, 105)[105].error)
        assert journal.counts()[RowState.IN_DOUBT] == 1


def test_without_the_right_to_read_rows_stay_in_doubt(journal: Journal) -> None:
    server = BulkServer()
    server.readable = False
    server.faults[1] = Fault(applies=True, drop=True)
    run(server.crm(), journal, prepared(300), ONE)
    assert max(server.values("n").values()) == 1
    assert journal.counts()[RowState.IN_DOUBT] == 100


@dataclasses.dataclass
class Announced(Silent):
    """Collects the latest end of each announced wait."""

    clock: FakeClock = dataclasses.field(default_factory=FakeClock)
    ends: list[float] = dataclasses.field(default_factory=list)

    def note(self, text: str) -> None:
        super().note(text)
        if seconds := re.search(r"waiting(?: up to)? (\d+) s", text):
            self.ends.append(self.clock.now() + float(seconds[1]))


HIDDEN = {
    "lists show nothing": lambda record: False,
    "lists show every second record": lambda record: record["data"]["n"] % 2,
}


@pytest.mark.parametrize("max_wait", [300.0, 10.0])
@pytest.mark.parametrize("hidden", HIDDEN)
@pytest.mark.parametrize("applies", [True, False])
def test_a_wait_ends_as_announced_and_with_max_wait(journal: Journal, applies: bool, hidden: str, max_wait: float) -> None:
    progress = Announced(clock=FakeClock())
    started = progress.clock.now()
    server = BulkServer()
    server.visible = HIDDEN[hidden]
    server.faults[1] = Fault(applies=applies, drop=True)
    run(server.crm(progress.clock, max_wait=max_wait), journal, prepared(300), ONE, clock=progress.clock, progress=progress)
    assert max(server.values("n").values()) == 1, progress.notes
    waited = progress.clock.now() - started
    assert progress.clock.now() <= max([started + 5.0 * len(server.reads), *progress.ends]) + 5.0, (waited, progress.notes)
    assert waited <= 2 * max_wait + 5.0, (waited, progress.notes)
