"""One record by `attr=value`: get, update and delete take at most one more request; none is exit 3, several are exit 9 with their ids."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import requests_of
from tests.support.cli import expect_exit, spawn
from tests.support.inprocess import run_here
from tests.support.service import RunningService

ADA = "email=person007@acme.com"


def test_one_request_finds_and_shows_it(people: list[str], crm: RunningService) -> None:
    run_here("records", "list", "people", "-o", "csv").ok()
    crm.log.clear()
    assert run_here("records", "get", "people", ADA, "-q", "id").ok().json() == people[6]
    assert [method for method, _ in requests_of(crm)] == ["GET"]


def test_an_update_reads_it_once_even_for_a_part_of_a_value(people: list[str], crm: RunningService) -> None:
    run_here("records", "update", "people", ADA, "--set", "address.city=Rome", "--set", "address.street=1 Via Appia").ok()
    crm.log.clear()
    changed = run_here("records", "update", "people", ADA, "--set", "address.city=Paris").ok().json()
    assert changed["id"] == people[6]
    assert changed["data"]["address"] == {"city": "Paris", "street": "1 Via Appia"}
    assert [method for method, _ in requests_of(crm)] == ["GET", "PATCH"]


def test_a_deletion_names_the_record_and_the_value_given(people: list[str], crm: RunningService) -> None:
    shown = run_here("records", "delete", "people", ADA, "--dry-run").ok().json()
    assert (shown["method"], shown["path"].rpartition("/")[2]) == ("DELETE", people[6])
    asked = run_here("records", "delete", "people", ADA).exits(2).error()
    assert f"{people[6]} ({ADA})" in asked["message"]
    assert "DELETE" not in dict(requests_of(crm))
    assert run_here("records", "delete", "people", ADA, "--yes").ok().json() == {"deleted": 1}
    assert run_here("records", "get", "people", ADA).exits(3).error()["code"] == "not_found"


def test_several_are_refused_with_their_ids(people: list[str], crm: RunningService) -> None:
    for number in (3, 4):
        run_here("records", "update", "people", people[number], "--set", "job_title=Poet").ok()
    for command in (["get"], ["update", "--set", "score=1"], ["delete", "--yes"]):
        error = run_here("records", command[0], "people", "job_title=Poet", *command[1:]).exits(9).error()
        assert sorted(error["details"]["ids"]) == sorted([people[3], people[4]])
        assert all(one in error["message"] for one in (people[3], people[4]))
    assert not {"DELETE"} & {method for method, _ in requests_of(crm)}


@pytest.mark.parametrize(
    ("given", "code", "said"),
    [
        ("email=nobody@acme.com", 3, "email~nobody@acme.com"),
        ("emial=person007@acme.com", 2, "did you mean email?"),
        ("email=", 2, "by its id, or by attr=value"),
        ("email~person", 2, "by its id, or by attr=value"),
        ("person007@acme.com", 2, "email=person007@acme.com"),
        ("no-such-id", 3, "not_found"),
    ],
)
def test_an_unknown_record_is_not_found(people: list[str], given: str, code: int, said: str) -> None:
    assert said in json.dumps(run_here("records", "get", "people", given).exits(code).error())


@pytest.mark.parametrize(("columns", "is_named"), [(40, False), (100, True)])
def test_references_of_a_hidden_column_are_not_looked_up(crm: RunningService, columns: int, is_named: bool) -> None:
    company = run_here("records", "create", "companies", "--set", "name=Speer Klemm GbR", "-o", "ids").ok().out.strip()
    fields = ("--set", "email=rosamunde.ellerbrock@example.com", "--set", f"company={company}")
    run_here("records", "create", "people", *fields).ok()
    crm.log.clear()
    code, shown = expect_exit(spawn("records", "list", "people", "--color", "never", columns=columns))
    assert (code, "Speer Klemm GbR" in shown) == (0, is_named)
    lists = [path for method, path in requests_of(crm) if path.endswith("/records") or "/records/" in path]
    assert len(lists) == 1 + is_named
