"""The installed program with lists that stand still, and before a job under a tight rate limit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.cli import run_crmctl
from tests.support.double import Double, ephemeral

STALE_LISTS = "GET /api/v1/objects/*/records -> stale=100000s"
KEEP_STATES = "GET /api/v1/never -> stale=100000s"
"""No request matches this rule. Rules of this kind make the double save its state before each write."""


@contextmanager
def used(monkeypatch: pytest.MonkeyPatch, *options: str) -> Iterator[Double]:
    with ephemeral(*options) as double:
        monkeypatch.setenv("CRMCTL_BASE_URL", double.url)
        monkeypatch.setenv("CRMCTL_API_KEY", double.ready["apiKey"])
        yield double


def people_file(count: int) -> str:
    Path("people.csv").write_text("name\n" + "".join(f"P{number}\n" for number in range(count)))
    return "people.csv"


def test_an_undo_restores_records_that_the_lists_show_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    with used(monkeypatch) as double:
        run_crmctl("bulk", "import", "people", people_file(8)).ok()
        double.fault(STALE_LISTS)
        job = run_crmctl("bulk", "update", "people", "--filter", "name startsWith P", "--set", "score=7", "--yes").ok().json()["job"]
        assert {record["data"].get("score") for record in double.client.get(double.people()).json()["records"]} == {None}, "stale"
        undone = run_crmctl("bulk", "undo", job, "--yes").ok().json()
        assert (undone["restored"], undone["undoneBefore"]) == (8, 0)
        double.control("DELETE", "faults")
        assert {record["data"].get("score") for record in double.client.get(double.people()).json()["records"]} == {None}


def test_an_undo_keeps_an_edit_that_the_lists_lack_although_others_created_the_newest_page(monkeypatch: pytest.MonkeyPatch) -> None:
    with used(monkeypatch) as double:
        job = run_crmctl("bulk", "import", "people", people_file(3)).ok().json()["job"]
        records = double.client.get(double.people()).json()["records"]
        strangers = [{"data": {"name": f"Stranger {number}"}} for number in range(100)]
        assert double.client.post(f"{double.people()}/bulk", json={"records": strangers}).json()["created"] == 100
        double.fault(STALE_LISTS)
        edited = records[0]["id"]
        assert double.client.patch(f"{double.people()}/{edited}", json={"data": {"score": 5}}).status_code == 200
        undone = run_crmctl("bulk", "undo", job, "--yes").exits(10).json()
        assert (undone["deleted"], undone["rows"]["conflicts"][0]["id"]) == (2, edited)
        assert double.client.get(f"{double.people()}/{edited}").json()["data"]["score"] == 5


def test_a_sync_believes_no_lists_older_than_the_mirror(monkeypatch: pytest.MonkeyPatch) -> None:
    with used(monkeypatch) as double:
        double.fault(KEEP_STATES)
        double.create(name="Ada")
        double.create(name="Grace")
        run_crmctl("mirror", "sync", "people").ok()
        double.control("POST", "faults", {"rule": STALE_LISTS})
        refused = run_crmctl("mirror", "sync", "people", "--full").exits(7)
        assert refused.error()["code"] == "stale_lists"
        assert run_crmctl("mirror", "sql", "SELECT count(*) AS n FROM people").ok().json() == [{"n": 2}]


def test_a_dry_run_announces_the_pace_of_bulk_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bulk work leaves the last requests of each window to people, so 36 requests end late in the second window of 20."""
    with used(monkeypatch, "--rate-limit", "20", "--clock", "2030-01-01T00:00:00Z"):
        told = run_crmctl("bulk", "import", "people", people_file(3_100), "--dry-run").ok().json()
        assert (told["requests"], 75 < told["estimatedSeconds"] < 120) == (36, True), told["estimatedSeconds"]
