"""Objects through HTTP (specification 4.1)."""

from __future__ import annotations

from typing import Any

from tests.contract.scenarios import NIL, Scenario, check_all
from tests.support.service import RunningService

OBJECT_FIELDS = {"id", "type", "pluralName", "singularName", "description", "slug", "isActive", "createdAt", "updatedAt"}


def create(crm: RunningService, **fields: Any) -> Any:
    answer = crm.client.post("/api/v1/objects", json={"pluralName": "Projects", "singularName": "Project", "slug": "projects"} | fields)
    assert answer.status_code == 201, answer.text
    return answer.json()


def test_a_new_service_has_the_standard_objects_with_every_attribute_type(crm: RunningService) -> None:
    objects = crm.client.get("/api/v1/objects").json()["objects"]
    assert [crm_object["slug"] for crm_object in objects] == ["people", "companies", "deals"]
    types: set[str] = set()
    for crm_object in objects:
        assert set(crm_object) == OBJECT_FIELDS
        assert crm_object["type"] == "standard"
        found = crm.client.get(f"/api/v1/objects/{crm_object['id']}").json()
        assert set(found) == OBJECT_FIELDS | {"attributes"}
        types |= {attribute["type"] for attribute in found["attributes"]}
    assert types == {
        "text", "email", "number", "phone_number", "checkbox", "name", "address", "currency", "date", "select", "list", "reference",
    }  # fmt: skip


def test_an_object_is_created_changed_and_deleted(crm: RunningService) -> None:
    made = create(crm, description="What we do")
    assert set(made) == OBJECT_FIELDS
    assert made | {"type": "custom", "isActive": True, "description": "What we do", "slug": "projects"} == made
    assert made["createdAt"] == made["updatedAt"] == "2027-01-15T08:00:00.000000Z"
    path = f"/api/v1/objects/{made['id']}"
    assert crm.client.get(path.upper().replace("/API/V1/OBJECTS", "/api/v1/objects")).json() == made | {"attributes": []}
    crm.clock.sleep(5)
    changed = crm.client.patch(path, json={"pluralName": "Jobs", "isActive": False}).json()
    assert changed == made | {"pluralName": "Jobs", "isActive": False, "updatedAt": "2027-01-15T08:00:05.000000Z"}
    assert "projects" not in [crm_object["slug"] for crm_object in crm.client.get("/api/v1/objects").json()["objects"]]
    assert crm.client.get(path).json()["isActive"] is False
    assert crm.client.patch(path, json={}).status_code == 200
    gone = crm.client.delete(path)
    assert (gone.status_code, gone.json()) == (200, {"deleted": True})
    assert crm.client.get(path).status_code == 404
    assert crm.client.delete(path).status_code == 404
    assert crm.outbox() == []


def test_the_slug_is_derived_from_the_plural_name(crm: RunningService) -> None:
    answer = crm.client.post("/api/v1/objects", json={"pluralName": "Große Pläne"})
    assert answer.status_code == 201
    assert answer.json()["slug"] == "groe_plane"
    assert answer.json()["singularName"] == "Große Pläne"


def test_deleting_an_object_deletes_its_attributes_and_records(crm: RunningService) -> None:
    made = create(crm)
    crm.client.post(f"/api/v1/objects/{made['id']}/attributes", json={"name": "Code", "type": "text", "isUnique": True})
    crm.client.post(f"/api/v1/objects/{made['id']}/records", json={"data": {"code": "A"}})
    assert crm.client.delete(f"/api/v1/objects/{made['id']}").status_code == 200
    assert crm.client.get(f"/api/v1/objects/{made['id']}/records").status_code == 404
    again = create(crm)
    assert crm.client.get(f"/api/v1/objects/{again['id']}").json()["attributes"] == []


REFUSED = [
    Scenario("unknown id", "GET", f"/objects/{NIL}", 404, says=[NIL]),
    Scenario("no UUID", "GET", "/objects/people", 404),
    Scenario("no UUID to change", "PATCH", "/objects/people", 404, {"pluralName": "X"}),
    Scenario("trailing slash", "GET", "/objects/", 404),
    Scenario("no such method", "PUT", "/objects/{people}", 405, {}),
    Scenario("no method on the list", "DELETE", "/objects", 405),
    Scenario("unknown parameter", "GET", "/objects?limit=5", 400, field="limit"),
    Scenario("standard object changed", "PATCH", "/objects/{people}", 403, {"pluralName": "Humans"}, says=["people", "standard"]),
    Scenario("standard object deactivated", "PATCH", "/objects/{people}", 403, {"isActive": False}),
    Scenario("standard object deleted", "DELETE", "/objects/{deals}", 403),
    Scenario("no body", "POST", "/objects", 400, raw=b""),
    Scenario("not JSON", "POST", "/objects", 400, raw=b"{pluralName}"),
    Scenario("not an object", "POST", "/objects", 400, [1], says=["JSON object"]),
    Scenario("NaN", "POST", "/objects", 400, raw=b'{"pluralName": NaN}'),
    Scenario("key twice", "POST", "/objects", 400, raw=b'{"pluralName": "A", "pluralName": "B"}', says=["pluralName"]),
    Scenario("not UTF-8", "POST", "/objects", 400, raw=b'{"pluralName": "\xff"}'),
    Scenario("UTF-16", "POST", "/objects", 400, raw='{"pluralName": "A"}'.encode("utf-16")),
    Scenario("nested absurdly", "POST", "/objects", 400, raw=b"[" * 100_000),
    Scenario("number beyond reason", "POST", "/objects", 400, raw=b'{"pluralName": 1e99999999999999999999}'),
    Scenario("half a surrogate pair", "POST", "/objects", 400, raw=rb'{"pluralName": "\ud800"}', field="pluralName"),
    Scenario("half a surrogate pair as a key", "POST", "/objects", 400, raw=rb'{"pluralName": "A", "\ud800": 1}'),
    Scenario("NUL", "POST", "/objects", 400, {"pluralName": "A\0"}, field="pluralName"),
    Scenario("no name", "POST", "/objects", 400, {"slug": "x"}, field="pluralName", says=["pluralName is required"]),
    Scenario("blank name", "POST", "/objects", 400, {"pluralName": "  "}, field="pluralName"),
    *(
        Scenario(f"name with {control!r}", "POST", "/objects", 400, {"pluralName": f"A{control}"}, field="pluralName")
        for control in ("\n", "\t", "\x85", "\u2028")
    ),
    Scenario("name changed to two lines", "PATCH", "/objects/{custom}", 400, {"pluralName": "A\nB"}, field="pluralName"),
    Scenario("wrong type", "POST", "/objects", 400, {"pluralName": 5}, field="pluralName", says=["must be a string"]),
    Scenario("name too long", "POST", "/objects", 400, {"pluralName": "x" * 201}, field="pluralName"),
    Scenario("misspelt field", "POST", "/objects", 400, {"pluralName": "A", "plurlName": "B"}, field="plurlName"),
    Scenario("bad slug", "POST", "/objects", 400, {"pluralName": "A", "slug": "No Good"}, field="slug"),
    Scenario("slug like an id", "POST", "/objects", 400, {"pluralName": "A", "slug": NIL}, field="slug"),
    Scenario("slug in use", "POST", "/objects", 409, {"pluralName": "A", "slug": "people"}, field="slug"),
    Scenario("slug changed", "PATCH", "/objects/{custom}", 400, {"slug": "other"}, field="slug"),
    Scenario("singular name changed", "PATCH", "/objects/{custom}", 400, {"singularName": "Other"}, field="singularName"),
    Scenario("flag as text", "PATCH", "/objects/{custom}", 400, {"isActive": "true"}, field="isActive"),
    Scenario("referred to", "DELETE", "/objects/{custom}", 409, says=["refer"]),
]


def test_bad_requests_are_refused(crm: RunningService) -> None:
    custom, other = create(crm), create(crm, slug="others")
    reference = {"name": "Project", "type": "reference", "config": {"allowed_object_id": custom["id"]}}
    assert crm.client.post(f"/api/v1/objects/{other['id']}/attributes", json=reference).status_code == 201
    names = {"people": crm.object_id("people"), "deals": crm.object_id("deals"), "custom": custom["id"]}
    check_all(crm, REFUSED, names)
