"""`crmctl records` with crmctl's service: results, notes, exit codes, and the number of requests."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from tests.cli.conftest import requests_of
from tests.support.inprocess import run_here
from tests.support.service import RunningService

NIL = "00000000-0000-0000-0000-000000000000"


def test_a_list_shows_fifty_and_the_total(people: list[str]) -> None:
    shown = run_here("records", "list", "people").ok()
    assert len(shown.json()) == 50
    assert shown.err.strip() == "showing 50 of 120; use --limit or --all"
    assert [record["id"] for record in shown.json()] == people[:69:-1], "newest first"


@pytest.mark.parametrize("verb", ["list", "search"])
def test_limits_pages_and_order(people: list[str], crm: RunningService, verb: str) -> None:
    everything = run_here("records", verb, "people", "--all", "--order", "asc", "-o", "ids").ok()
    assert everything.out.split() == people
    assert everything.err == ""
    part = run_here(
        "records", verb, "people", "--limit", "105", "--offset", "3", "--sort", "created_at", "--order", "asc", "-o", "ids"
    ).ok()
    assert part.out.split() == people[3:108]
    assert "showing 105 of 120" in part.err
    used = "POST" if verb == "search" else "GET"
    assert sum(1 for method, path in requests_of(crm) if method == used and "/records" in path) == 4


@pytest.mark.parametrize("verb", ["list", "search"])
def test_filters_in_three_spellings_find_the_same(people: list[str], verb: str) -> None:
    found = [
        run_here("records", verb, "people", "--filter", condition, "--filter", "score<=10", "--order", "asc", "-o", "ids").ok().out.split()
        for condition in ("email endsWith @example.org", "email$=@example.org", "email[endsWith]=@example.org")
    ]
    assert found == [[people[2], people[5], people[8]]] * 3


def test_a_warm_list_costs_one_request(people: list[str], crm: RunningService) -> None:
    run_here("records", "list", "people", "-o", "csv").ok()
    crm.log.clear()
    run_here("records", "list", "people").ok()
    run_here("records", "list", "people", "-o", "csv", "--filter", "score>3").ok()
    assert [method for method, _ in requests_of(crm)] == ["GET", "GET"]


def test_csv_has_one_column_per_attribute(people: list[str]) -> None:
    rows = list(csv.reader(io.StringIO(run_here("records", "list", "people", "--limit", "2", "-o", "csv").ok().out)))
    assert rows[0][0] == "id"
    assert rows[0][-2:] == ["createdAt", "updatedAt"]
    assert {"email", "score", "tags"} < set(rows[0])
    assert [row[0] for row in rows[1:]] == [people[-1], people[-2]]


def test_an_empty_list_is_a_success(crm: RunningService) -> None:
    empty = run_here("records", "list", "people").ok()
    assert empty.json() == []
    assert "no records" in empty.err


def test_count(people: list[str]) -> None:
    assert run_here("records", "count", "people").ok().json() == {"count": 120}
    assert run_here("records", "count", "people", "--filter", "email~example", "-o", "table").ok().out == "40\n"


def test_create_get_update_delete(crm: RunningService) -> None:
    created = run_here(
        "records", "create", "people", "--set", "name.first=Ada", "--set", "name.last=Lovelace", "--set", "tags=a;b", "--set", "score=12.5",
        "--set", "subscribed=yes", "--data", '{"email": "old@acme.com", "notes": "from --data", "score": 1}', "--set", "email=ada@acme.com",
    ).ok()  # fmt: skip
    data = created.json()["data"]
    assert data["email"] == "ada@acme.com"
    assert data["notes"] == "from --data"
    assert (data["tags"], data["score"], data["subscribed"]) == (["a", "b"], 12.5, True)
    assert isinstance(data["name"], dict)
    identity = created.json()["id"]
    assert run_here("records", "get", "people", identity).ok().json() == created.json()
    updated = run_here("records", "update", "people", identity, "--set", "notes=", "--set", "score:=7").ok().json()
    assert updated["data"].get("notes") in (None, "")
    assert updated["data"]["score"] == 7
    assert updated["data"]["email"] == "ada@acme.com"
    assert run_here("records", "delete", "people", identity, "--yes").ok().json() == {"deleted": 1}
    gone = run_here("records", "get", "people", identity).exits(3)
    assert gone.out == ""
    assert gone.error()["code"] == "not_found"


def test_data_from_stdin_and_from_a_file(crm: RunningService) -> None:
    assert (
        run_here("records", "create", "people", "--data", "-", input='{"email": "a@acme.com"}').ok().json()["data"]["email"] == "a@acme.com"
    )
    Path("ada.json").write_text('{"email": "b@acme.com"}', encoding="utf-8")
    assert run_here("records", "create", "people", "--data", "@ada.json").ok().json()["data"]["email"] == "b@acme.com"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["list", "peeple"], 3, "did you mean people"),
        (["list", "people", "--filter", "emial=x"], 2, "did you mean email?"),
        (["list", "people", "--filter", "email like x"], 2, "valid operators"),
        (["list", "people", "--sort", "scroe"], 2, "did you mean score?"),
        (["list", "people", "--limit", "0"], 2, "--all"),
        (["list", "people", "--limit", "5", "--all"], 2, "exclude each other"),
        (["list", "people", "--offset", "-1"], 2, "--offset"),
        (["list", "people", "--fields", "nope"], 2, "valid fields"),
        (["list", "people", "-q", "]["], 2, "--query"),
        (["get", "people", NIL], 3, "not_found"),
        (["create", "people"], 2, "--set"),
        (["create", "people", "--data", "[]"], 2, "JSON object"),
        (["create", "people", "--data", "{"], 2, "not JSON"),
        (["create", "people", "--data", "@missing.json"], 2, "missing.json"),
        (["create", "people", "--data", '{"nope": 1}'], 9, "nope"),
        (["create", "people", "--set", "score=abc"], 9, "score"),
        (["update", "people", NIL, "--set", "score=1"], 3, "not_found"),
        (["delete", "people", NIL], 2, "--yes"),
        (["delete", "people", NIL, "--yes"], 3, "not_found"),
    ],
)
def test_refusals(crm: RunningService, arguments: list[str], code: int, said: str) -> None:
    refused = run_here("records", *arguments).exits(code)
    assert refused.out == ""
    error = refused.error()
    assert error["exitCode"] == code
    assert said in json.dumps(error)


def test_a_person_reads_a_line_and_a_hint(crm: RunningService) -> None:
    refused = run_here("records", "list", "peeple", "-o", "table").exits(3)
    assert refused.out == ""
    assert refused.err.splitlines() == ["error: there is no object 'peeple'", "hint: did you mean people?"]


def test_an_error_names_the_missing_scope(crm: RunningService) -> None:
    key = crm.key_for(["objects:read", "attributes:read"])
    refused = run_here("records", "list", "people", env={"CRMCTL_API_KEY": key}).exits(4)
    assert refused.error()["requiredScope"] == "records:read"
    assert run_here("records", "list", "people", env={"CRMCTL_API_KEY": "crs_wrong"}).exits(4).error()["status"] == 401


def test_a_key_that_reads_records_alone_still_lists_them(people: list[str], crm: RunningService) -> None:
    narrow = {"CRMCTL_API_KEY": crm.key_for(["records:read"])}
    people_id = crm.object_id("people")
    listed = run_here(
        "records", "list", people_id, "--limit", "1", "--filter", "score>=120", "-o", "csv", "--fields", "id,email", env=narrow
    ).ok()
    assert listed.out.splitlines() == ["id,email", f"{people[-1]},person120@example.org"]


def test_an_object_that_was_made_anew_is_found_again(crm: RunningService) -> None:
    def make() -> str:
        body = {"slug": "boats", "singularName": "Boat", "pluralName": "Boats", "description": ""}
        return str(crm.client.post("/api/v1/objects", json=body).json()["id"])

    first = make()
    assert run_here("records", "count", "boats").ok().json() == {"count": 0}
    crm.client.delete(f"/api/v1/objects/{first}")
    make()
    assert run_here("records", "count", "boats").ok().json() == {"count": 0}
