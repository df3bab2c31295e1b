"""Expensive queries: crmctl answers from the mirror and says as of when, or asks the service if the user agrees."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from crmctl.cli import record_lists, record_queries
from tests.cli.test_everyday_questions import add, person
from tests.support.cli import Result, run_crmctl
from tests.support.inprocess import run_here
from tests.support.service import RunningService, running_service

PEOPLE = 420
FROM_THE_MIRROR = "warning: people from the mirror, as of "
BY_CITY = ("records", "count", "people", "--by", "address.city", "-o", "json")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with running_service(tmp_path_factory.mktemp("mirrored")) as running:
        companies = add(running, "companies", [{"name": f"Company {one}", "domain": f"c{one}.com"} for one in range(PEOPLE)])
        add(running, "people", [person(number, companies) | {"company": companies[number % 300]} for number in range(PEOPLE)])
        amounts = [{"amount": one / 8, "currency": ("EUR", "USD")[one % 2]} for one in range(220)]
        add(running, "deals", [{"name": f"Deal {one}", "amount": amount} for one, amount in enumerate(amounts)])
        yield running


@pytest.fixture(autouse=True)
def _environment(service: RunningService, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make crmctl ask for consent to every extra request."""
    monkeypatch.setenv("CRMCTL_BASE_URL", service.base_url)
    monkeypatch.setenv("CRMCTL_API_KEY", service.key)
    monkeypatch.setattr(record_queries, "MOST_REQUESTS", 0)
    monkeypatch.setattr(record_lists, "MOST_FOR_NAMES", 1)


@pytest.fixture(scope="module")
def synced(service: RunningService, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a mirror of everything, to be copied."""
    state = tmp_path_factory.mktemp("state")
    env = {"CRMCTL_BASE_URL": service.base_url, "CRMCTL_API_KEY": service.key, "CRMCTL_STATE_DIR": str(state)}
    run_here("mirror", "sync", "people", "companies", "deals", env=env).ok()
    return state


@pytest.fixture
def mirror(synced: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the mirror file of this test."""
    shutil.copytree(synced, tmp_path / "state")
    monkeypatch.setenv("CRMCTL_STATE_DIR", str(tmp_path / "state"))
    [place] = (tmp_path / "state" / "mirror").glob("*.sqlite")
    return place


def read(service: RunningService) -> int:
    """Count the requests about records."""
    return sum("/records" in str(entry["path"]) for entry in service.log)


QUESTIONS = [
    ("count", "people", "--by", "address.city"),
    ("count", "people", "--by", "company"),
    ("count", "people", "--by", "status", "--sum", "score", "--avg", "score"),
    ("count", "deals", "--sum", "amount", "--avg", "amount"),
    ("count", "people", "--filter", "address.city!=Rome", "--filter", "score>=100"),
    ("count", "people", "--filter", "address.street~Via", "--filter", "created_at>-1d"),
    ("list", "people", "--sort", "score", "--order", "desc", "--limit", "7"),
    ("list", "people", "--filter", "address.city!=Rome", "--sort", "email", "--limit", "300"),
    ("list", "people", "--filter", "company.domain!=c3.com", "--sort", "email", "--limit", "9"),
    ("search", "people", "via", "--sort", "email", "--limit", "400"),
    ("search", "people", "Via", "--filter", "status in new,contacted", "--sort", "email"),
]


@pytest.mark.parametrize("arguments", QUESTIONS, ids=" ".join)
@pytest.mark.usefixtures("mirror")
def test_on_unchanged_data_the_mirror_answers_as_the_service_does(service: RunningService, arguments: tuple[str, ...]) -> None:
    service.log.clear()
    copied = run_here("records", *arguments, "-o", "json").ok()
    few = read(service)
    service.log.clear()
    asked = run_here("records", *arguments, "-o", "json", "--yes").ok()
    assert copied.json() == asked.json()
    assert (f"warning: {arguments[1]} from the mirror, as of " in copied.err, "from the mirror" in asked.err) == (True, False)
    assert few < read(service)


@pytest.mark.usefixtures("mirror")
def test_a_sample_from_the_mirror_is_that_of_the_service() -> None:
    def sampled(*more: str) -> Result:
        return run_here("records", "list", "people", "--filter", "address.city!=Rome", "--sample", "30", "--seed", "7", "-o", "ids", *more)

    copied, asked = sampled().ok(), sampled("--yes").ok()
    assert (len(copied.out.split()), copied.out) == (30, asked.out)
    assert (FROM_THE_MIRROR in copied.err, FROM_THE_MIRROR in asked.err) == (True, False)


@pytest.mark.usefixtures("mirror")
def test_an_agreed_answer_includes_later_changes(service: RunningService) -> None:
    path = f"/api/v1/objects/{service.object_id('people')}/records"
    [found] = service.client.get(path, params={"filter[email][equals]": "p9@acme.com"}).json()["records"]
    service.client.patch(f"{path}/{found['id']}", json={"data": {"notes": "zebra"}}).raise_for_status()
    try:
        count = ("records", "count", "people", "--by", "notes", "-o", "json")
        before = run_here(*count).ok()
        assert before.json() == [{"notes": None, "count": PEOPLE}]
        assert before.err.endswith("; --yes reads the service (4 requests)\n")
        assert run_here(*count, "--quiet").ok().err.startswith(FROM_THE_MIRROR), "never in silence"
        assert {"notes": "zebra", "count": 1} in run_here(*count, "--yes").ok().json()
        everything = ("records", "list", "people", "--filter", "notes=zebra", "--sort", "score", "--all", "-o", "json")
        assert len(run_here(*everything).ok().json()) == 1, "--all agrees to what it takes"
    finally:
        service.client.patch(f"{path}/{found['id']}", json={"data": {"notes": None}})


def refuse() -> None:
    assert run_here(*BY_CITY).exits(2).error()["code"] == "confirmation_required"


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE _mirror SET value = '0' WHERE name = 'format'",
        "UPDATE _sync SET _state = json_set(_state, '$.proven', json('false'))",
        "UPDATE _sync SET _state = json_set(_state, '$.syncs', 0)",
        """UPDATE _sync SET _state = json_set(_state, '$.excluded', json('["phone"]'))""",
        "UPDATE _sync SET _state = json_set(_state, '$.fingerprint', json('{}'))",
        "DELETE FROM _sync WHERE slug = 'people'",
    ],
    ids=["format", "unproven", "incomplete", "excluded", "an attribute came", "another object"],
)
def test_a_mirror_without_a_proof_does_not_answer(mirror: Path, statement: str) -> None:
    assert FROM_THE_MIRROR in run_here(*BY_CITY).ok().err
    with closing(sqlite3.connect(mirror)) as db, db:
        db.execute(statement)
    refuse()


def test_an_unreadable_mirror_does_not_answer(mirror: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crmctl.cli.record_queries.LOCKED_SECONDS", 0.01)
    with closing(sqlite3.connect(mirror, isolation_level=None)) as other:
        other.execute("PRAGMA journal_mode = DELETE")
        other.execute("BEGIN EXCLUSIVE")
        refuse()
    assert FROM_THE_MIRROR in run_here(*BY_CITY).ok().err
    mirror.write_bytes(b"no database")
    refuse()
    mirror.unlink()
    refuse()


@pytest.mark.usefixtures("mirror")
def test_expensive_names_come_from_the_mirror(service: RunningService) -> None:
    table = ("records", "list", "people", "-o", "table", "--limit", "30", "--fields", "email,company", "--order", "asc")
    service.log.clear()
    listed = run_here(*table).ok()
    assert ("Company 7" in listed.out, "company: names as of " in listed.err) == (True, True)
    assert read(service) == 2
    assert "Company 7" not in run_here(*table, "--quiet").ok().out, "who is told nothing gets nothing of yesterday"
    asked = ("records", "list", "people", "--limit", "30", "--fields", "email,company.name", "--order", "asc", "-o", "csv")
    copied = run_here(*asked).ok()
    assert "warning: companies from the mirror, as of " in copied.err
    assert copied.out == run_here(*asked, "--yes").ok().out


@pytest.mark.usefixtures("mirror")
def test_a_name_missing_from_the_mirror_is_requested(service: RunningService) -> None:
    """Create a company and a person of it after the sync; crmctl knows the newest companies without the mirror."""
    companies, people = (f"/api/v1/objects/{service.object_id(slug)}/records" for slug in ("companies", "people"))
    made = service.client.post(companies, json={"data": {"name": "Newcomer", "domain": "new.com"}}).raise_for_status().json()
    rows = [{"data": {"name": f"Newest {one}", "domain": f"new{one}.com"}} for one in range(100)]
    service.client.post(f"{companies}/bulk", json={"records": rows}).raise_for_status()
    one = service.client.post(people, json={"data": {"email": "newcomer@new.com", "company": made["id"]}}).raise_for_status().json()
    try:
        copied = run_here("records", "list", "people", "--limit", "40", "--fields", "email,company.name", "-o", "csv").ok()
        assert "newcomer@new.com,Newcomer\n" in copied.out
        assert "companies from the mirror" in copied.err
    finally:
        service.client.delete(f"{people}/{one['id']}").raise_for_status()


def test_the_installed_program_uses_the_mirror_beyond_fifty_requests(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_service(tmp_path_factory.mktemp("many")) as service:
        monkeypatch.setenv("CRMCTL_BASE_URL", service.base_url)
        monkeypatch.setenv("CRMCTL_API_KEY", service.key)
        path = f"/api/v1/objects/{service.object_id('people')}/records"
        for start in range(0, 5_300, 100):
            rows = [{"data": {"email": f"p{number}@acme.com", "score": number % 3}} for number in range(start, start + 100)]
            service.client.post(f"{path}/bulk", json={"records": rows}).raise_for_status()
        count = ("records", "count", "people", "--by", "score", "-o", "csv")
        refused = run_crmctl(*count).exits(2)
        assert "reading 5,300 records of people to count them: 52 more requests" in refused.err
        run_crmctl("mirror", "sync", "people").ok()
        service.client.post(path, json={"data": {"email": "late@acme.com", "score": 9}}).raise_for_status()
        service.log.clear()
        copied = run_crmctl(*count).ok()
        assert copied.out.split() == ["score,count", "0,1767", "1,1767", "2,1766"]
        assert copied.err.startswith(FROM_THE_MIRROR)
        assert copied.err.endswith("; --yes reads the service (53 requests)\n")
        assert sum(str(entry["path"]) == path for entry in service.log) == 1
        assert run_crmctl(*count, "--yes").ok().out.split()[-1] == "9,1"
