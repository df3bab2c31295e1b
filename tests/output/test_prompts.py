"""Questions on a real terminal; elsewhere crmctl refuses to ask."""

from __future__ import annotations

import pytest

from tests.support.terminal import close_terminal, open_terminal, run_in_pipes, run_on_terminal

SETUP = """
import sys
from crmctl.errors import CrmctlError
from crmctl.output.messages import Messages
from crmctl.output.messages import Prompter
from crmctl.output.streams import Streams
streams = Streams.of_process()
def ask(call, **options):
    try: print("answer", call(Prompter(streams, **options)))
    except CrmctlError as error:
        Messages(streams).report_error(error); sys.exit(error.exit_code)
"""
CONFIRM = SETUP + "ask(lambda p: p.confirm('Delete 3 records?'))"
TYPED = SETUP + "ask(lambda p: p.typed('The profile is protected.', 'work'))"
SECRET = SETUP + "ask(lambda p: len(p.secret('API key')))"
TEXT = SETUP + "ask(lambda p: p.text('Base URL', flag='--base-url'))"


@pytest.mark.parametrize(
    ("code", "question", "typed", "ends"),
    [
        (CONFIRM, r"Delete 3 records\? \[y/N\] ", "y", (0, "answer None")),
        (CONFIRM, r"\[y/N\] ", "YES", (0, "answer None")),
        (CONFIRM, r"\[y/N\] ", "", (130, "declined")),
        (CONFIRM, r"\[y/N\] ", "n", (130, "declined")),
        (CONFIRM, r"\[y/N\] ", "yikes", (130, "declined")),
        (TYPED, "Type work to confirm: ", "work", (0, "answer None")),
        (TYPED, "Type work to confirm: ", "Work", (130, "nothing was changed")),
        (TEXT, "Base URL: ", " https://x ", (0, "answer https://x")),
        (SECRET, "API key: ", "s3cret-value", (0, "answer 12")),
    ],
)
def test_answers_on_a_terminal(code: str, question: str, typed: str, ends: tuple[int, str]) -> None:
    terminal = open_terminal(code)
    terminal.expect(question)
    terminal.sendline(typed)
    ended = close_terminal(terminal)
    assert ended.code == ends[0], ended.out
    assert ends[1] in ended.out
    assert "s3cret" not in ended.out


@pytest.mark.parametrize("code", [CONFIRM, TYPED, SECRET, TEXT])
@pytest.mark.parametrize("key", ["\x03", "\x04"])
def test_ctrl_c_and_ctrl_d_decline(code: str, key: str) -> None:
    terminal = open_terminal(code)
    terminal.expect(r"\[y/N\] |confirm: |key: |URL: ")
    terminal.send(key)
    ended = close_terminal(terminal)
    assert ended.code == 130, ended.out
    assert "interrupted; nothing was changed" in ended.out
    assert "Traceback" not in ended.out


@pytest.mark.parametrize(("code", "flag"), [(CONFIRM, "--yes"), (TYPED, "--yes"), (SECRET, "--with-key"), (TEXT, "--base-url")])
def test_without_a_terminal_the_flag_is_named_and_nothing_read(code: str, flag: str) -> None:
    ended = run_in_pipes(code, input="y\nwork\n")
    assert (ended.code, ended.out) == (2, "")
    assert "there is no terminal to ask on" in ended.err
    assert f"hint: pass {flag}" in ended.err


def test_no_input_holds_on_a_terminal_too() -> None:
    ended = run_on_terminal(SETUP + "ask(lambda p: p.confirm('Delete?'), no_input=True)")
    assert ended.code == 2
    assert "--no-input is set" in ended.out


@pytest.mark.parametrize("stream", ["stdin", "stdout", "stderr"])
def test_one_stream_that_is_no_terminal_is_enough(stream: str) -> None:
    ended = run_on_terminal(SETUP + f"streams.{stream} = open('/dev/null', 'w+')\nsys.exit(10 + Prompter(streams).can_ask)")
    assert ended.code == 10


def test_a_question_cannot_act_on_the_terminal() -> None:
    terminal = open_terminal(SETUP + "ask(lambda p: p.confirm('Delete \\x1b[2J\\u202eX?'))")
    terminal.expect(r"\[y/N\] ")
    assert terminal.before == "Delete X? "
    terminal.sendline("n")
    assert close_terminal(terminal).code == 130
