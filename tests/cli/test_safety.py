"""Dry runs send nothing, read-only and protected profiles write nothing, and deletions ask."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import requests_of
from tests.support.cli import CRMCTL, environment, expect_exit, spawn
from tests.support.inprocess import run_here
from tests.support.service import RunningService

NIL = "00000000-0000-0000-0000-000000000000"
WRITES = [
    (
        ["records", "create", "people", "--set", "email=a@acme.com"],
        "POST",
        "/api/v1/objects/{people}/records",
        {"data": {"email": "a@acme.com"}},
    ),
    (
        ["records", "update", "people", NIL, "--set", "score=1"],
        "PATCH",
        f"/api/v1/objects/{{people}}/records/{NIL}",
        {"data": {"score": 1}},
    ),
    (["records", "delete", "people", NIL], "DELETE", f"/api/v1/objects/{{people}}/records/{NIL}", None),
    (
        ["objects", "create", "--slug", "x", "--singular-name", "X", "--plural-name", "Xs"],
        "POST",
        "/api/v1/objects",
        {"slug": "x", "singularName": "X", "pluralName": "Xs"},
    ),
    (["objects", "update", "people", "--inactive"], "PATCH", "/api/v1/objects/{people}", {"isActive": False}),
    (["objects", "delete", "people"], "DELETE", "/api/v1/objects/{people}", None),
    (
        ["attributes", "create", "people", "--name", "A", "--type", "text"],
        "POST",
        "/api/v1/objects/{people}/attributes",
        {"isRequired": False, "isUnique": False, "name": "A", "type": "text"},
    ),
    (["attributes", "update", "people", NIL, "--name", "B"], "PATCH", f"/api/v1/objects/{{people}}/attributes/{NIL}", {"name": "B"}),
    (["attributes", "delete", "people", NIL], "DELETE", f"/api/v1/objects/{{people}}/attributes/{NIL}", None),
    (["api", "PATCH", "objects/x", "--input", "body.json"], "PATCH", "/api/v1/objects/x", {"a": 1}),
    (["api", "DELETE", "/api/v1/objects/x"], "DELETE", "/api/v1/objects/x", None),
]


@pytest.fixture(autouse=True)
def _body_file() -> None:
    Path("body.json").write_text('{"a": 1}', encoding="utf-8")


@pytest.mark.parametrize(("arguments", "method", "path", "body"), WRITES)
def test_a_dry_run_shows_the_request_and_sends_nothing(
    crm: RunningService, arguments: list[str], method: str, path: str, body: object
) -> None:
    shown = run_here(*arguments, "--dry-run").ok()
    assert shown.json() == {"dryRun": True, "method": method, "path": path.format(people=crm.object_id("people")), "body": body}
    assert {verb for verb, _ in requests_of(crm)} <= {"GET"}
    assert crm.outbox() == []


@pytest.mark.parametrize("arguments", [item[0] for item in WRITES])
def test_read_only_refuses_before_any_request(crm: RunningService, arguments: list[str]) -> None:
    refused = run_here(*arguments, "--yes", env={"CRMCTL_READ_ONLY": "1"}).exits(2)
    assert refused.error()["code"] == "read_only"
    assert refused.out == ""
    assert requests_of(crm) == []


def test_read_only_still_reads_and_previews(crm: RunningService) -> None:
    run_here("records", "count", "people", env={"CRMCTL_READ_ONLY": "1"}).ok()
    run_here("api", "GET", "objects", env={"CRMCTL_READ_ONLY": "1"}).ok()
    run_here("records", "create", "people", "--set", "score=1", "--dry-run", env={"CRMCTL_READ_ONLY": "1"}).ok()


@pytest.fixture
def protected(crm: RunningService) -> RunningService:
    run_here("config", "set", "protected", "true").ok()
    crm.log.clear()
    return crm


def test_a_protected_profile_refuses_without_a_terminal(protected: RunningService) -> None:
    refused = run_here("records", "create", "people", "--set", "score=1", "--yes").exits(2)
    assert refused.error()["code"] == "protected_profile"
    assert requests_of(protected) == []
    run_here("records", "list", "people").ok()


@pytest.mark.parametrize(("typed", "code", "made"), [("default", 0, 1), ("defaul", 130, 0)])
def test_a_protected_profile_asks_for_its_name(protected: RunningService, typed: str, code: int, made: int) -> None:
    terminal = spawn("records", "create", "people", "--set", "score=1")
    terminal.expect("Type default to confirm")
    terminal.sendline(typed)
    assert expect_exit(terminal)[0] == code
    assert len(protected.outbox()) == made


@pytest.mark.parametrize(("answer", "code", "deleted"), [("y", 0, True), ("n", 130, False), ("", 130, False)])
def test_deleting_asks_on_a_terminal(crm: RunningService, answer: str, code: int, deleted: bool) -> None:
    identity = run_here("records", "create", "people", "--set", "score=1").ok().json()["id"]
    terminal = spawn("records", "delete", "people", identity)
    terminal.expect(r"Delete record .*\? \[y/N\]")
    terminal.sendline(answer)
    assert expect_exit(terminal)[0] == code
    run_here("records", "get", "people", identity).exits(3 if deleted else 0)


def test_the_question_counts_the_loss(crm: RunningService) -> None:
    run_here("objects", "create", "--slug", "boats", "--singular-name", "Boat", "--plural-name", "Boats").ok()
    run_here("records", "create", "boats", "--data", "{}").ok()
    terminal = spawn("objects", "delete", "boats")
    terminal.expect("Delete the object boats and its 1 record")
    terminal.sendline("n")
    assert expect_exit(terminal)[0] == 130
    terminal = spawn("objects", "delete", "boats", "--no-input")
    code, printed = expect_exit(terminal)
    assert code == 2
    assert "--yes" in printed


def test_a_dry_run_of_a_reading_command_is_refused(crm: RunningService) -> None:
    for arguments in (["records", "list", "people"], ["config", "set", "output", "yaml"], ["auth", "logout"]):
        assert "--dry-run" in run_here(*arguments, "--dry-run").exits(2).error()["message"]
    assert requests_of(crm) == []


def test_a_dry_run_shows_the_whole_request_whatever_fields_the_result_would_have(crm: RunningService) -> None:
    shown = run_here("records", "create", "people", "--set", "score=1", "--fields", "id", "--dry-run").ok()
    assert shown.json()["body"] == {"data": {"score": 1}}
    assert run_here("api", "POST", "objects", "-f", "slug=x", "--fields", "id,slug", "--dry-run").ok().json()["method"] == "POST"


def test_a_query_that_does_not_fit_the_request_of_a_dry_run_is_an_error_without_a_traceback(crm: RunningService) -> None:
    refused = run_here("records", "create", "people", "--set", "score=1", "-q", "length(id)", "--dry-run").exits(2)
    assert refused.error()["code"] == "bad_query"
    assert len(refused.err.splitlines()) == 1


SHOWN = [arguments for arguments, *_ in WRITES if arguments[0] != "api"]


@pytest.mark.parametrize("arguments", [*SHOWN, ["workflows", "run", NIL], ["members", "role", NIL, "admin"], ["members", "remove", NIL]])
def test_an_unknown_field_is_refused_before_the_write(crm: RunningService, arguments: list[str]) -> None:
    refused = run_here(*arguments, "--yes", "--fields", "nothing").exits(2)
    assert refused.error()["code"] == "unknown_field"
    assert {verb for verb, _ in requests_of(crm)} <= {"GET"}


@pytest.mark.parametrize(("option", "value"), [("--fields", "nothing"), ("--query", "length(nothing)")], ids=["fields", "query"])
def test_a_result_that_cannot_be_shown_as_asked_tells_of_the_change(crm: RunningService, option: str, value: str) -> None:
    refused = run_here("api", "POST", "objects", "-f", "slug=boats", "-f", "singularName=Boat", "-f", "pluralName=Boats", option, value)
    assert refused.exits(2).error()["message"].endswith("; the change was made")
    assert run_here("objects", "get", "boats", "-q", "pluralName").ok().json() == "Boats"
    read = run_here("api", "GET", "objects", "-q", "length(nothing)").exits(2)
    assert "change" not in read.error()["message"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_result_without_room_tells_of_the_change(crm: RunningService) -> None:
    for command, told in ((["objects", "update", "boats", "--plural-name", "Ships"], True), (["objects", "get", "boats"], False)):
        if told:
            run_here("objects", "create", "--slug", "boats", "--singular-name", "Boat", "--plural-name", "Boats").ok()
        with Path("/dev/full").open("w") as full:
            ended = subprocess.run([CRMCTL, *command], env=environment(), stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        assert ended.returncode == 2
        assert ("no space left on device; the change was made" in ended.stderr) is told
    assert run_here("objects", "get", "boats", "-q", "pluralName").ok().json() == "Ships"
