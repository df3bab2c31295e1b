"""`crmctl activities` with crmctl's service and with services that answer in other permitted shapes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cli.conftest import requests_of
from tests.support.cli import run_crmctl
from tests.support.httpserver import Reply, ScriptedServer
from tests.support.inprocess import run_here
from tests.support.service import RunningService

NIL = "00000000-0000-0000-0000-000000000000"
HERE = {"TZ": "Europe/Berlin"}


def scripted(server: ScriptedServer) -> dict[str, str]:
    return {"CRMCTL_BASE_URL": server.origin, "CRMCTL_API_KEY": "key"}


def create(*options: str) -> dict[str, Any]:
    return run_crmctl("activities", "create", *options, env=HERE).ok().json()


def test_create_get_update_delete(people: list[str], crm: RunningService) -> None:
    member = crm.client.get("/api/v1/members").json()["members"][0]["user"]
    made = create(
        "--title", "Call", "--summary", "Said yes", "--date", "2026-05-01 14:00", "--link", f"people:{people[0]}",
        "--link", f"{crm.object_id('people')}:{people[1]}", "--participant", f"user:{member['email'].upper()}",
        "--participant", f"person:{people[2]}",
    )  # fmt: skip
    assert made["activityDate"].startswith("2026-05-01T12:00:00")
    assert [link["recordId"] for link in made["linkedRecords"]] == people[:2]
    assert {link["objectId"] for link in made["linkedRecords"]} == {crm.object_id("people")}
    assert made["participants"] == [{"type": "user", "id": member["id"]}, {"type": "person", "id": people[2]}]
    assert run_here("activities", "get", made["id"]).ok().json() == made
    changed = run_here("activities", "update", made["id"], "--title", "Second call").ok().json()
    assert changed["title"] == "Second call"
    untouched = ("summary", "activityDate", "linkedRecords", "participants", "createdBy", "createdAt")
    assert {name: changed[name] for name in untouched} == {name: made[name] for name in untouched}
    relinked = run_here("activities", "update", made["id"], "--link", f"people:{people[5]}").ok().json()
    assert [link["recordId"] for link in relinked["linkedRecords"]] == [people[5]]
    emptied = run_here("activities", "update", made["id"], "--data", '{"linkedRecords": [], "participants": []}').ok().json()
    assert (emptied["linkedRecords"], emptied["participants"]) == ([], [])
    assert run_here("activities", "delete", made["id"], "--yes").ok().json() == {"deleted": 1}
    assert run_here("activities", "get", made["id"]).exits(3).error()["code"] == "not_found"


def test_a_link_names_a_record_by_a_value_that_only_it_has(people: list[str], crm: RunningService) -> None:
    email = run_here("records", "get", "people", people[3], "-q", "data.email", "-r").ok().out.strip()
    made = create("--title", "Call", "--link", f"people:email={email}")
    assert [link["recordId"] for link in made["linkedRecords"]] == [people[3]]
    refused = run_here("activities", "create", "--title", "Call", "--link", "people:email=nobody@acme.com").exits(3).error()
    assert "no record of people has email=nobody@acme.com" in refused["message"]


def test_options_win_over_data_and_the_date_is_now_unless_given(crm: RunningService) -> None:
    made = create("--data", '{"title": "Old", "summary": "kept"}', "--title", "New")
    assert (made["title"], made["summary"]) == ("New", "kept")
    assert abs(crm.clock.now() - _seconds(made["activityDate"])) < 60
    assert create("--data", '{"title": "A", "activityDate": "2020-01-02T03:04:05Z"}')["activityDate"].startswith("2020-01-02T03:04:05")
    assert abs(crm.clock.now() - 7200 - _seconds(create("--title", "B", "--date", "-2h")["activityDate"])) < 60


def _seconds(text: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(text).timestamp()


def test_lists_are_filtered_by_record_and_object_and_paged(people: list[str], crm: RunningService) -> None:
    body = {"title": "x", "linkedRecords": [{"objectId": crm.object_id("people"), "recordId": people[0]}]}
    for number in range(103):
        posted = crm.client.post("/api/v1/activities", json={**body, "title": f"number {number}"} if number else {"title": "alone"})
        assert posted.status_code == 201
    crm.log.clear()
    assert len(run_here("activities", "list", "--all", "-o", "ids").ok().out.split()) == 103
    assert [method for method, _ in requests_of(crm)] == ["GET", "GET"]
    first = run_here("activities", "list").ok()
    assert len(first.json()) == 50
    assert "may be more" in first.err
    assert len(run_here("activities", "list", "--object", "people", "--all").ok().json()) == 102
    assert run_here("activities", "list", "--object", "deals").ok().json() == []
    linked = run_here("activities", "list", "--record", people[0], "--all", "-o", "csv").ok().out.splitlines()
    assert "is no id" in run_here("activities", "list", "--record", f"people:{people[0]}").exits(2).error()["message"]
    assert linked[0] == "id,title,summary,activityDate,linkedRecords,participants,createdBy,createdAt,updatedAt"
    assert len(linked) == 103
    assert len(run_here("activities", "list", "--offset", "100", "--limit", "10").ok().json()) == 3


def test_pages_go_on_until_a_short_one_where_nothing_says_how_many_there_are() -> None:
    def items(start: int, count: int) -> list[dict[str, Any]]:
        return [{"id": f"a{number}", "title": "t", "extra": 1} for number in range(start, start + count)]

    with ScriptedServer(
        Reply(json={"activities": items(0, 100)}), Reply(json=items(100, 100)), Reply(json={"data": items(200, 30)})
    ) as server:
        listed = run_here("activities", "list", "--all", env=scripted(server)).ok()
    assert listed.json() == items(0, 230)
    assert [dict(request.query) for request in server.requests] == [{"limit": "100", "offset": str(offset)} for offset in (0, 100, 200)]


@pytest.mark.parametrize("wrap", [lambda body: body, lambda body: {"activity": body}, lambda body: {"data": {"activity": body}}])
def test_any_legal_shape_of_one_activity(wrap: Any) -> None:
    activity = {"id": NIL, "title": "Call", "mood": "good"}
    with ScriptedServer(Reply(201, json=wrap(activity), expect="POST /api/v1/activities")) as server:
        made = run_here("activities", "create", "--title", "Call", env=scripted(server)).ok()
    assert made.json() == activity
    assert server.requests[0].json["title"] == "Call"
    assert set(server.requests[0].json) == {"title", "activityDate"}


def test_an_update_with_an_empty_answer_reads_the_activity_and_a_delete_may_be_empty() -> None:
    with ScriptedServer(
        Reply(204, expect=f"PATCH /api/v1/activities/{NIL}"), Reply(json={"id": NIL}), Reply(204, expect=f"DELETE /api/v1/activities/{NIL}")
    ) as server:
        assert run_here("activities", "update", NIL, "--summary", "", env=scripted(server)).ok().json() == {"id": NIL}
        run_here("activities", "delete", NIL, "-y", env=scripted(server)).ok()
    assert server.requests[0].json == {"summary": ""}


def test_a_link_to_an_object_made_anew_is_found_again(crm: RunningService) -> None:
    def make() -> tuple[str, str]:
        body = {"slug": "boats", "singularName": "Boat", "pluralName": "Boats", "description": ""}
        made = str(crm.client.post("/api/v1/objects", json=body).json()["id"])
        return made, str(crm.client.post(f"/api/v1/objects/{made}/records", json={"data": {}}).json()["id"])

    first, record = make()
    create("--title", "A", "--link", f"boats:{record}")
    crm.client.delete(f"/api/v1/objects/{first}")
    second, record = make()
    assert create("--title", "B", "--link", f"boats:{record}")["linkedRecords"] == [{"objectId": second, "recordId": record}]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["create"], 2, "--title"),
        (["update", NIL], 2, "--title"),
        (["update", NIL, "--title", "x"], 3, "not_found"),
        (["create", "--title", "x", "--date", "05/06/2026"], 2, "two ways"),
        (["create", "--title", "x", "--date", "soon"], 2, "yesterday"),
        (["create", "--title", "x", "--link", "people"], 2, "OBJECT:ID"),
        (["create", "--title", "x", "--link", f"peeple:{NIL}"], 3, "did you mean people"),
        (["create", "--title", "x", "--participant", "ada@acme.com"], 2, "user:EMAIL"),
        (["create", "--title", "x", "--participant", "user:ada"], 2, "neither"),
        (["create", "--title", "x", "--participant", "person:ada@acme.com"], 2, "email=ada@acme.com"),
        (["create", "--title", "x", "--participant", "user:nobody@nowhere.example"], 3, "no member"),
        (["create", "--title", "x", "--fields", "nope"], 2, "valid fields"),
        (["create", "--data", "[]"], 2, "JSON object"),
        (["list", "--limit", "1", "--all"], 2, "exclude"),
        (["list", "--object", "peeple"], 3, "did you mean people"),
        (["delete", NIL], 2, "--yes"),
        (["delete", NIL, "--yes"], 3, "not_found"),
    ],
)
def test_refusals(crm: RunningService, arguments: list[str], code: int, said: str) -> None:
    refused = run_here("activities", *arguments).exits(code)
    assert refused.out == ""
    assert said in json.dumps(refused.error())
    assert [method for method, _ in requests_of(crm) if method == "POST"] == []


def test_a_dry_run_shows_what_would_be_sent(people: list[str], crm: RunningService) -> None:
    shown = run_here("activities", "update", NIL, "--link", f"people:{people[0]}", "--date", "2026-05-01T00:00Z", "--dry-run").ok().json()
    assert (shown["method"], shown["path"]) == ("PATCH", f"/api/v1/activities/{NIL}")
    assert shown["body"] == {
        "activityDate": "2026-05-01T00:00:00Z",
        "linkedRecords": [{"objectId": crm.object_id("people"), "recordId": people[0]}],
    }
    assert {method for method, _ in requests_of(crm)} == {"GET"}
