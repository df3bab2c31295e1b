"""The questions of `bulk update` and `bulk delete` on a real terminal: number, object, examples and service. A no changes nothing."""

from __future__ import annotations

import re

import pytest

from tests.cli.conftest import add_people
from tests.support.cli import expect_exit, run_crmctl, spawn
from tests.support.service import RunningService

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
UPDATE = ("bulk", "update", "people", "--filter", "score<=7", "--set", "status=inactive")
DELETE = ("bulk", "delete", "people", "--filter", "score<=7")


def count(condition: str) -> int:
    counted: int = run_crmctl("records", "count", "people", "--filter", condition).ok().json()["count"]
    return counted


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (UPDATE, ["7 records of people: 7 to update", "person001@acme.com  status: nothing → inactive", "  and 2 more"]),
        (DELETE, ["7 records of people", "  person001@acme.com", "  and 2 more", "; a copy is kept"]),
    ],
    ids=["update", "delete"],
)
def test_a_question_names_number_and_place_and_a_no_changes_nothing(crm: RunningService, command: tuple[str, ...], said: list[str]) -> None:
    add_people(crm)
    for answer in ("n", "", "y"):
        terminal = spawn(*command, columns=100)
        terminal.expect_exact("[y/N]")
        shown = CONTROL.sub("", terminal.before or "").replace("\r\n", "\n")
        assert [text for text in [*said, "profile default, 127.0.0.1:"] if text not in shown] == [], shown
        assert re.search(r"^(Update|Delete) 7 records of people\? $", shown, re.MULTILINE), shown
        before = (count("score<=7"), count("status=inactive"))
        terminal.sendline(answer)
        code, _ = expect_exit(terminal)
        assert code == (0 if answer == "y" else 130)
        if answer != "y":
            assert (count("score<=7"), count("status=inactive")) == before == (7, 0)
    assert (count("score<=7"), count("status=inactive")) == ((7, 7) if command is UPDATE else (0, 0))
