"""Subsets and masked copies through the installed program."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from crmctl.errors import DifferenceError
from crmctl.models.resources import Attribute
from crmctl.org.mask import Mask
from tests.org.test_apply import at, other
from tests.org.test_diff import lines_of
from tests.support.inprocess import run_here
from tests.support.organizations import furnish
from tests.support.service import RunningService

__all__ = ["other"]


def records(folder: str, slug: str) -> dict[str, dict[str, Any]]:
    return {line["id"]: line["data"] for line in lines_of(Path(folder, "records", f"{slug}.jsonl"))}


def test_a_subset_is_closed_and_names_the_records_each_reference_added(furnished: RunningService) -> None:
    deals = furnished.object_id("deals")
    all_deals = furnished.client.get(f"/api/v1/objects/{deals}/records").json()["records"]
    stage = next(deal["data"]["stage"] for deal in all_deals if deal["data"].get("stage"))
    report = run_here("org", "pull", "crm", "--where", f"deals:stage={stage}").ok().json()
    assert report["subset"] is True
    assert set(records("crm", "deals")) >= {deal["id"] for deal in all_deals if deal["data"].get("stage") == stage}
    roots = sum(deal["data"].get("stage") == stage for deal in all_deals)
    assert sum(report["records"].values()) == roots + sum(report["added"].values())
    run_here("org", "verify", "crm").ok()
    assert run_here("org", "pull", "crm", "--where", f"deals:stage={stage}").ok().json()["changed"] is False
    assert run_here("org", "apply", "crm", "--prune").exits(2).error()["code"] == "incomplete_folder"
    assert run_here("org", "apply", "crm").ok().json()["changes"] == 0


def test_a_subset_may_begin_with_one_record(furnished: RunningService) -> None:
    people = furnished.client.get(f"/api/v1/objects/{furnished.object_id('people')}/records").json()["records"]
    run_here("org", "pull", "crm", "--where", f"people:id={people[0]['id']}").ok()
    assert people[0]["id"] in records("crm", "people")
    run_here("org", "verify", "crm").ok()
    assert run_here("org", "pull", "other", "--where", "people:nme=Ada").exits(2).error()["code"] == "unknown_attribute"


def test_activities_of_a_subset_refer_to_its_records_only(crm: RunningService) -> None:
    ids = []
    for slug, data in (("people", {"email": "in@example.org"}), ("people", {"email": "out@example.org"}), ("companies", {"name": "Acme"})):
        ids.append(crm.client.post(f"/api/v1/objects/{crm.object_id(slug)}/records", json={"data": data}).json()["id"])
    inside, outside, company = ids
    for record, person in ((inside, outside), (outside, inside)):
        links = [{"objectId": crm.object_id("people"), "recordId": record}, {"objectId": crm.object_id("companies"), "recordId": company}]
        body = {"title": "Call", "summary": "", "linkedRecords": links, "participants": [{"type": "person", "id": person}]}
        crm.client.post("/api/v1/activities", json=body)
    run_here("org", "pull", "crm", "--where", "people:email=in@example.org").ok()
    [activity] = lines_of(Path("crm/activities.jsonl"))
    assert (activity["links"], activity.get("participants")) == ([f"people/{inside}"], None)


def test_samples_repeat_and_limits_refuse(furnished: RunningService) -> None:
    first = run_here("org", "pull", "a", "--sample", "people=3").ok().json()
    run_here("org", "pull", "b", "--sample", "people=3").ok()
    assert first["records"]["people"] >= 3
    assert records("a", "people") == records("b", "people")
    assert run_here("org", "pull", "c", "--sample", "people=3", "--max-records", "2").exits(9).error()["code"] == "too_many_records"
    assert run_here("org", "pull", "c", "--max-records", "2").exits(9).error()["code"] == "too_many_records"
    assert not Path("c").exists()
    for option, value in (("--sample", "people"), ("--sample", "cars=3"), ("--where", "stage=won"), ("--where", "deals:nothing=1")):
        run_here("org", "pull", "c", option, value).exits(2)


def test_a_mask_leaves_nothing_and_keeps_shapes(crm: RunningService, other: RunningService) -> None:
    furnish(crm, 33, records=20)
    path = f"/api/v1/objects/{crm.object_id('people')}/records"
    for number in range(3):
        data = {"email": f"grace{number}@navy.mil", "name": "Grace Hopper", "job_title": "Rear Admiral", "notes": "call grace1@navy.mil"}
        crm.client.post(path, json={"data": data})
    run_here("org", "pull", "plain").ok()
    run_here("org", "pull", "masked", "--mask").ok()
    run_here("org", "verify", "masked").ok()
    plain, masked = records("plain", "people"), records("masked", "people")
    text = "".join(path.read_text(encoding="utf-8") for path in Path("masked").rglob("*") if path.is_file()).lower()
    for secret in ("grace hopper", "navy.mil", "rear admiral"):
        assert secret not in text
    emails = [data["email"] for data in masked.values() if "email" in data]
    assert len(set(emails)) == len(emails)
    assert {email.rpartition("@")[2] for email in emails} <= {"example.com", "example.org", "example.net"}
    for record_id, data in plain.items():
        assert masked[record_id].keys() == data.keys()
        for slug in data.keys() & {"score", "status", "birthday", "company"}:
            assert masked[record_id][slug] == data[slug]
    names = {json.dumps(masked[record_id]["name"]) for record_id, data in plain.items() if data.get("name") == "Grace Hopper"}
    assert len(names) == 1, "equal values stay equal"
    assert run_here("org", "pull", "masked").exits(2).error()["code"] == "foreign_folder"
    assert run_here("org", "apply", "masked").exits(2).error()["code"] == "masked_folder"
    assert run_here("org", "apply", "masked", env=at(other)).ok().json()["left"] == []
    run_here("config", "set", "protected", "true", env=at(other)).ok()
    run_here("org", "apply", "masked", env=at(other)).exits(2)


def test_equal_values_stay_equal_although_only_one_attribute_is_unique(crm: RunningService) -> None:
    people, companies = crm.object_id("people"), crm.object_id("companies")
    for name, kind, is_unique in (("Code", "text", True), ("Hotline", "phone_number", True)):
        body = {"name": name, "type": kind, "isRequired": False, "isUnique": is_unique}
        crm.client.post(f"/api/v1/objects/{people}/attributes", json=body)
    for name, kind in (("Contact", "email"), ("Code", "text"), ("Hotline", "phone_number")):
        body = {"name": name, "type": kind, "isRequired": False, "isUnique": False}
        crm.client.post(f"/api/v1/objects/{companies}/attributes", json=body)
    same = {"code": "Order of 1843", "hotline": "+493012345678"}
    crm.client.post(f"/api/v1/objects/{people}/records", json={"data": {"email": "ada@acme.org", **same}})
    crm.client.post(f"/api/v1/objects/{companies}/records", json={"data": {"name": "Acme", "contact": "Ada@acme.org", **same}})
    run_here("org", "pull", "crm", "--mask").ok()
    [person], [company] = records("crm", "people").values(), records("crm", "companies").values()
    assert (person["email"], person["code"], person["hotline"]) == (company["contact"], company["code"], company["hotline"])


def test_a_real_name_of_two_words_of_the_word_list_is_a_leak(crm: RunningService) -> None:
    path = f"/api/v1/objects/{crm.object_id('people')}/records"
    crm.client.post(path, json={"data": {"email": "ada@acme.org", "job_title": "assists Greta Hugo", "notes": "Greta Hugo"}})
    Path("crm").mkdir()
    Path("crm/org.toml").write_text('format = 1\n[mask]\nkeep = ["people.job_title"]\n')
    assert run_here("org", "pull", "crm", "--mask").exits(11).error()["code"] == "leak"


def test_a_mask_fails_closed(crm: RunningService) -> None:
    path = f"/api/v1/objects/{crm.object_id('people')}/records"
    crm.client.post(path, json={"data": {"email": "ada@acme.org", "job_title": "Countess", "notes": "write to ada@acme.org"}})
    Path("crm").mkdir()
    settings = 'format = 1\n[mask]\nkeep = ["people.job_title"]\n'
    Path("crm/org.toml").write_text(settings)
    run_here("org", "pull", "crm", "--mask").ok()
    assert next(iter(records("crm", "people").values()))["job_title"] == "Countess"
    before = Path("crm/records/people.jsonl").read_bytes()
    Path("crm/org.toml").write_text(settings.replace("job_title", "notes"))
    error = run_here("org", "pull", "crm", "--mask").exits(11).error()
    assert error["code"] == "leak"
    assert "ada" not in error["message"]
    assert Path("crm/records/people.jsonl").read_bytes() == before
    Path("crm/org.toml").write_text(settings.replace("job_title", "nothing"))
    run_here("org", "pull", "crm", "--mask").exits(2)


def test_a_mask_replaces_the_keys_of_objects_that_may_be_personal() -> None:
    attributes = {kind: Attribute(id=kind, slug=kind, name=kind, type=kind) for kind in ("list", "address", "select")}
    mask = Mask(b"k" * 16, {"people": attributes}, ())
    data = {"list": [{"ada@acme.org": {"value": 1}}, {"ada@acme.org": 2}], "address": {"city": "Rome", "Ada's flat": "4b"}, "select": "new"}
    mask.see([("people", data)])
    masked = mask.row("people", "1", data)
    [first, second] = [list(item) for item in masked["list"]]
    assert (first == second, masked["list"][0][first[0]], next(iter(masked["address"]))) == (True, {"value": 0}, "city")
    assert not {"ada@acme.org", "Ada's flat"} & {*first, *masked["address"]}
    with pytest.raises(DifferenceError, match="people 2, select"):
        mask.row("people", "2", {"select": "of ada@acme.org"})
    kept = Mask(b"k" * 16, {"people": attributes}, ("people.list",))
    data = {"list": [{"by ada's flat": 1}], "address": {"Ada's flat": "4b"}}
    kept.see([("people", data)])
    with pytest.raises(DifferenceError, match="people 3, list"):
        kept.row("people", "3", data)


@pytest.mark.parametrize("place", ["description", "name"])
def test_a_masked_value_in_the_schema_is_a_leak(crm: RunningService, place: str) -> None:
    crm.client.post(f"/api/v1/objects/{crm.object_id('people')}/records", json={"data": {"email": "ada@acme.org", "notes": "Ada Lovelace"}})
    text = "As Ada Lovelace wanted it"
    names = {"pluralName": "Cars", "singularName": "Car", "slug": "cars", "description": text if place == "description" else ""}
    cars = crm.client.post("/api/v1/objects", json=names).json()["id"]
    crm.client.post(f"/api/v1/objects/{cars}/attributes", json={"name": text if place == "name" else "Color", "type": "text"})
    error = run_here("org", "pull", "crm", "--mask").exits(11).error()
    assert error["code"] == "leak"
    assert "cars" in error["message"]
    assert not Path("crm").exists()
    run_here("org", "pull", "crm", "--mask", "--objects", "people").ok()


def test_a_key_repeats_the_replacements(furnished: RunningService) -> None:
    Path("key").write_text("k" * 32)
    for folder in ("a", "b"):
        run_here("org", "pull", folder, "--mask-key", "key").ok()
    run_here("org", "pull", "c", "--mask").ok()
    assert records("a", "people") == records("b", "people") != records("c", "people")
    Path("key").write_text("short")
    run_here("org", "pull", "d", "--mask-key", "key").exits(2)
    run_here("org", "pull", "d", "--mask-key", "nowhere").exits(2)
