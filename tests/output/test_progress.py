"""Progress: a bar on a terminal, a line now and then in a pipe, nothing with --quiet."""

from __future__ import annotations

import io
import re

import pytest

from crmctl.output.messages import Messages
from crmctl.output.progress import ProgressDisplay, duration
from crmctl.output.streams import Streams
from tests.support.clock import FakeClock
from tests.support.patience import wait_until
from tests.support.terminal import close_terminal, open_terminal


def progress(**options: bool) -> tuple[ProgressDisplay, FakeClock, io.StringIO]:
    err, clock = io.StringIO(), FakeClock()
    return ProgressDisplay(Streams(io.StringIO(), io.StringIO(), err, {}), clock=clock, **options), clock, err


def test_lines_come_every_five_seconds() -> None:
    shown, clock, err = progress()
    seconds = []
    with shown:
        shown.start("Importing", 10_000)
        for second in range(1, 30):
            clock.advance(1)
            before = err.getvalue()
            shown.advance(50)
            if err.getvalue() != before:
                seconds.append(second)
    assert seconds == [5, 10, 15, 20, 25]
    assert err.getvalue().splitlines()[:2] == [
        "Importing: 250 of 10,000 (2 %), 50/s, about 3 min 15 s left",
        "Importing: 500 of 10,000 (5 %), 50/s, about 3 min 10 s left",
    ]


def test_a_line_comes_while_nothing_advances_and_tells_the_wait_for_the_window() -> None:
    err, clock, window = io.StringIO(), FakeClock(), [70.0]
    shown = ProgressDisplay(Streams(io.StringIO(), io.StringIO(), err, {}), clock=clock, time_for=lambda _: window[0], beat=0.001)
    with shown:
        shown.start("Importing", 200, 100)
        shown.advance(100)
        for passed in (5, 10, 15):
            window[0] -= 5
            clock.advance(5)
            wait_until(lambda passed=passed: err.getvalue().count("\n") == passed // 5, err.getvalue)
    lines = err.getvalue()
    assert [line.partition("about ")[2] for line in lines.splitlines()] == ["1 min 5 s left", "1 min 0 s left", "55 s left"]
    clock.advance(60)
    shown.start("Reading", 1)
    assert err.getvalue() == lines, "what has ended says nothing more"
    shown.finish()


def test_no_sooner_than_the_rate_limit_allows_and_no_sooner_than_the_speed_so_far_lets_expect() -> None:
    err, clock, asked = io.StringIO(), FakeClock(), []

    def time_for(requests: int) -> float:
        asked.append(requests)
        return requests * 0.6

    shown = ProgressDisplay(Streams(io.StringIO(), io.StringIO(), err, {}), clock=clock, time_for=time_for)
    shown.start("Importing", 10_000, 100)
    clock.advance(6)
    shown.advance(950)
    clock.advance(70)
    shown.advance(50)
    shown.start("Reading", 10_000)
    clock.advance(6)
    shown.advance(6_000)
    assert err.getvalue().splitlines() == [
        "Importing: 950 of 10,000 (9 %), 158/s, about 57 s left",
        "Importing: 1,000 of 10,000 (10 %), 13/s, about 11 min 24 s left",
        "Reading: 6,000 of 10,000 (60 %), 1,000/s, about 4 s left",
    ]
    assert asked == [91, 90], "what is not counted in requests has no such limit"


def test_delayed_notes_precede_the_first_line_of_progress() -> None:
    err, clock = io.StringIO(), FakeClock()
    streams = Streams(io.StringIO(), io.StringIO(), err, {})
    messages = Messages(streams, machine=True)
    shown = ProgressDisplay(streams, clock=clock, say=messages.progress)
    messages.note("read as csv")
    shown.start("Importing")
    assert err.getvalue() == ""
    clock.advance(6)
    shown.advance(60)
    messages.note("waiting")
    assert err.getvalue().splitlines() == ["read as csv", "Importing: 60 done, 10/s", "waiting"]


def test_an_unknown_or_zero_total_is_no_problem() -> None:
    shown, clock, err = progress()
    for total, line in ((None, "Reading: 7 done, 1/s\n"), (0, "Reading: 7 of 0, 1/s\n")):
        shown.start("Reading", total)
        clock.advance(6)
        shown.advance(7)
        assert err.getvalue().endswith(line)


def test_a_short_run_shows_no_progress_and_a_note_appears_at_once() -> None:
    shown, clock, err = progress()
    shown.start("Importing", 10)
    clock.advance(4.9)
    shown.advance(10)
    assert err.getvalue() == ""
    shown.note("waiting for the rate limit until 12:00:30")
    shown.finish()
    shown.finish()
    assert err.getvalue() == "waiting for the rate limit until 12:00:30\n"


def test_quiet_is_silent() -> None:
    shown, clock, err = progress(quiet=True)
    shown.start("Importing", 10)
    clock.advance(100)
    shown.advance(5)
    shown.note("waiting")
    shown.finish()
    assert err.getvalue() == ""


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59.4, "59 s"), (59.6, "1 min 0 s"), (3599, "59 min 59 s"), (7500, "2 h 5 min")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


BAR = """
import sys
from crmctl.output.messages import Messages
from crmctl.output.streams import Streams
from crmctl.output.progress import ProgressDisplay
streams = Streams.of_process()
with ProgressDisplay(streams, say=Messages(streams).progress) as p:
    p.start("Importing [x]", 12345)
    p.advance(4321)
    input()
    p.note("waiting [for] the limit")
    p.advance(1000)
    input()
print("done")
"""


def test_a_bar_on_a_terminal_that_is_resized_and_then_gone() -> None:
    terminal = open_terminal(BAR, columns=100)
    terminal.expect(r"4,321 of 12,345")
    assert re.search(r" 35% *$", re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", terminal.before))
    terminal.setwinsize(24, 60)
    terminal.sendline("")
    terminal.expect(r"waiting \[for\] the limit")
    terminal.expect(r"5,321 of")
    terminal.sendline("")
    ended = close_terminal(terminal)
    assert ended.code == 0
    assert ended.out.rstrip().endswith("done")
    assert "\x1b[?25h" in ended.out, "the cursor is back"
    assert "\x1b[2K" in ended.out, "the bar is wiped"


NOTE_ABOVE = """
from crmctl.output.messages import Messages
from crmctl.output.streams import Streams
from crmctl.output.progress import ProgressDisplay
streams = Streams.of_process()
with ProgressDisplay(streams, time_for=lambda requests: requests * 36.0) as p:
    p.start("Importing", 1000, 100)
    p.advance(250)
    input()
    Messages(streams).warn("waiting [for] the limit")
    input()
"""


def test_notes_appear_on_their_own_line_above_the_bar() -> None:
    terminal = open_terminal(NOTE_ABOVE, columns=100)
    terminal.expect(r"250 of 1,000")
    terminal.expect(r"6 min 0 s left|5 min 59 s left")
    terminal.sendline("")
    terminal.expect(r"\x1b\[2K\x1b\[33mwarning:\x1b\[0m waiting \[for\] the limit *\r\n")
    terminal.expect(r"\d+% *(\x1b\[[0-9;]*m)* *250 of 1,000")
    terminal.sendline("")
    ended = close_terminal(terminal)
    assert ended.code == 0
    assert "progress." not in ended.out


def test_a_dumb_terminal_gets_no_bar() -> None:
    terminal = open_terminal(BAR, env={"TERM": "dumb"})
    terminal.sendline("\n")
    ended = close_terminal(terminal)
    assert re.sub(r"\s+", " ", ended.out).strip() == "waiting [for] the limit done"
