"""Another client at work while crmctl merges groups or undoes a merge: whatever it does after any write, crmctl loses none of its changes,
creates nothing twice, and finishes the other group.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from crmctl.client.crm import Crm
from crmctl.client.session import encode_json
from crmctl.dedupe.merge_plan import PlannedMerge
from crmctl.errors import NotFoundError, PartialError, RejectedError
from crmctl.plan.import_records import ApplyRequest
from crmctl.plan.merge_records import preview_merges
from crmctl.plan.merge_steps import GroupState
from crmctl.values.filters import Condition
from crmctl.values.operators import Operator
from crmctl.write.steps import MERGE_ORDER
from tests.support.answeringapp import ORIGIN
from tests.support.campaigns import rest_in_campaigns
from tests.support.merges import CrashingService, MergeContext, World, apply, unmerge
from tests.support.outcomes import error_of

ALL_KINDS = 28
NUMBERS = count(1)


class Somebody:
    """Acts of another client in a world, each once; `done` once it succeeded."""

    def __init__(self, app_crm: Crm, world: World, merge: PlannedMerge) -> None:
        self.crm, self.world, self.merge = app_crm, world, merge
        self.loser = merge.losers[0]
        self.done = False

    def edit(self) -> None:
        self.crm.update_record(self.world.contacts, self.loser, {"title": "Edited meanwhile"})

    def delete(self) -> None:
        self.crm.delete_record(self.world.contacts, self.loser)

    def refer(self) -> None:
        self.crm.create_record(self.world.tickets, {"code": "late", "asker": self.loser})
        link = {"objectId": self.world.contacts, "recordId": self.loser}
        self.crm.create_activity({"title": f"{self.world.slug} late", "summary": "", "linkedRecords": [link], "participants": []})

    def edit_survivor(self) -> None:
        self.crm.update_record(self.world.contacts, self.merge.survivor, {"title": "Edited meanwhile"})

    def delete_survivor(self) -> None:
        self.crm.delete_record(self.world.contacts, self.merge.survivor)

    def delete_ticket(self) -> None:
        self.crm.delete_record(self.world.tickets, self.world.records(self.world.tickets)[0].id)


class Meddler(CrashingService):
    """A service in which another client acts after the `at`-th write."""

    def __init__(self, app_crm: Crm, at: int, act: Callable[[], None], somebody: Somebody) -> None:
        super().__init__(app_crm, at, "after")
        self.act, self.somebody = act, somebody

    def _crash(self, when: str) -> None:
        if self.writes == self._at and when == "after":
            # The record is gone, or the act refers to a record that is: the service tells the other client.
            with contextlib.suppress(NotFoundError, RejectedError):
                self.act()
                self.somebody.done = True


def world_of(app_crm: Crm, folder: Path) -> tuple[MergeContext, World, list[PlannedMerge], Path]:
    number, chance = next(NUMBERS), random.Random(ALL_KINDS)
    context = MergeContext(app_crm, ORIGIN, folder / f"state{number}")
    world = World.make(app_crm, f"m{number}")
    path = folder / f"{number}.plan"
    merges = world.plan(chance, world.fill(chance, 2), path, ORIGIN)
    return context, world, merges, path


def nothing_dangles(world: World) -> None:
    """Every reference and link names an existing record."""
    there = {record.id for record in world.records(world.contacts)}
    for record in (*world.records(world.contacts), *world.records(world.tickets)):
        assert {record.data.get(slug) for slug in ("asker", "helper", "manager")} - {None} <= there
    assert {link["recordId"] for activity in world.activities() for link in activity.wire["linkedRecords"]} <= there


@pytest.mark.parametrize("deed", rest_in_campaigns(["edit", "delete", "refer"]))
def test_another_client_at_every_write_of_a_merge(app_crm: Crm, tmp_path: Path, deed: str) -> None:
    for at in count(1):
        context, world, merges, path = world_of(app_crm, tmp_path)
        first, second = merges
        somebody = Somebody(app_crm, world, first)
        context.service = meddler = Meddler(app_crm, at, getattr(somebody, deed), somebody)
        done = apply(context, path)
        context.service = app_crm
        if meddler.writes < at:
            assert at > 6, "a step of every kind"
            return
        assert done.counts[GroupState.MERGED] >= 1, "the other group goes on"
        records = {record.id: record.data for record in world.records(world.contacts)}
        assert not set(second.losers) & records.keys()
        nothing_dangles(world)
        if deed == "edit" and somebody.done:
            assert records[somebody.loser]["title"] == "Edited meanwhile", (at, "the edit of the other client is kept")
            assert isinstance(error_of(done), PartialError)
            assert done.to_document()["rows"]["failed"][0]["group"] == first.group
            assert set(first.losers) <= records.keys()
        elif deed == "refer":
            assert error_of(done) is None
        world.remove()


@pytest.mark.campaign
@pytest.mark.parametrize("deed", ["edit_survivor", "delete_survivor", "delete_ticket"])
def test_another_client_at_every_second_write_of_an_undo(app_crm: Crm, tmp_path: Path, deed: str) -> None:
    for at in count(1, 2):
        context, world, merges, path = world_of(app_crm, tmp_path)
        size = len(world.records(world.contacts))
        assert error_of(apply(context, path)) is None
        somebody = Somebody(app_crm, world, merges[0])
        context.service = meddler = Meddler(app_crm, at, getattr(somebody, deed), somebody)
        done = unmerge(context)
        context.service = app_crm
        if meddler.writes < at:
            assert at > 5
            return
        assert somebody.done
        assert error_of(done) is None or isinstance(error_of(done), PartialError), error_of(done)
        left = world.snapshot()
        again = unmerge(context)
        assert world.snapshot() == left, (at, "it can be done again, and does nothing more")
        assert error_of(again) is None or isinstance(error_of(again), PartialError)
        assert deed == "delete_survivor" or again.conflicts == done.conflicts
        records = world.records(world.contacts)
        assert len(records) == size - (deed == "delete_survivor"), (at, "all are there once")
        if deed == "edit_survivor":
            assert [one.data["title"] for one in records if one.id == merges[0].survivor] == ["Edited meanwhile"]
        world.remove()


class Counting:
    """A service that counts lists, and the objects of filtered ones."""

    def __init__(self, app_crm: Crm, *, heeds: bool = True) -> None:
        self._crm, self._heeds = app_crm, heeds
        self.listed: list[bool] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._crm, name)

    def list_records(self, object_id: str, **options: Any) -> Any:
        self.listed.append(bool(options.get("filters")))
        if not self._heeds:
            options.pop("filters", None)
        return self._crm.list_records(object_id, **options)


@pytest.mark.parametrize("heeds", rest_in_campaigns([True, False]))
def test_few_losers_are_looked_up_without_missing_a_reference(app_crm: Crm, tmp_path: Path, heeds: bool) -> None:
    context, world, merges, path = world_of(app_crm, tmp_path)
    somebody = merges[0].survivor
    for start in range(0, 1500, 100):
        rows = [encode_json({"data": {"code": f"old {start + one}", "asker": somebody, "helper": somebody}}) for one in range(100)]
        app_crm.bulk_write(world.tickets, rows, mode="create")
    late = app_crm.create_record(world.tickets, {"code": "sample", "asker": merges[1].survivor, "helper": merges[1].survivor}).id
    gone = {loser for merge in merges for loser in merge.losers}
    said = preview_merges(context, ApplyRequest(file=str(path))).requests
    reading, waves = 2 * (len(gone) + 1) + 8, 1
    assert said <= reading + len(merges) + waves * (2 * 2 + 2 * len(MERGE_ORDER)), (
        "two attributes of tickets; contacts are read; then one wave"
    )
    context.service = counting = Counting(app_crm, heeds=heeds)
    assert error_of(apply(context, path)) is None
    context.service = app_crm
    tickets = [app_crm.get_record(world.tickets, record.id) for record in world.records(world.tickets)]
    assert late in {ticket.id for ticket in tickets}
    for loser in gone:
        for slug in ("asker", "helper"):
            found = app_crm.list_records(world.tickets, filters=(Condition(slug, Operator.EQUALS, loser),), limit=100)
            assert found.items == []
    assert sum(counting.listed) == (2 * (len(gone) + 1) if heeds else 1)
    assert error_of(unmerge(context)) is None
    world.remove()
