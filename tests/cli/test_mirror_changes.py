"""`crmctl mirror changes` through the installed program."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import CRMCTL, environment
from tests.support.inprocess import run_here
from tests.support.patience import PATIENCE
from tests.support.service import RunningService


def emitted(*options: str) -> tuple[list[dict[str, Any]], str]:
    *changes, last = run_here("mirror", "changes", *options).ok().lines()
    return changes, last["token"]


@pytest.fixture
def mirrored(crm: RunningService, people: list[str]) -> list[str]:
    run_here("mirror", "sync", "people").ok()
    return people


def test_each_change_is_emitted_once(crm: RunningService, mirrored: list[str]) -> None:
    everything, token = emitted()
    assert ({change["op"] for change in everything}, len(everything)) == ({"insert"}, 120)
    assert emitted("--since", token) == ([], token)
    path = f"/api/v1/objects/{crm.object_id('people')}/records"
    crm.client.patch(f"{path}/{mirrored[0]}", json={"data": {"score": 5000}})
    crm.client.delete(f"{path}/{mirrored[1]}")
    made = crm.client.post(path, json={"data": {"email": "new@example.org"}}).json()["id"]
    changes, second = emitted("--since", token)
    by_id = {change["id"]: change for change in changes}
    assert len(changes) == 3
    assert (by_id[mirrored[0]]["op"], by_id[mirrored[0]]["before"]["score"], by_id[mirrored[0]]["after"]["score"]) == ("update", 1, 5000)
    assert (by_id[mirrored[1]]["op"], by_id[mirrored[1]]["before"]["score"], by_id[mirrored[1]]["after"]) == ("delete", 2, None)
    assert (by_id[made]["op"], by_id[made]["before"], by_id[made]["after"]) == ("insert", None, {"email": "new@example.org"})
    assert emitted("--since", second)[0] == []
    crm.log.clear()
    assert emitted("people", "--since", token, "--no-sync")[0] == changes
    assert crm.log == []


def test_a_new_attribute_and_a_full_reading_lose_no_change(crm: RunningService, mirrored: list[str]) -> None:
    _, token = emitted()
    attributes = f"/api/v1/objects/{crm.object_id('people')}/attributes"
    made = crm.client.post(attributes, json={"name": "Shoe size", "type": "number"}).json()["id"]
    path = f"/api/v1/objects/{crm.object_id('people')}/records"
    crm.client.patch(f"{path}/{mirrored[0]}", json={"data": {"shoe_size": 41}})
    assert [change["after"]["shoe_size"] for change in emitted("--since", token)[0]] == [41]
    crm.client.patch(f"{attributes}/{made}", json={"name": "Size"})
    crm.client.patch(f"{path}/{mirrored[1]}", json={"data": {"score": 7000}})
    run_here("mirror", "sync", "--full").ok()
    assert [change["id"] for change in emitted("--since", token)[0]] == [mirrored[0], mirrored[1]]


def test_values_that_go_with_their_attribute_are_updates(crm: RunningService, mirrored: list[str]) -> None:
    attributes = f"/api/v1/objects/{crm.object_id('people')}/attributes"
    made = crm.client.post(attributes, json={"name": "Shoe size", "type": "number"}).json()["id"]
    crm.client.patch(f"/api/v1/objects/{crm.object_id('people')}/records/{mirrored[0]}", json={"data": {"shoe_size": 41}})
    _, token = emitted()
    crm.client.delete(f"{attributes}/{made}")
    [change] = emitted("--since", token)[0]
    assert (change["op"], change["id"], change["before"]["shoe_size"]) == ("update", mirrored[0], 41)
    assert "shoe_size" not in change["after"]


def test_the_records_of_a_deleted_object_are_deletions(crm: RunningService, mirrored: list[str]) -> None:
    assert mirrored
    names = {"pluralName": "Cars", "singularName": "Car", "slug": "cars"}
    cars = crm.client.post("/api/v1/objects", json=names).json()["id"]
    crm.client.post(f"/api/v1/objects/{cars}/attributes", json={"name": "Color", "type": "text"})
    made = crm.client.post(f"/api/v1/objects/{cars}/records", json={"data": {"color": "red"}}).json()["id"]
    run_here("mirror", "sync", "cars").ok()
    _, token = emitted()
    crm.client.delete(f"/api/v1/objects/{cars}")
    [change] = emitted("--since", token)[0]
    assert (change["op"], change["object"], change["id"], change["before"]) == ("delete", "cars", made, {"color": "red"})
    assert emitted("people", "--since", token)[0] == []


def test_merges_name_the_survivor(crm: RunningService) -> None:
    path = f"/api/v1/objects/{crm.object_id('people')}/records"
    for email in ("a@example.org", "b@example.org"):
        crm.client.post(path, json={"data": {"email": email, "name": "Ada Lovelace"}})
    run_here("mirror", "sync", "people").ok()
    _, token = emitted()
    run_here("bulk", "dedupe", "people", "--match", "name", "--plan", "plan.jsonl").ok()
    run_here("bulk", "apply", "plan.jsonl", "--yes").ok()
    [survivor] = [record["id"] for record in crm.client.get(path).json()["records"]]
    merged = [change for change in emitted("--since", token)[0] if change["op"] == "merge"]
    assert [change["into"] for change in merged] == [survivor]


def test_changes_older_than_the_mirrors_history_are_refused(crm: RunningService, mirrored: list[str]) -> None:
    _, token = emitted()
    assert run_here("mirror", "changes", "--since", "2001-01-01").exits(11).error()["code"] == "too_old"
    assert run_here("mirror", "changes", "--since", "0123456789ab-3").exits(11).error()["code"] == "unknown_token"
    run_here("mirror", "changes", "--since", "whenever").exits(2)
    run_here("mirror", "changes", "cars").exits(3)
    run_here("mirror", "sync", "companies").ok()
    assert "companies" in run_here("mirror", "changes", "--since", token).exits(11).error()["message"]
    assert emitted("people", "--since", token)[0] == []
    path = f"/api/v1/objects/{crm.object_id('people')}/records"
    crm.client.patch(f"{path}/{mirrored[0]}", json={"data": {"phone": "+442079460958"}})
    emitted("people")
    run_here("mirror", "sync", "people", "--exclude", "people.phone").ok()
    with closing(sqlite3.connect(run_here("mirror", "path").ok().json()["path"])) as db:
        assert db.execute("SELECT count(*) FROM _changes WHERE coalesce(before, after) IS NOT NULL").fetchone() == (0,), (
            "excluded values leave the log too"
        )
    assert run_here("mirror", "changes", "people", "--since", token).exits(11).error()["code"] == "too_old"


def test_changes_of_an_unproven_mirror_get_a_warning(mirrored: list[str]) -> None:
    with closing(sqlite3.connect(run_here("mirror", "path").ok().json()["path"])) as db, db:
        db.execute("UPDATE _sync SET _state = json_set(_state, '$.proven', json('false'), '$.proof', 'not proven: 121 are counted')")
    said = run_here("mirror", "changes", "--no-sync").ok()
    assert len(said.lines()) == len(mirrored) + 1
    assert "people: not proven: 121 are counted; changes may be missing" in said.err


@pytest.mark.parametrize("number", ["9", "999999", "9" * 30])
def test_a_token_that_the_mirror_has_not_given_out_yet_is_refused(mirrored: list[str], number: str) -> None:
    assert mirrored
    identity = emitted()[1].partition("-")[0]
    assert run_here("mirror", "changes", "--since", f"{identity}-{number}").exits(11).error()["code"] == "unknown_token"


def test_files(crm: RunningService, mirrored: list[str]) -> None:
    done = run_here("mirror", "changes", "-O", "people.jsonl").ok().json()
    lines = [json.loads(line) for line in Path("people.jsonl").read_text().splitlines()]
    assert (len(lines), lines[-1]["token"]) == (121, done["token"])
    for name in ("people.csv", "people.json"):
        refused = run_here("mirror", "changes", "-O", name).exits(2).error()
        assert (refused["hint"], Path(name).exists()) == ("-O changes.jsonl or -O changes.parquet", False)
    pytest.importorskip("pyarrow")
    from pyarrow import parquet

    assert run_here("mirror", "changes", "-O", "people.parquet").ok().json()["token"] == done["token"]
    table = parquet.read_table("people.parquet").to_pylist()
    assert len(table) == 120
    assert json.loads(table[0]["after"])["email"] == "person001@acme.com"


def test_a_reader_that_has_gone_ends_it_quietly(mirrored: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        command = [str(CRMCTL), "mirror", "changes"]
        ended = subprocess.run(command, env=environment(), stdout=writing, stderr=subprocess.PIPE, text=True, timeout=PATIENCE, check=False)
    finally:
        os.close(writing)
    assert (ended.returncode, ended.stderr) == (0, "")
