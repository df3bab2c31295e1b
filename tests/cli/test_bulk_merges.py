"""`bulk dedupe`, `bulk apply` and `bulk inspect --duplicates` through the installed program, from the service and from a mirror."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import expect_exit, spawn
from tests.support.inprocess import run_here
from tests.support.service import RunningService

PEOPLE = [
    {"email": "ada@acme.com", "name": "Ada Lovelace", "phone": "+44 20 7946 0958"},
    {"email": "a.l@acme.com", "name": "Lovelace, Ada", "phone": "+442079460958", "job_title": "Engineer"},
    {"email": "alan@example.org", "name": "Alan Turing"},
]
RULES = ("--match", "name,phone", "--keep", "email=newest")


@pytest.fixture
def people(crm: RunningService) -> list[str]:
    path = f"/api/v1/objects/{crm.object_id('people')}/records"
    return [crm.client.post(path, json={"data": data}).json()["id"] for data in PEOPLE]


def listed() -> list[Any]:
    return run_here("records", "list", "people", "--order", "asc").ok().json()


def test_duplicates_are_found_merged_and_taken_apart(crm: RunningService, people: list[str]) -> None:
    found = run_here("bulk", "dedupe", "people", *RULES, "--plan", "p.jsonl", "--review").ok().json()
    assert (found["groups"], found["duplicates"], found["source"], found["byRule"]) == (1, 1, "service", {"name,phone": 1})
    assert found["review"][0]["survivor"] == people[0]
    assert Path("p.jsonl").stat().st_mode & 0o077 == 0
    asked = run_here("bulk", "apply", "p.jsonl").exits(2).error()
    assert asked["hint"] == "pass --yes"
    assert len(listed()) == 3
    done = run_here("bulk", "apply", "p.jsonl", "--yes").ok().json()
    assert (done["merged"], done["deleted"]) == (1, 1)
    survivor = listed()[0]
    assert survivor["id"] == people[0]
    assert (survivor["data"]["email"], survivor["data"]["job_title"]) == ("a.l@acme.com", "Engineer"), "a unique value moved"
    again = run_here("bulk", "apply", "p.jsonl", "--yes").exits(9).error()
    assert "not as planned any more" in again["message"]
    job = done["job"]
    assert run_here("bulk", "resume", job).ok().json()["merged"] == 1
    undone = run_here("bulk", "undo", job, "--yes").ok().json()
    assert [row["id"] for row in undone["rows"]["recreated"]] == [people[1]]
    data = sorted((one["data"] for one in listed()), key=lambda one: str(one["email"]))
    assert data == sorted(PEOPLE, key=lambda one: str(one["email"]))


def test_a_review_shows_on_a_terminal_why_and_which_value_is_kept(crm: RunningService, people: list[str]) -> None:
    taro = {"name": "山田太郎", "phone": "+81 3 1234 5678", "job_title": "部長 営業本部 " * 12}
    for one in (taro, {**taro, "job_title": "部長"}):
        crm.client.post(f"/api/v1/objects/{crm.object_id('people')}/records", json={"data": one})
    terminal = spawn("bulk", "dedupe", "people", *RULES, "--review", columns=80, rows=24)
    code, printed = expect_exit(terminal)
    assert code == 0
    lines = [line.rstrip() for line in printed.splitlines()]
    ada = next(at for at, line in enumerate(lines) if line.startswith("1 "))
    assert [line.split() for line in lines[ada : ada + 5]] == [
        ["1", "1.00", "why", "name,phone"],
        ["name", "survivor", "*", "Ada", "Lovelace"],
        ["merged", "Lovelace,", "Ada"],
        ["email", "survivor", "ada@acme.com"],
        ["merged", "*", "a.l@acme.com"],
    ]
    assert any(line.endswith(people[1]) for line in lines), "the id of who goes, whole"
    (long,) = [line for line in lines if "survivor  * 部長" in line]
    assert long.endswith("…")
    end = next(at for at, line in enumerate(lines) if "* marks kept values" in line)
    assert max(sum(1 + (unicodedata.east_asian_width(letter) in "WF") for letter in line) for line in lines[ada:end]) <= 80


def test_a_mirror_answers_instead_of_the_service(crm: RunningService, people: list[str]) -> None:
    run_here("mirror", "sync").ok()
    path = f"/api/v1/objects/{crm.object_id('deals')}/records"
    deal = crm.client.post(path, json={"data": {"name": "Big", "contact": people[1]}}).json()["id"]
    found = run_here("bulk", "dedupe", "people", *RULES, "--plan", "p.jsonl").ok().json()
    assert (found["groups"], found["source"]) == (1, "mirror")
    assert run_here("bulk", "apply", "p.jsonl", "--yes").ok().json()["references"] == 1
    assert crm.client.get(f"{path}/{deal}").json()["data"]["contact"] == people[0]


def test_a_contradictory_edited_plan_writes_nothing(crm: RunningService, people: list[str]) -> None:
    run_here("bulk", "dedupe", "people", *RULES, "--plan", "p.jsonl").ok()
    head, line = Path("p.jsonl").read_text().splitlines()
    Path("p.jsonl").write_text(f"{head}\n{line}\n{json.dumps({**json.loads(line), 'group': 2})}\n")
    error = run_here("bulk", "apply", "p.jsonl", "--yes").exits(2).error()
    assert "line 3: record" in error["message"]
    assert len(listed()) == 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "say what makes two records the same"),
        (("--match", "nme"), "no attribute nme"),
        (("--match", "email", "--keep", "x"), "no rule"),
    ],
)
def test_meaningless_rules_are_refused(crm: RunningService, arguments: tuple[str, ...], said: str) -> None:
    assert said in run_here("bulk", "dedupe", "people", *arguments).exits(2).error()["message"]


def test_duplicates_in_a_file_are_found_before_its_import() -> None:
    Path("f.csv").write_text("Email,Name,Phone\na@x.com,Ada Lovelace,020 79460958\nA@X.com,A L,\nb@x.com,Lovelase Ada,+442079460958\n")
    found = run_here("bulk", "inspect", "f.csv", "--duplicates").ok().json()["duplicates"]
    assert (found["match"], found["groups"], found["rows"], found["examples"][0]["lines"]) == (["Email:email"], 1, 1, [2, 3])
    by_name = run_here("bulk", "inspect", "f.csv", "--match", "Name:name~0.9,Phone:phone").ok().json()["duplicates"]
    assert by_name["examples"][0]["lines"] == [2, 4]
    assert "duplicates" not in run_here("bulk", "inspect", "f.csv").ok().json()


def test_a_changed_group_is_skipped_and_the_exit_code_shows_it(crm: RunningService, people: list[str]) -> None:
    path = f"/api/v1/objects/{crm.object_id('people')}/records"
    twice = [crm.client.post(path, json={"data": {"name": "Bob Hill", "phone": "+442079461111"}}).json()["id"] for _ in range(2)]
    run_here("bulk", "dedupe", "people", *RULES, "--plan", "p.jsonl").ok()
    crm.client.patch(f"{path}/{people[1]}", json={"data": {"job_title": "Countess"}})
    done = run_here("bulk", "apply", "p.jsonl", "--yes").exits(10)
    assert (done.json()["merged"], done.json()["refused"]) == (1, 1)
    assert people[1] in done.error()["message"], "named"
    assert "has changed since the plan was made" in done.error()["message"]
    there = {one["id"] for one in listed()}
    assert {*people, twice[0]} <= there
    assert twice[1] not in there
