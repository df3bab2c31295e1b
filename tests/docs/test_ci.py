"""Run the workflow files for GitHub and GitLab step by step: findings name their physical line, and merged files are imported."""

from __future__ import annotations

import os
import re
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.cli import CRMCTL, environment, run_crmctl
from tests.support.patience import PATIENCE
from tests.support.service import RunningService, running_service
from tests.support.warm_program import warm_program

CI = Path(__file__).parents[2] / "docs" / "ci"
INSTALL = "pip install crmctl"
GOOD = "Email,Score,Notes\na@acme.com,1,x\nb@acme.com,2,y\n"
BAD = 'Email,Score,Notes\na@acme.com,1,"two\nlines, 100%"\nb@acme.com,many,y\nnobody,3,"<&|>"\n'
"""Line 4 has an invalid score, line 5 an invalid e-mail address."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with running_service(tmp_path_factory.mktemp("ci") / "service") as running:
        yield running


@pytest.fixture
def runner(service: RunningService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a checked-out repository with the environment of a build system."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    warm_program(str(CRMCTL)).put_shim(tmp_path / "bin")
    values = {"CRMCTL_BASE_URL": service.base_url, "CRMCTL_API_KEY": service.key, "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md")}
    for name, value in {**values, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}.items():
        monkeypatch.setenv(name, value)
    return tmp_path


def run(script: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    own = {name: value for name, value in (env or {}).items() if "${{" not in value}
    command = ["bash", "-e", "-o", "pipefail", "-c", script]
    return subprocess.run(command, env=environment(own), capture_output=True, text=True, timeout=PATIENCE, check=False)


def steps(job: dict[str, Any]) -> list[str]:
    """Return the scripts of a GitHub job, without its set-up."""
    scripts = [step["run"] for step in job["steps"] if "run" in step]
    assert scripts[0] == INSTALL
    return scripts[1:]


def test_github(runner: Path) -> None:
    jobs = yaml.safe_load((CI / "github.yml").read_text(encoding="utf-8"))["jobs"]
    check, summary = steps(jobs["check"])
    (runner / "data/people.csv").write_text(BAD, encoding="utf-8")
    found = run(check, jobs["check"]["env"])
    assert found.returncode == 9
    errors = [line for line in found.stdout.splitlines() if line.startswith("::error")]
    places = [re.match(r"::error file=data/people\.csv,line=(\d+),title=\w+::column (\w+)", line).groups() for line in errors]  # type: ignore[union-attr]
    assert places == [("4", "Score"), ("5", "Email")]
    assert run(summary, jobs["check"]["env"]).returncode == 9
    assert "| error | 4 | Score | many |" in (runner / "summary.md").read_text(encoding="utf-8")
    (runner / "data/people.csv").write_text(GOOD, encoding="utf-8")
    good = run(check, jobs["check"]["env"])
    assert (good.returncode, "::error" in good.stdout, "::notice" in good.stdout) == (0, False, True)
    (script,) = steps(jobs["import"])
    done = run(script)
    assert done.returncode == 0, done.stderr
    assert run_crmctl("records", "count", "people", "--filter", "email~acme.com").ok().json() == {"count": 2}


def test_gitlab(runner: Path) -> None:
    jobs = yaml.safe_load((CI / "gitlab.yml").read_text(encoding="utf-8"))
    check = jobs["check-people"]
    assert check["before_script"] == [INSTALL]
    for text, code, failures in ((BAD, 9, 2), (GOOD, 0, 0), ("Email,Scoer\na@acme.com,1\n", 2, 1)):
        (runner / "data/people.csv").write_text(text, encoding="utf-8")
        assert run("\n".join(check["script"]), check["variables"]).returncode == code
        suite = ET.parse(runner / check["artifacts"]["reports"]["junit"]).getroot()[0]
        assert (int(suite.attrib["failures"]), len(suite.findall("testcase/failure"))) == (failures, failures)
        lines = [case.attrib["line"] for case in suite if case.find("failure") is not None]
        assert lines == {9: ["4", "5"], 0: [], 2: ["1"]}[code]
    (runner / "data/people.csv").write_text(GOOD, encoding="utf-8")
    assert run("\n".join(jobs["import-people"]["script"])).returncode == 0


def test_a_report_needs_a_dry_run_and_stands_alone(runner: Path) -> None:
    (runner / "data/people.csv").write_text(GOOD, encoding="utf-8")
    given = ("bulk", "import", "people", "data/people.csv", "--report")
    assert "--dry-run" in run_crmctl(*given, "github").exits(2).error()["hint"]
    run_crmctl(*given, "html", "--dry-run").exits(2)
    run_crmctl(*given, "junit", "--dry-run", "-o", "csv").exits(2)
