"""`objects`, `attributes` and `members` with crmctl's service."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import requests_of
from tests.support.inprocess import run_here
from tests.support.service import RunningService

MAKE = ["objects", "create", "--slug", "projects", "--singular-name", "Project", "--plural-name", "Projects"]


def test_an_object_from_creation_to_deletion(crm: RunningService) -> None:
    made = run_here(*MAKE, "--description", "What we build").ok().json()
    assert (made["slug"], made["pluralName"], made["singularName"], made["description"]) == (
        "projects",
        "Projects",
        "Project",
        "What we build",
    )
    assert "projects" in [item["slug"] for item in run_here("objects", "list").ok().json()]
    changed = run_here("objects", "update", "projects", "--plural-name", "Ventures", "--set", "description=New").ok().json()
    assert (changed["pluralName"], changed["description"]) == ("Ventures", "New")
    hidden = run_here("objects", "update", "projects", "--inactive").ok()
    assert (hidden.json()["isActive"], f"crmctl objects update {hidden.json()['id']} --active" in hidden.err) == (False, True)
    run_here("objects", "get", "projects").exits(3)
    assert run_here("objects", "update", made["id"], "--active").ok().json()["isActive"] is True
    assert run_here("objects", "delete", "projects", "--yes").ok().json() == {"deleted": 1}
    assert "projects" not in [item["slug"] for item in run_here("objects", "list").ok().json()]


def test_get_shows_the_attributes(crm: RunningService) -> None:
    shown = run_here("objects", "get", "people").ok().json()
    assert "email" in [attribute["slug"] for attribute in shown["attributes"]]
    table = run_here("objects", "get", "people", "-o", "table").ok().out
    assert "singularName" in table
    assert "email" in table


def test_attributes_from_creation_to_deletion(crm: RunningService) -> None:
    run_here(*MAKE).ok()
    size = run_here(
        "attributes", "create", "projects", "--name", "Size", "--type", "select", "--option", "small", "--option", "large", "--required"
    )
    made = size.ok().json()
    assert (made["slug"], made["config"], made["isRequired"], made["isUnique"]) == ("size", {"options": ["small", "large"]}, True, False)
    run_here("attributes", "create", "projects", "--name", "Code", "--type", "text", "--unique").ok()
    owner = run_here("attributes", "create", "projects", "--name", "Owner", "--type", "reference", "--allowed-object", "people").ok().json()
    assert owner["config"] == {"allowed_object_id": crm.object_id("people")}
    assert [item["slug"] for item in run_here("attributes", "list", "projects").ok().json()] == ["size", "code", "owner"]
    assert run_here("attributes", "update", "projects", "size", "--name", "Magnitude").ok().json()["name"] == "Magnitude"
    assert run_here("attributes", "get", "projects", made["id"]).ok().json()["slug"] == "size"
    refused = run_here("records", "create", "projects", "--set", "code=x").exits(9)
    assert "size" in json.dumps(refused.error())
    assert run_here("attributes", "delete", "projects", "size", "--yes").ok().json() == {"deleted": 1}
    run_here("attributes", "get", "projects", "size").exits(3)
    run_here("records", "create", "projects", "--set", "code=x").ok()
    run_here("records", "create", "projects", "--set", "code=x").exits(9)


def test_members(crm: RunningService) -> None:
    listed = run_here("members", "list").ok().json()
    assert [member["role"] for member in listed] == ["owner"]
    assert run_here("members", "list", "-q", "[].user.email", "-o", "ids").ok().out.strip() == listed[0]["user"]["email"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["objects", "update", "people", "--description", "x"], 4, "standard"),
        (["objects", "delete", "people", "--yes"], 4, "standard"),
        (["objects", "delete", "people"], 2, "--yes"),
        (["objects", "update", "people"], 2, "nothing to write"),
        (["objects", "get", "nothing"], 3, "nothing"),
        (["attributes", "create", "people", "--name", "Kind", "--type", "select"], 2, "--option"),
        (["attributes", "create", "people", "--name", "Boss", "--type", "reference"], 2, "--allowed-object"),
        (["attributes", "create", "people", "--type", "text"], 2, "--name"),
        (["attributes", "create", "people", "--name", "X", "--type", "colour"], 9, "type must be one of"),
        (["attributes", "get", "people", "emial"], 3, "email"),
        (["attributes", "delete", "people", "notes"], 2, "--yes"),
        (["attributes", "update", "people", "notes"], 2, "--name"),
    ],
)
def test_refusals(crm: RunningService, arguments: list[str], code: int, said: str) -> None:
    refused = run_here(*arguments).exits(code)
    assert refused.out == ""
    assert said in json.dumps(refused.error())
    if code == 2:
        assert not [method for method, _ in requests_of(crm) if method != "GET"]
