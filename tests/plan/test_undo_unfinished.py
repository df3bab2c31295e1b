"""Undo of a killed job: crmctl settles its rows in doubt first and abandons its unsent rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from crmctl import Client
from crmctl.plan.undo import Undo
from crmctl.write.database import RowState
from tests.support.mishaps import Mishaps, killed_at
from tests.support.service import RunningService, opened


@pytest.fixture(autouse=True)
def _emptied(service: RunningService) -> Iterator[None]:
    yield
    path = f"/api/v1/objects/{service.object_id('people')}/records"
    while there := service.client.get(path, params={"limit": 100}).json()["records"]:
        service.client.request("DELETE", f"{path}/bulk", json={"ids": [one["id"] for one in there]}).raise_for_status()


LOST: list[tuple[str, dict[int, str | int]]] = [
    ("after begin", {}),
    ("before settle", {}),
    ("after settle", {}),
    ("after settle", {0: "after"}),
]


@pytest.mark.parametrize(("step", "lost"), LOST)
def test_undo_of_a_killed_import_deletes_its_records_and_never_sends_the_rest(
    service: RunningService, tmp_path: Path, step: str, lost: dict[int, str | int]
) -> None:
    path = tmp_path / f"{step}{len(lost)}.csv"
    path.write_text("score\n" + "".join(f"{n}\n" for n in range(1000, 1350)))
    with opened(service) as client:
        Mishaps(client, lost)
        with killed_at(step, 2):
            client.bulk.import_records("people", path, concurrency=1)
    with opened(service) as client:
        Mishaps(client)
        job = client.bulk.jobs()[0].id
        plan = client.bulk.undo(job)
        assert isinstance(plan, Undo)
        assert (plan.left, plan.error) == ({}, None)
        assert list(client.records("people").list()) == []
        again = client.bulk.resume(job)
        assert (again.summary.to_document()["unsent"], list(client.records("people").list())) == (0, [])


ROWS = 250


def scores(client: Client) -> list[int]:
    return sorted(record.data["score"] for record in client.records("people").list())


@pytest.mark.parametrize("refused", [0, 1])
def test_undo_deletes_records_of_a_request_refused_for_now_that_the_service_carried_out(
    service: RunningService, tmp_path: Path, refused: int
) -> None:
    """The process died before it could repeat the request."""
    path = tmp_path / f"refused{refused}.csv"
    path.write_text("score\n" + "".join(f"{n}\n" for n in range(ROWS)))
    with opened(service) as client:
        Mishaps(client, {refused: 429})
        with killed_at("after settle", refused + 1):
            client.bulk.import_records("people", path, concurrency=1)
        assert len(scores(client)) == 100 * (refused + 1)
    with opened(service) as client:
        Mishaps(client)
        job = client.bulk.jobs()[0].id
        plan = client.bulk.undo(job)
        assert (plan.left, plan.error, scores(client)) == ({}, None, [])
        assert plan.to_document()["abandoned"] == ROWS - 100 * (refused + 1)
        counts = client.bulk.jobs()[0].counts
        assert (counts[RowState.CREATED], counts[RowState.SKIPPED]) == (100 * (refused + 1), ROWS - 100 * (refused + 1))


def test_undo_restores_updates_of_a_request_refused_for_now_that_the_service_carried_out(service: RunningService, tmp_path: Path) -> None:
    path = tmp_path / "update.csv"
    path.write_text("email,score\n" + "".join(f"p{n}@acme.com,{n + 1000}\n" for n in range(ROWS)))
    with opened(service) as client:
        client.bulk.import_records("people", [{"email": f"p{n}@acme.com", "score": n} for n in range(ROWS)]).raise_for_error()
        Mishaps(client, {1: 429})
        with killed_at("after settle", 2):
            client.bulk.import_records("people", path, key="email", concurrency=1)
        assert sum(score >= 1000 for score in scores(client)) == 200
        edited = next(record for record in client.records("people").list("score<1000"))
        client.records("people").update(edited.id, {"score": -1})
    with opened(service) as client:
        Mishaps(client)
        plan = client.bulk.undo(client.bulk.jobs()[0].id)
        assert (plan.left, plan.to_document()["restored"], plan.to_document()["abandoned"]) == ({}, 200, 50)
        assert scores(client) == sorted([-1, *(n for n in range(ROWS) if n != edited.data["score"])])


def test_undo_recreates_deletions_of_a_request_refused_for_now_that_the_service_carried_out(service: RunningService) -> None:
    with opened(service) as client:
        client.bulk.import_records("people", [{"email": f"p{n}@acme.com", "score": n} for n in range(ROWS)]).raise_for_error()
        Mishaps(client, {1: 429})
        with killed_at("after settle", 2):
            client.bulk.delete("people", [record.id for record in client.records("people").list()], concurrency=1)
        assert len(scores(client)) == 50
    with opened(service) as client:
        Mishaps(client)
        plan = client.bulk.undo(client.bulk.jobs()[0].id)
        assert (plan.left, plan.error, scores(client)) == ({}, None, [*range(ROWS)])


def test_undo_of_a_job_that_sent_nothing_ends_it(service: RunningService, tmp_path: Path) -> None:
    path = tmp_path / "nothing.csv"
    path.write_text("score\n1\n2\n")
    with opened(service) as client:
        Mishaps(client)
        with killed_at("before begin", 1):
            client.bulk.import_records("people", path)
    with opened(service) as client:
        mishaps = Mishaps(client)
        job = client.bulk.jobs()[0].id
        assert client.bulk.undo(job).to_document()["abandoned"] == 2
        client.bulk.resume(job)
        assert (mishaps.bulk, scores(client)) == ([], [])


def test_undo_counts_every_request_and_deletes_no_record_twice(service: RunningService) -> None:
    with opened(service) as client:
        mishaps = Mishaps(client)
        client.bulk.import_records("people", [{"score": n} for n in range(ROWS)]).raise_for_error()
        mishaps.reads, mishaps.bulk = 0, []
        plan = client.bulk.undo(client.bulk.jobs()[0].id)
        assert plan.requests == mishaps.reads + len(mishaps.bulk)
        sizes = [len(json.loads(body)["ids"]) for _, body in mishaps.bulk]
        assert (sum(sizes), scores(client)) == (ROWS, [])


def test_an_import_by_key_waits_for_no_record_that_an_undo_created_and_a_deletion_removed(service: RunningService) -> None:
    rows = [{"email": f"p{n}@acme.com"} for n in range(120)]
    with opened(service) as client:
        Mishaps(client)
        client.bulk.import_records("people", rows).raise_for_error()
        deleted = client.bulk.delete("people", filter=["email^=p"])
        assert deleted.summary is not None
        assert client.bulk.undo(str(deleted.summary.job)).requests
        client.bulk.delete("people", filter=["email^=p"]).raise_for_error()
        begun = client._context.clock.now()
        client.bulk.import_records("people", rows, key="email").raise_for_error()
        assert client._context.clock.now() - begun < 30
