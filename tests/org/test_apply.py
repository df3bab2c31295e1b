"""`crmctl org apply` through the installed program, between two services."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from crmctl.errors import RejectedError
from crmctl.org.apply import object_order
from crmctl.values.object_spec import AttributeSpec, ObjectSpec
from tests.org.test_diff import lines_of, write_lines
from tests.support.campaigns import rest_in_campaigns
from tests.support.inprocess import run_here
from tests.support.organizations import furnish
from tests.support.service import RunningService, running_service


@pytest.fixture
def other(tmp_path: Path) -> Iterator[RunningService]:
    with running_service(tmp_path / "other") as running:
        yield running


def at(service: RunningService) -> dict[str, str | None]:
    return {"CRMCTL_BASE_URL": service.base_url, "CRMCTL_API_KEY": service.key}


def by_new_ids(folder: Path, ids: dict[str, str]) -> dict[str, Any]:
    """Return the content of a folder with other ids: lines as sets, because they are sorted by id."""
    content: dict[str, Any] = {}
    for path in sorted(folder.rglob("*.jsonl")):
        text = path.read_text(encoding="utf-8")
        for old, new in ids.items():
            text = text.replace(old, new)
        content[path.relative_to(folder).as_posix()] = [json.loads(line) for line in text.split("\n") if line]
    for rows in [*content.values()]:
        for row in rows:
            row.get("links", []).sort()
        rows.sort(key=lambda row: row["id"])
    for path in sorted(folder.rglob("*.yaml")):
        text = path.read_text(encoding="utf-8")
        for old, new in ids.items():
            text = text.replace(old, new)
        content[path.relative_to(folder).as_posix()] = [line for line in text.split("\n") if "userId: " not in line]
    return content


@pytest.mark.parametrize("seed", rest_in_campaigns(range(4, 8)))
def test_an_organization_arrives_whole_and_a_second_apply_writes_nothing(crm: RunningService, other: RunningService, seed: int) -> None:
    furnish(crm, seed)
    run_here("org", "pull", "crm").ok()
    planned = run_here("org", "apply", "crm", "--dry-run", env=at(other)).ok().json()
    assert not [entry for entry in other.log if entry["method"] != "GET"]
    applied = run_here("org", "apply", "crm", "--map", "map.json", env=at(other)).ok().json()
    assert applied["left"] == []
    created, expected = ([row["create"] for row in report["records"].values()] for report in (applied, planned))
    assert created == expected
    other.log.clear()
    again = run_here("org", "apply", "crm", "--map", "rebuilt.json", env=at(other)).ok().json()
    assert (again["job"], again["changes"]) == (None, 0)
    assert Path("rebuilt.json").read_text() == Path("map.json").read_text()
    assert not [entry for entry in other.log if entry["method"] != "GET"]
    run_here("org", "pull", "second", env=at(other)).ok()
    assert by_new_ids(Path("crm"), json.loads(Path("map.json").read_text())) == by_new_ids(Path("second"), {})


def test_undo_takes_the_whole_apply_back(pulled: Path, other: RunningService) -> None:
    run_here("org", "pull", "before", env=at(other)).ok()
    first = next(line["data"] for line in lines_of(Path("crm/records/people.jsonl")) if "email" in line["data"])
    path = f"/api/v1/objects/{other.object_id('people')}/records"
    kept = other.client.post(path, json={"data": {"email": first["email"], "job_title": "Before"}}).json()["id"]
    job = run_here("org", "apply", "crm", env=at(other)).ok().json()["job"]
    assert [row["job"] for row in run_here("bulk", "jobs", env=at(other)).ok().json()] == [job]
    for command in ("repair", "resume"):
        refused = run_here("bulk", command, job, env=at(other)).exits(2).error()
        assert (refused["message"], refused["hint"]) == (f"job {job} applies a folder", "crmctl org apply crm continues it")
    assert run_here("bulk", "undo", job, "--dry-run", env=at(other)).ok().json()["records"] > 30
    undone = run_here("bulk", "undo", job, "--yes", env=at(other)).ok().json()
    assert undone["left"] == []
    [person] = other.client.get(path).json()["records"]
    assert (person["id"], person["data"]) == (kept, {"email": first["email"], "job_title": "Before"})
    other.client.delete(f"{path}/{kept}")
    run_here("org", "pull", "after", env=at(other)).ok()
    assert (Path("before/schema.yaml").read_text(), by_new_ids(Path("before"), {})) == (
        Path("after/schema.yaml").read_text(), by_new_ids(Path("after"), {})
    )  # fmt: skip
    again = run_here("org", "apply", "crm", env=at(other)).ok()
    assert again.json()["job"] != job, "after an undo, everything is created again"
    assert "waiting" not in again.err, "nobody waits until lists show what was undone"


def test_apply_is_additive_and_prune_is_limited(crm: RunningService, pulled: Path) -> None:
    people = sorted(lines_of(Path("crm/records/people.jsonl")), key=lambda line: "email" not in line["data"])
    path = f"/api/v1/objects/{crm.object_id('people')}/records"
    crm.client.patch(f"{path}/{people[0]['id']}", json={"data": {"job_title": "Only here", "email": "changed@example.org"}})
    added = [crm.client.post(path, json={"data": {"email": f"{number}@example.org"}}).json()["id"] for number in range(3)]
    applied = run_here("org", "apply", "crm").ok().json()
    assert (applied["records"]["people"]["update"], applied["records"]["people"]["delete"]) == (1, 0)
    data = crm.client.get(f"{path}/{people[0]['id']}").json()["data"]
    assert data["email"] == people[0]["data"]["email"]
    assert data["job_title"] == people[0]["data"].get("job_title", "Only here")
    assert run_here("org", "apply", "crm", "--prune", "--max-changes", "2", "--yes").exits(9).error()["code"] == "unexpected_changes"
    run_here("org", "apply", "crm", "--prune").exits(2)
    job = run_here("org", "apply", "crm", "--prune", "--max-changes", "3", "--yes").ok().json()["job"]
    assert not {record["id"] for record in crm.client.get(path).json()["records"]} & set(added)
    run_here("bulk", "undo", job, "--yes").ok()
    assert len(crm.client.get(path).json()["records"]) == len(people) + 3


def test_a_schema_conflict_refuses_everything(crm: RunningService, other: RunningService) -> None:
    for service, kind in ((crm, "number"), (other, "text")):
        service.client.post(f"/api/v1/objects/{service.object_id('people')}/attributes", json={"name": "Shoe size", "type": kind})
    furnish(crm, 23)
    run_here("org", "pull", "crm").ok()
    other.log.clear()
    assert run_here("org", "apply", "crm", env=at(other)).exits(9).error()["code"] == "schema_conflict"
    assert not [entry for entry in other.log if entry["method"] != "GET"]


def test_records_without_a_key_are_not_guessed(crm: RunningService, other: RunningService) -> None:
    for service in (crm, other):
        service.client.post(f"/api/v1/objects/{service.object_id('companies')}/records", json={"data": {"name": "Acme"}})
    run_here("org", "pull", "crm", "--objects", "companies", "--with", "").ok()
    text = Path("crm/org.toml").read_text()
    Path("crm/org.toml").write_text("\n".join(line for line in text.splitlines() if not line.startswith('"companies"')) + "\n")
    assert run_here("org", "apply", "crm", env=at(other)).exits(9).error()["code"] == "unmatched_records"
    matched = run_here("org", "apply", "crm", "--match", "companies=name", env=at(other)).ok().json()
    assert (matched["changes"], matched["job"]) == (0, None)
    made = run_here("org", "apply", "crm", "--new", "--map", "map.json", env=at(other)).ok().json()
    assert made["records"]["companies"]["create"] == 1
    run_here("bulk", "jobs", made["job"], "--remove", "--yes", env=at(other)).ok()
    assert run_here("org", "apply", "crm", env=at(other)).exits(9).error()["code"] == "unmatched_records"
    assert run_here("org", "apply", "crm", "--map", "map.json", env=at(other)).ok().json()["changes"] == 0
    Path("map.json").write_text("[]")
    assert "no id map" in run_here("org", "apply", "crm", "--map", "map.json", env=at(other)).exits(2).error()["message"]


def test_a_reference_out_of_the_folder_is_matched_or_named(crm: RunningService, other: RunningService) -> None:
    company = crm.client.post(f"/api/v1/objects/{crm.object_id('companies')}/records", json={"data": {"name": "Acme"}}).json()["id"]
    person = {"email": "a@acme.com", "company": company}
    crm.client.post(f"/api/v1/objects/{crm.object_id('people')}/records", json={"data": person})
    run_here("org", "pull", "crm", "--objects", "people", "--with", "").ok()
    assert run_here("org", "apply", "crm").ok().json()["changes"] == 0, "the same service has the company"
    done = run_here("org", "apply", "crm", env=at(other)).exits(10)
    assert "the record it refers to is not in the service" in done.error()["message"]
    again = run_here("org", "apply", "crm", env=at(other)).exits(10)
    assert again.json()["job"] is None
    run_here("org", "pull", "companies", "--objects", "companies", "--with", "").ok()
    run_here("org", "apply", "companies", env=at(other)).ok()
    assert run_here("org", "apply", "crm", env=at(other)).ok().json()["records"]["people"]["update"] == 1


def objects_with(**references: dict[str, bool]) -> dict[str, ObjectSpec]:
    """Return objects with references to others; true are those that a record needs."""
    return {
        slug: ObjectSpec(
            slug=slug,
            attributes=[
                AttributeSpec(slug=target, type="reference", is_required=is_required, config={"allowed_object": target})
                for target, is_required in targets.items()
            ],
        )
        for slug, targets in references.items()
    }


def test_objects_follow_those_that_their_records_need() -> None:
    assert object_order(objects_with(deals={"people": False}, people={"people": True, "cars": False})) == ["people", "deals"]
    assert object_order(objects_with(people={"companies": True}, companies={"people": False})) == ["companies", "people"]
    with pytest.raises(RejectedError, match="people, companies"):
        object_order(objects_with(people={"companies": True}, companies={"people": True}, deals={}))


def test_refused_rows_are_named(crm: RunningService, other: RunningService) -> None:
    for service in (crm, other):
        attribute = {"name": "Badge", "type": "text", "isUnique": True}
        service.client.post(f"/api/v1/objects/{service.object_id('people')}/attributes", json=attribute)
    for number in range(3):
        data = {"email": f"p{number}@example.org", "badge": f"B{number}"}
        crm.client.post(f"/api/v1/objects/{crm.object_id('people')}/records", json={"data": data})
    other.client.post(f"/api/v1/objects/{other.object_id('people')}/records", json={"data": {"email": "x@example.org", "badge": "B1"}})
    run_here("org", "pull", "crm", "--objects", "people").ok()
    done = run_here("org", "apply", "crm", "--match", "people=email", env=at(other)).exits(10)
    assert "people, create" in done.error()["message"]
    assert len(other.client.get(f"/api/v1/objects/{other.object_id('people')}/records").json()["records"]) == 3


def test_backups_of_editors_are_not_applied(crm: RunningService, pulled: Path) -> None:
    for kept in [Path("crm/records/people.jsonl"), *Path("crm/workflows").iterdir()]:
        for name in (f"{kept.name}~", f"{kept.stem}.bak"):
            kept.with_name(name).write_bytes(kept.read_bytes())
        if kept.suffix == ".yaml":
            kept.write_text(kept.read_text().replace("name: ", "name: New ", 1))
    plan = run_here("org", "apply", "crm", "--edited", "--dry-run").ok().json()
    assert (plan["changes"], plan["workflows"]["create"]) == (1, 1)


def test_an_edited_folder_needs_consent_and_protected_or_read_only_profiles_refuse(crm: RunningService, pulled: Path) -> None:
    people = lines_of(Path("crm/records/people.jsonl"))
    people[0]["data"]["job_title"] = "Countess"
    write_lines(Path("crm/records/people.jsonl"), people)
    crm.log.clear()
    assert "--edited" in run_here("org", "apply", "crm").exits(9).error()["hint"]
    assert crm.log == []
    assert run_here("org", "apply", "crm", "--edited", "--dry-run").ok().json()["records"]["people"]["update"] == 1
    run_here("org", "apply", "crm", "--edited", env={"CRMCTL_READ_ONLY": "1"}).exits(2)
    run_here("org", "apply", "crm", "--edited").ok()
    assert crm.client.get(f"/api/v1/objects/{crm.object_id('people')}/records/{people[0]['id']}").json()["data"]["job_title"] == "Countess"
