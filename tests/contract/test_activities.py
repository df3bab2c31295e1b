"""Activities through HTTP: their answers, their events, and refusals."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.support.service import RunningService, running_service


@pytest.fixture
def service(tmp_path: Path) -> Iterator[RunningService]:
    with running_service(tmp_path / "data") as running:
        running.listen()
        yield running


def create(service: RunningService, **fields: Any) -> Any:
    answer = service.client.post("/api/v1/activities", json={"title": "Call"} | fields)
    assert answer.status_code == 201, answer.text
    return answer.json()


def record(service: RunningService, slug: str, data: dict[str, Any]) -> dict[str, str]:
    object_id = service.object_id(slug)
    made = service.client.post(f"/api/v1/objects/{object_id}/records", json={"data": data}).json()
    return {"objectId": object_id, "recordId": made["id"]}


def events(service: RunningService) -> list[tuple[str, Any]]:
    return [event for event in service.outbox() if event[0].startswith("activity.")]


def test_only_the_title_is_required(service: RunningService) -> None:
    made = create(service)
    assert made["summary"] == ""
    assert made["linkedRecords"] == []
    assert made["participants"] == []
    assert made["activityDate"] == made["createdAt"] == made["updatedAt"]
    assert set(made["createdBy"]) == {"id", "name", "email"}
    assert service.client.get(f"/api/v1/activities/{made['id']}").json() == made


def test_links_and_participants_are_stored_and_in_the_event(service: RunningService) -> None:
    person, company = record(service, "people", {"email": "ada@example.com"}), record(service, "companies", {"name": "Acme"})
    user = service.client.get("/api/v1/members").json()["members"][0]["user"]["id"]
    participants = [{"type": "user", "id": user}, {"type": "person", "id": person["recordId"]}]
    made = create(service, linkedRecords=[person, company, person], participants=participants, activityDate="2026-05-01T10:00:00+02:00")
    assert made["linkedRecords"] == [person, company]
    assert made["participants"] == participants
    assert made["activityDate"] == "2026-05-01T08:00:00.000000Z"
    [(kind, payload)] = events(service)
    assert kind == "activity.created"
    assert payload["activityId"] == made["id"]
    assert payload["title"] == "Call"
    assert payload["linkedRecords"] == [person, company]
    assert set(payload) == {"organizationId", "activityId", "title", "linkedRecords"}


def test_a_person_is_a_record_of_any_object(service: RunningService) -> None:
    companies = record(service, "companies", {"name": "Acme"})
    participants = [{"type": "person", "id": companies["recordId"]}, {"type": "person", "id": record(service, "people", {})["recordId"]}]
    assert create(service, participants=participants)["participants"] == participants


def test_a_list_is_filtered_by_record_and_by_object(service: RunningService) -> None:
    person, company = record(service, "people", {}), record(service, "companies", {"name": "Acme"})
    both, one, none = create(service, linkedRecords=[person, company]), create(service, linkedRecords=[company]), create(service)

    def ids(**query: Any) -> list[str]:
        return [activity["id"] for activity in service.client.get("/api/v1/activities", params=query).json()["activities"]]

    assert ids() == [none["id"], one["id"], both["id"]]
    assert ids(recordId=company["recordId"]) == [one["id"], both["id"]]
    assert ids(objectId=person["objectId"]) == [both["id"]]
    assert ids(recordId=company["recordId"], objectId=person["objectId"]) == []
    assert ids(recordId=str(uuid4())) == []
    assert ids(limit=1, offset=1) == [one["id"]]


def test_an_update_changes_only_the_given_fields(service: RunningService) -> None:
    person = record(service, "people", {})
    made = create(service, summary="old", linkedRecords=[person])
    changed = service.client.patch(f"/api/v1/activities/{made['id']}", json={"summary": "new"}).json()
    assert changed == made | {"summary": "new", "updatedAt": changed["updatedAt"]}
    emptied = service.client.patch(f"/api/v1/activities/{made['id']}", json={"linkedRecords": []}).json()
    assert emptied["linkedRecords"] == []
    assert service.client.get("/api/v1/activities", params={"recordId": person["recordId"]}).json() == {"activities": []}
    assert [kind for kind, _ in events(service)] == ["activity.created", "activity.updated", "activity.updated"]


def test_an_update_cannot_clear_the_date(service: RunningService) -> None:
    made = create(service, activityDate="2026-05-01T10:00:00Z")
    answer = service.client.patch(f"/api/v1/activities/{made['id']}", json={"activityDate": None, "summary": "new"})
    assert (answer.status_code, answer.json()["details"]) == (400, {"field": "activityDate"})
    assert service.client.get(f"/api/v1/activities/{made['id']}").json() == made
    assert create(service, activityDate=None)["activityDate"] != made["activityDate"]


def test_a_link_to_a_deleted_record_does_not_prevent_an_update(service: RunningService) -> None:
    person = record(service, "people", {})
    made = create(service, linkedRecords=[person])
    service.client.delete(f"/api/v1/objects/{person['objectId']}/records/{person['recordId']}")
    answer = service.client.patch(f"/api/v1/activities/{made['id']}", json={"title": "Met", "linkedRecords": [person]})
    assert answer.status_code == 200
    assert answer.json()["linkedRecords"] == [person]


def test_a_deleted_activity_is_not_found_and_has_an_event(service: RunningService) -> None:
    made = create(service)
    assert service.client.delete(f"/api/v1/activities/{made['id']}").json() == {"deleted": True}
    for method in ("GET", "PATCH", "DELETE"):
        answer = service.client.request(method, f"/api/v1/activities/{made['id']}", json={"title": "x"} if method == "PATCH" else None)
        assert (answer.status_code, answer.json()["error"]) == (404, "not_found")
    assert [kind for kind, _ in events(service)] == ["activity.created", "activity.deleted"]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"title": ""}, "title"),
        ({"title": None}, "title"),
        ({"activityDate": "yesterday"}, "activityDate"),
        ({"activityDate": "2026-02-30T00:00:00Z"}, "activityDate"),
        ({"linkedRecords": [{"objectId": str(uuid4()), "recordId": str(uuid4())}]}, "linkedRecords"),
        ({"linkedRecords": [{"recordId": str(uuid4())}]}, "linkedRecords"),
        ({"linkedRecords": "x"}, "linkedRecords"),
        ({"participants": [{"type": "user", "id": str(uuid4())}]}, "participants"),
        ({"participants": [{"type": "person", "id": str(uuid4())}]}, "participants"),
        ({"participants": [{"type": "robot", "id": str(uuid4())}]}, "participants"),
        ({"linkedRecords": [{"objectId": "\0", "recordId": str(uuid4())}]}, "linkedRecords[0]"),
        ({"linkedRecords": [{"objectId": str(uuid4()), "recordId": "\ud800"}]}, "linkedRecords[0]"),
        ({"participants": [{"type": "user", "id": "\ud800"}]}, "participants[0]"),
        ({"participants": [{"type": "person", "id": "a\0b"}]}, "participants[0]"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_bad_input_is_refused_and_nothing_is_written(service: RunningService, fields: dict[str, Any], field: str) -> None:
    answer = service.client.post("/api/v1/activities", content=json.dumps({"title": "Call"} | fields))
    assert (answer.status_code, answer.json()["error"]) == (400, "bad_request")
    assert field in answer.json()["message"]
    assert service.client.get("/api/v1/activities").json() == {"activities": []}
    assert events(service) == []


def test_scopes_are_checked(service: RunningService) -> None:
    with service.client_with(service.key_for(["activities:read"])) as reader:
        assert reader.get("/api/v1/activities").status_code == 200
        answer = reader.post("/api/v1/activities", json={"title": "Call"})
        assert answer.json()["details"] == {"requiredScope": "activities:write"}
    assert events(service) == []
