"""Commands that need an extension of the interface: with crmctl's own service, and refused by name with others."""

from __future__ import annotations

from pathlib import Path

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


def test_a_service_without_a_console_is_named() -> None:
    record = {"id": PERSON, "data": {}, "createdAt": "2026-01-01T00:00:00Z", "updatedAt": "2026-01-01T00:00:00Z"}
    routes = {
        f"GET /objects/{PERSON}/records/*": lambda asked: record,
        "GET /extensions": lambda asked: Answer(404, {"error": "not_found", "message": "no such route"}),
    }
    with FakeCrm(routes) as fake:
        error = run_crmctl("records", "get", PERSON, PERSON, "--web", env=fake.env).exits(9).error()
    assert (error["code"], "GET /extensions" in error["message"]) == ("not_supported", True)
