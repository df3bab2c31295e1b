"""Every example of every help page runs as pasted, against a service with a little data."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from crmctl.cli.app import describe_tree, walk_commands
from crmctl.service.context import new_id
from crmctl.service.definitions.definitions_file import load_document, parse_document
from tests.cli.conftest import add_people
from tests.support.cli import CRMCTL, environment, run_crmctl
from tests.support.furnishing import DEFINITIONS, saved_delivery
from tests.support.patience import PATIENCE
from tests.support.service import RunningService, running_service
from tests.support.warm_program import warm_program

ELSEWHERE = {
    "crmctl serve": "runs until it is stopped; started in tests/service",
    "crmctl demo": "starts a service of its own; run in tests/cli/test_demo.py",
    "crmctl completion": "run in tests/cli/test_completion.py",
    "crmctl service": "needs the data directory of a service; run in tests/service",
    "crmctl webhooks listen": "runs until it is stopped; run in tests/cli/test_webhooks.py",
    "crmctl webhooks trigger": "needs a receiver; run in tests/service/testdouble/test_webhooks_trigger.py",
    "crmctl auth explain": "needs the token of a CI job; run in tests/cli/test_auth_oidc.py",
}
PROGRAMS = ("sqlite3",)
"""Other programs with which examples may begin."""

EXAMPLES = [
    pytest.param(leaf["command"], example, marks=[pytest.mark.needs(name) for name in PROGRAMS if example.startswith(f"{name} ")])
    for leaf in walk_commands(describe_tree())
    for example in leaf["examples"]
    if not any(leaf["command"].startswith(name) for name in ELSEWHERE)
]
NOT_RUN = {
    "crmctl auth login --base-url https://crm.example.com": "asks for the key on a terminal",
    "crmctl auth login --device": "waits for a member who approves it in the console",
    "crmctl mirror remove": "asks on a terminal",
    "crmctl mirror changes --since 2h": "reaches further back than a new mirror",
}
COMMIT = ["-c", "user.name=Ada", "-c", "user.email=ada@acme.com", "commit", "--quiet", "--allow-empty", "-m"]
PROJECTS = {"slug": "projects", "singularName": "Project", "pluralName": "Projects", "description": ""}


def test_every_command_has_examples_and_a_short_summary() -> None:
    for leaf in walk_commands(describe_tree()):
        assert leaf["examples"], f"{leaf['command']} has no example"
        assert 0 < len(leaf["summary"]) <= 80, leaf["command"]
        for option in leaf["options"]:
            assert option["help"], f"{leaf['command']} {option['names']} is not explained"


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make two folders to copy. `service`: people, a custom object, an activity, a deal, reports (one with a run), workflows; `work`:
    files.
    """
    root = tmp_path_factory.mktemp("examples")
    with running_service(root / "service") as crm:
        people = add_people(crm)
        for email in ("grace@acme.com", "grace@navy.mil"):
            grace = crm.client.post(f"/api/v1/objects/{crm.object_id('people')}/records", json={"data": {"email": email}})
            assert grace.status_code == 201
        for domain in ("acme.com", "acme.org"):
            acme = crm.client.post(
                f"/api/v1/objects/{crm.object_id('companies')}/records", json={"data": {"name": "Acme", "domain": domain}}
            )
            assert acme.status_code == 201
        made = crm.client.post("/api/v1/objects", json=PROJECTS).json()
        stage = {"name": "Stage", "type": "select", "isRequired": False, "isUnique": False, "config": {"options": ["new", "done"]}}
        assert crm.client.post(f"/api/v1/objects/{made['id']}/attributes", json=stage).status_code == 201
        assert crm.client.post("/api/v1/activities", json={"title": "First call"}).status_code == 201
        deal = crm.client.post(f"/api/v1/objects/{crm.object_id('deals')}/records", json={"data": {"name": "Deal"}})
        assert deal.status_code == 201
        members = "members: [{name: Ada, email: ada@acme.com}]\n"
        load_document(crm.engine, parse_document(members + DEFINITIONS), clock=crm.clock, ids=new_id)
        report = next(one["id"] for one in crm.client.get("/api/v1/reports").json()["reports"] if one["name"] == "Deals by stage")
        assert crm.client.post(f"/api/v1/reports/{report}/run").is_success
    _write_files(root / "work", people)
    return root


def _write_files(folder: Path, people: list[str]) -> None:
    """Write the files that examples import, upload and check."""
    (folder / "contracts/signed").mkdir(parents=True)
    (folder / "checks").mkdir()
    headers, body = saved_delivery()
    contents = {
        "people.csv": "Email,Job title\nnew1@acme.com,Engineer\nnew2@acme.com,Poet\n",
        "contacts.csv": "Work Email;Job title\nnew3@acme.com;Engineer\n",
        "ids.txt": "".join(f"{each}\n" for each in people[:3]),
        "schema.yaml": "objects:\n- slug: people\n  attributes:\n  - {slug: nickname, name: Nickname, type: text}\n",
        "contracts/signed/a.txt": "signed",
        "checks/emails.yaml": "checks:\n- {name: emails-are-unique, object: people, unique: [email]}\n",
        "headers.txt": "".join(f"{name}: {value}\n" for name, value in headers.items()),
    }
    for name, text in contents.items():
        (folder / name).write_text(text, encoding="utf-8")
    for name, content in {"logo.png": b"\x89PNG\r\n\x1a\n", "photo.jpg": b"\xff\xd8\xff", "body.json": body}.items():
        (folder / name).write_bytes(content)


@pytest.fixture
def furnished(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningService]:
    """Copy the template; add two profiles, and a key in the environment and in a file."""
    shutil.copytree(template / "service", tmp_path / "service")
    shutil.copytree(template / "work", Path.cwd(), dirs_exist_ok=True)
    with running_service(tmp_path / "service") as crm:
        config = Path(os.environ["CRMCTL_CONFIG_DIR"]) / "config.toml"
        config.parent.mkdir(parents=True)
        profiles = "".join(f'[profiles.{name}]\nbase_url = "{crm.base_url}"\n' for name in ("default", "work"))
        config.write_text(f'default_profile = "default"\n{profiles}', encoding="utf-8")
        Path("key.txt").write_text(crm.key, encoding="utf-8")
        monkeypatch.setenv("CRMCTL_API_KEY", crm.key)
        warm_program(str(CRMCTL)).put_shim(tmp_path / "bin")
        monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
        monkeypatch.setenv("VISUAL", "true")
        yield crm


@pytest.mark.parametrize(("command", "example"), EXAMPLES)
def test_example(furnished: RunningService, command: str, example: str) -> None:
    if example in NOT_RUN:
        return
    if command == "crmctl files download":
        run_crmctl("files", "upload", "logo.png", "--bucket", "assets").ok()
        Path("logo.png").unlink()
    if command in ("crmctl bulk resume", "crmctl bulk repair", "crmctl bulk undo"):
        run_crmctl("bulk", "import", "people", "people.csv").ok()
    if command == "crmctl bulk apply":
        run_crmctl("bulk", "import", "people", "people.csv", "--key", "email", "--plan", "people.plan").ok()
    if command.startswith("crmctl mirror ") and command != "crmctl mirror sync":
        run_crmctl("mirror", "sync").ok()
    if command == "crmctl check":
        run_crmctl("mirror", "sync").ok()
    if "$(cat token)" in example:
        Path("token").write_text(run_crmctl("mirror", "changes", "-O", "first.jsonl", "-o", "json").ok().json()["token"], encoding="utf-8")
    if command in ("crmctl org apply", "crmctl org diff", "crmctl org verify"):
        run_crmctl("org", "pull", "crm").ok()
    if "crm@HEAD~1" in example:
        for arguments in (["init", "--quiet", "."], ["add", "crm"], [*COMMIT, "first"], [*COMMIT, "second"]):
            subprocess.run(["git", *arguments], check=True)
    if command == "crmctl auth logout":
        profile = "work" if "work" in example else "default"
        arguments = ("auth", "login", "--profile", profile, "--base-url", furnished.base_url, "--with-key", "--insecure-storage")
        run_crmctl(*arguments, input=furnished.key).ok()
    if "auth login" in example:
        example += f" --base-url {furnished.base_url} --insecure-storage"
    ran = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", example], env=environment(), capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert ran.returncode == 0, f"{example}\nstdout: {ran.stdout}\nstderr: {ran.stderr}"
