"""A job gets its places back after every piece of work, and is woken while it waits for one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from crmctl.service.context import Context
from crmctl.service.faults import Unavailable
from crmctl.service.jobs import worker
from crmctl.service.jobs.worker import ClaimingJob
from tests.support.patience import PATIENCE, wait_until


class Engine:
    """Runs functions without a database."""

    def read(self, fn: Callable[[Any], Any]) -> Any:
        return fn(None)

    write = read


class Job(ClaimingJob[Callable[[], object]]):
    """Takes its work from a list."""

    def __init__(self) -> None:
        super().__init__(Context(None, Engine(), None, None), 4, "test")  # type: ignore[arg-type]
        self.waiting: list[Callable[[], object]] = []
        self.free = 4

    def is_due(self, _tx: Any) -> bool:
        return True

    def claim(self, _tx: Any, most: int) -> list[Callable[[], object]]:
        self.free = most
        taken, self.waiting = self.waiting[:most], self.waiting[most:]
        return taken

    def work(self, item: Callable[[], object]) -> None:
        item()


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    monkeypatch.setattr(worker, "POLL_SECONDS", 3600.0)
    made = Job()
    yield made
    made.close()


def test_places_are_returned_after_every_round(job: Job) -> None:
    for _ in range(25):
        begun, go_on = threading.Semaphore(0), threading.Event()

        def work(begun: threading.Semaphore = begun, go_on: threading.Event = go_on) -> None:
            begun.release()
            go_on.wait(PATIENCE)

        job.waiting = [work] * 5
        assert job.run_once() is True
        for _ in range(4):
            assert begun.acquire(timeout=PATIENCE)
        assert len(job.waiting) == 1
        go_on.set()
        wait_until(lambda: job.run_once() is False)
        assert job.free == 4


def test_a_waiting_job_is_woken_when_work_ends(job: Job) -> None:
    go_on, results = threading.Event(), list[Any]()
    assert job.run_once() is False
    job.waiting = [lambda: go_on.wait(PATIENCE)]
    assert job.run_once() is True
    waiting = threading.Thread(target=lambda: results.append(job.run_once()), daemon=True)
    waiting.start()
    go_on.set()
    waiting.join(PATIENCE)
    assert results == [True]


def test_work_that_raises_is_reported_once_and_returns_its_place(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise RuntimeError("number")

    def find_no_storage() -> None:
        raise Unavailable("the disk is full")

    job.waiting = [fail, find_no_storage] * 10
    wait_until(lambda: job.run_once() is False)
    job.close()
    output = capsys.readouterr().err
    assert (output.count("RuntimeError: number"), output.count("Unavailable: the disk is full"), output.count("Traceback")) == (1, 1, 1)
