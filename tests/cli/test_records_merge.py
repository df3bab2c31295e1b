"""`crmctl records merge`: two records become one, with their links, and `bulk undo` separates them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.cli import expect_exit, spawn
from tests.support.inprocess import run_here
from tests.support.plainservice import PlainService, Refused
from tests.support.service import RunningService

FIRST, SECOND = "domain=acme.com", "domain=acme.org"


@pytest.fixture
def companies(crm: RunningService) -> list[str]:
    """Create two companies; a person and an activity belong to the second. Return the companies' ids."""
    rows = (
        ("name=Acme", "domain=acme.com", "tags=a;b", "employees=5"),
        ("name=Acme Inc", "domain=acme.org", "tags=b;c", "industry=retail"),
    )
    ids = [make("companies", *row) for row in rows]
    make("people", "email=ada@acme.com", f"company={ids[1]}")
    run_here("activities", "create", "--title", "Call", "--link", f"companies:{ids[1]}").ok()
    return ids


def make(slug: str, *values: str) -> str:
    options = [word for value in values for word in ("--set", value)]
    return str(run_here("records", "create", slug, *options, "-q", "id").ok().json())


def read(slug: str) -> dict[str, Any]:
    return {record["id"]: record["data"] for record in run_here("records", "list", slug).ok().json()}


def merge(*options: str) -> Any:
    return run_here("records", "merge", "companies", FIRST, SECOND, *options)


def test_the_older_record_fills_its_blanks_and_undo_separates_them(companies: list[str], crm: RunningService) -> None:
    before = read("companies")
    done = merge("--yes").ok().json()
    assert (done["merged"], done["deleted"], done["references"], done["activities"]) == (1, 1, 1, 1)
    merged = {"name": "Acme", "domain": "acme.com", "tags": ["a", "b", "c"], "employees": 5, "industry": "retail"}
    assert read("companies") == {companies[0]: merged}
    assert [person["company"] for person in read("people").values()] == [companies[0]]
    assert len(run_here("activities", "list", "--record", companies[0]).ok().json()) == 1
    undone = run_here("bulk", "undo", done["job"], "--yes").ok().json()
    assert (undone["undone"], undone["recreated"]) == (1, 1)
    assert sorted(data["name"] for data in read("companies").values()) == ["Acme", "Acme Inc"]
    assert read("companies")[companies[0]] == before[companies[0]]
    assert "nothing left to undo; 1 undone before" in run_here("bulk", "undo", done["job"], "--yes", "-o", "table").ok().out


def test_keep_and_set_decide(companies: list[str]) -> None:
    done = merge("--keep", companies[1], "--set", "name=Acme Group", "--set", "employees=7", "--yes").ok().json()
    assert done["merged"] == 1
    assert {name: read("companies")[companies[1]][name] for name in ("name", "domain", "employees")} == {
        "name": "Acme Group", "domain": "acme.org", "employees": 7,
    }  # fmt: skip


def test_a_dry_run_shows_both_records_and_changes_nothing(companies: list[str]) -> None:
    before = read("companies")
    shown = merge("--dry-run", "-o", "table").ok().out
    assert [text for text in ("KEPT", "Acme Inc", "retail", "a, b, c", "nothing was sent") if text not in shown] == []
    assert merge("--dry-run").ok().json()["duplicates"] == 1
    assert read("companies") == before


def test_the_question_names_both_and_no_changes_nothing(companies: list[str]) -> None:
    terminal = spawn("records", "merge", "companies", FIRST, SECOND)
    terminal.expect_exact("Merge Acme Inc (acme.org) into Acme (acme.com)")
    terminal.sendline("n")
    assert expect_exit(terminal)[0] == 130
    assert len(read("companies")) == 2


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (("companies", FIRST, "name=Acme"), 2, "are the same record"),
        (("companies", FIRST, SECOND, "--keep", "domain=other.com"), 3, "no record of companies"),
        (("companies", FIRST, SECOND), 2, "--yes"),
        (("companies", FIRST, "domain=nobody.com"), 3, "no record of companies"),
        (("companies", FIRST, SECOND, "--set", "nope=1"), 2, "there is no attribute nope"),
    ],
)
def test_refusals(companies: list[str], options: tuple[str, ...], code: int, said: str) -> None:
    assert said in run_here("records", "merge", *options).exits(code).err
    assert len(read("companies")) == 2


class ListingService(PlainService):
    """Shows a single reference as a list of one, and takes it only as an id."""

    def _work(self, method: str, path: list[str], query: Any, body: Any) -> Any:
        shown = json.loads(json.dumps(super()._work(method, path, query, body)))
        for record in shown.get("records", [shown]):
            if isinstance(company := record.get("data", {}).get("company"), str):
                record["data"]["company"] = [company]
        return shown

    def _check(self, object_id: str, data: dict[str, Any], own_id: str | None) -> None:
        if isinstance(data.get("company"), list):
            raise Refused("company takes one id")
        super()._check(object_id, data, own_id)


def test_references_shown_as_lists_of_one_are_moved_and_moved_back() -> None:
    with ListingService() as service:
        companies, people = service.object_id("companies"), service.object_id("people")
        first, second = (service._create(companies, {"name": name})["id"] for name in ("Acme", "Acme Inc"))
        person = service._create(people, {"email": "ada@acme.com", "company": second})["id"]
        done = run_here("records", "merge", "companies", first, second, "--yes", env=service.env).ok().json()
        assert service.records[people][person]["data"]["company"] == first
        undone = run_here("bulk", "undo", done["job"], "--yes", env=service.env).ok().json()
        [recreated] = [company for company in service.records[companies] if company != first]
        assert (undone["references"], service.records[people][person]["data"]["company"]) == (1, recreated)
