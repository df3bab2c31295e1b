"""The request log, request ids and the audit log on both engines, through HTTP and with the installed program."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from crmctl.service.context import Kept, Quotas
from crmctl.service.store import logs
from tests.support.cli import run_crmctl
from tests.support.patience import wait_until
from tests.support.service import RunningService, make_client, running_service, service_process


@pytest.fixture
def service(tmp_path: Path, database: str) -> Iterator[RunningService]:
    with running_service(tmp_path / "data", database_url=database, background=False) as running:
        yield running


def place_options(service: RunningService) -> list[str]:
    return ["--data", str(service.data_dir), "--database-url", str(service.settings.database_url)]


def logged(service: RunningService, count: int, **wanted: Any) -> list[dict[str, Any]]:
    """Wait until this many requests are logged, which the service does once a second."""

    def found() -> list[dict[str, Any]]:
        return service.engine.read(lambda tx: logs.list_requests(tx, **wanted))

    wait_until(lambda: len(found()) >= count)
    return found()


def test_a_request_is_found_by_the_id_in_its_answer(service: RunningService) -> None:
    proxied = [("X-Request-Id", "from-a-proxy-1"), ("X-Forwarded-For", "10.1.1.1"), ("X-Forwarded-For", "10.1.1.2, 203.0.113.9")]
    given = service.client.get("/api/v1/members", headers=proxied)
    assert given.headers["x-request-id"] == "from-a-proxy-1"
    refused = service.client.get("/api/v1/objects/nothing", headers={"X-Request-Id": "two words", "Authorization": ""})
    made = refused.headers["x-request-id"]
    assert made != "two words"
    [first] = logged(service, 1, request_id="from-a-proxy-1")
    assert first["key"]["name"] == "First key"
    about = {"method": "GET", "path": "/api/v1/members", "status": 200, "address": "203.0.113.9"}
    assert {name: first[name] for name in about} == about
    [second] = logged(service, 1, request_id=made)
    assert (second["key"], second["status"], second["address"]) == (None, 401, "127.0.0.1")
    assert service.log[0]["requestId"] == "from-a-proxy-1"
    shown = run_crmctl("service", "requests", "--errors", *place_options(service), "-o", "jsonl").ok().lines()
    assert [line["requestId"] for line in shown] == [made]
    assert not service.engine.read(lambda tx: logs.list_requests(tx, since=4e9))
    page = service.client.get("/console").headers["x-request-id"]
    assert logged(service, 1, request_id=page)[0]["path"] == "/console"


def test_static_files_are_logged_only_if_refused(service: RunningService) -> None:
    for name, status in (("console.css", 200), ("console.js", 200), ("icon.svg", 200), ("nothing.css", 404)):
        assert service.client.get(f"/console/static/{name}").status_code == status
    last = service.client.get("/api/v1/members").headers["x-request-id"]
    logged(service, 1, request_id=last)
    found = service.engine.read(logs.list_requests)
    assert [request["status"] for request in found if "static" in request["path"]] == [404]


def test_changes_by_people_and_keys_are_in_the_audit_log(service: RunningService) -> None:
    made = service.client.post("/api/v1/objects", json={"pluralName": "Things", "slug": "things"}).json()["id"]
    field = service.client.post(f"/api/v1/objects/{made}/attributes", json={"name": "Code", "type": "text"}).json()["id"]
    service.client.delete(f"/api/v1/objects/{made}/attributes/{field}")
    service.client.delete(f"/api/v1/objects/{made}")
    run_crmctl("service", "keys", "create", "--name", "ci", "--full-access", *place_options(service)).ok()
    run_crmctl("service", "keys", "create", "--name", "never", "--full-access", *place_options(service), "--dry-run").ok()
    found = service.engine.read(logs.list_entries)
    assert [(entry["action"], entry["by"]["type"]) for entry in found] == [
        ("key.created", "operator"),
        ("object.deleted", "key"),
        ("attribute.deleted", "key"),
        ("attribute.created", "key"),
        ("object.created", "key"),
    ]
    assert found[2]["about"]["slug"] == "code"
    shown = run_crmctl("service", "audit", "--action", "attribute", *place_options(service), "-o", "jsonl").ok().lines()
    assert [line["action"] for line in shown] == ["attribute.deleted", "attribute.created"]
    assert {line["by"] for line in shown} == {"First key"}


def test_the_metrics_describe_the_database(service: RunningService) -> None:
    service.listen()
    service.client.post(f"/api/v1/objects/{service.object_id('people')}/records", json={"data": {}})
    shown = dict(line.rsplit(" ", 1) for line in service.client.get("/metrics").text.splitlines() if line.startswith("crm_"))
    assert float(shown["crm_events_waiting"]) == 1
    assert float(shown["crm_database_bytes"]) > 10_000
    assert {"crm_deliveries_oldest_seconds", "crm_workflow_runs_failed_day", "crm_endpoints_failing"} <= shown.keys()


def test_quotas_limit_files_and_results(tmp_path: Path, database: str) -> None:
    settings = {"kept": Kept(requests=0), "quotas": Quotas(files=1000, results=300)}
    with running_service(tmp_path / "data", database_url=database, background=False, **settings) as service:
        signed = service.client.post("/api/v1/files/upload-url", json={"path": "a.txt", "bucket": "files"}).json()["signedUrl"]
        refused = service.client.put(signed, content=b"x" * 1001)
        assert (refused.status_code, refused.json()["error"]) == (507, "quota_exceeded")
        refused = service.client.put(signed, content=iter([b"x" * 600, b"x" * 600]))
        assert (refused.status_code, refused.json()["error"]) == (507, "quota_exceeded"), "also without a declared length"
        assert [path for path in (tmp_path / "data" / "files").rglob("*") if path.is_file()] == []
        assert service.client.put(signed, content=b"x" * 500).status_code == 200
        people = service.object_id("people")
        service.client.post(f"/api/v1/objects/{people}/records", json={"data": {"email": "a" * 60 + "@example.com"}})
        text = "reports: [{name: All, object: people, columns: [email]}]"
        run_crmctl("service", "load", "-", *place_options(service), input=text).ok()
        [report] = service.client.get("/api/v1/reports").json()["reports"]
        path = f"/api/v1/reports/{report['id']}"
        made = [service.client.post(f"{path}/run").json()["run"]["id"] for _ in range(6)]
        kept = [run["id"] for run in service.client.get(f"{path}/runs").json()["runs"]]
        assert 1 <= len(kept) < 6
        assert kept == made[::-1][: len(kept)]
        assert service.engine.read(logs.list_requests) == []


def test_an_upload_over_the_quota_fails_until_space_is_freed(tmp_path: Path, database: str) -> None:
    """With the installed programs: a service with quotas, and a client that uploads files."""
    data, (small, large) = tmp_path / "served", (tmp_path / "small.bin", tmp_path / "large.bin")
    small.write_bytes(b"s" * 700_000)
    large.write_bytes(b"l" * 500_000)
    options = ["--database-url", database, "--quota", "files=1", "--quota", "results=1", "--rate-limit", "0"]
    with service_process(data, *options) as service:
        key = run_crmctl(
            "service", "keys", "create", "--name", "ci", "--full-access", "--data", data, "--database-url", database, "-o", "json"
        )
        env = {"CRMCTL_BASE_URL": service.base_url, "CRMCTL_API_KEY": key.ok().json()["key"]}
        run_crmctl("files", "upload", small, "--bucket", "b", env=env).ok()
        refused = run_crmctl("files", "upload", large, "--bucket", "b", "-o", "json", env=env).exits(7)
        assert "over the quota of 1 MB" in refused.err
        kept = [path for path in (data / "files").rglob("*") if path.is_file()]
        assert [path.stat().st_size > 700_000 for path in kept] == [True], "no partial file remains"
        # The freed space can be used once the service counts again.
        small.write_bytes(b"")
        run_crmctl("files", "upload", small, "--bucket", "b", env=env).ok()
        run_crmctl("files", "upload", large, "--bucket", "b", env=env).ok()


def test_results_respect_the_quota_of_the_flag_and_the_environment(tmp_path: Path, database: str) -> None:
    """With the installed programs: old runs are deleted, but the newest one of each report stays readable."""
    data = tmp_path / "served"
    place_options = ["--data", str(data), "--database-url", database]
    text = "reports: [{name: Big, object: people, columns: [notes]}, {name: Small, object: people, columns: [score]}]"
    run_crmctl("service", "load", "-", *place_options, input=text).ok()
    made = run_crmctl("service", "keys", "create", "--name", "ci", "--full-access", *place_options, "-o", "json").ok().json()

    def run_counts(env: dict[str, str], times: int) -> list[int]:
        for _ in range(times):
            assert run_crmctl("reports", "run", "Big", env=env).ok()
        assert len(run_crmctl("reports", "results", "Big", "-o", "jsonl", env=env).ok().lines()) == 100
        return [len(run_crmctl("reports", "runs", name, "-o", "jsonl", env=env).ok().lines()) for name in ("Big", "Small")]

    with service_process(data, *place_options[2:], "--quota", "results=1") as service:
        env = {"CRMCTL_BASE_URL": service.base_url, "CRMCTL_API_KEY": made["key"]}
        with make_client(service.base_url, made["key"]) as client:
            people = next(
                crm_object["id"] for crm_object in client.get("/api/v1/objects").json()["objects"] if crm_object["slug"] == "people"
            )
            body = {"records": [{"data": {"notes": "n" * 4000}}] * 100}
            assert client.post(f"/api/v1/objects/{people}/records/bulk", json=body).json()["created"] == 100
        run_crmctl("reports", "run", "Small", env=env).ok()
        assert run_counts(env, 4) == [2, 1], "two runs of 400 KB fit into 1 MB"
    with service_process(data, *place_options[2:], env={"CRMCTL_SERVE_QUOTA": "results=0"}) as service:
        assert run_counts(env | {"CRMCTL_BASE_URL": service.base_url}, 1) == [1, 1]
