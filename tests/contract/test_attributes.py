"""Attributes through HTTP (specification 4.2)."""

from __future__ import annotations

from typing import Any

import pytest

from crmctl.service.store import objects
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


def test_an_attribute_is_created_changed_and_deleted(crm: RunningService, projects: str) -> None:
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


def test_attributes_come_in_display_order(crm: RunningService, projects: str) -> None:
    made = [create(crm, projects, name=name) for name in ("B", "A", "C")]
    assert [attribute["displayOrder"] for attribute in made] == [1, 2, 3]
    assert crm.client.get(f"/api/v1/objects/{projects}/attributes").json()["attributes"] == made


def test_deleting_an_attribute_removes_its_values_from_records(crm: RunningService, projects: str) -> None:
    create(crm, projects, name="Keep")
    reference = create(crm, projects, name="Owner", type="reference", config={"allowed_object_id": crm.object_id("people")})
    person = crm.client.post(f"/api/v1/objects/{crm.object_id('people')}/records", json={"data": {"email": "a@b.c"}}).json()["id"]
    data = {"keep": "this", "owner": person}
    record = crm.client.post(f"/api/v1/objects/{projects}/records", json={"data": data}).json()
    assert record["data"] == data
    assert crm.client.delete(f"/api/v1/objects/{projects}/attributes/{reference['id']}").status_code == 200
    after = crm.client.get(f"/api/v1/objects/{projects}/records/{record['id']}").json()
    assert after == record | {"data": {"keep": "this"}}


def set_active(crm: RunningService, object_id: str, attribute: dict[str, Any], is_active: bool) -> None:
    """Set the flag as the console and a definitions file do."""
    crm.engine.write(lambda tx: objects.update_attribute(tx, object_id, attribute["id"], {"isActive": is_active}, now=crm.clock.now()))


def test_inactive_attributes_are_listed_on_request(crm: RunningService, projects: str) -> None:
    kept, fax = create(crm, projects, name="Keep"), create(crm, projects, name="Fax")
    crm.clock.sleep(1)
    set_active(crm, projects, fax, False)
    retired = fax | {"isActive": False, "updatedAt": "2027-01-15T08:00:01.000000Z"}
    many = f"/api/v1/objects/{projects}/attributes"
    assert crm.client.get(many).json() == {"attributes": [kept]}
    assert crm.client.get(f"{many}?includeInactive=true").json() == {"attributes": [kept, retired]}
    assert crm.client.get(f"{many}/{fax['id']}").json() == retired
    assert crm.client.get(f"/api/v1/objects/{projects}").json()["attributes"] == [kept]
    taken = crm.client.post(many, json={"name": "Fax", "type": "text"})
    assert (taken.status_code, taken.json()["error"]) == (409, "conflict")
    set_active(crm, projects, fax, True)
    assert [attribute["id"] for attribute in crm.client.get(many).json()["attributes"]] == [kept["id"], fax["id"]]


def test_records_keep_values_of_an_inactive_attribute(crm: RunningService, projects: str) -> None:
    create(crm, projects, name="Keep")
    fax = create(crm, projects, name="Fax", isUnique=True, isRequired=True)
    path = f"/api/v1/objects/{projects}/records"
    first, second = (crm.client.post(path, json={"data": {"keep": "a", "fax": number}}).json() for number in ("1", "2"))
    set_active(crm, projects, fax, False)
    assert crm.client.get(f"{path}/{first['id']}").json() == first
    for refused in (
        crm.client.post(path, json={"data": {"keep": "b", "fax": "3"}}),
        crm.client.patch(f"{path}/{first['id']}", json={"data": {"fax": "4"}}),
    ):
        assert (refused.status_code, refused.json()["message"]) == (400, "fax is not active and takes no values")
    assert crm.client.get(f"{path}?filter[fax][equals]=1").status_code == 400
    assert crm.client.post(path, json={"data": {"keep": "b"}}).status_code == 201
    changed = crm.client.patch(f"{path}/{first['id']}", json={"data": {"keep": "c"}}).json()
    assert changed["data"] == {"keep": "c", "fax": "1"}
    assert crm.client.delete(f"{path}/{second['id']}").status_code == 200
    set_active(crm, projects, fax, True)
    found = crm.client.get(f"{path}?filter[fax][equals]=1").json()
    assert [record["id"] for record in found["records"]] == [first["id"]]
    assert crm.client.post(path, json={"data": {"fax": "1"}}).status_code == 409
    assert crm.client.post(path, json={"data": {"fax": "2"}}).status_code == 201


def test_an_inactive_attribute_can_be_deleted_with_its_values(crm: RunningService, projects: str) -> None:
    create(crm, projects, name="Keep")
    fax = create(crm, projects, name="Fax", isUnique=True)
    record = crm.client.post(f"/api/v1/objects/{projects}/records", json={"data": {"keep": "a", "fax": "1"}}).json()
    set_active(crm, projects, fax, False)
    assert crm.client.delete(f"/api/v1/objects/{projects}/attributes/{fax['id']}").status_code == 200
    assert crm.client.get(f"/api/v1/objects/{projects}/records/{record['id']}").json()["data"] == {"keep": "a"}


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


def test_bad_requests_are_refused(crm: RunningService, projects: str) -> None:
    names = {"projects": projects, "people": crm.object_id("people"), "stage": create(crm, projects)["id"]}
    check_all(crm, REFUSED, names)
