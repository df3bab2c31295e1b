"""Single records through HTTP (specification 4.3). tests/service covers typed values and operators."""

from __future__ import annotations

import json
from typing import Any

import pytest

from crmctl.models import jsontext
from tests.contract.scenarios import NIL, Scenario, check_all
from tests.support.service import RunningService

MANY = "/objects/{people}/records"
ONE = MANY + "/{ada}"


@pytest.fixture
def people(crm: RunningService) -> str:
    return f"/api/v1/objects/{crm.object_id('people')}/records"


def create(crm: RunningService, path: str, **data: Any) -> Any:
    answer = crm.client.post(path, json={"data": data})
    assert answer.status_code == 201, answer.text
    return answer.json()


def test_a_record_is_created_changed_and_deleted(crm: RunningService, people: str) -> None:
    made = create(crm, people, email="ada@example.com", name={"first": "Ada", "last": "Lovelace"})
    assert set(made) == {"id", "objectId", "data", "createdAt", "updatedAt"}
    path = f"{people}/{made['id']}"
    assert crm.client.get(path).json() == crm.client.get(f"{people}/{made['id'].upper()}").json() == made
    crm.clock.sleep(1)
    merged = crm.client.patch(path, json={"data": {"email": "countess@example.com"}}).json()
    assert merged["data"] == {"email": "countess@example.com", "name": {"first": "Ada", "last": "Lovelace"}}
    assert merged["createdAt"] == made["createdAt"] < merged["updatedAt"]
    assert crm.client.delete(path).json() == {"deleted": True}
    assert crm.client.get(path).status_code == crm.client.delete(path).status_code == 404
    events = crm.outbox()
    assert [kind for kind, _ in events] == ["record.created", "record.updated", "record.deleted"]
    for (_, payload), data in zip(events, (made["data"], merged["data"], merged["data"]), strict=True):
        assert payload | {"recordId": made["id"], "objectId": made["objectId"], "data": data} == payload
        assert set(payload) == {"organizationId", "recordId", "objectId", "data"}


def test_numbers_keep_every_digit(crm: RunningService) -> None:
    deals = f"/api/v1/objects/{crm.object_id('deals')}/records"
    for number in ("0.1", "12345678901234567890.123456789", "1e-7", "123456789012345678901234567890"):
        answer = crm.client.post(deals, content=f'{{"data": {{"name": "D", "amount": {number}}}}}')
        assert answer.status_code == 201, answer.text
        assert jsontext.loads(answer.content)["data"]["amount"] == jsontext.loads(number)
        stored = crm.client.get(f"{deals}/{answer.json()['id']}").content
        assert jsontext.loads(stored)["data"]["amount"] == jsontext.loads(number)


def test_lists_are_paged_sorted_and_counted(crm: RunningService, people: str) -> None:
    made = []
    for number in range(7):
        crm.clock.sleep(1)
        made.append(create(crm, people, email=f"{number}@example.com"))
    crm.clock.sleep(1)
    touched = crm.client.patch(f"{people}/{made[2]['id']}", json={"data": {"email": "2b@example.com"}}).json()
    first = crm.client.get(people).json()
    assert first["pagination"] == {"total": 7, "limit": 50, "offset": 0}
    assert [record["id"] for record in first["records"]] == [record["id"] for record in reversed(made)]
    page = crm.client.get(people, params={"limit": 3, "offset": 5, "order": "asc"}).json()
    assert page["pagination"] == {"total": 7, "limit": 3, "offset": 5}
    assert page["records"] == made[5:]
    assert crm.client.get(people, params={"sort": "updated_at", "limit": 1}).json()["records"] == [touched]
    beyond = crm.client.get(people, params={"offset": 2**53 - 1}).json()
    assert (beyond["records"], beyond["pagination"]["total"]) == ([], 7)


@pytest.mark.parametrize(("limit", "status"), [("5.0", 200), ("5", 200), ("5.5", 400), ("0.0", 400), ("1e2", 200), ("1e999999999", 400)])
def test_a_search_takes_whole_numbers_however_json_writes_them(crm: RunningService, people: str, limit: str, status: int) -> None:
    answer = crm.client.post(f"{people}/search", content=f'{{"limit": {limit}, "offset": 0.0}}')
    assert answer.status_code == status
    if status == 200:
        assert f'"limit":{int(float(limit))},"offset":0' in answer.text
    else:
        assert answer.json()["details"] == {"field": "limit"}


def test_search_and_list_give_the_same_answer(crm: RunningService, people: str) -> None:
    for address in ("ada@acme.com", "bob@acme.com", "eve@other.org"):
        create(crm, people, email=address)
    query = {"filter[email][endsWith]": "@acme.com", "filter[email][notEquals]": "bob@acme.com", "limit": "10", "order": "asc"}
    filters = [
        {"attributeSlug": "email", "operator": "endsWith", "value": "@acme.com"},
        {"attributeSlug": "email", "operator": "notEquals", "value": "bob@acme.com"},
    ]
    body = {"filters": filters, "sort": {"field": "created_at", "order": "asc"}, "limit": 10, "offset": 0}
    listed = crm.client.get(people, params=query).json()
    assert [record["data"]["email"] for record in listed["records"]] == ["ada@acme.com"]
    assert crm.client.post(f"{people}/search", json=body).json() == listed
    for empty in (b"", b"{}"):
        assert crm.client.post(f"{people}/search", content=empty).json()["pagination"] == {"total": 3, "limit": 50, "offset": 0}
    for value in ({}, {"value": None}, {"value": True}, {"value": "true"}):
        missing = {"filters": [{"attributeSlug": "phone", "operator": "isEmpty"} | value]}
        assert crm.client.post(f"{people}/search", json=missing).json()["pagination"]["total"] == 3
    assert [kind for kind, _ in crm.outbox()] == ["record.created"] * 3


def test_a_filter_value_may_contain_any_text(crm: RunningService, people: str) -> None:
    odd = "a=b&c[d]=é+ %41\n"
    create(crm, people, notes=odd)
    create(crm, people, notes="plain")
    found = crm.client.get(people, params={"filter[notes][equals]": odd}).json()
    assert [record["data"]["notes"] for record in found["records"]] == [odd]


def searched(slug: bytes) -> bytes:
    return b'{"filters": [{"attributeSlug": "%s", "operator": "equals", "value": "b"}]}' % slug


REFUSED = [
    Scenario("unknown object", "GET", f"/objects/{NIL}/records", 404, says=[NIL]),
    Scenario("slug for an id", "GET", "/objects/people/records", 404),
    Scenario("unknown record", "GET", f"{MANY}/{NIL}", 404, says=[NIL]),
    Scenario("record of another object", "GET", "/objects/{deals}/records/{ada}", 404),
    Scenario("no UUID", "PATCH", f"{MANY}/1", 404, {"data": {}}),
    Scenario("unknown record changed", "PATCH", f"{MANY}/{NIL}", 404, {"data": {}}),
    Scenario("unknown record deleted", "DELETE", f"{MANY}/{NIL}", 404),
    Scenario("reading the bulk path", "GET", f"{MANY}/bulk", 405),
    Scenario("replaced", "PUT", ONE, 405, {"data": {}}),
    Scenario("limit too large", "GET", f"{MANY}?limit=101", 400, field="limit", says=["100"]),
    Scenario("limit nought", "GET", f"{MANY}?limit=0", 400, field="limit"),
    Scenario("limit of words", "GET", f"{MANY}?limit=ten", 400, field="limit"),
    Scenario("limit empty", "GET", f"{MANY}?limit=", 400, field="limit"),
    Scenario("limit twice", "GET", f"{MANY}?limit=1&limit=2", 400, field="limit"),
    Scenario("limit in foreign digits", "GET", f"{MANY}?limit=%D9%A3", 400, field="limit"),
    Scenario("negative offset", "GET", f"{MANY}?offset=-1", 400, field="offset"),
    Scenario("absurd offset", "GET", f"{MANY}?offset=99999999999999999999", 400, field="offset"),
    Scenario("unknown sort", "GET", f"{MANY}?sort=email", 400, field="sort", says=["created_at, updated_at"]),
    Scenario("unknown order", "GET", f"{MANY}?order=up", 400, field="order"),
    Scenario("unknown parameter", "GET", f"{MANY}?filters[email][equals]=x", 400, field="filters[email][equals]"),
    Scenario("filter without an operator", "GET", f"{MANY}?filter[email]=x", 400, field="filter[email]"),
    Scenario("unknown operator", "GET", f"{MANY}?filter[email][like]=x", 400, field="operator", says=["like", "contains"]),
    Scenario("unknown attribute", "GET", f"{MANY}?filter[mail][equals]=x", 400, field="attributeSlug", says=["mail", "email"]),
    Scenario("broken percent-encoding", "GET", f"{MANY}?filter[email][equals]=%ff", 400, says=["query string"]),
    Scenario("NUL in a filter", "GET", f"{MANY}?filter[email][equals]=%00", 400),
    Scenario("search: limit", "POST", f"{MANY}/search", 400, {"limit": 101}, field="limit"),
    Scenario("search: limit as text", "POST", f"{MANY}/search", 400, {"limit": "10"}, field="limit"),
    Scenario("search: sort", "POST", f"{MANY}/search", 400, {"sort": {"field": "email"}}, field="sort.field"),
    Scenario("search: order", "POST", f"{MANY}/search", 400, {"sort": {"field": "created_at", "order": "up"}}, field="sort.order"),
    Scenario("search: misspelt", "POST", f"{MANY}/search", 400, {"filter": []}, field="filter"),
    Scenario(
        "search: half a filter", "POST", f"{MANY}/search", 400, {"filters": [{"operator": "equals"}]}, field="filters[0].attributeSlug"
    ),
    Scenario("search: no value", "POST", f"{MANY}/search", 400, {"filters": [{"attributeSlug": "email", "operator": "equals"}]}),
    Scenario(
        *("search: null as value", "POST", f"{MANY}/search", 400),
        {"filters": [{"attributeSlug": "email", "operator": "equals", "value": None}]},
        field="value",
    ),
    Scenario(
        *("search: a list as value", "POST", f"{MANY}/search", 400),
        {"filters": [{"attributeSlug": "email", "operator": "equals", "value": ["a"]}]},
        field="filters[0].value",
    ),
    Scenario(
        "search: NUL",
        "POST",
        f"{MANY}/search",
        400,
        raw=rb'{"filters": [{"attributeSlug": "a\u0000", "operator": "equals", "value": "b"}]}',
    ),
    Scenario(
        "search: surrogate",
        "POST",
        f"{MANY}/search",
        400,
        raw=rb'{"filters": [{"attributeSlug": "\ud800", "operator": "equals", "value": "b"}]}',
    ),
    Scenario("no data", "POST", MANY, 400, {}, field="data", says=["data is required"]),
    Scenario("data of a list", "POST", MANY, 400, {"data": []}, field="data"),
    Scenario("data beside", "POST", MANY, 400, {"data": {}, "email": "x@y.z"}, field="email"),
    Scenario("unknown attribute in data", "POST", MANY, 400, {"data": {"mail": "x@y.z"}}, says=["mail"]),
    Scenario("bad value", "POST", MANY, 400, {"data": {"email": "nobody"}}, says=["email"]),
    Scenario("bad value on update", "PATCH", ONE, 400, {"data": {"email": 5}}, says=["email"]),
    Scenario("unique value in use", "POST", MANY, 409, {"data": {"email": "ADA@example.com"}}, says=["email"]),
    Scenario("reference to nothing", "POST", MANY, 400, {"data": {"company": NIL}}, says=["company"]),
    Scenario("surrogate in data", "POST", MANY, 400, raw=rb'{"data": {"notes": "\ud800"}}', says=["notes"]),
]


def test_bad_requests_are_refused(crm: RunningService, people: str) -> None:
    ada = create(crm, people, email="ada@example.com")
    names = {"people": crm.object_id("people"), "deals": crm.object_id("deals"), "ada": ada["id"]}
    check_all(crm, REFUSED, names)


def test_malformed_paths_and_ids_are_not_found(crm: RunningService, people: str) -> None:
    record_id = create(crm, people, notes="here")["id"]
    for name in (f"{record_id}%0a", record_id.replace("-", ""), f"{{{record_id}}}"):
        for method in ("GET", "PATCH", "DELETE"):
            answer = crm.client.request(method, f"{people}/{name}", json={"data": {}} if method == "PATCH" else None)
            assert (answer.status_code, answer.json()["error"]) == (404, "not_found")
    assert crm.client.delete(f"{people}/bulk%0a").status_code == 404
    assert crm.client.get(f"{people}/{record_id}").json()["data"] == {"notes": "here"}


def test_the_request_log_contains_no_data(crm: RunningService, people: str) -> None:
    create(crm, people, email="secret@example.com")
    crm.client.get(people, params={"filter[email][equals]": "secret@example.com"})
    assert [(entry["method"], entry["status"]) for entry in crm.log][-2:] == [("POST", 201), ("GET", 200)]
    assert "secret" not in json.dumps(list(crm.log))
