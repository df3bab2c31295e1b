"""The schema, activities and files in the browser."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest

from crmctl.service.context import Quotas
from crmctl.service.store import record_pages
from tests.service.console.conftest import Newcomer, Visitor
from tests.service.console.test_pages import NASTY
from tests.support.service import RunningService, running_service


def test_the_deletion_of_an_attribute_shows_how_many_values_it_counted(
    service: RunningService, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    people = service.object_id("people")
    [tags] = [
        attribute
        for attribute in service.client.get(f"/api/v1/objects/{people}/attributes").json()["attributes"]
        if attribute["slug"] == "tags"
    ]
    data = [{"data": {"tags": ["a"] if number < 6 else []}} for number in range(12)]
    assert service.client.post(f"/api/v1/objects/{people}/records/bulk", json={"records": data}).json()["created"] == 12
    page = f"/console/objects/{people}/attributes/{tags['id']}/delete"
    assert "6 of 12 records have a value" in visitor.get(page).text
    monkeypatch.setattr(record_pages, "LOOKED", 5)
    assert "0 of the newest 5 of 12 records have a value" in visitor.get(page).text
    monkeypatch.setattr(record_pages, "MOST", 0)
    data = [{"data": {"tags": ["a"]}}]
    assert service.client.post(f"/api/v1/objects/{people}/records/bulk", json={"records": data}).json()["created"] == 1
    assert "More than 0 of 13 records have a value" in visitor.get(page).text


def test_the_target_of_a_reference_must_be_chosen(service: RunningService, visitor: Visitor) -> None:
    path = visitor.send("/console/objects", plural="Projects").headers["location"].partition("?")[0]
    refused = visitor.send(f"{path}/attributes", name="Customer", type="reference", target="")
    assert (refused.status_code, "Choose the linked records" in refused.text) == (400, True)
    assert 'value="Customer"' in refused.text
    assert visitor.send(f"{path}/attributes", name="Customer", type="reference", target=service.object_id("people")).status_code == 303


def test_an_object_and_its_attributes_are_created_changed_and_deleted(service: RunningService, visitor: Visitor) -> None:
    made = visitor.send("/console/objects", plural="Projects", singular="Project", description=NASTY)
    page = visitor.follow(made)
    assert "<script>alert" not in page.text
    path = made.headers["location"].partition("?")[0]
    object_id = path.rpartition("/")[2]
    visitor.follow(visitor.send(f"{path}/attributes", name="Title", type="text", flag=["required"]))
    visitor.follow(visitor.send(f"{path}/attributes", name="State", type="select", options="open\r\nclosed\r\n"))
    people = service.object_id("people")
    visitor.follow(visitor.send(f"{path}/attributes", name="Lead", type="reference", target=people))
    refused = visitor.send(f"{path}/attributes", name="Nothing", type="select", options="")
    assert (refused.status_code, "config.options" in refused.text.lower()) == (400, True)
    found = service.client.get(f"/api/v1/objects/{object_id}/attributes").json()["attributes"]
    assert [(attribute["slug"], attribute["isRequired"]) for attribute in found] == [("title", True), ("state", False), ("lead", False)]
    assert found[1]["config"] == {"options": ["open", "closed"]}
    record = {"data": {"title": "One", "state": "open"}}
    assert service.client.post(f"/api/v1/objects/{object_id}/records", json=record).status_code == 201
    attribute = f"{path}/attributes/{found[1]['id']}"
    visitor.follow(visitor.send(attribute, name="Phase"))
    assert "1 of 1 record has a value" in visitor.get(f"{attribute}/delete").text
    assert "The attribute is deleted" in visitor.follow(visitor.send(f"{attribute}/delete")).text
    visitor.follow(visitor.send(f"{path}/edit", plural="Works", description=""))
    assert "The object is inactive" in visitor.follow(visitor.send(f"{path}/active", active="false")).text
    assert "1 record and 2 attributes" in visitor.get(f"{path}/delete").text
    assert "The object is deleted" in visitor.follow(visitor.send(f"{path}/delete")).text
    assert visitor.get(path).status_code == 404
    assert visitor.send(f"/console/objects/{people}/delete").status_code == 403


def test_an_activity_is_added_about_a_record_changed_and_deleted(service: RunningService, visitor: Visitor) -> None:
    companies = service.object_id("companies")
    acme = service.client.post(f"/api/v1/objects/{companies}/records", json={"data": {"name": "Acme"}}).json()["id"]
    refused = visitor.send("/console/activities", title="Call", object="companies", record="nobody")
    assert "no record has this name" in refused.text.lower()
    made = visitor.send("/console/activities", title=NASTY, summary="long", object="companies", record="acme", date="2026-01-31T09:30")
    path = made.headers["location"].partition("?")[0]
    page = visitor.follow(made).text
    assert "<script>alert" not in page
    assert f"/records/companies/{acme}" in page
    visitor.follow(visitor.send(path, title="Call", summary="", date="2026-01-31T09:30"))
    [activity] = service.client.get("/api/v1/activities").json()["activities"]
    assert (activity["title"], activity["linkedRecords"]) == ("Call", [{"objectId": companies, "recordId": acme}])
    assert "Call" in visitor.get("/console/activities").text
    visitor.follow(visitor.send(f"{path}/delete"))
    assert service.client.get("/api/v1/activities").json()["activities"] == []


def test_a_file_is_uploaded_unchanged_and_listed(service: RunningService, visitor: Visitor) -> None:
    content = b"\x00\r\n--boundary\r\n\xff" * 3
    fields = {"token": visitor.form_token(), "bucket": "uploads", "folder": "a/b"}

    def upload(name: str, data: bytes = content, **more: str) -> httpx.Response:
        return visitor.client.post("/console/files", data=fields | more, files={"file": (name, data, "image/png")})

    page = visitor.follow(upload("C:\\pictures\\x <b>.png")).text
    [url] = re.findall(r'href="([^"]+/files/uploads/a/b/[^"]+)"', page)
    assert "x &lt;b&gt;.png" in page
    answer = httpx.get(url, trust_env=False)
    assert (answer.content, answer.headers["content-type"]) == (content, "image/png")
    for refused in (upload("", b"x"), upload("x.png", b""), upload("x.png", bucket="-"), upload("x.png", folder="../..")):
        assert refused.status_code == 400
    assert visitor.client.post("/console/files", data=fields | {"token": "x"}, files={"file": ("y.png", b"y")}).status_code == 403


def test_uploaded_files_keep_their_names(service: RunningService, visitor: Visitor) -> None:
    fields = {"token": visitor.form_token(), "bucket": "uploads", "folder": ""}
    for name in ("50%20 off.csv", 'say "hi".csv', "a%2Fb.csv"):
        assert visitor.client.post("/console/files", data=fields, files={"file": (name, b"x", "text/csv")}).status_code == 303
    assert [file["path"] for file in service.client.get("/api/v1/files").json()["files"]] == ["a%2Fb.csv", 'say "hi".csv', "50%20 off.csv"]


def test_a_cut_upload_is_no_file(service: RunningService, visitor: Visitor) -> None:
    fields = {"token": visitor.form_token(), "bucket": "uploads", "folder": ""}
    whole = visitor.client.build_request("POST", "/console/files", data=fields, files={"file": ("x.csv", b"x" * 100)})
    kind = {"content-type": whole.headers["content-type"]}
    assert visitor.client.post("/console/files", content=whole.read()[:-60], headers=kind).status_code == 400
    assert service.client.get("/api/v1/files").json()["files"] == []


def test_uploads_in_the_browser_respect_the_quota(tmp_path: Path, newcomer: Newcomer) -> None:
    with running_service(tmp_path / "data", background=False, quotas=Quotas(files=1000)) as service:
        visitor = newcomer(service)
        visitor.enter()
        fields = {"token": visitor.form_token(), "bucket": "uploads", "folder": ""}
        refused = visitor.client.post("/console/files", data=fields, files={"file": ("x.txt", b"x" * 1001)})
        assert refused.status_code == 507
        assert "over the quota of 1,000 bytes" in refused.text
        assert visitor.client.post("/console/files", data=fields, files={"file": ("x.txt", b"x" * 800)}).status_code == 303


def test_options_are_added_renamed_ordered_and_retired(service: RunningService, visitor: Visitor) -> None:
    people = service.object_id("people")
    [status] = [
        attribute
        for attribute in service.client.get(f"/api/v1/objects/{people}/attributes").json()["attributes"]
        if attribute["slug"] == "status"
    ]
    options = status["config"]["options"]
    address = f"/api/v1/objects/{people}/records"
    made = [service.client.post(address, json={"data": {"status": option}}).json()["id"] for option in options[:2]]
    path = f"/console/objects/{people}/attributes/{status['id']}"
    # The first option gets a new name, the second is retired, the last one moves to the front, and a new one is added.
    texts = ["fresh", "", *options[2:]]
    places = [str(number) for number in range(1, len(options))] + ["0"]
    fields = {"name": status["name"], "option": texts, "place": places, "colour": ["green"] * len(options), "options": "<b>new</b>\n"}
    refused = visitor.send(path, **fields | {"option": ["fresh"] * len(options)})
    assert refused.status_code == 400
    assert "twice" in refused.text
    visitor.follow(visitor.send(path, **fields))
    page = visitor.get(path).text
    assert "&lt;b&gt;new&lt;/b&gt;" in page
    [changed] = [
        attribute
        for attribute in service.client.get(f"/api/v1/objects/{people}/attributes").json()["attributes"]
        if attribute["slug"] == "status"
    ]
    assert changed["config"]["options"] == [options[-1], "fresh", *options[2:-1], "<b>new</b>"]
    assert '<span class="chip green">Fresh</span>' in visitor.get("/console/records/people?column=email&column=status").text
    assert visitor.send(path, **fields | {"colour": ["<b>"] * len(options)}).status_code == 400
    data = [service.client.get(f"{address}/{record_id}").json()["data"]["status"] for record_id in made]
    assert data == ["fresh", options[1]]
    assert service.client.patch(f"{address}/{made[1]}", json={"data": {"email": "a@example.com"}}).status_code == 200
    assert service.client.post(address, json={"data": {"status": options[1]}}).status_code == 400
    audit = visitor.get("/console/audit").text
    assert "options: " in audit
    assert "fresh" in audit
    assert visitor.send(path, **fields | {"option": ["one"], "place": ["1"]}).status_code == 400
