"""`crmctl serve` at a terminal, and without its optional libraries."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import httpx
import pexpect
import pytest

from tests.support.patience import PATIENCE
from tests.support.service import crmctl_program


def test_a_person_at_a_terminal_gets_a_readable_panel(tmp_path: Path) -> None:
    arguments = ["serve", "--data", str(tmp_path / "data"), "--port", "0", "--log", "text"]
    child = pexpect.spawn(crmctl_program(), arguments, encoding="utf-8", timeout=PATIENCE, dimensions=(40, 120))
    try:
        child.expect(r"Address\s+(http://127\.0\.0\.1:\d+)")
        address = child.match[1]
        assert '"baseUrl"' not in child.before
        child.expect(r"crs_[\w-]+")
        child.expect_exact("crmctl auth login --base-url")
        child.expect_exact("Ctrl-C stops it")
        httpx.get(f"{address}/a%0Ab%1B[2J%20200", trust_env=False)
        child.expect_exact("GET /a%0Ab%1B%5B2J%20200 404 ")
        child.sendintr()
        child.expect(pexpect.EOF)
        child.close()
        assert child.exitstatus == 0
    finally:
        child.close(force=True)


def run_without(library: str, command: list[str]) -> subprocess.CompletedProcess[str]:
    program = f"import sys; sys.modules[{library!r}] = None; sys.argv[1:] = {command!r}; from crmctl.main import main; main()"
    return subprocess.run(
        [sys.executable, "-c", program], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


@pytest.mark.parametrize(
    ("library", "command"),
    [
        ("uvicorn", ["serve"]),
        ("starlette", ["serve"]),
        ("prometheus_client", ["serve"]),
        ("httptools", ["serve", "--ephemeral"]),
        ("cronsim", ["service", "load", "-"]),
        ("jinja2", ["service", "dump"]),
    ],
)
def test_a_missing_extra_is_one_clear_error(library: str, command: list[str]) -> None:
    run = run_without(library, command)
    assert (run.returncode, run.stdout) == (2, "")
    error = json.loads(run.stderr)["error"]
    assert error["hint"] == "pip install 'crmctl[service]'"
    assert library in error["message"]


@pytest.mark.parametrize("library", ["uvicorn", "starlette", "prometheus_client", "cronsim", "jinja2"])
def test_keys_can_be_managed_without_the_serving_libraries(library: str) -> None:
    run = run_without(library, ["service", "keys", "list", "-o", "json"])
    assert (run.returncode, json.loads(run.stdout)) == (0, []), run.stderr
