"""Attributes through HTTP (specification 4.2)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.scenarios import NIL, Scenario, check_all
from tests.support.service import RunningService

ATTRIBUTE_FIELDS = {
    "id", "objectId", "name", "slug", "type", "isRequired", "isUnique", "isList", "isActive",
    "displayOrder", "config", "createdAt", "updatedAt",
}  # fmt: skip


@pytest.fixture
def projects(crm: RunningService) -> str:
    return str(crm.client.post("/api/v1/objects", json={"pluralName": "Projects", "slug": "projects"}).json()["id"])


def create(crm: RunningService, object_id: str, **fields: Any) -> Any:
    answer = crm.client.post(f"/api/v1/objects/{object_id}/attributes", json={"name": "Stage", "type": "text"} | fields)
    assert answer.status_code == 201, answer.text
    return answer.json()


def test_an_attribute_from_creation_to_deletion(crm: RunningService, projects: str) -> None:
    made = create(crm, projects, type="select", config={"options": ["new", "done"]}, isRequired=True, name="Lead Stage")
    assert set(made) == ATTRIBUTE_FIELDS
    assert made["slug"] == "lead_stage"
    assert made["config"] == {"options": ["new", "done"]}
    assert (made["isRequired"], made["isUnique"], made["isList"], made["isActive"]) == (True, False, False, True)
    path = f"/api/v1/objects/{projects}/attributes/{made['id']}"
    assert crm.client.get(path).json() == made
    crm.clock.sleep(1)
    renamed = crm.client.patch(path, json={"name": "Phase"}).json()
    assert renamed == made | {"name": "Phase", "updatedAt": "2027-01-15T08:00:01.000000Z"}
    assert crm.client.get(f"/api/v1/objects/{projects}/attributes").json() == {"attributes": [renamed]}
    assert crm.client.get(f"/api/v1/objects/{projects}/attributes?includeInactive=true").json() == {"attributes": [renamed]}
    assert crm.client.delete(path).json() == {"deleted": True}
    assert crm.client.get(path).status_code == 404
    assert crm.outbox() == []


def test_they_come_in_display_order(crm: RunningService, projects: str) -> None:
    made = [create(crm, projects, name=name) for name in ("B", "A", "C")]
    assert [one["displayOrder"] for one in made] == [1, 2, 3]
    assert crm.client.get(f"/api/v1/objects/{projects}/attributes").json()["attributes"] == made


def test_deleting_an_attribute_strips_its_values_from_the_records(crm: RunningService, projects: str) -> None:
    create(crm, projects, name="Keep")
    reference = create(crm, projects, name="Owner", type="reference", config={"allowed_object_id": crm.object_id("people")})
    person = crm.client.post(f"/api/v1/objects/{crm.object_id('people')}/records", json={"data": {"email": "a@b.c"}}).json()["id"]
    data = {"keep": "this", "owner": person}
    record = crm.client.post(f"/api/v1/objects/{projects}/records", json={"data": data}).json()
    assert record["data"] == data
    assert crm.client.delete(f"/api/v1/objects/{projects}/attributes/{reference['id']}").status_code == 200
    after = crm.client.get(f"/api/v1/objects/{projects}/records/{record['id']}").json()
    assert after == record | {"data": {"keep": "this"}}


MANY = "/objects/{projects}/attributes"
ONE = MANY + "/{stage}"


def select(options: list[Any]) -> dict[str, Any]:
    return {"name": "X", "type": "select", "config": {"options": options}}


REFUSED = [
    Scenario("list of an unknown object", "GET", f"/objects/{NIL}/attributes", 404),
    Scenario("unknown attribute", "GET", f"{MANY}/{NIL}", 404),
    Scenario("attribute of another object", "GET", "/objects/{people}/attributes/{stage}", 404),
    Scenario("slug for an id", "GET", f"{MANY}/stage", 404),
    Scenario("includeInactive", "GET", f"{MANY}?includeInactive=yes", 400, field="includeInactive"),
    Scenario("type changed", "PATCH", ONE, 400, {"name": "Stage", "type": "number"}, field="type"),
    Scenario("nothing to change", "PATCH", ONE, 400, {}, field="name"),
    Scenario("null for a name", "PATCH", ONE, 400, {"name": None}, field="name"),
    Scenario("no type", "POST", MANY, 400, {"name": "X"}, field="type"),
    Scenario("no name", "POST", MANY, 400, {"type": "text"}, field="name"),
    Scenario("unknown type", "POST", MANY, 400, {"name": "X", "type": "string"}, field="type", says=["phone_number"]),
    Scenario("select without config", "POST", MANY, 400, {"name": "X", "type": "select"}, field="config"),
    Scenario("select without options", "POST", MANY, 400, select([]), field="config.options"),
    Scenario("options twice", "POST", MANY, 400, select(["a", "a"]), field="config.options"),
    Scenario("options of numbers", "POST", MANY, 400, select([1]), field="config.options"),
    Scenario("reference without config", "POST", MANY, 400, {"name": "X", "type": "reference"}, field="config"),
    Scenario(
        "reference to nothing", "POST", MANY, 400, {"name": "X", "type": "reference", "config": {"allowed_object_id": NIL}},
        field="config.allowed_object_id",
    ),
    Scenario("config where none belongs", "POST", MANY, 400, {"name": "X", "type": "text", "config": {"options": ["a"]}}, field="config"),
    Scenario("config of the wrong type", "POST", MANY, 400, {"name": "X", "type": "text", "config": "a"}, field="config"),
    Scenario("flag as a number", "POST", MANY, 400, {"name": "X", "type": "text", "isUnique": 1}, field="isUnique"),
    Scenario("slug in use", "POST", MANY, 409, {"name": "Stage", "type": "text"}, field="slug"),
    Scenario("slug of a record's own field", "POST", MANY, 400, {"name": "Id", "type": "text"}, field="name"),
]  # fmt: skip


def test_what_is_refused(crm: RunningService, projects: str) -> None:
    names = {"projects": projects, "people": crm.object_id("people"), "stage": create(crm, projects)["id"]}
    check_all(crm, REFUSED, names)
