"""Every example of every help page is run, as a person would paste it, against a service with a little data."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from crmctl.cli.framework import describe_tree, walk_commands
from tests.support.cli import CRMCTL, environment, run_crmctl
from tests.support.furnishing import load_definitions, saved_delivery
from tests.support.service import RunningService

ELSEWHERE = {
    "crmctl serve": "runs until it is stopped; started in tests/service",
    "crmctl demo": "starts a service of its own; run in tests/cli/test_demo.py",
    "crmctl completion": "run in tests/cli/test_completion.py",
    "crmctl service": "needs the data directory of a service; run in tests/service",
    "crmctl webhooks listen": "runs until it is stopped; run in tests/cli/test_webhooks.py",
}
EXAMPLES = [
    (leaf["command"], example)
    for leaf in walk_commands(describe_tree())
    for example in leaf["examples"]
    if not any(leaf["command"].startswith(name) for name in ELSEWHERE)
]
NEED_DEFINITIONS = ("reports", "workflows", "api")
NEEDS_A_TERMINAL = {"crmctl auth login --base-url https://crm.example.com": "asks for the key"}
PROJECTS = {"slug": "projects", "singularName": "Project", "pluralName": "Projects", "description": ""}


def test_every_command_has_examples_and_a_short_summary() -> None:
    for leaf in walk_commands(describe_tree()):
        assert leaf["examples"], f"{leaf['command']} has no example"
        assert 0 < len(leaf["summary"]) <= 80, leaf["command"]
        for option in leaf["options"]:
            assert option["help"], f"{leaf['command']} {option['names']} is not explained"


@pytest.fixture
def furnished(crm: RunningService, people: list[str], monkeypatch: pytest.MonkeyPatch) -> RunningService:
    """A service with people, deals, a custom object, two profiles, and the files that the examples name."""
    made = crm.client.post("/api/v1/objects", json=PROJECTS).json()
    stage = {"name": "Stage", "type": "select", "isRequired": False, "isUnique": False, "config": {"options": ["new", "done"]}}
    assert crm.client.post(f"/api/v1/objects/{made['id']}/attributes", json=stage).status_code == 201
    config = Path(os.environ["CRMCTL_CONFIG_DIR"]) / "config.toml"
    config.parent.mkdir(parents=True)
    profiles = "".join(f'[profiles.{name}]\nbase_url = "{crm.base_url}"\n' for name in ("default", "work"))
    config.write_text(f'default_profile = "default"\n{profiles}', encoding="utf-8")
    Path("key.txt").write_text(crm.key, encoding="utf-8")
    Path("people.csv").write_text("Email,Job title\nnew1@acme.com,Engineer\nnew2@acme.com,Poet\n", encoding="utf-8")
    Path("contacts.csv").write_text("Work Email;Job title\nnew3@acme.com;Engineer\n", encoding="utf-8")
    Path("ids.txt").write_text("\n".join(people[:3]) + "\n", encoding="utf-8")
    schema = "objects:\n- slug: people\n  attributes:\n  - {slug: nickname, name: Nickname, type: text}\n"
    Path("schema.yaml").write_text(schema, encoding="utf-8")
    _furnish_the_rest(crm)
    monkeypatch.setenv("PATH", str(CRMCTL.parent), prepend=":")
    monkeypatch.delenv("CRMCTL_BASE_URL")
    return crm


def _furnish_the_rest(crm: RunningService) -> None:
    """An activity, a deal, files to upload, a delivery to check."""
    assert crm.client.post("/api/v1/activities", json={"title": "First call"}).status_code == 201
    deal = crm.client.post(f"/api/v1/objects/{crm.object_id('deals')}/records", json={"data": {"name": "Deal"}})
    assert deal.status_code == 201
    Path("logo.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    Path("photo.jpg").write_bytes(b"\xff\xd8\xff")
    Path("contracts/signed").mkdir(parents=True)
    Path("contracts/signed/a.txt").write_text("signed", encoding="utf-8")
    headers, body = saved_delivery()
    Path("body.json").write_bytes(body)
    Path("headers.txt").write_text("".join(f"{name}: {value}\n" for name, value in headers.items()), encoding="utf-8")


@pytest.mark.parametrize(("command", "example"), EXAMPLES)
def test_example(furnished: RunningService, command: str, example: str) -> None:
    if example in NEEDS_A_TERMINAL:
        return
    if command.split()[1] in NEED_DEFINITIONS:
        load_definitions(furnished)
        run_crmctl("reports", "run", "Deals by stage").ok()
    if command in ("crmctl bulk resume", "crmctl bulk repair", "crmctl bulk undo"):
        run_crmctl("bulk", "import", "people", "people.csv").ok()
    if command == "crmctl bulk apply":
        run_crmctl("bulk", "import", "people", "people.csv", "--key", "email", "--plan", "people.plan").ok()
    if command == "crmctl auth logout":
        profile = "work" if "work" in example else "default"
        arguments = ("auth", "login", "--profile", profile, "--base-url", furnished.base_url, "--with-key", "--insecure-storage")
        run_crmctl(*arguments, input=furnished.key).ok()
    if "auth login" in example:
        example += f" --base-url {furnished.base_url} --insecure-storage"
    ran = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", example], env=environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, f"{example}\nstdout: {ran.stdout}\nstderr: {ran.stderr}"
