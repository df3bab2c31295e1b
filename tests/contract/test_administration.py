"""`crmctl service`: keys, load and dump with the installed program while the service runs on the same data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from crmctl.models.scopes import SCOPES
from tests.support.cli import Result, run_crmctl
from tests.support.databases import ANY_ENGINE
from tests.support.service import RunningService, make_client, running_service

DEFINITIONS: dict[str, Any] = {
    "members": [{"name": "Ada", "email": "ada@example.com", "role": "admin"}],
    "objects": [
        {
            "slug": "tasks",
            "pluralName": "Tasks",
            "attributes": [{"name": "Project", "slug": "project", "type": "reference", "config": {"allowed_object": "projects"}}],
        },
        {
            "slug": "projects",
            "singularName": "Project",
            "pluralName": "Projects",
            "attributes": [
                {"name": "Stage", "slug": "stage", "type": "select", "config": {"options": ["new", "done"]}, "isRequired": True},
                {"name": "Code", "slug": "code", "type": "text", "isUnique": True},
            ],
        },
    ],
}


@pytest.fixture
def service(tmp_path: Path, database: str) -> Any:
    with running_service(tmp_path / "data", database_url=database, background=False) as running:
        yield running


def administer(service: RunningService, *arguments: str | Path, **options: Any) -> Result:
    return run_crmctl("service", *arguments, "--data", service.data_dir, *database_option(service), **options)


def database_option(service: RunningService) -> list[str]:
    url = service.settings.database_url
    return ["--database-url", url] if url else []


def load(service: RunningService, definitions: Any, *options: str) -> Result:
    text = definitions if isinstance(definitions, str) else yaml.safe_dump(definitions)
    return administer(service, "load", "-", *options, input=text)


def counts(created: int = 0, updated: int = 0, unchanged: int = 0) -> dict[str, int]:
    return {"created": created, "updated": updated, "unchanged": unchanged}


def test_a_key_created_while_the_service_runs_works_until_revoked(service: RunningService) -> None:
    made = administer(service, "keys", "create", "--name", "ci", "--scope", "records:read", "--expires", "30d", "-o", "json").ok().json()
    assert set(made) == {"id", "name", "scopes", "expiresAt", "key"}
    assert (made["name"], made["scopes"]) == ("ci", ["records:read"])
    with make_client(service.base_url, made["key"]) as client:
        assert client.get("/api/v1/members").status_code == 403
        assert client.get(f"/api/v1/objects/{service.object_id('people')}/records").status_code == 200
        listed = administer(service, "keys", "list", "-o", "json").ok()
        assert made["key"] not in listed.out
        assert [key["name"] for key in listed.json()] == ["First key", "ci"]
        administer(service, "keys", "revoke", made["id"]).ok()
        assert client.get("/api/v1/members").status_code == 401


def test_a_full_access_key_has_every_scope_and_no_expiry(service: RunningService) -> None:
    made = administer(service, "keys", "create", "--name", "all", "--full-access").ok().json()
    assert made["scopes"] == sorted(SCOPES)
    assert made["expiresAt"] is None


@ANY_ENGINE
@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("create", "--name", "x"), 2, "--full-access"),
        (("create", "--name", "x", "--scope", "records:read", "--full-access"), 2, "--full-access"),
        (("create", "--scope", "records:read"), 2, "--name"),
        (("create", "--name", "x", "--scope", "records:eat"), 9, "records:eat"),
        (("create", "--name", "x", "--full-access", "--expires", "2001-01-01"), 9, "past"),
        (("create", "--name", "x", "--full-access", "--expires", "soon"), 9, "soon"),
        (("revoke", "00000000-0000-4000-8000-000000000000"), 3, "no key"),
    ],
)
def test_bad_arguments_of_keys_are_refused(service: RunningService, arguments: tuple[str, ...], code: int, says: str) -> None:
    refused = administer(service, "keys", *arguments).exits(code)
    assert refused.out == ""
    assert says in refused.error()["message"]
    assert len(administer(service, "keys", "list").ok().json()) == 1


def test_read_only_also_protects_the_services_own_data(service: RunningService) -> None:
    first = administer(service, "keys", "list").ok().json()
    read_only = {"CRMCTL_READ_ONLY": "1"}
    create, revoke = ("keys", "create", "--name", "ci", "--full-access"), ("keys", "revoke", first[0]["id"])
    for arguments in (create, revoke, ("load", "-")):
        refused = administer(service, *arguments, env=read_only, input="members: []").exits(2)
        assert refused.error()["code"] == "read_only"
    assert administer(service, "keys", "list", env=read_only).ok().json() == first
    planned = administer(service, *create, "--dry-run", env=read_only).ok().json()
    assert planned == {"dryRun": True, "name": "ci", "scopes": sorted(SCOPES), "expiresAt": None}
    assert administer(service, *revoke, "--dry-run", env=read_only).ok().json()["revokedAt"]
    administer(service, "keys", "revoke", "00000000-0000-4000-8000-000000000000", "--dry-run").exits(3)
    assert administer(service, "keys", "list").ok().json() == first


def test_definitions_load_once_and_then_change_nothing(service: RunningService) -> None:
    first = load(service, DEFINITIONS, "-o", "json").ok().json()
    empty = {"reports": counts(), "workflows": counts(), "webhooks": counts()}
    assert first == {"members": counts(1), "objects": counts(2), "attributes": counts(3), **empty}
    with make_client(service.base_url, service.key) as client:
        project = client.post(f"/api/v1/objects/{service.object_id('projects')}/records", json={"data": {"stage": "new"}}).json()
        task = client.post(f"/api/v1/objects/{service.object_id('tasks')}/records", json={"data": {"project": project["id"]}})
        assert task.status_code == 201
        before = client.get("/api/v1/objects").json(), client.get("/api/v1/members").json()
        again = load(service, DEFINITIONS).ok().json()
        assert again == {
            "members": counts(unchanged=1),
            "objects": counts(unchanged=2),
            "attributes": counts(unchanged=3),
            **empty,
        }
        assert (client.get("/api/v1/objects").json(), client.get("/api/v1/members").json()) == before
    renamed = {"objects": [DEFINITIONS["objects"][1] | {"pluralName": "Plans"}], "members": [DEFINITIONS["members"][0] | {"role": "owner"}]}
    assert load(service, renamed).ok().json() == {
        "members": counts(updated=1),
        "objects": counts(updated=1),
        "attributes": counts(unchanged=2),
        **empty,
    }


def test_a_dump_loads_into_another_service_unchanged(service: RunningService, tmp_path: Path) -> None:
    load(service, DEFINITIONS).ok()
    dump = administer(service, "dump").ok().out
    with running_service(tmp_path / "other", background=False) as other:
        load(other, dump).ok()
        assert administer(other, "dump").ok().out == dump
        assert load(other, dump).ok().json()["attributes"]["created"] == 0
    assert administer(service, "dump", "-o", "json").ok().json() == yaml.safe_load(dump)


def test_a_dry_run_reports_changes_without_making_them(service: RunningService) -> None:
    planned = load(service, DEFINITIONS, "--dry-run").ok().json()
    assert planned["objects"] == counts(2)
    assert load(service, DEFINITIONS).ok().json() == planned


def test_a_bad_file_is_refused_with_a_reason(service: RunningService) -> None:
    refused = load(service, "objects: [{slug: x, pluralName: X, attributs: []}]").exits(9)
    assert refused.out == ""
    assert "objects[0].attributs" in refused.error()["message"]


def test_a_missing_file_is_a_usage_error(service: RunningService) -> None:
    administer(service, "load", "nowhere.yaml").exits(2)
