"""Bulk updates: what changes and what does not, under faults and kills at every step, resumed and undone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from crmctl import Client
from crmctl.errors import InterruptedByUser, RejectedError, UsageError
from crmctl.match.key_lookups import Lookup
from crmctl.plan.changes import ChangeForecast
from tests.support.campaigns import rest_in_campaigns
from tests.support.mishaps import STEPS, Mishaps, killed_at
from tests.support.service import RunningService, opened

COUNT = 150
SET = {"status": "contacted", "address.city": "Rome"}


def people(client: Client, count: int = COUNT) -> dict[str, dict[str, Any]]:
    """Records with an address of several parts; every tenth already holds the new values."""
    rows = (
        {
            "score": n,
            "status": "contacted" if n % 10 == 0 else "new",
            "address.street": f"Street {n}",
            "address.city": "Rome" if n % 10 == 0 else "Paris",
            "address.country": "FR",
        }
        for n in range(count)
    )
    client.bulk.import_records("people", rows, again=True).raise_for_error()
    return held(client)


def held(client: Client) -> dict[str, dict[str, Any]]:
    return {record.id: record.data for record in client.records("people").list()}


def expected(before: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {one: data | {"status": "contacted", "address": data["address"] | {"city": "Rome"}} for one, data in before.items()}


def test_only_different_values_are_written_and_other_parts_stay(client: Client) -> None:
    before = people(client)
    mishaps = Mishaps(client)
    preview = client.bulk.update("people", SET, filter="score>=0", dry_run=True)
    assert (preview.forecast.changes, preview.forecast.unchanged, preview.reads) == (135, 15, preview.requests - 4)
    sample = preview.to_document()["samples"][0]
    assert sample["before"]["address"] == before[sample["id"]]["address"]
    assert held(client) == before
    result = client.bulk.update("people", SET, filter="score>=0")
    result.raise_for_error()
    assert (result.summary.counts["updated"], result.summary.counts["unchanged"], len(mishaps.bulk)) == (135, 15, 2)
    assert result.summary.requests == preview.requests
    assert held(client) == expected(before)
    undone = client.bulk.undo(str(result.job))
    assert (undone.restorable, undone.left) == (135, {})
    assert held(client) == before


def test_an_undo_without_a_list_of_changes_restores_the_record_that_tests_the_lists_once(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some records have no `updatedAt`, so no list shows that crmctl has already restored one of them."""
    before = people(client, 12)
    result = client.bulk.update("people", {"status": "contacted"}, filter="score>=0")
    monkeypatch.setattr(Lookup, "refresh", lambda *_: False)
    told = client.bulk.undo(str(result.job)).to_document()
    assert [told[name] for name in ("restorable", "restored", "undoneBefore")] == [10, 10, 0]
    assert held(client) == before


@pytest.mark.parametrize(("number", "fault"), rest_in_campaigns([(1, "after"), (0, 429), (0, "before"), (0, 500)], 2))
def test_a_lost_request_changes_nothing_twice(client: Client, number: int, fault: str | int) -> None:
    before = people(client)
    Mishaps(client, {number: fault})
    result = client.bulk.update("people", SET, filter="score>=0", concurrency=1)
    for _ in range(3):
        if result.error is not None:
            result = client.bulk.resume(result.job)
    result.raise_for_error()
    assert held(client) == expected(before)
    assert result.summary.counts["updated"] == 135
    client.bulk.undo(str(result.job)).raise_for_error()
    assert held(client) == before


@pytest.mark.parametrize(("step", "count"), rest_in_campaigns([*((step, 1) for step in STEPS), ("after begin", 2)]))
def test_a_process_that_dies_goes_on(service: RunningService, client: Client, step: str, count: int) -> None:
    before = people(client)
    with killed_at(step, count):
        client.bulk.update("people", SET, filter="score>=0", concurrency=1)
    with opened(service) as again:
        job = again.bulk.jobs()[0]
        assert (job.to_document()["mode"], job.is_resumable) == ("update", True)
        again.bulk.resume(job.id).raise_for_error()
        assert held(again) == expected(before)
        again.bulk.undo(job.id).raise_for_error()
        assert held(again) == before


def test_a_refused_update_that_was_carried_out_counts_as_updated(client: Client) -> None:
    before = people(client)
    mishaps = Mishaps(client, {0: 400})
    result = client.bulk.update("people", SET, filter="score>=0", concurrency=1)
    result.raise_for_error()
    assert (result.summary.counts["updated"], result.summary.counts["failed"], len(mishaps.bulk)) == (135, 0, 2)
    client.bulk.undo(str(result.job))
    assert held(client) == before


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_job_that_a_false_refusal_ended_can_be_undone(client: Client, status: int) -> None:
    before = people(client, 20)
    Mishaps(client, {0: status})
    result = client.bulk.update("people", SET, filter="score>=0")
    assert (result.summary.counts["inDoubt"], result.summary.counts["unsent"]) == (18, 0)
    assert held(client) == expected(before)
    client.bulk.undo(str(result.job))
    assert held(client) == before


def test_a_declined_update_leaves_no_job(client: Client) -> None:
    before = people(client, 20)
    jobs = len(client.bulk.jobs())
    seen: list[ChangeForecast] = []

    def decline(found: ChangeForecast) -> None:
        seen.append(found)
        raise InterruptedByUser("declined; nothing was changed")

    with pytest.raises(InterruptedByUser):
        client.bulk.update("people", SET, filter="score>=0", approve=decline)
    assert (seen[0].rows, seen[0].changes, len(seen[0].samples)) == (20, 18, 5)
    assert (held(client), len(client.bulk.jobs())) == (before, jobs)


def test_more_than_expected_and_ids_of_nothing_send_nothing(client: Client) -> None:
    before = people(client, 20)
    refused = client.bulk.update("people", SET, filter="score>=0", max_changes="50%")
    assert isinstance(refused.error, RejectedError)
    assert refused.error.code == "unexpected_changes"
    stranger = "00000000-0000-4000-8000-000000000000"
    absent = client.bulk.update("people", SET, [*before, stranger])
    assert isinstance(absent.error, RejectedError)
    assert [finding.message for finding in absent.findings.kept] == ["there is no such record"]
    assert held(client) == before
    some = client.bulk.update("people", SET, [*before, stranger], on_error="continue", expect=18)
    assert (some.summary.counts["updated"], some.summary.counts["rejected"]) == (18, 1)
    assert held(client) == expected(before)


def test_a_value_of_one_text_is_not_merged_into(client: Client, tmp_path: Path) -> None:
    made = client.records("people").create({"score": 1, "address": "Main Street 1, Paris"})
    result = client.bulk.update("people", {"address.city": "Rome"}, [made.id])
    assert isinstance(result.error, RejectedError)
    assert "address" in result.findings.kept[0].message
    assert client.records("people").get(made.id).data["address"] == "Main Street 1, Paris"


def test_the_failed_copy_is_checked_before_a_job_begins(client: Client, tmp_path: Path) -> None:
    rows, before = tmp_path / "rows.csv", client.bulk.jobs()
    rows.write_text("email\na@acme.com\n")
    for failed in (rows, tmp_path / "absent" / "failed.csv"):
        with pytest.raises(UsageError):
            client.bulk.import_records("people", rows, failed=failed)
    with pytest.raises(UsageError):
        client.bulk.update("people", {"status": "contacted"}, filter="score>=0", failed=tmp_path / "absent" / "failed.csv")
    assert client.bulk.jobs() == before
