"""Messages on stderr: lines for a person, one document for a program."""

from __future__ import annotations

import io
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from crmctl.errors import DeniedError, RejectedError, reason
from crmctl.models.jsontext import loads
from crmctl.output.messages import Messages
from crmctl.output.streams import Streams
from crmctl.schema.schema_document import read_schema
from tests.support.terminal import run_on_terminal

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


def caught(call: Callable[[], object]) -> Exception:
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: Path("/nowhere/at/all").read_bytes(), "no such file or directory"),
        (lambda: socket.create_connection(("127.0.0.1", 1)), "connection refused"),
        (lambda: loads("[1,\n x]"), "line 2, column 2: a value is missing"),
        (lambda: yaml.safe_load("a: [1\nb: 2"), "line 2, column 2: expected ',' or ']', but got ':'"),
        (b"ok\xff".decode, "byte 3 is not UTF-8"),
    ],
)
def test_foreign_messages_become_part_of_a_sentence(call: Callable[[], object], said: str) -> None:
    assert reason(caught(call)) == said


def test_the_systems_reason_is_shown_without_the_librarys_wrapping() -> None:
    wrapped = RuntimeError("[Errno 111] Connection refused")
    wrapped.__cause__ = OSError(111, "Connection refused")
    assert reason(wrapped) == "connection refused"
    assert reason(RuntimeError("[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)")) == "wrong version number"


def test_a_schema_mismatch_is_explained_in_plain_words() -> None:
    text = b'{"objects": [{"slug": 5, "singularName": "A", "pluralName": "As", "attributes": [], "odd": 1}]}'
    with pytest.raises(RejectedError) as refused:
        read_schema(text, "schema.json")
    assert "Input should" not in str(refused.value.details)
    assert "permitted" not in str(refused.value.details)
    assert "must be text" in str(refused.value.details)


def test_debug_lines_come_at_once() -> None:
    to, err = messages(machine=True, quiet=True)
    to.debug("GET /x")
    assert err.getvalue() == "GET /x\n"


def test_on_a_terminal_even_a_machine_format_talks_at_once_and_in_colour() -> None:
    code = (
        "from crmctl.output.streams import Streams\nfrom crmctl.output.messages import Messages\n"
        "m = Messages(Streams.of_process(), machine=True)\nm.warn('careful')"
    )
    assert "\x1b[33mwarning:\x1b[0m careful\n" in run_on_terminal(code).out
