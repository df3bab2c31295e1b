"""Imports in processes that are killed or interrupted at every step: each row exists at most once and is accounted for."""

from __future__ import annotations

import os
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO

import pytest

from crmctl.clock import SystemClock
from crmctl.double_client import TestService
from crmctl.errors import UsageError
from crmctl.write.database import JobState, RowState
from crmctl.write.journal import Journal
from tests.support.campaigns import rest_in_campaigns
from tests.support.patience import PATIENCE, wait_until
from tests.support.warm_program import WarmProcess, start_module

ROWS = 500
BULK = "POST /api/v1/objects/*/records/bulk"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Give people a score attribute."""
    path = tmp_path / "people.csv"
    path.write_text("score\n" + "".join(f"{n}\n" for n in range(1, ROWS + 1)))
    return path


@contextmanager
def child(file: Path, point: str = "never", *, concurrency: int = 1, stderr: int | IO[str] = subprocess.DEVNULL) -> Iterator[WarmProcess]:
    """Start an import of the file, or resume it."""
    begin = ("import", "people", file, "--concurrency", concurrency, "--mirror", "never", "--settle", 1, "--timeout", 2 * PATIENCE)
    words = ("resume", "--last", "--yes", "--settle", 1) if job_folders() else begin
    streams = {"stdout": subprocess.DEVNULL, "stderr": stderr}
    with start_module("tests.support.commandchild", point, "bulk", *words, **streams) as process:
        try:
            yield process
        finally:
            process.kill()


def job_folders() -> list[Path]:
    return list((Path(os.environ["CRMCTL_STATE_DIR"]) / "jobs").glob("2*"))


def open_journal() -> closing[Journal]:
    [folder] = job_folders()
    return closing(Journal(folder, SystemClock()))


def accounted(crm: TestService) -> tuple[int, int, int]:
    """Return the created, doubtful and unsent rows, after comparing every promise about them with the service."""
    with open_journal() as journal, journal.hold():
        counts, entries = journal.counts(), journal.rows(1, ROWS)
    there = Counter(int(person.data["score"]) for person in crm.client.records("people").list())
    assert max(there.values(), default=0) <= 1
    assert sum(counts.values()) == ROWS
    for n in range(1, ROWS + 1):
        state = entries[n].state if n in entries else RowState.UNSENT
        if state is RowState.CREATED:
            assert there[n] == 1
        if state is RowState.UNSENT:
            assert there[n] == 0
    return counts[RowState.CREATED], counts[RowState.IN_DOUBT], counts[RowState.UNSENT]


def sent(crm: TestService) -> int:
    return sum(request["path"].endswith("/bulk") for request in crm.requests)


@pytest.mark.parametrize("concurrency", [1, 2])
@pytest.mark.parametrize("number", rest_in_campaigns([3, 1]))
@pytest.mark.parametrize("step", rest_in_campaigns(["begun", "begin", "answered", "settled"]))
def test_a_killed_import_loses_and_doubles_nothing(double: TestService, file: Path, step: str, number: int, concurrency: int) -> None:
    with child(file, f"{step}:{number}", concurrency=concurrency) as process:
        assert process.wait(PATIENCE) == -signal.SIGKILL
    created, doubtful, unsent = accounted(double)
    if concurrency == 1:
        done = number if step == "settled" else number - 1
        assert (created, doubtful) == (100 * done, 100 if step in ("begun", "answered") else 0)
    assert doubtful <= 100 * concurrency
    with child(file) as process:
        assert process.wait(PATIENCE) == 0
    assert accounted(double) == (ROWS, 0, 0)
    assert unsent + created + doubtful == ROWS


def held_up(crm: TestService, number: int) -> None:
    """A service that holds one request until `let_go` is called."""
    crm.faults(f"{BULK} [nth={number}] -> delay={2 * PATIENCE:.0f}s")


def let_go(crm: TestService) -> None:
    crm.control("DELETE", "/faults")


def wait_for_request(crm: TestService, count: int) -> None:
    wait_until(lambda: sent(crm) >= count)


def test_one_interrupt_lets_the_request_in_flight_end(double: TestService, file: Path, tmp_path: Path) -> None:
    held_up(double, 3)
    notes = tmp_path / "notes"
    with notes.open("w") as stderr, child(file, "patient", stderr=stderr) as process:
        wait_for_request(double, 3)
        process.send_signal(signal.SIGINT)
        wait_until(lambda: "Ctrl-C again" in notes.read_text())
        let_go(double)
        assert process.wait(PATIENCE) == 130
    assert accounted(double) == (300, 0, 200)
    with child(file) as process:
        assert process.wait(PATIENCE) == 0
    assert accounted(double) == (500, 0, 0)


def test_one_interrupt_parks_a_request_that_does_not_end(double: TestService, file: Path) -> None:
    held_up(double, 2)
    with child(file) as process:
        wait_for_request(double, 2)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 130
    assert accounted(double) == (100, 100, 300)


def test_two_interrupts_leave_at_once(double: TestService, file: Path) -> None:
    held_up(double, 2)
    with child(file, "patient") as process:
        wait_for_request(double, 2)
        process.send_signal(signal.SIGINT)
        wait_until(lambda: process.send_signal(signal.SIGINT) or process.poll() is not None)
    assert accounted(double) == (100, 100, 300)


def test_an_interrupt_while_the_rate_limit_is_waited_for_leaves_no_doubt(double: TestService, file: Path) -> None:
    double.faults(f"{BULK} [nth=2] -> status=429 retry-after=60")
    with child(file) as process:
        wait_for_request(double, 2)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130
    assert accounted(double) == (100, 0, 400)


def test_two_processes_cannot_work_on_one_job(double: TestService, file: Path) -> None:
    held_up(double, 1)
    with child(file) as process:
        wait_for_request(double, 1)
        with open_journal() as journal:
            assert journal.is_running
            with pytest.raises(UsageError, match="another process"), journal.hold():
                pass
        let_go(double)
        assert process.wait(PATIENCE) == 0
    with open_journal() as journal:
        assert not journal.is_running
        assert journal.state is JobState.FINISHED
        with journal.hold():
            assert journal.is_running


@pytest.mark.parametrize("harm", ["gone", "cut", "spoiled"])
def test_a_killed_import_whose_log_is_damaged_is_refused_and_sends_nothing(double: TestService, file: Path, harm: str) -> None:
    with child(file, "settled:4") as process:
        assert process.wait(PATIENCE) == -signal.SIGKILL
    log = job_folders()[0] / "journal.sqlite-wal"
    content = log.read_bytes()
    assert len(content) > 4096
    if harm == "gone":
        log.unlink()
    else:
        log.write_bytes(content[: len(content) // 3] + (bytes(len(content) // 2) if harm == "spoiled" else b""))
    before = sent(double)
    with child(file) as process:
        assert process.wait(PATIENCE) not in (0, -signal.SIGKILL)
    assert sent(double) == before
