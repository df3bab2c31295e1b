"""Run the workflow files without stored keys step by step, with a local issuer."""

from __future__ import annotations

import os
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.cli import CRMCTL, environment, run_crmctl
from tests.support.issuer import Issuer
from tests.support.patience import PATIENCE
from tests.support.service import RunningService, running_service
from tests.support.sources import ROOT
from tests.support.warm_program import warm_program

pytestmark = pytest.mark.needs("bash")

CI = ROOT / "docs" / "ci"
CHECKS = "checks:\n- {name: people-have-an-address, object: people, not_empty: [email]}\n"


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with Issuer() as running:
        yield running


@pytest.fixture
def service(tmp_path: Path, issuer: Issuer) -> Iterator[RunningService]:
    with running_service(tmp_path / "service") as running:
        yield running


@pytest.fixture
def runner(service: RunningService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a checked-out repository; the environment of a build system has no key."""
    for folder, name, text in (("data", "people.csv", "email,name\na@acme.com,Ada\n"), ("checks", "people.yaml", CHECKS)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    warm_program(str(CRMCTL)).put_shim(tmp_path / "bin")
    monkeypatch.setenv("CRMCTL_BASE_URL", service.base_url)
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return tmp_path


def trust(service: RunningService, issuer: Issuer, *options: str) -> None:
    scopes = ("objects:read", "attributes:read", "records:read", "records:write")
    words = [*options, *(word for scope in scopes for word in ("--scope", scope)), "--issuer", issuer.url, "--dev"]
    run_crmctl("service", "trust", "add", "crm", *words, "--data", service.data_dir).ok()


def run(scripts: list[str], env: dict[str, str]) -> list[int]:
    """Return the exit codes; the first failure ends the job."""
    codes = []
    for script in scripts:
        command = ["bash", "-e", "-o", "pipefail", "-c", script]
        done = subprocess.run(command, env=environment(env), capture_output=True, text=True, timeout=PATIENCE, check=False)
        codes.append(done.returncode)
        if done.returncode:
            break
    return codes


def people(service: RunningService) -> int:
    answer = service.client.get(f"/api/v1/objects/{service.object_id('people')}/records")
    return int(answer.json()["pagination"]["total"])


def load(name: str) -> Any:
    return yaml.safe_load((CI / name).read_text(encoding="utf-8"))


def github_scripts() -> list[str]:
    install, *scripts = [step["run"] for step in load("github-oidc.yml")["jobs"]["crm"]["steps"] if "run" in step]
    assert install == "pip install crmctl"
    return scripts


def github(issuer: Issuer) -> dict[str, str]:
    return {"ACTIONS_ID_TOKEN_REQUEST_URL": f"{issuer.url}/token?x=y", "ACTIONS_ID_TOKEN_REQUEST_TOKEN": "t"}


def test_github(runner: Path, service: RunningService, issuer: Issuer) -> None:
    trust(service, issuer, "--github", "acme/data", "--repository-id", "123", "--workflow", "import.yml")
    assert load("github-oidc.yml")["permissions"]["id-token"] == "write"
    assert run(github_scripts(), github(issuer)) == [0, 0, 0]
    assert people(service) == 1
    assert "have" in (runner / "summary.md").read_text()


def test_the_pull_request_of_a_fork_is_refused(runner: Path, service: RunningService, issuer: Issuer) -> None:
    trust(service, issuer, "--github", "acme/data", "--repository-id", "123")
    for changes in ({"event_name": "pull_request"}, {"repository": "eve/data", "repository_id": "666"}):
        assert run(github_scripts(), {"CRMCTL_ID_TOKEN": issuer.token(service.base_url, **changes)}) == [4]
    assert people(service) == 0


def test_gitlab(runner: Path, service: RunningService, issuer: Issuer) -> None:
    trust(service, issuer, "--gitlab", "acme/data", "--project-id", "42", "--claim", "ref_protected=true")
    job = load("gitlab-oidc.yml")["crm"]
    assert job["id_tokens"] == {"CRMCTL_ID_TOKEN": {"aud": "$CRMCTL_BASE_URL"}}
    claims = {"project_path": "acme/data", "project_id": "42", "ref_protected": "true", "pipeline_source": "schedule"}
    merge_request = issuer.token(service.base_url, **{**claims, "pipeline_source": "merge_request_event"})
    assert run(job["script"], {"CRMCTL_ID_TOKEN": merge_request}) == [4]
    assert run(job["script"], {"CRMCTL_ID_TOKEN": issuer.token(service.base_url, **claims)}) == [0, 0, 0, 0]
    assert (people(service), ET.parse("checks.xml").getroot().get("failures")) == (1, "0")


def test_a_plain_runner(runner: Path, service: RunningService, issuer: Issuer) -> None:
    trust(service, issuer, "--claim", "repository_id=123")
    Path("token").write_text(issuer.token(service.base_url))
    assert run([f"sh {CI / 'runner.sh'}"], {"CRMCTL_ID_TOKEN_FILE": str(runner / "token")}) == [0]
    assert people(service) == 1
    Path("data/people.csv").write_text("email,name\n,Grace\n")
    Path("token").write_text(issuer.token(service.base_url))
    Path("runner.sh").write_text((CI / "runner.sh").read_text().replace("--key email ", ""))
    assert run(["sh runner.sh"], {"CRMCTL_ID_TOKEN_FILE": str(runner / "token")}) == [11]
