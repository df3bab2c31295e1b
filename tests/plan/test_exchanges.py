"""Edited plans that give a group the unique value of another group's record: crmctl refuses them by name and writes nothing."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from crmctl.client.crm import Crm
from crmctl.dedupe.merge_plan import MergedValue, MergePlanFile, PlannedMerge, write_merge_plan
from tests.support.answeringapp import ORIGIN
from tests.support.merges import MergeContext, World, apply, unmerge
from tests.support.outcomes import error_of

NUMBERS = count(1)


class Trade:
    """A world whose contacts have a unique e-mail address and a unique code; `gets` edits the plan."""

    def __init__(self, app_crm: Crm, folder: Path, groups: int, seed: int = 1) -> None:
        number, chance = next(NUMBERS), random.Random(seed)
        self.crm, self.context = app_crm, MergeContext(app_crm, ORIGIN, folder / f"state{number}")
        self.world, self.path = World.make(app_crm, f"x{number}"), folder / f"{number}.plan"
        ids = [[self._contact(f"{group}.{one}") for one in range(2)] for group in range(groups)]
        self.merges = self.world.plan(chance, ids, self.path, ORIGIN)
        self.before = self.world.snapshot()

    def _contact(self, name: str) -> str:
        return self.crm.create_record(self.world.contacts, {"code": f"code {name}", "email": f"e{name}@x.com"}).id

    def gets(self, group: int, slug: str, giver: str | None) -> None:
        """Give the survivor of a group the value of another record, or none."""
        value = None if giver is None else self.of(giver)[slug]
        merge = self.merges[group]
        self.merges[group] = replace(merge, values={**merge.values, slug: MergedValue(value, (), "")})
        header = MergePlanFile(self.path).header
        write_merge_plan(self.path, header, self.merges)

    def of(self, record_id: str) -> dict[str, Any]:
        return next(dict(merge.record(record_id).data) for merge in self.merges if record_id in (merge.survivor, *merge.losers))

    def refused(self) -> list[str]:
        """Return why groups are refused when crmctl carries out the plan."""
        return [row["error"] for row in apply(self.context, self.path).to_document()["rows"]["refused"]]

    def undone(self) -> None:
        taken = unmerge(self.context)
        assert error_of(taken) is None, taken.to_document()
        assert self.world.snapshot() == self.before


def survivors(merges: list[PlannedMerge]) -> list[str]:
    return [merge.survivor for merge in merges]


@pytest.mark.parametrize("slug", ["email", "code"])
def test_a_group_that_gets_a_value_of_another_group_is_refused_by_name(app_crm: Crm, tmp_path: Path, slug: str) -> None:
    trade = Trade(app_crm, tmp_path, 3)
    first, second, _ = survivors(trade.merges)
    trade.gets(0, slug, second)
    trade.gets(1, slug, first)
    trade.gets(2, slug, trade.merges[2].losers[0])
    why = trade.refused()
    value = trade.of(second)[slug]
    assert why[0] == f"record {second} of group 2 has the {slug} {value}; merge that group first, then plan this one again"
    assert len(why) == 2
    trade.world.check_merged(trade.merges[2:])


def test_a_value_that_two_groups_get_is_refused_for_the_second(app_crm: Crm, tmp_path: Path) -> None:
    trade = Trade(app_crm, tmp_path, 2)
    for group in range(2):
        merge = trade.merges[group]
        trade.merges[group] = replace(merge, values={**merge.values, "email": MergedValue("new@x.com", (), "")})
    write_merge_plan(trade.path, MergePlanFile(trade.path).header, trade.merges)
    assert trade.refused() == ["group 1 gets the email new@x.com too"]


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(12))
def test_random_small_plans_end_as_they_began(app_crm: Crm, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    trade = Trade(app_crm, tmp_path, chance.randint(2, 4), seed)
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
