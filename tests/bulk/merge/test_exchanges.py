"""Plans edited by hand in which groups get unique values of each other: in chains and rings, they are merged and taken apart, or refused by
name and nothing is written."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from crmctl.bulk.dedupe.merge_plan import MergePlanFile, PlannedMerge, write_merge_plan
from crmctl.bulk.dedupe.survivorship import MergedValue
from crmctl.client.crm import Crm
from tests.support.answeringapp import ORIGIN
from tests.support.merges import Crash, CrashingService, MergeContext, World, apply, resume, unmerge

NUMBERS = count(1)


class Trade:
    """A world of which every contact has an e-mail address and a code, both its own; `gets` edits the plan."""

    def __init__(self, crm: Crm, folder: Path, groups: int, seed: int = 1) -> None:
        number, chance = next(NUMBERS), random.Random(seed)
        self.crm, self.context = crm, MergeContext(crm, ORIGIN, folder / f"state{number}")
        self.world, self.path = World.make(crm, f"x{number}"), folder / f"{number}.plan"
        ids = [[self._contact(f"{group}.{one}") for one in range(2)] for group in range(groups)]
        self.merges = self.world.plan(chance, ids, self.path, ORIGIN)
        self.before = self.world.snapshot()

    def _contact(self, name: str) -> str:
        return self.crm.create_record(self.world.contacts, {"code": f"code {name}", "email": f"e{name}@x.com"}).id

    def gets(self, group: int, slug: str, giver: str | None) -> None:
        """The survivor of a group gets what a record has, or nothing."""
        value = None if giver is None else self.of(giver)[slug]
        merge = self.merges[group]
        self.merges[group] = replace(merge, values={**merge.values, slug: MergedValue(value, (), "")})
        header = MergePlanFile(self.path).header
        write_merge_plan(self.path, header, self.merges)

    def of(self, record_id: str) -> dict[str, Any]:
        return next(dict(merge.record(record_id).data) for merge in self.merges if record_id in (merge.survivor, *merge.losers))

    def refused(self) -> list[str]:
        """Why groups are, when the plan is carried out."""
        return [row["error"] for row in apply(self.context, self.path).to_document()["rows"]["refused"]]

    def merged_and_undone(self) -> None:
        done = apply(self.context, self.path)
        assert done.error is None, done.error
        self.world.check_merged(self.merges)
        self.undone()

    def undone(self) -> None:
        taken = unmerge(self.context)
        assert taken.error is None, taken.to_document()
        assert self.world.snapshot() == self.before


def survivors(merges: list[PlannedMerge]) -> list[str]:
    return [merge.survivor for merge in merges]


@pytest.mark.parametrize("slug", ["email", "code"])
def test_a_chain_of_unique_values_between_groups_is_merged_and_undone(crm: Crm, tmp_path: Path, slug: str) -> None:
    trade = Trade(crm, tmp_path, 3)
    _, second, third = survivors(trade.merges)
    trade.gets(0, slug, second)
    trade.gets(1, slug, third)
    trade.gets(2, slug, trade.merges[2].losers[0])
    trade.merged_and_undone()


def test_a_ring_of_values_that_may_be_given_up_is_merged_and_undone(crm: Crm, tmp_path: Path) -> None:
    trade = Trade(crm, tmp_path, 3)
    first, second, third = survivors(trade.merges)
    for group, giver in enumerate([second, third, first]):
        trade.gets(group, "email", giver)
    trade.merged_and_undone()


def test_what_a_survivor_gives_away_and_does_not_replace(crm: Crm, tmp_path: Path) -> None:
    trade = Trade(crm, tmp_path, 2)
    trade.gets(0, "email", trade.merges[1].survivor)
    trade.gets(1, "email", None)
    trade.merged_and_undone()


def test_a_ring_of_values_that_records_have_to_have_is_refused_by_name(crm: Crm, tmp_path: Path) -> None:
    trade = Trade(crm, tmp_path, 3)
    first, second, _ = survivors(trade.merges)
    trade.gets(0, "code", second)
    trade.gets(1, "code", first)
    why = trade.refused()
    assert len(why) == 2
    assert "group 1 and group 2 exchange values that none can give up first" in why[0]
    assert "give one of them another value" in why[0]
    assert [merge.losers[0] in {one.id for one in trade.world.records(trade.world.contacts)} for merge in trade.merges] == [
        True,
        True,
        False,
    ]


def test_a_value_that_another_survivor_keeps_is_refused_by_name(crm: Crm, tmp_path: Path) -> None:
    trade = Trade(crm, tmp_path, 2)
    keeper = trade.merges[1].survivor
    trade.gets(1, "email", keeper)
    trade.gets(0, "email", keeper)
    (why,) = trade.refused()
    assert f"the survivor of group 2 has the email {trade.of(keeper)['email']}, of record {keeper}; give one of them another value" in why


def test_when_one_of_them_moved_all_are_refused(crm: Crm, tmp_path: Path) -> None:
    trade = Trade(crm, tmp_path, 2)
    first, second = survivors(trade.merges)
    trade.gets(0, "email", second)
    trade.gets(1, "email", first)
    crm.update_record(trade.world.contacts, trade.merges[1].losers[0], {"title": "Edited"})
    why = trade.refused()
    assert why[0] == f"group 2, with which it exchanges values: {why[1]}"
    assert "has changed since the plan was made" in why[1]


def test_a_crash_at_any_write_of_an_exchange_loses_nothing(crm: Crm, tmp_path: Path) -> None:
    for at in count(1):
        trade = Trade(crm, tmp_path, 2)
        first, second = survivors(trade.merges)
        trade.gets(0, "email", second)
        trade.gets(1, "email", first)
        trade.context.service = CrashingService(crm, at, "after" if at % 2 else "before")
        try:
            apply(trade.context, trade.path)
        except Crash:
            trade.context.service = crm
            assert resume(trade.context).error is None
            trade.world.check_merged(trade.merges)
            trade.undone()
            trade.world.remove()
        else:
            assert at > 3
            trade.world.remove()
            return


@pytest.mark.parametrize("seed", range(12))
def test_random_small_plans_end_as_they_began(crm: Crm, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    trade = Trade(crm, tmp_path, chance.randint(2, 4), seed)
    everyone = [one for merge in trade.merges for one in (merge.survivor, *merge.losers)]
    for group in range(len(trade.merges)):
        for slug in ("email", "code"):
            if chance.random() < 0.6:
                trade.gets(group, slug, chance.choice([*everyone, None] if slug == "email" else everyone))
    done = apply(trade.context, trade.path)
    document = done.to_document()
    assert document["failed"] == document["unsent"] == 0, "what cannot be is known before the first write"
    left = {row["group"] for row in document["rows"]["refused"]}
    trade.world.check_merged([merge for merge in trade.merges if merge.group not in left])
    if document["merged"]:
        trade.undone()
    else:
        assert trade.world.snapshot() == trade.before
    trade.world.remove()
