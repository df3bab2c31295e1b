"""Reports, workflows, files and webhooks of crmctl's service, used one after another."""

from __future__ import annotations

import http.client
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.support.cli import run_crmctl
from tests.support.furnishing import SECRET, load_definitions, saved_delivery
from tests.support.patience import PATIENCE
from tests.support.service import RunningService


@pytest.fixture
def furnished(crm: RunningService) -> RunningService:
    load_definitions(crm)
    return crm


def test_a_report_is_run_and_its_results_are_shown(furnished: RunningService) -> None:
    deals = furnished.object_id("deals")
    slugs = {item["slug"]: item for item in furnished.client.get(f"/api/v1/objects/{deals}/attributes").json()["attributes"]}
    first, second = slugs["stage"]["config"]["options"][:2]
    rows = [{"data": {"name": "Deal", "stage": stage}} for stage in (first, first, first, second)]
    assert furnished.client.post(f"/api/v1/objects/{deals}/records/bulk", json={"records": rows}).json()["created"] == 4
    run = run_crmctl("reports", "run", "Deals by stage").ok().json()
    assert run["status"] == "completed"
    results = run_crmctl("reports", "results", "Deals by stage").ok().json()
    assert {row["stage"]: row["count"] for row in results} == {first: 3, second: 1}
    assert run_crmctl("reports", "results", "Deals by stage", run["id"], "-o", "jsonl").ok().lines() == results
    bars = run_crmctl("reports", "results", "Deals by stage", "--chart", env={"COLUMNS": "60", "LC_ALL": "C"}).ok().out.splitlines()
    assert bars[0] == "count"
    assert sorted(line.rsplit(" ", 1)[1] for line in bars[1:]) == ["1", "3"]
    assert run_crmctl("reports", "runs", "Deals by stage", "-o", "ids").ok().out.split() == [run["id"]]


def test_a_workflow_is_run_and_waited_for(furnished: RunningService) -> None:
    run = run_crmctl("workflows", "run", "Greet new people", "--wait", "--wait-timeout", "50").ok().json()
    assert (run["status"], run["title"], run["triggerEvent"]) == ("completed", "API: Greet new people", "api")
    again = run_crmctl("workflows", "run", "Greet new people", "--data", '{"why": "test"}', "--wait").ok().json()
    assert again["id"] != run["id"]
    assert {item["id"] for item in run_crmctl("workflows", "runs", "Greet new people").ok().json()} == {run["id"], again["id"]}
    refused = run_crmctl("workflows", "run", "Asleep").exits(9)
    assert refused.error()["code"] == "workflow_disabled"
    asleep = next(item["id"] for item in run_crmctl("workflows", "list").ok().json() if item["name"] == "Asleep")
    assert run_crmctl("workflows", "run", asleep).exits(9).error()["status"] is not None, "the service's own refusal"


def test_uploaded_files_can_be_fetched(crm: RunningService) -> None:
    Path("tree/inner").mkdir(parents=True)
    Path("tree/a b.txt").write_text("first", encoding="utf-8")
    Path("tree/inner/logo.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(1000))
    stored = run_crmctl("files", "upload", "tree", "-r", "--bucket", "assets", "--prefix", "docs").ok().json()
    assert [item["path"] for item in stored] == ["docs/a b.txt", "docs/inner/logo.png"]
    for item in stored:
        fetched = httpx.get(item["publicUrl"], trust_env=False)
        assert fetched.content == Path(item["file"]).read_bytes()
        assert fetched.headers["content-type"].startswith(item["contentType"])


def test_the_eight_event_types_and_the_portal(crm: RunningService) -> None:
    assert len(run_crmctl("webhooks", "events").ok().json()) == 8
    url = urlsplit(run_crmctl("webhooks", "portal", "-o", "table").ok().out.strip())
    connection = http.client.HTTPConnection(str(url.hostname), int(url.port or 80), timeout=PATIENCE)
    connection.request("GET", f"{url.path}?{url.query}")
    assert connection.getresponse().status in (200, 302, 303)
    connection.close()


def test_the_example_of_a_signature_in_the_help_is_valid() -> None:
    headers, body = saved_delivery()
    options = [word for name, value in headers.items() for word in (f"--{name.removeprefix('webhook-')}", value)]
    assert run_crmctl("webhooks", "verify", "-", "--secret", SECRET, *options, input=body).ok().json()["valid"] is True


def test_names_of_reports_and_workflows_complete_once_they_were_listed(furnished: RunningService) -> None:
    assert run_crmctl("__complete", "reports", "get", "").ok().out.strip() == ""
    run_crmctl("reports", "list").ok()
    run_crmctl("workflows", "list").ok()
    assert run_crmctl("__complete", "reports", "get", "").ok().out.split("\n")[1:-1] == ["Deals by stage", "All people"]
    assert run_crmctl("__complete", "workflows", "get", "").ok().out.split("\n")[1:-1] == ["Greet new people", "Asleep"]
