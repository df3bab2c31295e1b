"""Places are given back after every piece of work, and who waits for one is told."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from crmctl.service.jobs.worker import Places
from tests.support.patience import PATIENCE, wait_until


@pytest.fixture
def places() -> Iterator[Places]:
    made = Places(4, "test")
    yield made
    made.close()


def test_a_place_is_taken_and_given_back_however_often(places: Places) -> None:
    for _ in range(25):
        begun, go_on = threading.Semaphore(0), threading.Event()

        def work(number: int, begun: threading.Semaphore = begun, go_on: threading.Event = go_on) -> None:
            begun.release()
            go_on.wait(PATIENCE)

        for number in range(4):
            assert places.free() == 4 - number
            places.start(work, number)
        for _ in range(4):
            assert begun.acquire(timeout=PATIENCE)
        assert places.free() == 0
        go_on.set()
        wait_until(lambda: places.free() == 4)


def test_who_waits_is_told_when_work_ends(places: Places) -> None:
    go_on, told = threading.Event(), list[bool]()
    assert places.wait(60) is False
    places.start(lambda _: go_on.wait(PATIENCE), None)
    assert places.free() == 3
    waiting = threading.Thread(target=lambda: told.append(places.wait(3600)), daemon=True)
    waiting.start()
    go_on.set()
    waiting.join(PATIENCE)
    assert told == [True]


def test_work_that_raises_is_reported_and_gives_its_place_back(places: Places, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(text: str) -> None:
        raise RuntimeError(text)

    for number in range(10):
        places.start(fail, f"number {number}")
    places.close()
    assert places.free() == 4
    assert capsys.readouterr().err.count("RuntimeError: number") == 10
