"""`--on-missing-ref create` and references between rows of one file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import requests_of
from tests.support.inprocess import run_here
from tests.support.service import RunningService


@pytest.fixture
def staff(crm: RunningService) -> RunningService:
    """Give people a manager attribute."""
    people = crm.object_id("people")
    manager = {"name": "Manager", "type": "reference", "isRequired": False, "isUnique": False, "config": {"allowed_object_id": people}}
    assert crm.client.post(f"/api/v1/objects/{people}/attributes", json=manager).status_code == 201
    crm.log.clear()
    return crm


def load(text: str, *options: str, code: int = 0) -> Any:
    Path("people.csv").write_text(text, encoding="utf-8")
    return run_here("bulk", "import", "people", "people.csv", *options).exits(code).json()


def by_email(slug: str) -> dict[str, Any]:
    """Return the values of one attribute by person, with references replaced by the identifying values of their records."""
    names = {record["id"]: record["data"].get("name") for record in run_here("records", "list", "companies").ok().json()}
    people = run_here("records", "list", "people", "--all").ok().json()
    names |= {record["id"]: record["data"].get("email") for record in people}
    return {record["data"].get("email"): names.get(record["data"].get(slug)) for record in people}


def companies() -> list[str]:
    return sorted(record["data"]["name"] for record in run_here("records", "list", "companies", "--all").ok().json())


PEOPLE = "Email,Company\na@x.com,Acme\nb@x.com,Umbrella\nc@x.com, Acme \nd@x.com,\n"
CREATE = ("--ref", "company=companies.name", "--on-missing-ref", "create")


@pytest.mark.parametrize("options", [(), ("--key", "email")])
def test_missing_parents_are_created_first_and_once(crm: RunningService, options: tuple[str, ...]) -> None:
    run_here("records", "create", "companies", "--set", "name=Umbrella").ok()
    before = crm.outbox()
    predicted = load(PEOPLE, *CREATE, *options, "--dry-run")
    assert predicted["parents"] == [{"object": "companies", "key": "name", "create": 1}]
    assert crm.outbox() == before
    done = load(PEOPLE, *CREATE, *options)
    assert (done["created"], done["rows"]) == (4, 4)
    assert done["requests"] <= predicted["requests"] <= done["requests"] + 4, "the schema is cached by then"
    assert by_email("company") == {"a@x.com": "Acme", "b@x.com": "Umbrella", "c@x.com": "Acme", "d@x.com": None}
    assert companies() == ["Acme", "Umbrella"]
    again = load(PEOPLE, *CREATE, "--key", "email")
    assert (again["unchanged"], again["created"]) == (4, 0)


def test_no_parent_is_created_for_rows_that_stop_everything(crm: RunningService) -> None:
    load(PEOPLE + "nobody,New\n", *CREATE, code=9)
    load(PEOPLE, *CREATE, "--expect", "3", code=9)
    assert companies() == []
    done = load(PEOPLE + "nobody,New\n", *CREATE, "--on-error", "continue", code=10)
    assert (done["created"], done["rejected"]) == (4, 1)
    assert companies() == ["Acme", "Umbrella"]


def test_a_parent_that_needs_more_is_refused_before_anything_is_sent(crm: RunningService) -> None:
    place = f"/api/v1/objects/{crm.object_id('companies')}/attributes"
    made = crm.client.post(place, json={"name": "Country", "type": "text", "isRequired": True, "isUnique": False})
    assert made.status_code == 201
    Path("people.csv").write_text(PEOPLE, encoding="utf-8")
    crm.log.clear()
    for more in ((), ("--dry-run",)):
        refused = run_here("bulk", "import", "people", "people.csv", *CREATE, *more).exits(9).error()
        assert (refused["code"], "country" in refused["message"]) == ("incomplete_parent", True)
    assert {method for method, _ in requests_of(crm)} == {"GET"}


def test_parents_are_part_of_a_plan(crm: RunningService) -> None:
    load(PEOPLE, *CREATE, "--key", "email", "--plan", "people.plan")
    assert "2 records of companies, by name" in run_here("bulk", "apply", "people.plan", "--dry-run", "-o", "table").ok().out
    run_here("records", "create", "companies", "--set", "name=Acme").ok()
    assert run_here("bulk", "apply", "people.plan").exits(9).error()["code"] == "plan_outdated"
    assert companies() == ["Acme"]


CIRCLE = "Email,Manager\na@x.com,b@x.com\nb@x.com,c@x.com\nc@x.com,a@x.com\nboss@x.com,\nd@x.com,BOSS@x.com\n"
MANAGERS = {"a@x.com": "b@x.com", "b@x.com": "c@x.com", "c@x.com": "a@x.com", "boss@x.com": None, "d@x.com": "boss@x.com"}
SELF = ("--ref", "manager=people.email")


@pytest.mark.parametrize("options", [(), ("--key", "email")])
def test_rows_refer_to_rows_of_the_same_file(staff: RunningService, options: tuple[str, ...]) -> None:
    predicted = load(CIRCLE, *SELF, *options, "--dry-run")
    done = load(CIRCLE, *SELF, *options)
    assert (done["created"], done["updated"], done["rows"]) == (5, 0, 5)
    assert done["requests"] <= predicted["requests"] <= done["requests"] + 4, "the schema is cached by then"
    assert by_email("manager") == MANAGERS
    assert sum(method == "POST" for method, path in requests_of(staff) if path.endswith("bulk")) == 2
    again = load(CIRCLE, *SELF, "--key", "email")
    assert (again["unchanged"], again["updated"]) == (5, 0)


def test_an_existing_person_gets_a_new_manager(staff: RunningService) -> None:
    load("Email\na@x.com\nold@x.com\n")
    rows = "Email,Manager\na@x.com,new@x.com\nnew@x.com,old@x.com\n"
    assert load(rows, *SELF, "--key", "email", "--dry-run")["predicted"]["update"] == 1
    done = load(rows, *SELF, "--key", "email")
    assert (done["created"], done["updated"], done["unchanged"]) == (1, 1, 0)
    assert by_email("manager") == {"a@x.com": "new@x.com", "new@x.com": "old@x.com", "old@x.com": None}


def test_a_reference_missing_in_file_and_service_follows_the_rule(staff: RunningService) -> None:
    rows = CIRCLE + "e@x.com,ghost@x.com\n"
    refused = run_here("bulk", "import", "people", "people.csv", *SELF) if load(rows, *SELF, code=9) else None
    assert refused is not None
    assert [found["code"] for found in refused.exits(9).error()["details"]["findings"]] == ["missing_reference"]
    assert load(rows, *SELF, "--on-missing-ref", "null")["created"] == 6
    assert by_email("manager") == MANAGERS | {"e@x.com": None}
    more = "Email,Manager\nf@x.com,boss2@x.com\ng@x.com,f@x.com\n"
    assert load(more, *SELF, "--on-missing-ref", "create")["created"] == 2
    found = by_email("manager")
    assert (found["f@x.com"], found["g@x.com"], found["boss2@x.com"]) == ("boss2@x.com", "f@x.com", None)


def test_an_ambiguous_reference_is_an_error(staff: RunningService) -> None:
    load("Email\na@x.com\n")
    staff.log.clear()
    Path("people.csv").write_text("Email,Manager\nz@x.com,a@x.com\na@x.com,\n", encoding="utf-8")
    refused = run_here("bulk", "import", "people", "people.csv", *SELF).exits(9).error()
    assert [found["code"] for found in refused["details"]["findings"]] == ["ambiguous_reference"]
    assert {method for method, _ in requests_of(staff)} == {"GET"}


def test_a_row_that_cannot_be_linked_is_named_with_its_record(staff: RunningService) -> None:
    rows = "Email,Manager,Birthday\na@x.com,b@x.com,\nb@x.com,,yesterday\nc@x.com,a@x.com,\n"
    done = load(rows, *SELF, "--on-error", "continue", "--on-missing-ref", "null", code=10)
    assert (done["created"], done["rejected"], done["failed"]) == (2, 1, 0)
    assert by_email("manager") == {"a@x.com": None, "c@x.com": "a@x.com"}


def test_links_to_what_the_service_refused(staff: RunningService) -> None:
    load("Email,Phone\ntaken@x.com,\n")
    run_here("records", "create", "companies", "--set", "name=Gone").ok()
    rows = "Email,Manager,Company\na@x.com,b@x.com,\nb@x.com,a@x.com,00000000-0000-4000-8000-000000000001\nc@x.com,a@x.com,\n"
    done = load(rows, *SELF, code=10)
    assert (done["created"], done["failed"], done["rows"]) == (1, 2, 3)
    failed = Path(done["files"]["failed"]).read_text(encoding="utf-8")
    people = {record["data"]["email"]: record for record in run_here("records", "list", "people").ok().json()}
    assert f"record {people['a@x.com']['id']} was written, but not linked: manager: row 2 of the file" in failed
    assert people["c@x.com"]["data"]["manager"] == people["a@x.com"]["id"]
    assert sorted(people) == ["a@x.com", "c@x.com", "taken@x.com"]
