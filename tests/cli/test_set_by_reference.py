"""`--set company.domain=acme.com` and `--participant person:email=...` set references by a unique value of the record."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.inprocess import run_here
from tests.support.service import RunningService


@pytest.fixture
def companies(crm: RunningService) -> dict[str, str]:
    """Create two companies; return their ids by domain."""
    domains = ("acme.com", "other.org")
    create = ("records", "create", "companies", "-q", "id")
    return {domain: run_here(*create, "--set", f"name=Company {domain}", "--set", f"domain={domain}").ok().json() for domain in domains}


def made(*options: str) -> Any:
    return run_here("records", "create", "people", "--set", "email=ada@x.org", *options).ok().json()


def test_create_and_update(companies: dict[str, str], crm: RunningService) -> None:
    person = made("--set", "company.domain=acme.com")
    assert person["data"]["company"] == companies["acme.com"]
    crm.log.clear()
    update = ("records", "update", "people", person["id"])
    changed = run_here(*update, "--set", "company.name=Company other.org", "--set", "score=3").ok().json()
    assert (changed["data"]["company"], changed["data"]["score"]) == (companies["other.org"], 3)
    assert len([entry for entry in crm.log if "/records" in str(entry["path"])]) == 2
    cleared = run_here(*update, "--set", "company=").ok().json()
    assert not cleared["data"].get("company")


def test_many_records_and_files(companies: dict[str, str], crm: RunningService) -> None:
    for number in range(3):
        run_here("records", "create", "people", "--set", f"email=p{number}@x.org").ok()
    change = ("bulk", "update", "people", "--filter", "email~x.org", "--set", "company.domain=acme.com", "--yes")
    assert run_here(*change).ok().json()["updated"] == 3
    assert run_here("records", "count", "people", "--filter", f"company={companies['acme.com']}").ok().json() == {"count": 3}
    assert run_here(*change).ok().json()["unchanged"] == 3
    imported = run_here("bulk", "import", "people", "-", "--set", "company.domain=other.org", input="email\nnew@x.org\n").ok().json()
    assert imported["created"] == 1
    assert run_here("records", "count", "people", "--filter", f"company={companies['other.org']}").ok().json() == {"count": 1}


@pytest.mark.parametrize(
    ("assignment", "code", "said"),
    [
        ("company.domain=nobody.com", 3, "no record of companies has domain=nobody.com"),
        ("company.name=Twice", 9, "2 records of companies have name=Twice"),
        ("company.nmae=acme", 2, "nmae"),
        ("company.domain=", 2, "names no record"),
        ("company.domain:=1", 2, "is a reference attribute"),
    ],
)
def test_references_to_no_single_record_are_refused(crm: RunningService, assignment: str, code: int, said: str) -> None:
    for domain in ("one.com", "two.com"):
        run_here("records", "create", "companies", "--set", "name=Twice", "--set", f"domain={domain}").ok()
    crm.log.clear()
    error = run_here("records", "create", "people", "--set", assignment).exits(code).error()
    assert said in error["message"]
    assert not [entry for entry in crm.log if entry["method"] != "GET"]


def test_a_participant(crm: RunningService) -> None:
    person = made()
    activity = run_here("activities", "create", "--title", "Call", "--participant", "person:email=ada@x.org").ok().json()
    assert activity["participants"] == [{"type": "person", "id": person["id"]}]
    wrong = ("activities", "create", "--title", "Call", "--participant")
    assert "no record of people" in run_here(*wrong, "person:email=nobody@x.org").exits(3).error()["message"]
    assert "is no record id" in run_here(*wrong, "person:ada").exits(2).error()["message"]
