"""Bulk exports, updates and deletions with local conditions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.test_everyday_questions import add
from tests.support.inprocess import run_here
from tests.support.service import RunningService, running_service


@pytest.fixture
def service(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningService]:
    """Create three companies and twelve people."""
    with running_service(tmp_path_factory.mktemp("bulk")) as running:
        monkeypatch.setenv("CRMCTL_BASE_URL", running.base_url)
        monkeypatch.setenv("CRMCTL_API_KEY", running.key)
        companies = add(running, "companies", [{"name": f"Company {one}", "domain": f"c{one}.com"} for one in range(3)])
        rows = [
            {"email": f"p{one}@acme.com", "address": {"city": ("Rome", "Paris")[one % 2]}, "company": companies[one % 3], "score": one}
            for one in range(12)
        ]
        add(running, "people", rows)
        yield running


def test_an_export_by_local_conditions_with_names_of_references(service: RunningService) -> None:
    arguments = ("bulk", "export", "people", "--filter", "address.city=Rome", "--filter", "company.domain in c0.com,c1.com")
    exported = run_here(*arguments, "--fields", "email,company.name", "-o", "csv").ok()
    assert sorted(exported.out.splitlines()) == sorted(
        ["email,company.name", *(f"p{one}@acme.com,Company {one % 3}" for one in range(0, 12, 2) if one % 3 < 2)]
    )
    lines = run_here(*arguments, "--fields", "email,company.domain,company").ok().lines()
    assert {line["data"]["company"]["domain"] for line in lines} == {"c0.com", "c1.com"}
    wrong = run_here("bulk", "export", "people", "--fields", "company.nmae").exits(2).error()
    assert "company.name" in wrong["hint"]


def test_an_update_and_a_deletion_by_local_conditions(service: RunningService) -> None:
    both = ("--filter", "address.city=Rome", "--filter", "score in 0,2,3,4")
    run_here("bulk", "update", "people", *both, "--set", "job_title=Poet", "--yes").ok()
    poets = run_here("records", "list", "people", "--filter", "job_title=Poet").ok().json()
    assert sorted(one["data"]["score"] for one in poets) == [0, 2, 4]
    run_here("bulk", "delete", "people", *both, "--yes").ok()
    left = run_here("records", "list", "people", "--order", "asc").ok().json()
    assert [one["data"]["score"] for one in left] == [1, 3, 5, 6, 7, 8, 9, 10, 11]
    run_here("bulk", "delete", "people", "--filter", "company.domain=nobody.com", "--yes").ok()
    assert run_here("records", "count", "people").ok().json() == {"count": 9}


@pytest.mark.parametrize(
    "command", [("export",), ("update", "--set", "job_title=Poet", "--yes"), ("delete", "--yes")], ids=lambda command: command[0]
)
def test_an_impossible_condition_is_refused_with_strict(service: RunningService, command: tuple[str, ...]) -> None:
    wrong = ("--filter", "status=nwe")
    assert "status" in run_here("bulk", command[0], "people", *command[1:], *wrong).ok().err, "a warning"
    refused = run_here("bulk", command[0], "people", *command[1:], *wrong, "--strict").exits(2)
    assert refused.out == ""
    assert run_here("records", "count", "people", "--filter", "job_title=Poet").ok().json() == {"count": 0}
    assert run_here("records", "count", "people").ok().json() == {"count": 12}
