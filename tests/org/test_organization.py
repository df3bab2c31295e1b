"""Members, reports, workflows, webhook endpoints and files of an organization, through the installed program."""

from __future__ import annotations

from pathlib import Path

from crmctl.values import yaml_text
from tests.org.test_apply import at, other
from tests.support.inprocess import run_here
from tests.support.service import RunningService

__all__ = ["other"]


def test_entries_arrive_disabled_and_keep_the_services_own_fields(pulled: Path, other: RunningService) -> None:
    assert "secret" not in "".join(path.read_text() for path in Path("crm").rglob("*.*") if path.is_file() and path.name != "MANIFEST.json")
    applied = run_here("org", "apply", "crm", env=at(other)).ok().json()
    assert (applied["workflows"]["create"], applied["webhooks"]["create"], applied["left"]) == (1, 1, [])
    there = other.client.get("/api/v1/definitions").json()
    assert [entry["enabled"] for entry in (*there["workflows"], *there["webhooks"])] == [False, False]
    assert {member["email"] for member in there["members"]} > {"m1-0@example.com", "m1-1@example.com"}
    [workflow] = there["workflows"]
    workflow["enabled"] = True
    workflow["actions"][1]["headers"] = {"Authorization": "mine"}
    other.client.post("/api/v1/definitions", json={"workflows": [workflow]})
    again = run_here("org", "apply", "crm", env=at(other)).ok().json()
    assert (again["changes"], again["job"]) == (0, None)
    [path] = Path("crm/workflows").iterdir()
    path.write_text(path.read_text().replace("record.data.job_title }}!", "record.data.job_title }}?"))
    [row] = run_here("org", "diff", "crm", env=at(other)).ok().json()
    assert (row["change"], row["object"], row["id"]) == ("changed", "workflows", workflow["name"])
    job = run_here("org", "apply", "crm", "--edited", env=at(other)).ok().json()["job"]
    [changed] = other.client.get("/api/v1/definitions").json()["workflows"]
    assert (changed["enabled"], changed["actions"][1]["headers"]) == (True, {"Authorization": "mine"})
    assert changed["actions"][0]["data"]["job_title"].endswith("?")
    run_here("bulk", "undo", job, "--yes", env=at(other)).ok()
    assert other.client.get("/api/v1/definitions").json()["workflows"] == [workflow]


def test_apply_keeps_values_of_entries_that_the_folder_lacks(crm: RunningService, other: RunningService) -> None:
    actions = [{"type": "callUrl", "url": "https://example.com/hook", "body": {"call": call}} for call in (1, 2)]
    workflow = {"name": "W", "trigger": "record/created", "object": "people", "actions": actions}
    crm.client.post("/api/v1/definitions", json={"workflows": [workflow], "webhooks": [{"url": "https://example.com/events"}]})
    run_here("org", "pull", "crm").ok()
    conditions = [{"attributeSlug": "email", "operator": "contains", "value": "a"}]
    theirs = [action | {"headers": {"Authorization": f"mine {call}"}} for call, action in enumerate(actions)]
    endpoint = {"url": "https://example.com/events", "eventTypes": ["record.created"]}
    richer = workflow | {"conditions": conditions, "actions": theirs, "description": "old"}
    other.client.post("/api/v1/definitions", json={"workflows": [richer], "webhooks": [endpoint]})
    path = Path("crm/workflows/w.yaml")
    path.write_text(path.read_text() + "description: new\n")
    hooks = Path("crm/webhooks.yaml")
    hooks.write_text(hooks.read_text() + "  description: new\n")
    run_here("org", "apply", "crm", "--edited", env=at(other)).ok()
    there = other.client.get("/api/v1/definitions").json()
    assert there["webhooks"] == [endpoint | {"description": "new"}]
    assert [action["headers"] for action in there["workflows"][0]["actions"]] == [action["headers"] for action in theirs]
    assert (there["workflows"][0]["description"], there["workflows"][0]["conditions"]) == ("new", conditions)


def test_files_that_a_key_cannot_list_are_named(crm: RunningService) -> None:
    key = crm.key_for({"objects:read", "attributes:read", "records:read", "activities:read"})
    coverage = run_here("org", "pull", "crm", "--with", "files", env=at(crm) | {"CRMCTL_API_KEY": key}).ok().json()["coverage"]
    assert [row["contained"] for row in coverage if row["content"] == "files"] == [False]


def test_members_are_matched_without_case_and_keep_their_role(crm: RunningService, other: RunningService) -> None:
    crm.client.post("/api/v1/definitions", json={"members": [{"name": "Ada", "email": "Ada@Example.com", "role": "admin"}]})
    other.client.post("/api/v1/definitions", json={"members": [{"name": "Ada", "email": "ada@example.com", "role": "admin"}]})
    run_here("org", "pull", "crm").ok()
    members = Path("crm/members.yaml")
    applied = run_here("org", "apply", "crm", env=at(other)).ok().json()
    assert (applied["members"]["create"], applied["members"]["update"]) == (0, 0)
    entries = yaml_text.loads(members.read_text())
    edited = [{"name": "Ada L", "email": each["email"]} if each["name"] == "Ada" else each for each in entries]
    members.write_text(yaml_text.dumps([*edited, {"name": "New", "email": "New@Example.com"}]))
    job = run_here("org", "apply", "crm", "--edited", env=at(other)).ok().json()["job"]
    found = {each["email"]: each["role"] for each in other.client.get("/api/v1/definitions").json()["members"]}
    assert (found["ada@example.com"], found["New@Example.com"]) == ("admin", "member")
    run_here("bulk", "undo", job, "--yes", env=at(other)).ok()
    assert "New@Example.com" not in str(other.client.get("/api/v1/definitions").json()["members"])


def test_entries_without_their_requirements_are_refused(crm: RunningService) -> None:
    run_here("org", "pull", "crm").ok()
    Path("crm/workflows").mkdir(exist_ok=True)
    for name, text in {
        "members.yaml": "- email: ada@example.com\n",
        "files.yaml": "- path: docs/a.txt\n",
        "workflows/w.yaml": "name: W\ntrigger: record/created\n",
        "workflows/v.yaml": "name: V\nactions: [call]\n",
    }.items():
        path = Path("crm") / name
        before = path.read_text() if path.exists() else None
        path.write_text(text)
        assert f"{name}:1: " in run_here("org", "apply", "crm", "--edited", "--dry-run").exits(9).err
        path.unlink() if before is None else path.write_text(before)


def test_an_undo_keeps_changed_entries(pulled: Path, other: RunningService) -> None:
    job = run_here("org", "apply", "crm", env=at(other)).ok().json()["job"]
    other.client.post("/api/v1/definitions", json={"webhooks": [{"url": "https://example.com/events"}]})
    left = run_here("bulk", "undo", job, "--yes", env=at(other)).exits(10).json()["left"]
    assert left == ["webhooks https://example.com/events: it has changed since"]
    assert other.client.get("/api/v1/definitions").json()["reports"] == []


def test_a_refused_entry_and_a_restricted_key_are_named(crm: RunningService, pulled: Path, other: RunningService) -> None:
    report = next(Path("crm/reports").iterdir())
    report.write_text(report.read_text() + "sort:\n- field: nothing\n")
    done = run_here("org", "apply", "crm", "--edited", env=at(other)).exits(10).json()
    assert ["reports" in entry["place"] for entry in done["left"]] == [True]
    key = crm.key_for({"objects:read", "attributes:read", "records:read", "activities:read", "members:read", "reports:read"})
    coverage = run_here("org", "pull", "some", env=at(crm) | {"CRMCTL_API_KEY": key}).ok().json()["coverage"]
    missing = {row["content"]: row["note"] for row in coverage if not row["contained"]}
    assert missing["workflows"] == missing["webhooks"] == "the key lacks the scope"
    assert "reports" not in missing


def test_reports_of_other_objects_are_neither_pulled_nor_overwritten_unseen(crm: RunningService, other: RunningService) -> None:
    crm.client.post("/api/v1/definitions", json={"reports": [{"name": "R", "object": "people"}, {"name": "Deals", "object": "deals"}]})
    other.client.post("/api/v1/definitions", json={"reports": [{"name": "R", "object": "deals", "limit": 5}]})
    run_here("org", "pull", "crm", "--objects", "companies,people").ok()
    assert [path.name for path in Path("crm/reports").iterdir()] == ["r.yaml"]
    applied = run_here("org", "apply", "crm", env=at(other)).ok().json()
    assert (applied["reports"]["create"], applied["reports"]["update"]) == (0, 1)
    run_here("bulk", "undo", applied["job"], "--yes", env=at(other)).ok()
    assert other.client.get("/api/v1/definitions").json()["reports"] == [{"name": "R", "object": "deals", "limit": 5}]


def test_files_are_pulled_compared_and_applied(crm: RunningService, other: RunningService) -> None:
    Path("notes.txt").write_text("hello")
    for bucket in ("docs", "more"):
        run_here("files", "upload", "notes.txt", "--bucket", bucket).ok()
    parts = ("--with", "files")
    assert run_here("org", "pull", "crm", *parts).ok().json()["sections"] == {"files": 2}
    assert [path.read_text() for path in Path("crm/files").iterdir()] == ["hello"]
    run_here("org", "verify", "crm").ok()
    run_here("org", "verify", "crm", "--drill").ok()
    assert run_here("org", "apply", "crm", env=at(other)).ok().json()["files"]["create"] == 2
    assert run_here("org", "apply", "crm", env=at(other)).ok().json()["changes"] == 0
    Path("notes.txt").write_text("HELLO")
    run_here("files", "upload", "notes.txt", "--bucket", "docs", env=at(other)).ok()
    [row] = run_here("org", "diff", "crm", env=at(other)).ok().json()
    assert (row["change"], row["object"], row["id"]) == ("changed", "files", "docs/notes.txt")
    [content] = Path("crm/files").iterdir()
    content.write_text("other")
    assert "sha256" in run_here("org", "apply", "crm", "--edited", env=at(other)).exits(9).err
    content.unlink()
    content.symlink_to(Path("notes.txt").resolve())
    assert "leaves the folder" in run_here("org", "apply", "crm", "--edited", env=at(other)).exits(9).err
    content.unlink()
    assert "is missing" in run_here("org", "verify", "crm").exits(11).out


def test_one_format_for_schema_files_definitions_files_and_folders(pulled: Path, tmp_path: Path) -> None:
    loaded = run_here("service", "load", "crm", "--data", str(tmp_path / "third")).ok().json()
    assert (loaded["workflows"]["created"], loaded["members"]["created"]) == (1, 2)
    Path("schema.yaml").write_text(run_here("schema", "pull", "-o", "yaml").ok().out)
    again = run_here("service", "load", "schema.yaml", "--data", str(tmp_path / "third")).ok().json()
    assert {outcome for counts in again.values() for outcome, count in counts.items() if count} == {"unchanged"}
    Path("crm.yaml").write_text(run_here("service", "dump", "--data", str(tmp_path / "third")).ok().out)
    assert run_here("schema", "diff", "crm.yaml", "--exit-code").ok().json() == []
    assert yaml_text.loads(Path("crm.yaml").read_text())["webhooks"] == [
        {"url": "https://example.com/events", **entry, "eventTypes": ["record.created"], "enabled": False}
        for entry in [{"description": yaml_text.loads(Path("crm/webhooks.yaml").read_text())[0]["description"]}]
    ]


def test_entries_that_say_the_same_otherwise_are_written_only_once(crm: RunningService, other: RunningService) -> None:
    run_here("org", "pull", "crm").ok()
    report = {
        "name": "R", "object": "people", "description": "", "columns": ["email"], "measures": [],
        "filters": [{"attributeSlug": "email", "operator": "isEmpty"}], "sort": {"field": "email"},
    }  # fmt: skip
    call = {"type": "callUrl", "url": "https://example.com/hook", "repeat": False, "body": None, "headers": {}}
    workflow = {
        "name": "W", "trigger": "record/created", "object": "people", "enabled": True, "cron": None, "actions": [call],
        "conditions": [{"attributeSlug": "email", "operator": "isNotEmpty", "value": True}],
    }  # fmt: skip
    endpoint = {"url": "https://example.com/events", "description": "", "eventTypes": ["record.updated", "record.created"]}
    for name, content in {"reports/r.yaml": report, "workflows/w.yaml": workflow, "webhooks.yaml": [endpoint]}.items():
        (Path("crm") / name).parent.mkdir(exist_ok=True)
        (Path("crm") / name).write_text(yaml_text.dumps(content))
    first = run_here("org", "apply", "crm", "--edited", env=at(other)).ok().json()
    assert [first[section]["create"] for section in ("reports", "workflows", "webhooks")] == [1, 1, 1]
    again = run_here("org", "apply", "crm", "--edited", env=at(other)).ok().json()
    assert (again["changes"], again["job"]) == (0, None)
    assert run_here("org", "diff", "crm", "--exit-code", env=at(other)).ok().json() == []


def test_the_undo_of_a_changed_endpoint_restores_it(crm: RunningService, other: RunningService) -> None:
    for service, text in ((crm, "new"), (other, "old")):
        service.client.post("/api/v1/definitions", json={"webhooks": [{"url": "https://example.com/events", "description": text}]})
    run_here("org", "pull", "crm").ok()
    job = run_here("org", "apply", "crm", env=at(other)).ok().json()["job"]
    assert other.client.get("/api/v1/definitions").json()["webhooks"] == [{"url": "https://example.com/events", "description": "new"}]
    run_here("bulk", "undo", job, "--yes", env=at(other)).ok()
    assert other.client.get("/api/v1/definitions").json()["webhooks"] == [{"url": "https://example.com/events", "description": "old"}]
