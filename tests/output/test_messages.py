"""What is said on stderr: to a person as lines, to a program as one document."""

from __future__ import annotations

import io

import pytest

from crmctl.errors import DeniedError, RejectedError
from crmctl.models.jsontext import loads
from crmctl.output.messages import Messages
from crmctl.output.streams import Streams
from tests.support.terminal import on_terminal

ERROR = DeniedError(
    "the key lacks a scope", hint="ask for records:write", status=403, code="insufficient_scope", required_scope="records:write"
)


def messages(**options: bool) -> tuple[Messages, io.StringIO]:
    err = io.StringIO()
    return Messages(Streams(io.StringIO(), io.StringIO(), err, {}), **options), err


def say_everything(to: Messages) -> None:
    to.note("a note")
    to.warn("a warning")
    to.hint("a hint")
    to.success("a success")
    to.detail("a detail")


@pytest.mark.parametrize(
    ("options", "lines"),
    [
        ({}, ["a note", "warning: a warning", "hint: a hint", "✓ a success"]),
        ({"quiet": True}, ["warning: a warning"]),
        ({"verbose": True}, ["a note", "warning: a warning", "hint: a hint", "✓ a success", "a detail"]),
    ],
)
@pytest.mark.parametrize("machine", [False, True])
def test_quiet_says_less_and_verbose_more(options: dict[str, bool], lines: list[str], machine: bool) -> None:
    to, err = messages(machine=machine, **options)
    say_everything(to)
    assert err.getvalue().splitlines() == (["warning: a warning"] if machine else lines)
    to.finish()
    to.finish()
    assert sorted(err.getvalue().splitlines()) == sorted(lines)


def test_an_error_for_a_person_is_one_line_and_a_hint() -> None:
    to, err = messages(quiet=True)
    to.report_error(ERROR)
    to.report_error(RejectedError("bad\nvalue \x1b[31m"))
    assert err.getvalue() == "error: the key lacks a scope\nhint: ask for records:write\nerror: bad value \n"


def test_an_error_for_a_program_is_the_last_line_of_stderr_and_only_warnings_stand_before_it() -> None:
    to, err = messages(machine=True, verbose=True)
    say_everything(to)
    to.warn("two\nlines")
    to.report_error(ERROR)
    to.finish()
    *warnings, document = err.getvalue().splitlines()
    assert warnings == ["warning: a warning", "warning: two lines"]
    assert loads(document) == {
        "error": {
            "code": "insufficient_scope",
            "message": "the key lacks a scope",
            "status": 403,
            "retryable": False,
            "retryAfter": None,
            "hint": "ask for records:write",
            "requiredScope": "records:write",
            "details": None,
            "exitCode": 4,
        }
    }


def test_debug_lines_come_at_once() -> None:
    to, err = messages(machine=True, quiet=True)
    to.debug("GET /x")
    assert err.getvalue() == "GET /x\n"


def test_on_a_terminal_even_a_machine_format_talks_at_once_and_in_colour() -> None:
    code = (
        "from crmctl.output.streams import Streams\nfrom crmctl.output.messages import Messages\n"
        "m = Messages(Streams.of_process(), machine=True)\nm.warn('careful')"
    )
    assert "\x1b[33mwarning:\x1b[0m careful\n" in on_terminal(code).out
