"""`schema pull`, `diff` and `apply` bring the schema of one service to another."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from crmctl.errors import ServiceError
from crmctl.models.resources import Attribute, Object
from crmctl.schema.schema_document import Present, to_document
from tests.cli.conftest import requests_of
from tests.support.inprocess import run_here
from tests.support.service import RunningService, running_service

WANTED: dict[str, Any] = {
    "version": 1,
    "objects": [
        {
            "slug": "projects",
            "singularName": "Project",
            "pluralName": "Projects",
            "description": "What we build",
            "attributes": [
                {"slug": "owner", "name": "Owner", "type": "reference", "config": {"allowed_object": "people"}},
                {"slug": "parent", "name": "Parent", "type": "reference", "config": {"allowed_object": "projects"}},
                {"slug": "task", "name": "First task", "type": "reference", "config": {"allowed_object": "tasks"}},
                {"slug": "size", "name": "Größe", "type": "select", "isRequired": True, "config": {"options": ["S", "L"]}},
                {"slug": "code", "name": "Code", "type": "text", "isUnique": True},
            ],
        },
        {
            "slug": "tasks",
            "singularName": "Task",
            "pluralName": "Tasks",
            "attributes": [{"slug": "done", "name": "Done", "type": "checkbox"}],
        },
        {"slug": "people", "attributes": [{"slug": "nickname", "name": "Nickname", "type": "text"}]},
    ],
}


@pytest.fixture
def wanted(tmp_path: Path) -> str:
    path = tmp_path / "schema.yaml"
    path.write_text(yaml.safe_dump(WANTED, allow_unicode=True, sort_keys=False))
    return str(path)


@pytest.fixture
def other(tmp_path: Path) -> Iterator[RunningService]:
    with running_service(tmp_path / "other") as running:
        yield running


def at(service: RunningService) -> dict[str, str]:
    return {"CRMCTL_BASE_URL": service.base_url, "CRMCTL_API_KEY": service.key}


def changes(*arguments: str, code: int = 0) -> set[tuple[str, str, str | None]]:
    found = run_here("schema", "diff", *arguments).exits(code).json()
    return {(one["action"], one["object"], one["attribute"]) for one in found if one["action"] != "extra"}


def test_a_file_is_applied_and_applying_it_again_does_nothing(crm: RunningService, wanted: str) -> None:
    assert ("create", "projects", None) in changes(wanted, "--exit-code", code=11)
    assert run_here("schema", "apply", wanted).ok().json() == {"created": 9, "updated": 0, "deleted": 0}
    assert changes(wanted) == set()
    by_slug = {one["slug"]: one for one in run_here("attributes", "list", "projects").ok().json()}
    assert (by_slug["size"]["name"], by_slug["size"]["isRequired"], by_slug["size"]["config"]) == ("Größe", True, {"options": ["S", "L"]})
    assert by_slug["code"]["isUnique"] is True
    for slug, target in (("owner", "people"), ("parent", "projects"), ("task", "tasks")):
        assert by_slug[slug]["config"] == {"allowed_object_id": crm.object_id(target)}
    crm.log.clear()
    assert run_here("schema", "apply", wanted).ok().json() == {"created": 0, "updated": 0, "deleted": 0}
    assert {method for method, _ in requests_of(crm)} == {"GET"}


def test_everything_moves_to_another_service(crm: RunningService, other: RunningService, wanted: str, tmp_path: Path) -> None:
    run_here("schema", "apply", wanted).ok()
    pulled = tmp_path / "pulled.json"
    pulled.write_text(run_here("schema", "pull").ok().out)
    assert crm.object_id("people") not in pulled.read_text()
    run_here("schema", "apply", str(pulled), env=at(other)).ok()
    assert run_here("schema", "pull", env=at(other)).ok().json() == json.loads(pulled.read_text())
    assert run_here("schema", "diff", str(pulled), "--prune", "--exit-code", env=at(other)).ok().json() == []


def test_names_are_changed(crm: RunningService, tmp_path: Path) -> None:
    document = run_here("schema", "pull", "people").ok().json()
    document["objects"][0]["attributes"][0]["name"] = "Another name"
    file = tmp_path / "people.json"
    file.write_text(json.dumps(document))
    [change] = run_here("schema", "diff", str(file)).ok().json()
    assert (change["action"], change["object"], change["details"]["name"][1]) == ("update", "people", "Another name")
    assert run_here("schema", "apply", str(file)).ok().json()["updated"] == 1
    assert run_here("schema", "diff", str(file), "--exit-code").ok().json() == []


def test_changes_the_interface_lacks_are_refused_before_any_write(crm: RunningService, wanted: str, tmp_path: Path) -> None:
    run_here("schema", "apply", wanted).ok()
    document = json.loads(json.dumps(WANTED))
    document["objects"][0]["attributes"][3]["config"]["options"].append("XL")
    document["objects"][1]["attributes"].append({"slug": "more", "type": "text"})
    document["objects"][1]["attributes"].append({"slug": "lost", "type": "reference", "config": {"allowed_object": "nowhere"}})
    file = tmp_path / "changed.json"
    file.write_text(json.dumps(document))
    crm.log.clear()
    refused = run_here("schema", "apply", str(file)).exits(9).error()
    assert refused["code"] == "schema_conflict"
    assert {(one["object"], one["attribute"]) for one in refused["details"]} == {("projects", "size"), ("tasks", "lost")}
    assert {method for method, _ in requests_of(crm)} == {"GET"}
    assert ("conflict", "projects", "size") in changes(str(file))


def test_only_prune_deletes_and_only_after_yes(crm: RunningService, wanted: str, tmp_path: Path) -> None:
    everything = tmp_path / "all.json"
    everything.write_text(run_here("schema", "pull").ok().out)
    run_here("schema", "apply", wanted).ok()
    assert run_here("schema", "apply", str(everything)).ok().json() == {"created": 0, "updated": 0, "deleted": 0}
    [extra] = run_here("schema", "diff", str(everything)).ok().json()
    assert (extra["action"], extra["object"], extra["attribute"]) == ("extra", "people", "nickname")
    assert "--yes" in run_here("schema", "apply", str(everything), "--prune").exits(2).err
    assert run_here("schema", "apply", str(everything), "--prune", "--yes").ok().json() == {"created": 0, "updated": 0, "deleted": 3}
    assert run_here("schema", "pull").ok().json() == json.loads(everything.read_text())


def test_a_dry_run_shows_every_request_and_sends_none(crm: RunningService, wanted: str) -> None:
    crm.log.clear()
    shown = run_here("schema", "apply", wanted, "--dry-run").ok().json()
    assert shown["dryRun"] is True
    assert [request["method"] for request in shown["requests"]] == ["POST"] * 9
    assert shown["requests"][0]["path"] == "/api/v1/objects"
    assert shown["requests"][2]["path"] == "/api/v1/objects/{projects}/attributes"
    assert shown["requests"][2]["body"]["config"] == {"allowed_object_id": crm.object_id("people")}
    assert shown["requests"][3]["body"]["config"] == {"allowed_object_id": "{projects}"}
    assert {method for method, _ in requests_of(crm)} == {"GET"}


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("objects: [", 2, ["neither JSON nor YAML"]),
        ("- 1\n", 9, ["holds no schema"]),
        ("objects:\n- slug: a\n  colour: red\n", 9, ["objects.a.colour"]),
        ("version: 2\nobjects: []\n", 9, ["version", "reads version 1"]),
        ("objects:\n- slug: a\n  attributes:\n  - {slug: b, type: select}\n", 9, ["objects.a.attributes.b", "config.options"]),
        ("objects:\n- slug: a\n- slug: a\n", 9, ["given twice: a"]),
    ],
)
def test_a_file_that_is_no_schema_is_refused_with_its_place(
    crm: RunningService, tmp_path: Path, text: str, code: int, words: list[str]
) -> None:
    file = tmp_path / "schema.yaml"
    file.write_text(text)
    message = run_here("schema", "diff", str(file)).exits(code).error()["message"]
    assert all(word in message for word in words), message


def test_a_terminal_shows_yaml_and_a_table(crm: RunningService, wanted: str) -> None:
    assert "objects:\n- slug: people\n" in run_here("schema", "pull", "people", "-o", "table").ok().out.replace("\r", "")
    table = run_here("schema", "diff", wanted, "-o", "table").ok().out
    assert "a new object" in table
    assert run_here("schema", "pull", "nowhere").exits(3).error()["code"] == "not_found"


def test_an_attribute_without_its_config_is_an_error_of_the_service() -> None:
    described = Present({"deals": Object(id="o", slug="deals")}, {"deals": {"stage": Attribute(id="a", slug="stage", type="select")}})
    with pytest.raises(ServiceError, match=r"deals\.stage incompletely: a select needs config\.options"):
        to_document(described)
