"""Completion of references and dates, once the attributes have been listed."""

from __future__ import annotations

from pathlib import Path

from crmctl.cli.complete_values import UNITS
from crmctl.client.query import groups
from tests.support.cli import run_crmctl
from tests.support.service import RunningService


def offered(*words: str) -> list[str]:
    return run_crmctl("__complete", *words).ok().out.splitlines()[1:]


def test_attributes_of_references_and_units_of_dates(crm: RunningService) -> None:
    assert offered("records", "list", "companies", "--sort", "") == []
    for name in ("people", "companies"):
        run_crmctl("attributes", "list", name).ok()
    assert offered("records", "list", "companies", "--sort", "upd") == ["updated_at"], "attributes list fills the cache"
    assert offered("records", "list", "people", "--sort", "company.dom") == ["company.domain"]
    assert offered("records", "list", "people", "--filter", "company.dom") == ["company.domain="]
    assert offered("records", "list", "people", "--fields", "email,company.dom") == ["email,company.domain"]
    assert offered("records", "update", "people", "x", "--set", "company.dom") == ["company.domain="]
    assert offered("records", "count", "people", "--by", "company.ind") == ["company.industry"]
    assert offered("records", "count", "people", "--by", "created_at:") == [f"created_at:{unit}" for unit in UNITS]
    assert offered("records", "count", "companies", "--sum", "") == ["employees", "annual_revenue"]
    assert offered("records", "count", "people", "--by", "address.ci") == ["address.city"]
    assert offered("bulk", "import", "people", "x.csv", "--ref", "company=companies.") == ["company=companies.domain"]


def test_undo_completes_jobs_with_something_to_undo(crm: RunningService) -> None:
    for email in ("ada@acme.com", "bob@acme.com"):
        Path("a.csv").write_text(f"email\n{email}\n", encoding="utf-8")
        created = run_crmctl("bulk", "import", "people", "a.csv").ok().json()["job"]
    kept = run_crmctl("bulk", "delete", "people", "--filter", "email=ada@acme.com", "--yes").ok().json()["job"]
    run_crmctl("bulk", "delete", "people", "--filter", "email=bob@acme.com", "--no-backup", "--yes").ok()
    run_crmctl("bulk", "update", "people", "--filter", "email=bob@acme.com", "--set", "score=1", "--yes").ok()
    assert {created, kept} <= {*offered("bulk", "undo", "")}
    assert len(offered("bulk", "undo", "")) == 3
    assert offered("bulk", "resume", "") == []
    run_crmctl("bulk", "undo", kept, "--yes").ok()
    assert kept not in offered("bulk", "undo", "")
    assert kept in offered("bulk", "jobs", "")


def test_the_units_are_those_of_a_count() -> None:
    assert tuple(groups.UNITS) == UNITS
