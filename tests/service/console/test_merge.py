"""Merging records in the console: chosen values, moved references and activities, one undo, and no lost change."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest

from crmctl.service.console import record_changes
from tests.service.console.conftest import Visitor
from tests.support.plainpages import PlainReader
from tests.support.service import RunningService


@pytest.fixture
def reader(visitor: Visitor) -> PlainReader:
    return visitor.reader()


def add(service: RunningService, slug: str, **data: Any) -> str:
    service.clock.advance(1)  # type: ignore[attr-defined]
    answer = service.client.post(f"/api/v1/objects/{service.object_id(slug)}/records", json={"data": data})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def read(service: RunningService, slug: str) -> dict[str, Any]:
    answer = service.client.get(f"/api/v1/objects/{service.object_id(slug)}/records", params={"sort": "created_at", "order": "asc"})
    return {record["id"]: record["data"] for record in answer.json()["records"]}


def linked(service: RunningService, record_id: str) -> list[str]:
    answer = service.client.get("/api/v1/activities", params={"recordId": record_id}).json()
    return [activity["title"] for activity in answer["activities"]]


def select(reader: PlainReader, slug: str, *names: str) -> PlainReader:
    return reader.open(f"/console/records/{slug}").press("Merge", {f"Select {name}": True for name in names})


def test_a_merge_moves_references_and_activities_and_can_be_undone(service: RunningService, reader: PlainReader) -> None:
    first = add(service, "companies", name="Acme", domain="acme.example", employees=5)
    second = add(service, "companies", name="Zenith", domain="acme-inc.example", industry="retail")
    person = add(service, "people", email="ada@example.com", company=second)
    link = {"objectId": service.object_id("companies"), "recordId": second}
    service.client.post("/api/v1/activities", json={"title": "Call", "linkedRecords": [link]}).raise_for_status()
    before = read(service, "companies"), read(service, "people")
    select(reader, "companies", "Acme", "Zenith")
    assert "1 activity move" in " ".join(reader.text.split())
    form = reader.text[reader.text.index("<h1>Merge 2 companies") :]
    # The oldest record survives; the other one only fills its empty values.
    for slug, record_id in (("name", first), ("domain", first), ("employees", first), ("industry", second)):
        assert re.search(rf'name="from:{slug}" value="{record_id}" checked', form), slug
    page = html.unescape(reader.press("Merge the records", {"Domain: acme-inc.example": True}).text)
    assert "The records are merged" in page
    merged = {"name": "Acme", "domain": "acme-inc.example", "employees": 5, "industry": "retail"}
    assert read(service, "companies") == {first: merged}
    assert read(service, "people")[person]["company"] == first
    assert linked(service, first) == ["Call"]
    assert "The change is undone" in reader.press("Undo").text
    assert (read(service, "companies"), read(service, "people")) == before
    assert (linked(service, first), linked(service, second)) == ([], ["Call"])


def test_a_merge_joins_lists_and_needs_two_records(service: RunningService, reader: PlainReader) -> None:
    first = add(service, "people", email="a@example.com", tags=["x", "y"])
    add(service, "people", email="b@example.com", tags=["y", "z"])
    assert select(reader, "people", "a@example.com").answer.status_code == 400
    select(reader, "people", "a@example.com", "b@example.com").press("Merge the records")
    assert read(service, "people") == {first: {"email": "a@example.com", "tags": ["x", "y", "z"]}}


def test_a_saved_record_stops_the_merge_and_later_changes_survive_undo(service: RunningService, reader: PlainReader) -> None:
    first = add(service, "people", email="a@example.com")
    add(service, "people", email="b@example.com", score=2)
    path = f"/api/v1/objects/{service.object_id('people')}/records/{first}"
    select(reader, "people", "a@example.com", "b@example.com")
    service.client.patch(path, json={"data": {"score": 1}}).raise_for_status()
    assert reader.press("Merge the records").answer.status_code == 409
    assert re.search(r"First key \(on [^)]+\) saved a@example.com; check the values", html.unescape(reader.text))
    assert len(read(service, "people")) == 2
    reader.press("Merge the records")
    service.client.patch(path, json={"data": {"score": 9}}).raise_for_status()
    assert "changed again since" in reader.press("Undo").text
    assert sorted(str(data.get("score")) for data in read(service, "people").values()) == ["2", "9"]


def test_undo_unlinks_activities_from_a_survivor_that_kept_its_values(service: RunningService, reader: PlainReader) -> None:
    first, second = add(service, "companies", name="Acme"), add(service, "companies", name="Zenith")
    links = [
        {"objectId": service.object_id("companies"), "recordId": record_id}
        for record_id in (second, add(service, "companies", name="Other"))
    ]
    service.client.post("/api/v1/activities", json={"title": "Call", "linkedRecords": links}).raise_for_status()
    select(reader, "companies", "Acme", "Zenith").press("Merge the records")
    assert linked(service, first) == ["Call"]
    reader.press("Undo")
    assert (linked(service, first), linked(service, second)) == ([], ["Call"])
    assert service.client.get("/api/v1/activities").json()["activities"][0]["linkedRecords"] == links


def test_a_merge_leaves_no_activity_behind(service: RunningService, reader: PlainReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_changes, "MOST_MOVED", 1)
    add(service, "companies", name="Acme")
    link = {"objectId": service.object_id("companies"), "recordId": add(service, "companies", name="Zenith")}
    for title in ("Call", "Visit"):
        service.client.post("/api/v1/activities", json={"title": title, "linkedRecords": [link]}).raise_for_status()
    refused = select(reader, "companies", "Acme", "Zenith").press("Merge the records")
    assert (refused.answer.status_code, "more than 1 activities move" in refused.text) == (400, True)
    assert len(read(service, "companies")) == 2
