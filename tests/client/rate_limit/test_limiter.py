"""The shared budget in a real file: threads, processes, killed processes, damaged files, patience, and the cost of a request."""

from __future__ import annotations

import os
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from crmctl.client.rate_limit.ledger import BULK, INTERACTIVE, Ledger, Wait
from crmctl.client.rate_limit.limiter import SharedBudget, ledger_path
from crmctl.errors import RateLimitedError
from tests.support.clock import FakeClock

NOW = 1_800_000_000.0
Open = Callable[..., SharedBudget]


def headers(remaining: int, *, limit: int = 100, reset: float = NOW + 60, **more: str) -> dict[str, str]:
    return {"x-ratelimit-limit": str(limit), "x-ratelimit-remaining": str(remaining), "x-ratelimit-reset": f"{reset:.0f}", **more}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return ledger_path(tmp_path, "https://crm.example", "crs_secret")


@pytest.fixture
def budget_on(path: Path) -> Iterator[Open]:
    """Return a function that opens budgets on the file; close them after the test."""
    with ExitStack() as opened:
        yield lambda clock, **options: opened.enter_context(closing(SharedBudget(path, clock, **options)))


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    """Return a ledger in memory."""
    with closing(Ledger(None)) as ledger:
        yield ledger


def spend(ledger: Ledger, count: int, now: float = NOW, lane: int = INTERACTIVE) -> int:
    """Return how many of `count` requests may go at once."""
    granted = 0
    for _ in range(count):
        answer = ledger.acquire(now, lane)
        if not isinstance(answer, int):
            ledger.leave(answer.ticket)
            break
        granted += 1
        ledger.answered(answer, now, now, 200, {"x-ratelimit-limit": "100"})
    return granted


def test_the_file_is_private_and_its_name_tells_nothing(path: Path, budget_on: Open) -> None:
    budget_on(FakeClock()).acquire(10)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "secret" not in str(path)
    assert path != ledger_path(path.parents[1], "https://other.example", "crs_secret")
    assert path != ledger_path(path.parents[1], "https://crm.example", "crs_other")
    assert b"crs_secret" not in path.read_bytes()


def test_two_processes_share_one_limit(path: Path) -> None:
    one, two = Ledger(path), Ledger(path)
    assert spend(one, 60) + spend(two, 60) == 100
    one.close()
    two.close()


def test_bulk_leaves_a_few_for_people(path: Path) -> None:
    ledger = Ledger(path)
    assert spend(ledger, 200, lane=BULK) == 84
    assert spend(ledger, 200, lane=INTERACTIVE) == 16
    ledger.close()


def test_people_go_first_and_each_lane_is_a_queue(ledger: Ledger) -> None:
    spend(ledger, 100, now=NOW - 59.5)
    places: dict[str, tuple[int, int | None]] = {}
    for name, lane in (("first", BULK), ("second", BULK), ("person", INTERACTIVE)):
        answer = ledger.acquire(NOW, lane)
        assert isinstance(answer, Wait)
        places[name] = (lane, answer.ticket)
    order: list[str] = []
    for turn in range(3):  # by now there is room for all; the last in the queue always asks first
        for name in ("second", "first", "person"):
            if name not in order and isinstance(ledger.acquire(NOW + 1.0 + turn / 10, *places[name]), int):
                order.append(name)
    assert order == ["person", "first", "second"]


def test_an_abandoned_place_in_the_queue_blocks_no_request(ledger: Ledger) -> None:
    spend(ledger, 100)
    assert isinstance(ledger.acquire(NOW + 1, BULK), Wait)  # and never asks again
    assert isinstance(ledger.acquire(NOW + 70, BULK), int)


def test_a_killed_process_leaves_only_its_stamps(path: Path) -> None:
    program = f"""
import sys, time
from pathlib import Path
from crmctl.client.rate_limit.ledger import Ledger
ledger = Ledger(Path({str(path)!r}))
for _ in range(40):
    ledger.acquire({NOW}, 1)
print("ready", flush=True)
time.sleep(60)
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    ledger = Ledger(path)
    assert spend(ledger, 100) == 60
    assert isinstance(ledger.acquire(NOW + 200, BULK), int)
    ledger.close()


def test_a_rate_limit_stops_everybody_and_one_goes_first(path: Path) -> None:
    one, two = Ledger(path), Ledger(path)
    slot = one.acquire(NOW, BULK)
    assert isinstance(slot, int)
    one.answered(slot, NOW, NOW, 429, headers(0, reset=NOW + 30, **{"retry-after": "90"}))
    waiting = two.acquire(NOW + 1, INTERACTIVE)
    assert isinstance(waiting, Wait)
    assert waiting.until == NOW + 90
    two.leave(waiting.ticket)
    probe = two.acquire(NOW + 90.1, BULK)
    assert isinstance(probe, int)
    held = one.acquire(NOW + 90.2, BULK)
    assert isinstance(held, Wait)
    one.leave(held.ticket)
    two.answered(probe, NOW + 90.3, NOW + 90.3, 200, headers(99, reset=NOW + 150))
    assert isinstance(one.acquire(NOW + 90.4, INTERACTIVE), int)
    evenly = one.acquire(NOW + 90.4, BULK)
    assert isinstance(evenly, Wait)  # the service refused a burst: for one window, bulk requests are spread evenly
    assert evenly.until == pytest.approx(NOW + 91.0, abs=0.001)
    one.close()
    two.close()


@pytest.mark.parametrize("said", ["0", "-1"])
def test_a_limit_of_nothing_is_no_limit(ledger: Ledger, said: str) -> None:
    slot = ledger.acquire(NOW, BULK)
    assert isinstance(slot, int)
    ledger.answered(slot, NOW, NOW, 200, {"x-ratelimit-limit": said})
    assert all(isinstance(ledger.acquire(NOW, BULK), int) for _ in range(500))


@pytest.mark.parametrize(
    "junk", [{"x-ratelimit-limit": "many"}, {"x-ratelimit-limit": "100", "x-ratelimit-remaining": "?", "x-ratelimit-reset": "nan"}]
)
def test_headers_that_make_no_sense_stop_nothing(ledger: Ledger, junk: dict[str, str]) -> None:
    for _ in range(50):
        slot = ledger.acquire(NOW, BULK)
        assert isinstance(slot, int)
        ledger.answered(slot, NOW, NOW, 200, junk)


def test_a_refusal_while_requests_are_left_says_itself_when_to_come_back(path: Path, budget_on: Open) -> None:
    clock = FakeClock(NOW)
    budget = budget_on(clock)
    budget.answered(budget.acquire(10), 429, headers(90, reset=NOW + 50, **{"retry-after": "1"}))
    budget.acquire(10)
    assert sum(clock.slept) <= 2


def test_patience_ends_at_once_and_says_until_when(path: Path, budget_on: Open) -> None:
    clock, notes = FakeClock(), list[str]()
    budget = budget_on(clock, note=notes.append)
    budget.answered(budget.acquire(10), 429, {"retry-after": "120"})
    with pytest.raises(RateLimitedError) as caught:
        budget.acquire(60)
    assert (int(caught.value.exit_code), caught.value.retry_after, clock.slept) == (5, 120, [])
    budget.acquire(130)
    assert sum(clock.slept) == pytest.approx(120, abs=0.1)
    assert notes == [note for note in notes if note.startswith("rate limit: waiting 120 s until ")]
    assert len(notes) == 1


def test_a_request_to_wait_for_days_is_kept_and_names_its_file(path: Path, budget_on: Open) -> None:
    clock = FakeClock()
    budget = budget_on(clock)
    budget.answered(budget.acquire(0), 429, headers(0, **{"retry-after": "864000"}))
    with pytest.raises(RateLimitedError, match="the service asked for no request before") as caught:
        budget_on(clock).acquire(300)
    assert str(path) in (caught.value.hint or "")
    path.unlink()
    assert budget_on(clock).acquire(0)


@pytest.mark.parametrize(("never_sent", "is_given_back"), [(True, True), (False, False)])
def test_only_a_request_that_never_left_is_given_back(path: Path, never_sent: bool, is_given_back: bool) -> None:
    """The service may have counted a request that got no answer, however it was lost."""
    ledger = Ledger(path)
    assert spend(ledger, 99) == 99
    last = ledger.acquire(NOW, INTERACTIVE)
    assert isinstance(last, int)
    assert spend(ledger, 1) == 0
    ledger.lost(last, NOW + 1, never_sent=never_sent)
    assert spend(ledger, 2, now=NOW + 1) == is_given_back
    ledger.close()


@pytest.mark.parametrize("damage", ["garbage", "folder", "no folder"])
def test_a_file_that_cannot_be_used_never_stops_work(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "rate" / "x.sqlite"
    if damage == "no folder":
        (tmp_path / "rate").write_text("a file")
    else:
        path.parent.mkdir()
        path.write_text("not a database" * 100) if damage == "garbage" else path.mkdir()
    notes: list[str] = []
    budget = SharedBudget(path, FakeClock(), note=notes.append)
    for _ in range(20):
        budget.answered(budget.acquire(10), 200, headers(50))
    budget.close()
    assert len(notes) == 1


def test_a_locked_file_never_stops_work(path: Path, budget_on: Open) -> None:
    notes: list[str] = []
    budget = budget_on(FakeClock(), note=notes.append)
    budget.acquire(10)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        budget.lost(budget.acquire(10), never_sent=True)
        other.execute("ROLLBACK")
    assert len(notes) == 1


def test_stamps_of_an_earlier_boot_are_forgotten(path: Path) -> None:
    ledger = Ledger(path)
    spend(ledger, 100)
    assert isinstance(ledger.acquire(50.0, BULK), int)  # the monotonic clock started again
    ledger.close()


def test_a_process_that_stalled_after_it_looked_at_the_clock_wipes_nothing(path: Path) -> None:
    busy, stalled = Ledger(path), Ledger(path)
    spend(busy, 100, now=NOW + 3)
    assert isinstance(stalled.acquire(NOW, BULK), Wait)
    assert isinstance(busy.acquire(NOW + 4, BULK), Wait)
    busy.close()
    stalled.close()


def test_a_request_costs_few_statements(path: Path) -> None:
    """Count operations instead of measuring time, which proves nothing on a busy machine."""
    ledger = Ledger(path)
    _request(ledger, NOW)
    statements: list[str] = []
    ledger._base.set_trace_callback(statements.append)
    _request(ledger, NOW + 0.5)
    ledger._base.set_trace_callback(None)
    ledger.close()
    assert len([one for one in statements if not one.startswith("--")]) <= 14, statements
    assert sum(one.startswith("COMMIT") for one in statements) == 2


def _request(ledger: Ledger, now: float) -> None:
    slot = ledger.acquire(now, BULK)
    assert isinstance(slot, int)
    ledger.answered(slot, now, now, 200, headers(80, reset=now + 60))


def test_this_process_is_not_taken_for_dead(path: Path) -> None:
    one, two = Ledger(path), Ledger(path)
    assert isinstance(one.acquire(NOW, BULK), int)
    assert isinstance(two.acquire(NOW + 5, BULK), int)
    assert os.getpid() == two._pid
    rows = sqlite3.connect(path)
    assert rows.execute("SELECT count(*) FROM slot WHERE done IS NULL").fetchone() == (2,)
    rows.close()
    one.close()
    two.close()


@pytest.mark.parametrize("said", [{}, {"x-ratelimit-limit": "1000000", "x-ratelimit-remaining": "999999"}], ids=["nothing", "a million"])
@pytest.mark.parametrize(
    ("status", "news"), [(200, headers(0, reset=NOW + 60)), (429, {"retry-after": "60"})], ids=["a limit", "a refusal"]
)
def test_without_a_limit_nothing_is_written_down_until_there_is_one(
    path: Path, budget_on: Open, said: dict[str, str], status: int, news: dict[str, str]
) -> None:
    clock = FakeClock()
    budget, other = budget_on(clock, lane="bulk"), budget_on(clock, lane="bulk")
    for one in (budget, other):
        one.answered(one.acquire(0), 200, said)
    before = _rows(path)
    for _ in range(20):
        budget.answered(budget.acquire(0), 200, said)
        budget.lost(budget.acquire(0), never_sent=False)
    assert _rows(path) == before
    reset = {"x-ratelimit-reset": f"{clock.now() + 60:.0f}"} if status == 200 else {}
    budget.answered(budget.acquire(0), status, news | reset)
    for pacer in (budget, budget_on(clock, lane="bulk")):
        with pytest.raises(RateLimitedError):
            pacer.acquire(0)


def _rows(path: Path) -> int:
    with closing(sqlite3.connect(path)) as file:
        return int(file.execute("SELECT max(id) FROM slot").fetchone()[0])


def test_requests_beyond_the_rest_of_the_window_wait_for_the_reset(budget_on: Open) -> None:
    clock = FakeClock(NOW)
    budget = budget_on(clock)
    budget.answered(budget.acquire(10), 200, headers(40, limit=100))
    assert [budget.time_for(requests) for requests in (40, 62, 100, 1000)] == pytest.approx([0, 60, 60, 600])
    clock.advance(60)
    assert budget.time_for(200) == pytest.approx(95.4), "59 were used by others, who are taken to go on"
    budget.answered(budget.acquire(10), 200, headers(0, limit=0))
    assert budget.time_for(1000) == 0


def test_threads_that_wait_for_one_moment_say_so_once(budget_on: Open) -> None:
    clock, notes = FakeClock(NOW), list[str]()
    budget = budget_on(clock, note=notes.append)
    for number in range(3):
        budget._say_wait(NOW + 30 + number / 10, NOW)
    budget._say_wait(NOW + 60, NOW)
    assert [note.split(" until ")[0] for note in notes] == ["rate limit: waiting 30 s", "rate limit: waiting 60 s"]


def test_work_that_waits_is_estimated_in_windows_from_the_announced_moment(ledger: Ledger) -> None:
    spend(ledger, 100)
    assert [ledger.time_for(NOW, requests, 20.0) for requests in (1, 50, 100)] == [20.0, pytest.approx(50 * 60 / 95), 80.0]
