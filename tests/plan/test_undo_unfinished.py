"""Undo of a job that was killed: its unsent rows are abandoned, and its rows in doubt are settled first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from crmctl import Client
from crmctl.plan.undo import Undo
from tests.support.mishaps import Mishaps, deadly
from tests.support.service import RunningService, running_service


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with running_service(tmp_path_factory.mktemp("undo") / "service") as running:
        yield running


def opened(service: RunningService) -> Client:
    return Client(base_url=service.base_url, api_key=service.key)


LOST: list[tuple[str, dict[int, str | int]]] = [
    ("after begin", {}),
    ("before settle", {}),
    ("after settle", {}),
    ("after settle", {0: "after"}),
]


@pytest.mark.parametrize(("step", "lost"), LOST)
def test_undo_of_a_killed_import_deletes_what_arrived_and_never_sends_the_rest(
    service: RunningService, tmp_path: Path, step: str, lost: dict[int, str | int]
) -> None:
    path = tmp_path / f"{step}{len(lost)}.csv"
    path.write_text("score\n" + "".join(f"{n}\n" for n in range(1000, 1350)))
    with opened(service) as client:
        Mishaps(client, lost)
        with deadly(step, 2):
            client.bulk.import_records("people", path, concurrency=1)
    with opened(service) as client:
        Mishaps(client)
        job = client.bulk.jobs()[0].id
        plan = client.bulk.undo(job)
        assert isinstance(plan, Undo)
        assert (plan.left, plan.outcome) == ({}, None)
        assert list(client.records("people").list()) == []
        again = client.bulk.resume(job)
        assert (again.summary.to_document()["unsent"], list(client.records("people").list())) == (0, [])
