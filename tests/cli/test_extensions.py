"""Commands that need an extension of the interface: they work with crmctl's service and are refused by name with others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from crmctl.service.reports.report_definition import ReportDefinition
from crmctl.service.store import keys, members
from crmctl.service.workflows.workflow_definition import WorkflowDefinition
from tests.support.cli import expect_exit, run_crmctl, spawn
from tests.support.fakecrm import Answer, FakeCrm
from tests.support.service import RunningService, new_id, running_service

PERSON = "11111111-1111-4111-8111-111111111111"


def test_a_record_is_opened_in_the_console(crm: RunningService, people: list[str], tmp_path: Path) -> None:
    url = f"{crm.base_url}/console/records/people/{people[0]}"
    piped = run_crmctl("records", "get", "people", people[0], "--web").ok()
    assert (piped.json(), "open the address yourself" in piped.err) == ({"url": url}, True)
    assert run_crmctl("records", "get", "people", "email=person001@acme.com", "--web", "-o", "table").ok().out == f"{url}\n"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {tmp_path}/opened\n', encoding="utf-8")
    browser.chmod(0o755)
    assert expect_exit(spawn("records", "get", "people", people[0], "--web", env={"BROWSER": str(browser), "DISPLAY": ":99"}))[0] == 0
    assert (tmp_path / "opened").read_text(encoding="utf-8") == url
    assert run_crmctl("records", "get", "people", PERSON, "--web").exits(3).error()["code"] == "not_found"


def test_uploaded_files_are_listed(crm: RunningService) -> None:
    Path("notes.txt").write_text("hello", encoding="utf-8")
    for prefix in ("a", "b"):
        run_crmctl("files", "upload", "notes.txt", "--bucket", "docs", "--prefix", prefix).ok()
    files = run_crmctl("files", "list").ok().json()
    assert sorted((file["bucket"], file["path"], file["size"]) for file in files) == [
        ("docs", "a/notes.txt", 5),
        ("docs", "b/notes.txt", 5),
    ]
    assert all(file["publicUrl"].startswith(f"{crm.base_url}/files/docs/") for file in files)
    assert len(run_crmctl("files", "list", "--limit", "1").ok().json()) == 1
    assert "notes.txt" in run_crmctl("files", "list", "-o", "table").ok().out
    assert run_crmctl("files", "list", "-o", "ids").ok().out.split() == [file["publicUrl"] for file in files], "what files download takes"


def test_files_are_downloaded_by_place_and_by_address(crm: RunningService, monkeypatch: pytest.MonkeyPatch) -> None:
    content = bytes(range(256)) * 2000
    Path("größe 1.bin").write_bytes(content)
    [stored] = run_crmctl("files", "upload", "größe 1.bin", "--bucket", "docs", "--prefix", "a", "--content-type", "x/y").ok().json()
    Path("größe 1.bin").unlink()
    shown = run_crmctl("files", "download", "docs/a/größe 1.bin").ok().json()
    expected = {"file": "größe 1.bin", "publicUrl": stored["publicUrl"], "bytes": len(content), "contentType": "x/y"}
    assert (shown, Path("größe 1.bin").read_bytes() == content) == (expected, True)
    refused = run_crmctl("files", "download", "docs/a/größe 1.bin").exits(2).error()
    assert (refused["code"], "--yes" in refused["hint"]) == ("file_exists", True)
    run_crmctl("files", "download", stored["publicUrl"], "-O", "copy.bin").ok()
    run_crmctl("files", "download", stored["publicUrl"], "-O", "copy.bin", "--yes").ok()
    assert Path("copy.bin").read_bytes() == content
    for missing in ("docs/none.bin", stored["publicUrl"] + "x"):
        assert run_crmctl("files", "download", missing, "-O", "new.bin").exits(3).error()["code"] == "not_found"
    assert not list(Path().glob("new.bin*"))
    run_crmctl("files", "download", "docs/a/größe 1.bin", "-O", "none/new.bin").exits(2)


def test_a_download_sends_no_key_and_follows_no_redirect() -> None:
    answers = {
        "GET //good.txt": lambda asked: Answer(200, body=b"hello", headers={"Content-Type": "text/plain"}),
        "GET //moved.txt": lambda asked: Answer(302, headers={"Location": "/good.txt"}),
    }
    with FakeCrm(answers) as fake:
        run_crmctl("files", "download", f"{fake.origin}/good.txt", env=fake.env).ok()
        assert Path("good.txt").read_bytes() == b"hello"
        assert [asked.headers.get("authorization") for asked in fake.asked] == [None]
        assert run_crmctl("files", "download", f"{fake.origin}/moved.txt", env=fake.env).exits(7).error()["code"] == "redirected"
    assert not Path("moved.txt").exists()


def test_options_of_a_select_are_changed(crm: RunningService) -> None:
    edits = ["--option", "add=paused", "--option", "rename=lead:first", "--option", "retire=lost"]
    run_crmctl("records", "create", "deals", "--set", "name=One", "--set", "stage=lead").ok()
    planned = run_crmctl("attributes", "update", "deals", "stage", *edits, "--dry-run").ok().json()
    assert planned["body"] == {"add": ["paused"], "rename": {"lead": "first"}, "retire": ["lost"]}
    changed = run_crmctl("attributes", "update", "deals", "stage", *edits).ok().json()
    assert changed["config"]["options"] == ["first", "qualified", "proposal", "negotiation", "won", "paused"]
    assert run_crmctl("records", "list", "deals", "-q", "[].data.stage").ok().json() == ["first"]
    run_crmctl("records", "create", "deals", "--set", "name=Two", "--set", "stage=lost").exits(9)
    again = run_crmctl("attributes", "update", "deals", "stage", "--option", "rename=lead:first").exits(9).error()
    assert "'lead' is no option of stage (first, " in again["message"]


@pytest.mark.parametrize("edit", ["paused", "add=", "rename=won", "rename=a:b:c", "rename=:b", "drop=won", "retire="])
def test_an_incomplete_change_of_an_option_is_refused(crm: RunningService, edit: str) -> None:
    assert "rename=OLD:NEW" in run_crmctl("attributes", "update", "deals", "stage", "--option", edit).exits(2).error()["hint"]


def test_members_get_roles_and_are_removed(crm: RunningService) -> None:
    stamp = {"ids": new_id, "now": crm.clock.now()}
    for name in ("Ada", "Bob"):
        crm.engine.write(lambda tx, name=name: members.create_member(tx, name=name, email=f"{name.lower()}@acme.com", **stamp))
    assert run_crmctl("members", "role", "ADA@acme.com", "admin").ok().json()["role"] == "admin"
    assert "viewer" in run_crmctl("members", "role", "Ada", "king").exits(9).error()["message"]
    assert "--yes" in run_crmctl("members", "remove", "Bob").exits(2).err
    bob = next(member for member in run_crmctl("members", "list").ok().json() if member["user"]["name"] == "Bob")
    crm.engine.write(lambda tx: keys.create_key(tx, name="nightly", scopes=None, created_by=bob["id"], **stamp))
    removed = run_crmctl("members", "remove", bob["user"]["id"], "--yes").ok()
    assert (removed.json()["deleted"], "nightly" in removed.err) == (1, True)
    assert [member["user"]["name"] for member in run_crmctl("members", "list").ok().json()] == ["Owner", "Ada"]
    assert run_crmctl("members", "remove", "Bob", "--yes").exits(3).error()["code"] == "not_found"


def test_the_example_of_reports_can_be_loaded_and_run(tmp_path: Path) -> None:
    example = run_crmctl("reports", "init").ok().out
    Path("reports.yaml").write_text(example, encoding="utf-8")
    loaded = run_crmctl("service", "load", "reports.yaml", "--data", str(tmp_path / "data")).ok().json()
    assert loaded["reports"]["created"] == 2
    with running_service(tmp_path / "data", background=False) as service:
        env = {"CRMCTL_BASE_URL": service.base_url, "CRMCTL_API_KEY": service.key}
        run_crmctl("records", "create", "deals", "--set", "name=One", "--set", "stage=won", env=env).ok()
        for name, rows in (("Deals by stage", 1), ("Newest people", 0)):
            assert run_crmctl("reports", "run", name, env=env).ok().json()["resultCount"] == rows


def test_the_topics_name_every_field_of_their_files() -> None:
    for topic, model in (("report-files", ReportDefinition), ("workflow-files", WorkflowDefinition)):
        page = run_crmctl("help", topic).ok().out
        assert [field for field in model.model_json_schema()["properties"] if field not in page] == []
    for action in ("updateRecord", "createRecord", "createActivity", "callUrl"):
        assert action in page


def test_an_unknown_delivery_is_not_found(crm: RunningService) -> None:
    assert run_crmctl("webhooks", "replay", PERSON).exits(3).error()["code"] == "not_found"


@pytest.mark.parametrize(
    ("words", "route"),
    [
        (("files", "list"), "GET /files"),
        (("files", "download", "docs/a.txt"), "GET /files"),
        (("webhooks", "replay", PERSON), "POST /webhooks/deliveries/{deliveryId}/replay"),
        (("attributes", "update", PERSON, PERSON, "--option", "add=x"), "POST /objects/{objectId}/attributes/{attributeId}/options"),
        (("members", "role", PERSON, "admin"), "PATCH /members/{memberId}"),
        (("members", "remove", PERSON, "--yes"), "DELETE /members/{memberId}"),
    ],
)
def test_another_service_is_refused_by_the_name_of_the_extension(words: tuple[str, ...], route: str) -> None:
    missing = Answer(404, {"error": "not_found", "message": "no such route"})
    routes = {re.sub(r"\{\w+\}", PERSON, route): lambda asked: missing, "GET /extensions": lambda asked: missing}
    routes["GET /members"] = lambda asked: {"members": [{"id": PERSON, "role": "member"}]}
    with FakeCrm(routes) as fake:
        error = run_crmctl(*words, env=fake.env).exits(9).error()
    assert (error["code"], route in error["message"]) == ("not_supported", True)


def test_a_service_without_a_console_is_named() -> None:
    record = {"id": PERSON, "data": {}, "createdAt": "2026-01-01T00:00:00Z", "updatedAt": "2026-01-01T00:00:00Z"}
    routes = {
        f"GET /objects/{PERSON}/records/*": lambda asked: record,
        "GET /extensions": lambda asked: Answer(404, {"error": "not_found", "message": "no such route"}),
    }
    with FakeCrm(routes) as fake:
        error = run_crmctl("records", "get", PERSON, PERSON, "--web", env=fake.env).exits(9).error()
    assert (error["code"], "GET /extensions" in error["message"]) == ("not_supported", True)
