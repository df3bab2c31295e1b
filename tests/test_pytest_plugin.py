"""The pytest plugin `crm`: isolated tests, its marker, its cost without use, its place in the wheel."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import httpx
import pytest

from crmctl.double_client import TestService
from crmctl.errors import RejectedError, ServiceError
from tests.support.patience import PATIENCE
from tests.support.sources import ROOT


def pytest_run(text: str) -> str:
    Path("test_it.py").write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "crmctl.pytest_plugin", "-p", "no:cacheprovider", "--strict-markers"]
    alone = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # the other plug-ins of this machine take a second to start
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False, env=alone).stdout


@pytest.mark.parametrize("number", [1, 2])
def test_each_test_finds_an_empty_service(crm: TestService, number: int) -> None:
    people = crm.client.records("people")
    assert list(people.list()) == []
    assert crm.client.bulk.import_records("people", [{"name": "Ada"}]).summary.to_document()["created"] == 1
    people.create({"name": f"Person {number}"})
    crm.faults("* /api/v1/* -> status=500")
    crm.clock.set("2030-01-01T00:00:00Z")


def test_its_parts(crm: TestService) -> None:
    people = crm.client.records("people")
    people.create({"name": "Ada"})
    [request] = [request for request in crm.requests if request["method"] == "POST"]
    assert request["body"] == {"data": {"name": "Ada"}}
    assert [each["type"] for each in crm.webhooks.wait(1)] == ["record.created"]
    with pytest.raises(ServiceError, match="1 of 2 deliveries came within 0 seconds"):
        crm.webhooks.wait(2, seconds=0)
    crm.save("ada")
    people.create({"name": "Grace"})
    crm.restore("ada")
    assert [person.data["name"] for person in people.list()] == ["Ada"]
    assert crm.clock.set("2030-01-01T00:00:00Z").startswith("2030-01-01T00:00:0")
    with pytest.raises(RejectedError, match="method must be 'GET', 'HEAD'"):
        crm.faults("GTE / -> twice")


def test_a_double_that_logs_its_requests_goes_on() -> None:
    service = TestService("--log", "json")
    try:
        with httpx.Client(base_url=service.url, trust_env=False) as client:
            assert {client.get("/api/v1/objects").status_code for _ in range(1000)} == {401}
    finally:
        service.close()


@pytest.mark.crm(rate_limit=2)
def test_a_marker_sets_the_rate_limit(crm: TestService) -> None:
    headers = {"Authorization": f"Bearer {crm.key}"}
    answers = [httpx.get(f"{crm.url}/api/v1/objects", headers=headers, trust_env=False) for _ in range(3)]
    assert {"x-ratelimit-limit": "2"}.items() <= dict(answers[0].headers).items()


def test_an_unknown_word_in_the_marker_fails_the_test() -> None:
    said = pytest_run("import pytest\n@pytest.mark.crm(fixtur='x')\ndef test_it(crm): pass\n")
    assert "the marker crm takes fixture=DIR and rate_limit=N, not 'fixtur'" in said


def test_a_fixture_that_does_not_load_fails_the_test_with_its_message() -> None:
    said = pytest_run("import pytest\n@pytest.mark.crm(fixture='absent')\ndef test_it(crm): pass\n")
    assert "absent is no folder" in said
    assert "1 error" in said


def test_it_imports_nothing_until_it_is_used() -> None:
    said = pytest_run("import sys\ndef test_it(): assert {m for m in sys.modules if m.startswith('crmctl.')} <= "
                      "{'crmctl.pytest_plugin', 'crmctl.version'}\n")  # fmt: skip
    assert "1 passed" in said


def test_the_wheel_names_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"crmctl.pytest_plugin": "crmctl.pytest_plugin"}
