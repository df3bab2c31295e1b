"""Incremental exports as random histories: the finished files together hold the service's records, each once.

The wire, the clocks and the moments of kills are simulated; everything else is real, also the state on disk.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

from crmctl.client.answers import Page
from crmctl.errors import UsageError
from crmctl.files.export_formats import Layout
from crmctl.models.resources import Record
from crmctl.plan import export as exporting
from crmctl.plan.export import Export, ExportRequest, Subject
from crmctl.read import export_passes as gathering
from crmctl.read.export_passes import GatherState, Increments, Staging
from crmctl.values.filters import Condition
from crmctl.values.moments import MICROS, to_timestamp
from tests.support.bulkcontext import QuietContext
from tests.support.campaigns import rest_in_campaigns
from tests.support.clock import FakeClock

LOOKBACK = 60
START = 1_790_000_000 * MICROS


@dataclass
class Nodes:
    """A service of several machines: each stamps with its own clock, in whole `tick`s, and lists show a write some seconds later.

    `real` is the true time, `skews` the offset of each machine, `step` the offset of all since an operator set the clocks.
    """

    chance: random.Random
    tick: int
    skews: Sequence[int]
    zone: str
    dated: bool
    keeps_order: bool = True
    busy: bool = True
    real: int = START
    step: int = 0
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    late: list[tuple[int, Callable[[], None]]] = field(default_factory=list)

    def stamp(self, node: int) -> str:
        moment = self.real + self.step + self.skews[node]
        return to_timestamp(moment - moment % self.tick).replace("Z", self.zone)

    def write(self, delay: int) -> None:
        """Stamp a record now; lists show it after `delay` microseconds. There are few values, so contents return."""
        moment, value = self.stamp(self.chance.randrange(len(self.skews))), self.chance.randrange(3)
        chosen = self.chance.choice([*self.rows, None, None])

        def show() -> None:
            name = chosen if chosen in self.rows else f"{self.chance.getrandbits(128):032x}"
            row = self.rows.setdefault(name, {"id": name, "data": {}, "createdAt": moment})
            self.rows[name] = {**row, "data": {"n": value}, "updatedAt": moment}

        self.late.append((self.real + delay, show))

    def pass_time(self, micros: int) -> None:
        self.real += micros
        due = [act for when, act in self.late if when <= self.real]
        self.late = [entry for entry in self.late if entry[0] > self.real]
        for act in due:
            act()

    def list_records(
        self, object_id: str, *, filters: Sequence[Condition] = (), sort: str | None = None, order: str | None = None,
        limit: int = 50, offset: int = 0,
    ) -> Page[Record]:  # fmt: skip
        self.pass_time(self.chance.randrange(50_000, 400_000))
        if self.busy and self.chance.random() < 0.3:
            self.write(0)
        if self.busy and self.dated and self.chance.random() < 0.02:
            self.step -= 90 * MICROS
        key = "updatedAt" if sort == "updated_at" and self.keeps_order else "createdAt"
        rows = sorted(self.rows.values(), key=lambda row: (row[key], row["id"]), reverse=order == "desc")
        shuffled = [dict(self.chance.sample(list(row.items()), len(row))) for row in rows[offset : offset + limit]]
        date = formatdate((self.real + self.step + self.chance.choice(self.skews)) // MICROS, usegmt=True)
        return Page([Record.parse(row) for row in shuffled], len(rows), limit, offset, date if self.dated else None)


class Killed(BaseException):
    """Simulate the death of the process."""


STEPS = {"drop": (Increments, "drop_delivered"), "file": (exporting, "write_file"), "manifest": (exporting, "write_manifest"),
         "state": (Increments, "remember")}  # fmt: skip


def run(service: Nodes, clock: FakeClock, folder: Path, kill: tuple[str, bool] | None) -> list[dict[str, Any]]:
    """Return the records of one run, from the file it finished. `kill` ends it before or after a step."""
    target = folder / "changes.jsonl"
    increments = Increments(folder / "state", {"file": str(target)})
    with pytest.MonkeyPatch.context() as patch:
        if kill is not None:
            place, name = STEPS[kill[0]]
            real = getattr(place, name)

            def killed(*given: Any, **named: Any) -> Any:
                if kill[1]:
                    real(*given, **named)
                raise Killed

            patch.setattr(place, name, killed)
        subject = Subject("people", "object", "http://there", None)
        Export(QuietContext(service, clock), subject, Layout(), ExportRequest(object="people"), increments).to_file(target, replace=True)
    return whole(folder)


def whole(folder: Path) -> list[dict[str, Any]]:
    """Return the records of the file, after comparing it with its manifest."""
    content = (folder / "changes.jsonl").read_bytes()
    assert json.loads((folder / "changes.jsonl.manifest.json").read_text())["sha256"] == hashlib.sha256(content).hexdigest()
    return [json.loads(line) for line in content.splitlines()]


@pytest.mark.parametrize("block", rest_in_campaigns(range(2)))
def test_nothing_is_missed_and_nothing_comes_twice(block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "SETTLE", 2.0)
    monkeypatch.setattr(gathering, "LOOKBACK", LOOKBACK)
    for seed in range(block * 8, block * 8 + 8):
        history(random.Random(seed), tmp_path / str(seed), seed)


def history(chance: random.Random, folder: Path, seed: int) -> None:
    folder.mkdir()
    skews = [0, *(chance.randrange(-8, 8) * MICROS for _ in range(chance.randrange(3)))]
    service = Nodes(chance, chance.choice([1, 1000, MICROS, 3 * MICROS]), skews, chance.choice(["Z", ""]), chance.random() < 0.8)
    off = chance.choice([0, 0, -3600, 3600]) * MICROS
    taken: dict[str, dict[str, Any]] = {}
    for _ in range(chance.choice([0, 5, 99, 250])):
        service.write(0)
    for number in range(12):
        if service.dated and chance.random() < 0.2:
            service.step -= chance.choice([5, 60, 600]) * MICROS
        for _ in range(chance.choice([0, 0, 1, 5, 120])):
            service.write(chance.randrange(10 * MICROS))
            service.pass_time(chance.choice([0, 0, 1, 300_000]))
        service.pass_time(chance.choice([0, MICROS, 20 * MICROS, 600 * MICROS]))
        kill = (chance.choice(list(STEPS)), chance.random() < 0.5) if chance.random() < 0.4 else None
        try:
            given = run(service, FakeClock((service.real + off) / MICROS), folder, kill)
        except Killed:
            if kill != ("state", True):
                continue
            given = whole(folder)
        take(taken, given, f"seed {seed}, run {number}")
    service.busy = False
    service.pass_time(60 * MICROS)
    for _ in range(3):
        take(taken, run(service, FakeClock((service.real + off) / MICROS), folder, None), f"seed {seed}, at the end")
    assert {name: row for name, row in service.rows.items() if taken.get(name) != row} == {}, f"seed {seed}"


def take(taken: dict[str, dict[str, Any]], given: list[dict[str, Any]], where: str) -> None:
    assert len({row["id"] for row in given}) == len(given), where
    assert [row for row in given if taken.get(row["id"]) == row] == [], where
    taken |= {row["id"]: row for row in given}


def test_records_not_proven_older_are_read_again(tmp_path: Path) -> None:
    """A later content has an older time: a replica lags, or the clock of a machine does."""
    increments, moment = Increments(tmp_path, {}), START + 3600 * MICROS

    def record(number: int, at: int) -> Record:
        return Record.parse({"id": "a", "data": {"n": number}, "updatedAt": to_timestamp(at)})

    with Staging() as staging:
        with staging.step():
            assert [staging.merge([record(*one)]) for one in ((1, moment), (2, START), (2, START), (1, moment))] == [1, 1, 0, 0]
        assert [json.loads(wire)["data"]["n"] for wire in staging.wires()] == [1]
        increments.drop_delivered(staging)
        increments.remember(staging, GatherState(as_of=moment, newest=moment))
    mark = Increments(tmp_path, {}).mark
    assert mark is not None
    assert mark.since == START


def test_two_runs_at_once_do_not_both_count(tmp_path: Path) -> None:
    first, second = Increments(tmp_path, {}), Increments(tmp_path, {})
    with Staging() as staging:
        first.remember(staging, GatherState())
        with pytest.raises(UsageError, match="another run"):
            second.remember(staging, GatherState())
