"""`crmctl bulk import --ref`: references by the values that identify a record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import requests_of
from tests.support.inprocess import run_here
from tests.support.service import RunningService

HEADER = "Email,Company\n"


@pytest.fixture
def companies(crm: RunningService) -> dict[str, str]:
    """Create Acme and Umbrella, and two companies named Twin."""
    for name in ("Acme", "Umbrella", "Twin", "Twin"):
        run_here("records", "create", "companies", "--set", f"name={name}").ok()
    listed = run_here("records", "list", "companies").ok().json()
    return {record["data"]["name"]: record["id"] for record in listed}


def load(text: str, *options: str) -> Any:
    Path("people.csv").write_text(HEADER + text, encoding="utf-8")
    return run_here("bulk", "import", "people", "people.csv", "--ref", "company=companies.name", *options)


def company_of(email: str) -> Any:
    (record,) = run_here("records", "list", "people", "--filter", f"email={email}").ok().json()
    return record["data"].get("company")


def test_many_unknown_names_share_one_line(crm: RunningService, companies: dict[str, str]) -> None:
    rows = "".join(f"p{number}@acme.com,Nobody {number}\n" for number in range(1000))
    refused = load(rows, "-o", "table").exits(9)
    [line] = [line for line in refused.err.splitlines() if line.startswith("warning: ")]
    assert "column company: no record has this companies.name (1,000 rows, the first on line 2: 'Nobody 0', 'Nobody 1'" in line
    assert "--on-missing-ref create" in line
    [line] = [
        line
        for line in run_here("bulk", "import", "people", "people.csv", "-o", "table").exits(9).err.splitlines()
        if line.startswith("warning: ")
    ]
    assert "column Company: not a record id (1,000 rows" in line
    assert "--ref" in line


def test_names_become_references(crm: RunningService, companies: dict[str, str]) -> None:
    predicted = load("a@acme.com,Acme\nb@acme.com, Umbrella \nc@acme.com,Acme\n", "--dry-run").ok().json()
    done = load("a@acme.com,Acme\nb@acme.com, Umbrella \nc@acme.com,Acme\n").ok().json()
    assert done["created"] == 3
    assert done["requests"] <= predicted["requests"] <= done["requests"] + 4, "the schema is cached by then"
    assert [company_of(f"{name}@acme.com") for name in "abc"] == [companies["Acme"], companies["Umbrella"], companies["Acme"]]
    again = load("a@acme.com,Acme\nb@acme.com,Acme\nc@acme.com,Acme\n", "--key", "email").ok().json()
    assert (again["updated"], again["unchanged"]) == (1, 2)
    assert company_of("b@acme.com") == companies["Acme"]


def test_unknown_and_ambiguous_references_are_errors(crm: RunningService, companies: dict[str, str]) -> None:
    before = crm.outbox()
    refused = load("a@acme.com,Nobody\nb@acme.com,Twin\nc@acme.com,Acme\n").exits(9)
    found = {(item["line"], item["code"]) for item in refused.error()["details"]["findings"]}
    assert found == {(2, "missing_reference"), (3, "ambiguous_reference")}
    assert crm.outbox() == before
    partly = load("a@acme.com,Nobody\nc@acme.com,Acme\n", "--on-missing-ref", "null").ok().json()
    assert partly["created"] == 2
    assert (company_of("a@acme.com"), company_of("c@acme.com")) == (None, companies["Acme"])


def test_a_column_may_name_the_key_by_itself(crm: RunningService, companies: dict[str, str]) -> None:
    Path("people.csv").write_text("Email,Company.name\na@acme.com,Umbrella\n", encoding="utf-8")
    assert run_here("bulk", "import", "people", "people.csv", "--key", "email").ok().json()["created"] == 1
    assert company_of("a@acme.com") == companies["Umbrella"]
    assert run_here("bulk", "import", "people", "people.csv", "--key", "email").ok().json()["unchanged"] == 1
    assert "unchanged" in run_here("bulk", "resume", "--last", "-o", "table").ok().out


@pytest.mark.parametrize(
    "given", ["company", "company=companies", "email=companies.name", "company=people.email", "company=companies.nope"]
)
def test_an_impossible_reference_is_refused(crm: RunningService, given: str) -> None:
    Path("people.csv").write_text(HEADER + "a@acme.com,Acme\n", encoding="utf-8")
    run_here("bulk", "import", "people", "people.csv", "--ref", given).exits(2)
    assert {method for method, _ in requests_of(crm)} <= {"GET"}


def test_reasons_are_given_only_for_looked_up_references(crm: RunningService, companies: dict[str, str]) -> None:
    rows = (
        "nope,Acme\nnope,Nobody\nb@acme.com,Nobody2\nc@acme.com,Acme\n"  # crmctl does not look up Nobody, because the row is invalid anyway
    )
    for options in ((), ("--on-error", "continue"), ("--dry-run",)):
        refused = load(rows, "--failed", "wrong.csv", *options)
        found = [(item["line"], item["code"]) for item in refused.error()["details"].get("findings", [])]
        if options != ("--on-error", "continue"):
            assert found == [(2, "invalid_email"), (3, "invalid_email"), (4, "missing_reference")]
    reasons = Path("wrong.csv").read_text(encoding="utf-8").splitlines()[1:]
    assert [("no record has" in reason, "not an email" in reason) for reason in reasons] == [(False, True), (False, True), (True, False)]
