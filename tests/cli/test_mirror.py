"""`crmctl mirror` through the installed program, with a service on a socket."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.conftest import requests_of
from tests.support.inprocess import run_here
from tests.support.service import RunningService


@pytest.fixture
def mirrored(crm: RunningService, people: list[str]) -> list[str]:
    """Create 120 people and a mirror of them."""
    run_here("mirror", "sync", "people").ok()
    crm.log.clear()
    return people


def place() -> Path:
    return Path(run_here("mirror", "path").ok().json()["path"])


def test_a_mirror_is_synced_queried_shown_and_removed(crm: RunningService, mirrored: list[str]) -> None:
    path = f"/api/v1/objects/{crm.object_id('people')}/records"
    crm.client.patch(f"{path}/{mirrored[3]}", json={"data": {"score": 99.5}})
    crm.client.delete(f"{path}/{mirrored[70]}")
    [synced] = run_here("mirror", "sync").ok().json()
    assert (synced["read"], synced["records"], synced["updated"], synced["deleted"], synced["proven"]) == ("changes", 119, 1, 1, True)
    [shown] = run_here("mirror", "status").ok().json()
    assert shown["asOf"] == synced["asOf"]
    assert "119 that are counted" in shown["proof"]
    asked = requests_of(crm)
    rows = run_here("mirror", "sql", "SELECT id, score FROM people WHERE score > :least", "--param", "least=99").ok().json()
    assert {row["score"] for row in rows} == {99.5, *range(100, 121)}
    assert run_here("mirror", "search", "person004", "-o", "ids").ok().out.split() == [mirrored[3]]
    assert requests_of(crm) == asked
    with closing(sqlite3.connect(place(), isolation_level=None)) as db:
        assert db.execute("SELECT count(*), sum(_created > 0) FROM people").fetchone() == (119, 119)
        wires = [json.loads(row[0]) for row in db.execute("SELECT _data FROM people ORDER BY _created, _no")]
    exported = run_here("bulk", "export", "people").ok().lines()
    assert sorted(wires, key=lambda each: each["id"]) == sorted(exported, key=lambda each: each["id"])
    assert run_here("mirror", "remove").exits(2).error()["hint"] == "pass --yes"
    run_here("mirror", "remove", "--yes").ok()
    assert run_here("mirror", "status").exits(3).error()["code"] == "no_mirror"


def test_sql_draws_a_chart(mirrored: list[str]) -> None:
    query = "SELECT CASE WHEN score > 40 THEN 'high' ELSE 'low' END AS class, count(*) AS people FROM people GROUP BY 1 ORDER BY 1"
    chart = run_here("mirror", "sql", query, "--chart").ok().out.splitlines()
    assert (chart[0], [(line.split()[0], line.split()[-1]) for line in chart[1:]]) == ("people", [("high", "80"), ("low", "40")])
    assert "exclude" in run_here("mirror", "sql", query, "--chart", "-o", "csv").exits(2).error()["message"]


def test_sql_ends_in_time_and_checks_what_should_be_empty(mirrored: list[str]) -> None:
    endless = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c"
    assert run_here("mirror", "sql", endless, "--timeout", "0.3").exits(8).error()["code"] == "query_timeout"
    empty = "SELECT id FROM people WHERE email = :email"
    assert run_here("mirror", "sql", empty, "--param", "email=nobody@acme.com", "--expect-empty").ok().json() == []
    found = run_here("mirror", "sql", empty, "--param", "email=person001@acme.com", "--expect-empty", "-o", "csv").exits(11)
    assert found.out.splitlines() == ["id", mirrored[0]]
    both = run_here("mirror", "sql", "SELECT a.id, b.id, 9e999, x'00ff', NULL FROM people a JOIN people b USING (id) LIMIT 1").ok().json()
    assert list(both[0].values()) == [both[0]["id"], both[0]["id"], "inf", "00ff", None]


def test_verify_names_and_repairs_differences(crm: RunningService, mirrored: list[str]) -> None:
    path = f"/api/v1/objects/{crm.object_id('people')}/records"
    crm.client.patch(f"{path}/{mirrored[9]}", json={"data": {"score": 1000}})
    crm.client.delete(f"{path}/{mirrored[10]}")
    assert run_here("mirror", "verify").ok().json() == [], "what changed since is not wrong"
    with closing(sqlite3.connect(place(), isolation_level=None)) as db:
        db.execute("UPDATE people SET _data = replace(_data, 'person002', 'person999') WHERE id = ?", (mirrored[1],))
        db.execute("DELETE FROM people WHERE id = ?", (mirrored[5],))
        row = db.execute("SELECT * FROM people WHERE id = ?", (mirrored[2],)).fetchone()
        columns = [column[1] for column in db.execute("PRAGMA table_info(people)")]
        ghost = [None if name == "_no" else "ghost" if name == "id" else value for name, value in zip(columns, row, strict=True)]
        db.execute(f"INSERT INTO people VALUES ({', '.join('?' * len(ghost))})", ghost)
        db.execute("UPDATE people SET email = 'nobody@acme.com' WHERE id = ?", (mirrored[3],))
    found = run_here("mirror", "verify", "people").exits(11)
    assert {(each["id"], each["problem"]) for each in found.json()} == {
        (mirrored[1], "stale"), (mirrored[3], "stale"), ("ghost", "ghost"), (mirrored[5], "missing")
    }  # fmt: skip
    assert run_here("mirror", "verify").ok().json() == []
    with closing(sqlite3.connect(place(), isolation_level=None)) as db:
        db.execute("UPDATE people SET email = 'nobody@acme.com'")
    run_here("mirror", "sync", "people", "--full").ok()
    assert run_here("mirror", "sql", "SELECT count(*) AS n FROM people WHERE email = 'nobody@acme.com'").ok().json() == [{"n": 0}]


def test_activities_are_mirrored_found_and_verified(crm: RunningService, people: list[str]) -> None:
    link = {"objectId": crm.object_id("people"), "recordId": people[3]}
    for title in ("Call about the Zanzibar offer", "Lunch"):
        assert crm.client.post("/api/v1/activities", json={"title": title, "linkedRecords": [link]}).status_code == 201
    run_here("mirror", "sync", "people", "--activities").ok()
    [hit] = run_here("mirror", "search", "zanz").ok().json()
    assert (hit["object"], hit["data"]["title"]) == ("activities", "Call about the Zanzibar offer")
    assert run_here("mirror", "search", "zanz", "people").ok().json() == []
    joined = "SELECT a.title, p.email FROM activities a JOIN activity_links l ON l.activity_id = a.id JOIN people p ON p.id = l.record_id"
    assert {row["email"] for row in run_here("mirror", "sql", joined).ok().json()} == {"person004@acme.com"}
    assert crm.client.delete(f"/api/v1/activities/{hit['id']}").is_success
    assert run_here("mirror", "verify", "activities").ok().json() == [], "what was deleted since is not wrong"
    assert run_here("mirror", "search", "zanz", "-o", "ids").ok().out == ""
    with closing(sqlite3.connect(place(), isolation_level=None)) as db:
        db.execute("UPDATE activities SET _data = replace(_data, 'Lunch', 'Dinner')")
        [kept] = db.execute("SELECT id FROM activities").fetchone()
        db.execute("UPDATE activity_links SET record_id = 'another'")
    wrong = run_here("mirror", "verify").exits(11).json()
    assert wrong == [{"object": "activities", "id": kept, "problem": "stale"}]
    assert [hit["id"] for hit in run_here("mirror", "search", "lunch").ok().json()] == [kept]


def test_referrers_of_a_deleted_record_are_read_again(crm: RunningService, people: list[str]) -> None:
    """The service may clear it without a new time of change; here the mirror was already wrong."""
    companies, path = crm.object_id("companies"), f"/api/v1/objects/{crm.object_id('people')}/records"
    made = crm.client.post(f"/api/v1/objects/{companies}/records", json={"data": {"name": "Acme"}}).json()
    company = made.get("record", made)["id"]
    assert crm.client.patch(f"{path}/{people[3]}", json={"data": {"company": company}}).is_success
    run_here("mirror", "sync", "people", "companies").ok()
    with closing(sqlite3.connect(place(), isolation_level=None)) as db:
        assert db.execute("UPDATE people SET _data = replace(_data, 'person004', 'person999') WHERE company = ?", (company,)).rowcount == 1
    assert crm.client.delete(f"/api/v1/objects/{companies}/records/{company}").is_success
    synced = run_here("mirror", "sync").ok().json()
    assert {each["object"]: each["deleted"] for each in synced} == {"people": 0, "companies": 1}
    answer = crm.client.get(f"{path}/{people[3]}").json()
    held = run_here("mirror", "sql", "SELECT _data FROM people WHERE id = :id", "--param", f"id={people[3]}").ok().json()
    assert json.loads(held[0]["_data"]) == answer.get("record", answer)


def test_the_log_contains_no_data(crm: RunningService, people: list[str]) -> None:
    run = run_here("--debug", "mirror", "sync", "people").ok()
    assert "GET" in run.err
    assert "person001" not in run.err
    assert "acme.com" not in run.err


def test_missing_objects_are_named(crm: RunningService) -> None:
    assert run_here("mirror", "sync", "peeple").exits(3).error()["details"]["valid"]
    assert "OBJECT.ATTR" in run_here("mirror", "sync", "--exclude", "phone").exits(2).error()["message"]
    assert run_here("mirror", "sql", "SELECT 1").exits(3).error()["hint"] == "crmctl mirror sync makes it"


def test_a_newer_or_damaged_mirror_says_how_it_is_made_anew(mirrored: list[str]) -> None:
    assert mirrored
    path = place()
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE _mirror SET value = '2' WHERE name = 'format'")
    commands = (("status",), ("search", "Ada"), ("changes", "--no-sync"), ("sync",))
    for command in commands:
        error = run_here("mirror", *command).exits(2).error()
        assert (error["code"], "has the format 2" in error["message"]) == ("damaged_file", True), command
        assert "mirror remove" in error["hint"]
    for leftover in path.parent.glob(f"{path.name}-*"):
        leftover.unlink()
    path.write_bytes(b"no database" * 1000)
    for command in commands:
        error = run_here("mirror", *command).exits(2).error()
        assert (error["code"], "mirror remove" in (error["hint"] or "")) == ("damaged_file", True), command
    run_here("mirror", "remove", "--yes").ok()
    run_here("mirror", "sync", "people").ok()


def test_a_state_directory_that_cannot_be_made_is_a_usage_error(crm: RunningService) -> None:
    Path("state").write_text("a file", encoding="utf-8")
    error = run_here("mirror", "sync", env={"CRMCTL_STATE_DIR": str(Path("state").absolute())}).exits(2).error()
    assert ("cannot write to" in error["message"], error["hint"]) == (True, "CRMCTL_STATE_DIR names another directory")
