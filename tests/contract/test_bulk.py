"""Bulk writes and deletes, and members, through HTTP (specification 4.3 and 4.5)."""

from __future__ import annotations

from typing import Any

import pytest

from crmctl.service.context import new_id
from crmctl.service.definitions.definitions_file import load_document, parse_document
from tests.contract.scenarios import NIL, Scenario, check_all
from tests.support.service import RunningService

BULK = "/objects/{people}/records/bulk"


@pytest.fixture
def people(crm: RunningService) -> str:
    return f"/api/v1/objects/{crm.object_id('people')}/records"


def bulk(crm: RunningService, people: str, records: list[Any], **options: Any) -> Any:
    answer = crm.client.post(f"{people}/bulk", json={"records": records} | options)
    assert answer.status_code == 200, answer.text
    return answer.json()


def everything(crm: RunningService, people: str) -> list[Any]:
    return list(crm.client.get(people, params={"limit": 100, "order": "asc"}).json()["records"])


def test_a_hundred_records_are_created_in_order_with_one_event_each(crm: RunningService, people: str) -> None:
    wanted = [{"email": f"{number}@example.com"} for number in range(100)]
    assert bulk(crm, people, [{"data": data} for data in wanted]) == {"created": 100, "updated": 0, "failed": []}
    assert [record["data"] for record in everything(crm, people)] == wanted
    events = crm.outbox()
    assert [payload["data"] for _, payload in events] == wanted
    assert {kind for kind, _ in events} == {"record.created"}


def test_only_bad_records_fail(crm: RunningService, people: str) -> None:
    bad = [{"data": {"email": "nobody"}}, {"data": {"email": "a@example.com"}}, "text", {}, {"data": {"email": "A@example.com"}}]
    bad.append({"data": {}, "objectId": NIL, "email": "b@example.com"})
    answer = bulk(crm, people, bad)
    assert (answer["created"], answer["updated"]) == (1, 0)
    assert [failure["index"] for failure in answer["failed"]] == [0, 2, 3, 4, 5]
    assert answer["failed"][-1]["error"] == "email is not a field that is known here"
    assert all(set(failure) == {"index", "error"} and failure["error"] for failure in answer["failed"])
    assert [record["data"] for record in everything(crm, people)] == [{"email": "a@example.com"}]
    assert len(crm.outbox()) == 1


def test_create_ignores_ids_and_upsert_uses_them(crm: RunningService, people: str) -> None:
    assert bulk(crm, people, [{"id": NIL, "data": {"email": "a@example.com"}}], mode="create")["created"] == 1
    [first] = everything(crm, people)
    assert first["id"] != NIL
    changes = [
        {"id": first["id"], "data": {"notes": "x"}},
        {"id": NIL, "data": {}},
        {"id": "no", "data": {}},
        {"data": {"email": "b@example.com"}},
    ]
    answer = bulk(crm, people, changes, mode="upsert")
    assert (answer["created"], answer["updated"], [failure["index"] for failure in answer["failed"]]) == (1, 1, [1, 2])
    assert [record["data"] for record in everything(crm, people)] == [{"email": "a@example.com", "notes": "x"}, {"email": "b@example.com"}]
    assert [kind for kind, _ in crm.outbox()] == ["record.created", "record.updated", "record.created"]


def test_bulk_delete_counts_existing_records(crm: RunningService, people: str) -> None:
    bulk(crm, people, [{"data": {"email": f"{number}@example.com"}} for number in range(3)])
    ids = [record["id"] for record in everything(crm, people)]
    answer = crm.client.request("DELETE", f"{people}/bulk", json={"ids": [ids[0].upper(), ids[1], ids[1], NIL, "no"]})
    assert (answer.status_code, answer.json()) == (200, {"deleted": 2})
    assert [record["id"] for record in everything(crm, people)] == ids[2:]
    assert [kind for kind, _ in crm.outbox()][3:] == ["record.deleted"] * 2


def test_empty_bulk_requests_are_accepted(crm: RunningService, people: str) -> None:
    assert bulk(crm, people, []) == {"created": 0, "updated": 0, "failed": []}
    assert crm.client.request("DELETE", f"{people}/bulk", json={"ids": []}).json() == {"deleted": 0}
    assert crm.outbox() == []


REFUSED = [
    Scenario("too many records", "POST", BULK, 400, {"records": [{"data": {}}] * 101}, field="records", says=["100"]),
    Scenario("too many ids", "DELETE", BULK, 400, {"ids": [NIL] * 101}, field="ids", says=["100"]),
    Scenario("unknown mode", "POST", BULK, 400, {"mode": "replace", "records": []}, field="mode", says=["create", "upsert"]),
    Scenario("no records", "POST", BULK, 400, {}, field="records"),
    Scenario("records as an object", "POST", BULK, 400, {"records": {}}, field="records"),
    Scenario("a bare array", "POST", BULK, 400, [{"data": {}}]),
    Scenario("no ids", "DELETE", BULK, 400, {}, field="ids"),
    Scenario("delete without a body", "DELETE", BULK, 400),
    Scenario("ids of numbers", "DELETE", BULK, 400, {"ids": [1]}, field="ids[0]"),
    Scenario("unknown object", "POST", f"/objects/{NIL}/records/bulk", 404, {"records": []}),
    Scenario("deleting from an unknown object", "DELETE", f"/objects/{NIL}/records/bulk", 404, {"ids": []}),
]


def test_bad_requests_are_refused(crm: RunningService) -> None:
    check_all(crm, REFUSED, {"people": crm.object_id("people")})


WITH_IMAGE = "members: [{name: Ada, email: ada@example.com, image: 'https://example.com/ada.png'}]"


def test_members_are_listed_and_cannot_be_changed(crm: RunningService) -> None:
    [owner] = crm.client.get("/api/v1/members").json()["members"]
    assert set(owner) == {"id", "role", "createdAt", "user"}
    # Without an image the field is left out, because the specification does not allow null there.
    assert set(owner["user"]) == {"id", "name", "email"}
    load_document(crm.engine, parse_document(WITH_IMAGE), clock=crm.clock, ids=new_id)
    ada = crm.client.get("/api/v1/members").json()["members"][-1]
    assert ada["user"]["image"] == "https://example.com/ada.png"
    assert owner["role"] == "owner"
    refused = [
        Scenario("created", "POST", "/members", 405, {"name": "X"}),
        Scenario("read alone", "GET", f"/members/{owner['id']}", 405),
        Scenario("parameter", "GET", "/members?limit=1", 400, field="limit"),
    ]
    check_all(crm, refused, {})
