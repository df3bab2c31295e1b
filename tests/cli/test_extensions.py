"""Commands that need an extension of the interface: with crmctl's own service, and refused by name with others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cli import expect_exit, run_crmctl, spawn
from tests.support.fakecrm import Answer, FakeCrm
from tests.support.service import RunningService

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


def test_an_unknown_delivery_is_not_found(crm: RunningService) -> None:
    assert run_crmctl("webhooks", "replay", PERSON).exits(3).error()["code"] == "not_found"


@pytest.mark.parametrize(
    ("words", "route"),
    [
        (("files", "list"), "GET /files"),
        (("webhooks", "replay", PERSON), "POST /webhooks/deliveries/{deliveryId}/replay"),
    ],
)
def test_another_service_is_refused_by_the_name_of_the_extension(words: tuple[str, ...], route: str) -> None:
    missing = Answer(404, {"error": "not_found", "message": "no such route"})
    routes = {route.replace("{deliveryId}", PERSON): lambda asked: missing, "GET /extensions": lambda asked: missing}
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
