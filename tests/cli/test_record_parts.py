"""`records create` and `records update` of values with parts: the named parts change, everything else stays."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.conftest import requests_of
from tests.support.fakecrm import FakeCrm
from tests.support.inprocess import run_here
from tests.support.service import RunningService

HOME = {"street": "1 Main St", "city": "Paris", "country": "FR"}


@pytest.fixture
def place(crm: RunningService) -> str:
    """Create a company with an address and a budget; return the id."""
    for name, kind in (("Home", "address"), ("Budget", "currency"), ("Boss", "name")):
        crm.client.post(f"/api/v1/objects/{crm.object_id('companies')}/attributes", json={"name": name, "type": kind}).raise_for_status()
    data = {"name": "Acme", "home": HOME, "budget": {"amount": 5, "currency": "EUR"}, "boss": "Ada Lovelace"}
    path = f"/api/v1/objects/{crm.object_id('companies')}/records"
    created: str = crm.client.post(path, json={"data": data}).json()["id"]
    crm.log.clear()
    return created


def update(place: str, *options: str) -> Any:
    return run_here("records", "update", "companies", place, *options)


def test_a_part_changes_and_the_others_stay(crm: RunningService, place: str) -> None:
    done = update(place, "--set", "home.city=Rome").ok().json()["data"]
    assert done["home"] == HOME | {"city": "Rome"}
    reads = [(method, path) for method, path in requests_of(crm) if path.endswith(f"/records/{place}")]
    assert [method for method, _ in reads] == ["GET", "PATCH"]
    assert update(place, "--set", "home.zip=100", "--set", "home.city=").ok().json()["data"]["home"] == HOME | {"city": None, "zip": "100"}
    assert update(place, "--set", 'home:={"city": "Oslo"}').ok().json()["data"]["home"] == {"city": "Oslo"}


def test_a_dry_run_shows_the_whole_value(crm: RunningService, place: str) -> None:
    shown = update(place, "--set", "home.city=Rome", "--dry-run").ok()
    assert "1 Main St" in shown.out + shown.err
    assert crm.client.get(f"/api/v1/objects/{crm.object_id('companies')}/records/{place}").json()["data"]["home"] == HOME


@pytest.mark.parametrize("options", [("--set", "budget=7"), ("--data", '{"budget": 7}'), ("--set", "budget.amount=7")])
def test_money_keeps_its_currency(crm: RunningService, place: str, options: tuple[str, str]) -> None:
    assert update(place, *options, "--currency", "USD").ok().json()["data"]["budget"] == {"amount": 7, "currency": "EUR"}


def test_json_is_sent_as_written(crm: RunningService, place: str) -> None:
    assert update(place, "--set", "budget:=7").ok().json()["data"]["budget"] == 7
    assert update(place, "--set", 'budget:={"amount": 8, "currency": "USD"}').ok().json()["data"]["budget"] == {
        "amount": 8,
        "currency": "USD",
    }
    run_here("bulk", "update", "companies", "--filter", "budget>1", "--set", "budget:=9", "--yes").ok()
    assert run_here("records", "get", "companies", place, "-q", "data.budget").ok().json() == 9


def test_money_without_a_currency_is_refused_if_records_have_one(crm: RunningService, place: str) -> None:
    create = ("records", "create", "companies", "--set", "name=New", "--set", "budget=7")
    assert run_here(*create).exits(9).error()["code"] == "missing_currency"
    assert run_here(*create, "--currency", "USD").ok().json()["data"]["budget"] == {"amount": 7, "currency": "USD"}
    assert run_here("records", "count", "companies").ok().json() == {"count": 2}


def test_a_text_is_not_merged(crm: RunningService, place: str) -> None:
    error = update(place, "--set", "boss.first=Grace").exits(9).error()
    assert "Ada Lovelace" in error["message"]
    assert "last" in error["hint"]
    assert update(place, "--set", "boss=Grace Hopper").ok().json()["data"]["boss"] == "Grace Hopper"


def test_one_part_never_replaces_a_text_in_bulk(crm: RunningService, place: str) -> None:
    run_here("records", "create", "companies", "--set", "name=Other", "--set", "home.city=Bonn").ok()
    update(place, "--set", "home=1 Main St").ok()
    run_here("bulk", "update", "companies", "--filter", "home~Main", "--set", "home.city=Rome", "--yes").exits(9)
    assert run_here("records", "get", "companies", place, "-q", "data.home").ok().json() == "1 Main St"


@pytest.mark.parametrize("target", ["home.foo", "home.", "home.city.x", "home..city"])
def test_an_unknown_part_is_a_usage_error_that_names_the_known_ones(crm: RunningService, place: str, target: str) -> None:
    for command in (("update", "companies", place), ("create", "companies")):
        error = run_here("records", *command, "--set", f"{target}=x").exits(2).error()
        assert "home.street, " in error["hint"]
    assert {method for method, _ in requests_of(crm)} == {"GET"}


def test_parts_are_spelled_as_existing_records_spell_them() -> None:
    people = {"id": "0b7ecf00-0000-4000-8000-000000000001", "slug": "people", "pluralName": "People", "isActive": True}
    fields = [{"id": f"a{slug}", "slug": slug, "type": kind, "name": slug} for slug, kind in (("name", "name"), ("home", "address"))]
    known = {"id": "r1", "data": {"name": {"firstName": "Ada", "lastName": "L"}, "home": {"postal_code": "1", "gate": "7"}}}
    partial = {"id": "r2", "data": {"name": {"firstName": "Bob"}}}
    sent: list[Any] = []

    def write(asked: Any) -> Any:
        sent.append(asked.json["data"])
        return {"id": "r2", "data": asked.json["data"]}

    routes = {
        "GET /objects": lambda _: {"objects": [people]},
        f"GET /objects/{people['id']}/attributes": lambda _: {"attributes": fields},
        f"GET /objects/{people['id']}/records": lambda _: {"records": [known], "pagination": {"total": 1, "limit": 20, "offset": 0}},
        f"GET /objects/{people['id']}/records/r1": lambda _: known,
        f"GET /objects/{people['id']}/records/r2": lambda _: partial,
        f"PATCH /objects/{people['id']}/records/r2": write,
        f"PATCH /objects/{people['id']}/records/r1": write,
        f"POST /objects/{people['id']}/records": write,
    }
    with FakeCrm(routes) as fake:
        run_here("records", "create", "people", "--set", "name.first=Bob", "--set", "home.zip=2", env=fake.env).ok()
        run_here("records", "update", "people", "r1", "--set", "name.last=M", "--set", "home.zip=3", env=fake.env).ok()
        run_here("records", "update", "people", "r1", "--set", "home.gate=8", env=fake.env).ok()
        run_here("records", "update", "people", "r2", "--set", "name.last=N", env=fake.env).ok()
    assert sent == [
        {"name": {"firstName": "Bob"}, "home": {"postal_code": "2"}},
        {"name": {"firstName": "Ada", "lastName": "M"}, "home": {"postal_code": "3", "gate": "7"}},
        {"home": {"postal_code": "1", "gate": "8"}},
        {"name": {"firstName": "Bob", "lastName": "N"}},
    ]
