"""Folders of services that offer only the specification."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.org.test_apply import at, by_new_ids
from tests.support.cli import run_crmctl
from tests.support.organizations import furnish
from tests.support.plainservice import PlainService
from tests.support.service import RunningService


def test_a_plain_organization_moves_and_its_coverage_names_unreadable_parts(crm: RunningService) -> None:
    with PlainService() as one, PlainService() as two:
        furnish(one, 61)
        report = run_crmctl("org", "pull", "crm", env=one.env).ok().json()
        notes = {row["content"]: row["note"] for row in report["coverage"] if not row["contained"]}
        for section in ("reports", "workflows", "webhooks"):
            assert notes[section] == "this service does not show their content"
        assert report["members"] == 1
        assert run_crmctl("org", "pull", "crm", env=one.env).ok().json()["changed"] is False
        done = run_crmctl("org", "apply", "crm", "--map", "map.json", env=two.env).ok().json()
        assert done["left"] == []
        assert run_crmctl("org", "apply", "crm", env=two.env).ok().json()["job"] is None
        run_crmctl("org", "pull", "second", env=two.env).ok()
        assert by_new_ids(Path("crm"), json.loads(Path("map.json").read_text())) == by_new_ids(Path("second"), {})
        run_crmctl("bulk", "undo", done["job"], "--yes", env=two.env).ok()
        assert [record for records in two.records.values() for record in records.values()] == []


def test_parts_a_plain_service_lacks_are_left_out_and_named(crm: RunningService) -> None:
    furnish(crm, 62)
    run_crmctl("org", "pull", "crm").ok()
    with PlainService() as plain:
        planned = run_crmctl("org", "apply", "crm", "--dry-run", env=plain.env).exits(10).json()
        left = {entry["place"]: entry["problem"] for entry in planned["left"]}
        assert left.keys() >= {"members", "reports", "workflows", "webhooks"}
        assert "does not take" in left["reports"]
        done = run_crmctl("org", "apply", "crm", env=plain.env).exits(10).json()
        assert sum(row["create"] for row in done["records"].values()) == sum(len(records) for records in plain.records.values())
        assert run_crmctl("org", "apply", "crm", env=plain.env).exits(10).json()["job"] is None
        assert at(crm)


@pytest.mark.parametrize("slugs", [["../../out"], ["my.cars"], ["Cars", "cars"], ["c" * 300]])
def test_objects_that_cannot_be_files_are_refused_before_anything_is_written(crm: RunningService, slugs: list[str]) -> None:
    assert crm
    with PlainService() as plain:
        for slug in slugs:
            plain.client.post("/api/v1/objects", json={"slug": slug, "pluralName": slug, "singularName": slug})
        before = {*Path().rglob("*")}
        assert run_crmctl("org", "pull", "crm", env=plain.env).exits(9).error()["code"] == "unusable_name"
        assert {path for path in Path().rglob("*") if path.suffix == ".jsonl"} <= before
        assert not Path("crm").exists()
        run_crmctl("org", "pull", "crm", "--objects", "people", env=plain.env).ok()
