"""Jobs whose journal went back in time (missing log, older copy, no high-water mark): crmctl refuses them and sends nothing."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from crmctl.errors import CrmctlError, StorageError
from crmctl.plan.import_run import RunResult
from crmctl.write import database
from crmctl.write.database import FILE_NAME as MARK
from crmctl.write.database import HighWaterMark, JobState, Mark, RowState
from crmctl.write.journal import FILE_NAME, Journal
from crmctl.write.send_context import DeliveryOptions
from tests.support.bulkjobs import new_journal, prepared, run
from tests.support.bulkserver import BulkServer, Fault
from tests.support.clock import FakeClock

ROWS = 1500
ONE = DeliveryOptions(concurrency=1)


class Desk:
    """Run a job until row 1,000 was sent; then damage its files."""

    def __init__(self, folder: Path, server: BulkServer) -> None:
        self.folder = folder
        self.server = server
        self.clock = FakeClock()

    def send_a_thousand(self, *, copy_at: int) -> None:
        """Copy the database without its log at the request with number `copy_at`."""

        def copy(_: object) -> None:
            if len(self.server.writes) == copy_at + 1:
                for name in (FILE_NAME, MARK):
                    shutil.copy(self.folder / name, self.folder.with_name(f"copy of {name}"))

        self.server.refuse_batch = copy
        self.server.faults[10] = Fault(status=401)
        with closing(new_journal(self.folder, clock=self.clock)) as journal:
            run(self.server.crm(self.clock), journal, prepared(ROWS), ONE, clock=self.clock)
            assert journal.counts()[RowState.CREATED] == 1000
        assert len(self.server.records) == 1000

    def put_back(self, *names: str) -> None:
        for name in names:
            shutil.copyfile(self.folder.with_name(f"copy of {name}"), self.folder / name)

    def go_on(self, clock: FakeClock | None = None) -> RunResult:
        with closing(Journal(self.folder, self.clock)) as journal:
            result = run(self.server.crm(clock or self.clock), journal, prepared(ROWS), ONE, clock=clock or self.clock)
            assert journal.state is JobState.FINISHED
            assert journal.counts()[RowState.CREATED] == ROWS
        return result


def put_back_the_journal(desk: Desk) -> None:
    desk.put_back(FILE_NAME)


def put_back_all(desk: Desk) -> None:
    desk.put_back(FILE_NAME, MARK)


def lose_the_mark(desk: Desk) -> None:
    desk.put_back(FILE_NAME)
    (desk.folder / MARK).unlink()


def spoil_the_mark(desk: Desk) -> None:
    desk.put_back(FILE_NAME)
    (desk.folder / MARK).write_bytes(bytes(1024))


@pytest.mark.parametrize("copy_at", [0, 3, 9])
@pytest.mark.parametrize("harm", [put_back_the_journal, put_back_all, lose_the_mark, spoil_the_mark])
def test_a_job_whose_journal_went_back_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: Callable[[Desk], None], copy_at: int
) -> None:
    server = BulkServer()
    desk = Desk(tmp_path / "job", server)
    desk.send_a_thousand(copy_at=copy_at)
    if harm is put_back_all:
        monkeypatch.setattr(database, "TOUCHED_SECONDS", -1.0)  # the copy was put back after this moment
    harm(desk)
    error = failure_of(desk)
    assert (error.code, str(desk.folder) in error.message) == ("damaged_job", True)
    assert "was copied or restored" in error.message
    assert server.values("n") == Counter(range(1, 1001)), "nothing was sent"


def test_a_mark_that_fits_costs_nothing(tmp_path: Path) -> None:
    server = BulkServer()
    desk = Desk(tmp_path / "job", server)
    desk.send_a_thousand(copy_at=3)
    reads = len(server.reads)
    assert desk.go_on().notes == ()
    assert len(server.reads) == reads + 6, "the end twice, because a batch was refused for now, and the place of its copies"


def test_a_journal_that_is_gone_or_not_whole_is_an_error_by_name(tmp_path: Path) -> None:
    server = BulkServer()
    desk = Desk(tmp_path / "job", server)
    desk.send_a_thousand(copy_at=3)
    journal = tmp_path / "job" / FILE_NAME
    content = bytearray(journal.read_bytes())
    journal.unlink()
    with pytest.raises(StorageError, match="it is gone, and rows up to 1,100 were sent") as gone:
        Journal(desk.folder, desk.clock)
    assert gone.value.code == "damaged_job"
    for cut in (0, 100, 5000, len(content) // 2):
        journal.write_bytes(content[:cut])
        error = failure_of(desk)
        assert (error.exit_code, str(desk.folder) in error.message) == (2, True)
    assert len(server.records) == 1000


def failure_of(desk: Desk) -> CrmctlError:
    try:
        with closing(Journal(desk.folder, desk.clock)) as journal:
            result = run(desk.server.crm(desk.clock), journal, prepared(ROWS), ONE, clock=desk.clock)
    except CrmctlError as error:
        return error
    assert result.error is not None
    return result.error


def test_of_two_slots_the_whole_one_counts(tmp_path: Path) -> None:
    with closing(HighWaterMark(tmp_path)) as water:
        for sends in range(1, 6):
            water.write(Mark(sends, 100 * sends, 5.5))
    content = (tmp_path / MARK).read_bytes()
    assert HighWaterMark(tmp_path).read() == (Mark(5, 500, 5.5), True)
    newest = content.index(b" 5 500 ")
    for place in (newest + 1, newest + 10):
        (tmp_path / MARK).write_bytes(content[:place] + b"7" + content[place + 1 :])
        assert HighWaterMark(tmp_path).read() == (Mark(4, 400, 5.5), True)
    (tmp_path / MARK).write_bytes(content[:30])
    assert HighWaterMark(tmp_path).read() == (Mark(), False)


def test_a_restored_high_water_mark_is_recognized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database.SystemClock, "now", lambda _: 1000.0)
    with closing(HighWaterMark(tmp_path)) as water:
        water.write(Mark(3, 300, 1.0))
    assert HighWaterMark(tmp_path).read() == (Mark(3, 300, 1.0), False)
