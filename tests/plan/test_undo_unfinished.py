"""Undo of a job that was killed: its unsent rows are abandoned, and its rows in doubt are settled first."""

from __future__ import annotations

from pathlib import Path

import pytest

from crmctl.plan.undo import Undo
from tests.support.mishaps import Mishaps, deadly
from tests.support.service import RunningService, opened

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
        assert (plan.left, plan.error) == ({}, None)
        assert list(client.records("people").list()) == []
        again = client.bulk.resume(job)
        assert (again.summary.to_document()["unsent"], list(client.records("people").list())) == (0, [])
