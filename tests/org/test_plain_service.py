"""Folders of services that offer only the specification."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.org.test_apply import at, by_new_ids
from tests.support.inprocess import run_here
from tests.support.organizations import furnish
from tests.support.plainservice import PlainService, Refused
from tests.support.service import RunningService


def test_a_plain_organization_moves_and_its_coverage_names_unreadable_parts(crm: RunningService) -> None:
    with PlainService() as one, PlainService() as two:
        furnish(one, 61)
        report = run_here("org", "pull", "crm", env=one.env).ok().json()
        notes = {row["content"]: row["note"] for row in report["coverage"] if not row["contained"]}
        for section in ("reports", "workflows", "webhooks"):
            assert notes[section] == "this service does not show their content"
        assert report["members"] == 1
        assert run_here("org", "pull", "crm", env=one.env).ok().json()["changed"] is False
        done = run_here("org", "apply", "crm", "--map", "map.json", env=two.env).ok().json()
        assert done["left"] == []
        assert run_here("org", "apply", "crm", env=two.env).ok().json()["job"] is None
        run_here("org", "pull", "second", env=two.env).ok()
        assert by_new_ids(Path("crm"), json.loads(Path("map.json").read_text())) == by_new_ids(Path("second"), {})
        run_here("bulk", "undo", done["job"], "--yes", env=two.env).ok()
        assert [record for records in two.records.values() for record in records.values()] == []


def test_parts_a_plain_service_lacks_are_left_out_and_named(crm: RunningService) -> None:
    furnish(crm, 62)
    run_here("org", "pull", "crm").ok()
    with PlainService() as plain:
        planned = run_here("org", "apply", "crm", "--dry-run", env=plain.env).exits(10).json()
        left = {entry["place"]: entry["problem"] for entry in planned["left"]}
        assert left.keys() >= {"members", "reports", "workflows", "webhooks"}
        assert "does not take" in left["reports"]
        done = run_here("org", "apply", "crm", env=plain.env).exits(10).json()
        assert sum(row["create"] for row in done["records"].values()) == sum(len(records) for records in plain.records.values())
        assert run_here("org", "apply", "crm", env=plain.env).exits(10).json()["job"] is None
        assert at(crm)


@pytest.mark.parametrize("slugs", [["../../out"], ["my.cars"], ["Cars", "cars"], ["c" * 300]])
def test_objects_that_cannot_be_files_are_refused_before_anything_is_written(crm: RunningService, slugs: list[str]) -> None:
    assert crm
    with PlainService() as plain:
        for slug in slugs:
            plain.client.post("/api/v1/objects", json={"slug": slug, "pluralName": slug, "singularName": slug})
        before = {*Path().rglob("*")}
        assert run_here("org", "pull", "crm", env=plain.env).exits(9).error()["code"] == "unusable_name"
        assert {path for path in Path().rglob("*") if path.suffix == ".jsonl"} <= before
        assert not Path("crm").exists()
        run_here("org", "pull", "crm", "--objects", "people", env=plain.env).ok()


class AlteringService(PlainService):
    """A service that forbids reading records while `denies` is set, and stores amounts as texts with two decimal places."""

    denies = False

    def _work(self, method: str, path: list[str], query: Any, body: Any) -> Any:
        if self.denies and method == "GET" and path[-1] == "records" and any(self.records.values()):
            raise Refused("not now")
        return super()._work(method, path, query, body)

    def _create(self, object_id: str, data: dict[str, Any]) -> Any:
        if "amount" in data:
            data = {**data, "amount": {**data["amount"], "amount": f"{data['amount']['amount']:.2f}"}}
        return super()._create(object_id, data)


def deals_of(service: PlainService) -> list[dict[str, Any]]:
    return [record["data"] for record in service.records[service.object_id("deals")].values()]


def test_records_whose_ids_were_not_read_back_are_found_by_the_next_apply(crm: RunningService) -> None:
    for number in range(3):
        crm.client.post(f"/api/v1/objects/{crm.object_id('deals')}/records", json={"data": {"name": f"Deal {number}", "stage": "won"}})
    run_here("org", "pull", "crm", "--with", "activities").ok()
    with AlteringService() as plain:
        plain.denies = True
        run_here("org", "apply", "crm", env=plain.env).exits(9)
        plain.denies = False
        assert len(deals_of(plain)) == 3
        assert run_here("org", "apply", "crm", env=plain.env).ok().json()["left"] == []
        assert run_here("org", "apply", "crm", env=plain.env).ok().json()["job"] is None
        assert len(deals_of(plain)) == 3


def test_created_records_that_cannot_be_recognized_are_not_created_again(crm: RunningService) -> None:
    for amount in (10.25, 10.5):
        data = {"name": "Acme", "amount": {"amount": amount, "currency": "EUR"}}
        crm.client.post(f"/api/v1/objects/{crm.object_id('deals')}/records", json={"data": data})
    run_here("org", "pull", "crm", "--with", "activities").ok()
    with AlteringService() as plain:
        for _ in range(2):
            [left] = run_here("org", "apply", "crm", env=plain.env).exits(10).json()["left"]
            assert "cannot tell which record" in left["problem"]
            assert sorted(deal["amount"]["amount"] for deal in deals_of(plain)) == ["10.25", "10.50"]
        error = run_here("org", "apply", "crm", "--prune", "--yes", env=plain.env).exits(9).error()
        assert error["code"] == "unmatched_records"
        assert len(deals_of(plain)) == 2
