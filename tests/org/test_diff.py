"""`crmctl org diff` through the installed program."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.inprocess import run_here
from tests.support.service import RunningService, running_service


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n" for line in lines), encoding="utf-8")


def test_a_folder_just_pulled_does_not_differ(pulled: Path) -> None:
    assert run_here("org", "diff", "crm", "--exit-code").ok().json() == []
    shutil.copytree(pulled, "copy")
    assert run_here("org", "diff", "crm", "copy", "--exit-code").ok().json() == []


def test_the_pieces_of_a_large_part_are_read_as_one(pulled: Path) -> None:
    for name in ("records/people", "activities"):
        lines = lines_of(pulled / f"{name}.jsonl")
        (pulled / name).mkdir()
        for number in range(2):
            write_lines(pulled / name / f"{number}.jsonl", lines[number::2])
        (pulled / f"{name}.jsonl").unlink()
    assert run_here("org", "diff", "crm", "--exit-code").ok().json() == []


def test_added_removed_changed_records_and_schema(crm: RunningService, pulled: Path) -> None:
    people = lines_of(pulled / "records/people.jsonl")
    path = f"/api/v1/objects/{crm.object_id('people')}/records"
    changed, deleted = people[0]["id"], people[1]["id"]
    crm.client.patch(f"{path}/{changed}", json={"data": {"job_title": "Countess"}})
    crm.client.delete(f"{path}/{deleted}")
    added = crm.client.post(path, json={"data": {"email": "new@example.org"}}).json()["id"]
    attributes = f"/api/v1/objects/{crm.object_id('people')}/attributes"
    crm.client.post(attributes, json={"name": "Shoe size", "type": "number"})
    rows = run_here("org", "diff", "crm", "--exit-code").exits(11).json()
    records = {(row["change"], row["id"]): row["values"] for row in rows if row["object"] == "people"}
    assert records["changed", changed] == {"job_title": ["Countess", people[0]["data"].get("job_title")]}
    assert records["added", deleted]["email"] == [None, people[1]["data"]["email"]]
    assert records["removed", added] == {"email": ["new@example.org", None]}
    assert [row["object"] for row in rows if row["change"] == "schema"] == ["people.shoe_size"]
    text = run_here("org", "diff", "crm", "--report", "markdown").ok().out
    assert f"| `{changed}` | changed | job_title | Countess |" in text
    assert "- remove `people.shoe_size`" in text
    report = run_here("org", "diff", "crm", "--report", "json").ok().json()
    assert len(report["changes"]) + len(report["schema"]) == len(rows)
    run_here("org", "diff", "crm", "--report", "html").exits(2)


@pytest.mark.needs("git")
def test_two_commits_of_a_folder(crm: RunningService, pulled: Path) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", "-C", "crm", "-c", "user.name=t", "-c", "user.email=t@example.org", *words], check=True, capture_output=True)

    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "first")
    companies = lines_of(pulled / "records/companies.jsonl")
    name = companies[0]["data"].get("name")
    crm.client.patch(f"/api/v1/objects/{crm.object_id('companies')}/records/{companies[0]['id']}", json={"data": {"name": "Renamed"}})
    run_here("org", "pull", "crm").ok()
    assert Path("crm/.git").is_dir()
    [row] = run_here("org", "diff", "crm@HEAD", "crm").ok().json()
    assert (row["object"], row["values"]["name"]) == ("companies", [name, "Renamed"])
    git("commit", "-qam", "second")
    assert run_here("org", "diff", "crm@HEAD", "crm", "--exit-code").ok().json() == []
    assert run_here("org", "diff", "crm@HEAD~1", "crm@HEAD").ok().json() == [row]
    assert run_here("org", "diff", "crm@nowhere", "crm").exits(2).error()["code"] == "unknown_commit"


@pytest.mark.needs("git")
def test_a_commit_from_before_the_folder_moved(crm: RunningService, pulled: Path) -> None:
    assert crm

    def git(*words: str) -> None:
        subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@example.org", *words], check=True, capture_output=True)

    git("init", "-q")
    git("add", "crm")
    git("commit", "-qm", "first")
    Path("data").mkdir()
    git("mv", "crm", "data/.org")
    git("commit", "-qm", "second")
    assert not pulled.exists()
    for first in ("crm@HEAD~1", "./crm@HEAD~1", "data/.org@HEAD"):
        assert run_here("org", "diff", first, "data/.org").ok().json() == []
    assert run_here("org", "diff", "data/.org@HEAD~1", "data/.org").exits(2).error()["code"] == "unknown_commit"


def test_services_with_other_ids_are_compared_by_key(crm: RunningService, pulled: Path, tmp_path: Path) -> None:
    with running_service(tmp_path / "other") as other:
        at_other = {"CRMCTL_BASE_URL": other.base_url, "CRMCTL_API_KEY": other.key}
        path = f"/api/v1/objects/{other.object_id('people')}/records"
        first = next(line for line in lines_of(pulled / "records/people.jsonl") if "email" in line["data"])
        made = other.client.post(path, json={"data": {"email": first["data"]["email"].upper(), "job_title": "Other"}}).json()["id"]
        rows = run_here("org", "diff", "crm", env=at_other).ok().json()
        [changed] = [row for row in rows if row["change"] == "changed"]
        assert (changed["id"], changed["otherId"], changed["values"]["job_title"][0]) == (made, first["id"], "Other")
        by_title = run_here("org", "diff", "crm", "--match", "people=job_title", env=at_other).ok().json()
        assert not [row for row in by_title if row["change"] == "changed"]
        assert "there is no object 'cars'" in run_here("org", "diff", "crm", "--match", "cars=name").exits(2).error()["message"]
        assert "OBJECT=ATTR" in run_here("org", "diff", "crm", "--match", "people").exits(2).error()["message"]
        run_here("org", "diff", "crm", "--match", "people=nothing").exits(2)
        for _ in range(2):
            other.client.post(path, json={"data": {"email": f"{_}@example.org", "job_title": "Countess"}})
        people = lines_of(pulled / "records/people.jsonl")
        people[0]["data"]["job_title"] = "Countess"
        write_lines(pulled / "records/people.jsonl", people)
        assert run_here("org", "diff", "crm", "--match", "people=job_title", env=at_other).exits(9).error()["code"] == "ambiguous_key"


def test_a_damaged_folder_is_refused_before_the_first_request(crm: RunningService, pulled: Path) -> None:
    people = lines_of(pulled / "records/people.jsonl")
    write_lines(pulled / "records/people.jsonl", [*people, people[0]])
    crm.log.clear()
    error = run_here("org", "diff", "crm").exits(9).error()
    assert error["message"].startswith("records/people.jsonl:13: the id")
    assert crm.log == []


def test_an_attribute_that_the_mirror_excludes_cannot_be_compared(crm: RunningService, pulled: Path) -> None:
    run_here("mirror", "sync", "people", "--exclude", "people.phone").ok()
    assert "excludes people.phone" in run_here("org", "diff", "crm").exits(2).error()["message"]
    notes = {row["content"]: row["note"] for row in run_here("org", "pull", "crm").ok().json()["coverage"]}
    assert notes["people.phone"] == "excluded from the mirror"
