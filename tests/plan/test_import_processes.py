"""Imports in processes that are killed or interrupted at every step: each row is there at most once, and accounted for."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from crmctl.clock import SystemClock
from crmctl.errors import UsageError
from crmctl.write.database import JobState, RowState
from crmctl.write.journal import Journal
from tests.support.bulkserver import BulkServer, Fault
from tests.support.patience import PATIENCE, wait_until
from tests.support.warm_program import WarmProcess, start_module

ROWS = 500


@contextmanager
def child(folder: Path, server: BulkServer, point: str = "never", *, concurrency: int = 1) -> Iterator[WarmProcess]:
    with start_module("tests.support.bulkchild", folder, server.origin, ROWS, concurrency, point) as process:
        try:
            yield process
        finally:
            process.kill()


def accounted(folder: Path, server: BulkServer) -> tuple[int, int, int]:
    """Created, in doubt and unsent rows; every promise about them is checked against what the service really has."""
    with closing(Journal(folder, SystemClock())) as journal:
        journal.recover()
        counts = journal.counts()
        entries = journal.rows(1, ROWS)
    there = server.values("n")
    assert max(there.values(), default=0) <= 1
    assert sum(counts.values()) == ROWS
    for n in range(1, ROWS + 1):
        state = entries[n].state if n in entries else RowState.UNSENT
        if state is RowState.CREATED:
            assert there[n] == 1
        if state is RowState.UNSENT:
            assert there[n] == 0
    return counts[RowState.CREATED], counts[RowState.IN_DOUBT], counts[RowState.UNSENT]


@pytest.mark.parametrize("concurrency", [1, 2])
@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("step", ["begin", "begun", "answered", "settled"])
def test_a_killed_import_loses_and_doubles_nothing(tmp_path: Path, step: str, number: int, concurrency: int) -> None:
    folder = tmp_path / "job"
    with BulkServer() as server:
        with child(folder, server, f"{step}:{number}", concurrency=concurrency) as process:
            assert process.wait(PATIENCE) == -signal.SIGKILL
        created, doubtful, unsent = accounted(folder, server)
        if concurrency == 1:
            done = number if step == "settled" else number - 1
            assert (created, doubtful) == (100 * done, 100 if step in ("begun", "answered") else 0)
        assert doubtful <= 100 * concurrency
        with child(folder, server) as process:
            assert process.wait(PATIENCE) == 0
        assert accounted(folder, server) == (ROWS, 0, 0)
        assert len(server.records) == ROWS
        assert unsent + created + doubtful == ROWS


def held_up(server: BulkServer, number: int) -> threading.Event:
    """The service takes its time over one request, and carries it out when the event is set."""
    gate = threading.Event()
    server.faults[number] = Fault(applies=True, hold=gate, status=200, body={"created": 100, "updated": 0, "failed": []})
    return gate


def wait_for_request(server: BulkServer, count: int) -> None:
    for _ in range(count):
        assert server.arrived.acquire(timeout=PATIENCE)


def test_one_interrupt_lets_the_request_in_flight_end(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    with BulkServer() as server:
        gate = held_up(server, 2)
        with child(folder, server, "patient") as process:
            wait_for_request(server, 3)
            process.send_signal(signal.SIGINT)
            wait_until(lambda: (folder / "notes").exists() and "Ctrl-C again" in (folder / "notes").read_text())
            gate.set()
            assert process.wait(PATIENCE) == 130
        assert accounted(folder, server) == (300, 0, 200)
        with child(folder, server) as process:
            assert process.wait(PATIENCE) == 0
        assert accounted(folder, server) == (500, 0, 0)


def test_one_interrupt_parks_a_request_that_does_not_end(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    with BulkServer() as server:
        gate = held_up(server, 1)
        with child(folder, server) as process:
            wait_for_request(server, 2)
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 130
        assert accounted(folder, server) == (100, 100, 300)
        gate.set()


def test_two_interrupts_leave_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    with BulkServer() as server:
        gate = held_up(server, 1)
        with child(folder, server, "patient") as process:
            wait_for_request(server, 2)
            process.send_signal(signal.SIGINT)
            wait_until(lambda: process.send_signal(signal.SIGINT) or process.poll() is not None)
        assert accounted(folder, server) == (100, 100, 300)
        gate.set()


def test_an_interrupt_while_the_rate_limit_is_waited_for_leaves_no_doubt(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    with BulkServer() as server:
        server.faults[1] = Fault(status=429, headers={"Retry-After": "60"})
        with child(folder, server) as process:
            wait_for_request(server, 2)
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE) == 130
        assert accounted(folder, server) == (100, 0, 400)


def test_two_processes_cannot_work_on_one_job(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    with BulkServer() as server:
        gate = held_up(server, 0)
        with child(folder, server) as process:
            wait_for_request(server, 1)
            with closing(Journal(folder, SystemClock())) as journal:
                assert journal.is_running
                with pytest.raises(UsageError, match="another process"), journal.hold():
                    pass
            gate.set()
            assert process.wait(PATIENCE) == 0
        with closing(Journal(folder, SystemClock())) as journal:
            assert not journal.is_running
            assert journal.state is JobState.FINISHED
            with journal.hold():
                assert journal.is_running


@pytest.mark.parametrize("harm", ["gone", "cut", "spoiled"])
def test_a_killed_import_whose_log_is_damaged_is_refused_and_sends_nothing(tmp_path: Path, harm: str) -> None:
    folder = tmp_path / "job"
    with BulkServer() as server:
        with child(folder, server, "settled:4") as process:
            assert process.wait(PATIENCE) == -signal.SIGKILL
        log = folder / "journal.sqlite-wal"
        content = log.read_bytes()
        assert len(content) > 4096
        if harm == "gone":
            log.unlink()
        else:
            log.write_bytes(content[: len(content) // 3] + (bytes(len(content) // 2) if harm == "spoiled" else b""))
        sent = len(server.writes)
        with child(folder, server) as process:
            assert process.wait(PATIENCE) not in (0, -signal.SIGKILL)
        assert len(server.writes) == sent
