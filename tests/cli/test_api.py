"""`crmctl api`: any method, any path, and the unchanged answer."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import requests_of
from tests.support.cli import expect_exit, spawn
from tests.support.inprocess import run_here
from tests.support.service import RunningService


@pytest.mark.parametrize("path", ["objects", "/objects", "/api/v1/objects", "api/v1/objects"])
def test_one_path_in_every_spelling(crm: RunningService, path: str) -> None:
    assert run_here("api", path).ok().json() == crm.client.get("/api/v1/objects").json()


def test_an_answer_is_json_on_a_terminal_too(crm: RunningService) -> None:
    code, printed = expect_exit(spawn("api", "objects"))
    assert (code, json.loads(printed)) == (0, crm.client.get("/api/v1/objects").json())
    assert expect_exit(spawn("api", "objects", "-q", "objects[0].slug", "-o", "table"))[1] == "people\n"


def test_status_and_headers(crm: RunningService) -> None:
    head, _, body = run_here("api", "GET", "members", "-i").ok().out.partition("\n\n")
    assert head.startswith("HTTP 200\n")
    assert "x-ratelimit-limit: " in head
    assert json.loads(body)["members"]


def test_pages_are_joined(people: list[str], crm: RunningService) -> None:
    path = f"objects/{crm.object_id('people')}/records?order=asc"
    joined = run_here("api", "GET", path, "--paginate").ok().json()
    assert [record["id"] for record in joined] == people
    short = run_here("api", "GET", f"{path}&limit=30&offset=100", "--paginate", "-o", "ids").ok()
    assert short.out.split() == people[100:]
    assert len(run_here("api", "members", "--paginate").ok().json()) == 1


def test_filters_go_through_as_typed(people: list[str], crm: RunningService) -> None:
    path = f"objects/{crm.object_id('people')}/records?filter[email][equals]=person001@acme.com"
    assert [record["id"] for record in run_here("api", path).ok().json()["records"]] == [people[0]]


def test_bodies_and_deletion(crm: RunningService) -> None:
    body = '{"slug": "trips", "singularName": "Trip", "pluralName": "Trips", "description": "Voyages"}'
    made = run_here("api", "POST", "objects", "--input", "-", input=body).ok().json()
    assert made["slug"] == "trips"
    assert run_here("api", "delete", f"objects/{made['id']}").exits(2).error()["hint"] == "pass --yes"
    run_here("api", "delete", f"objects/{made['id']}", "--yes").ok()
    assert run_here("api", f"objects/{made['id']}").exits(3).out == ""


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["GET"], 2),
        (["FETCH", "objects"], 2),
        (["POST", "objects", "--input", "missing.json"], 2),
        (["POST", "objects", "--paginate"], 2),
        (["nothing/here"], 3),
        (["https://elsewhere.example/api/v1/objects"], 2),
    ],
)
def test_refusals(crm: RunningService, arguments: list[str], code: int) -> None:
    assert run_here("api", *arguments).exits(code).out == ""
    if code == 2:
        assert requests_of(crm) == []
