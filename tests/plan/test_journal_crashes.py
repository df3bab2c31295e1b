"""A process that dies at any write of the journal, during a merge or its undo, loses and doubles nothing."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from crmctl.client.crm import Crm
from crmctl.plan.job_run import requests_made
from crmctl.plan.merge_steps import MergeJournal
from crmctl.plan.undo import UndoRequest, undo
from tests.support.answeringapp import ORIGIN
from tests.support.merges import Crash, MergeContext, World, apply, newest_job, resume, unmerge
from tests.support.outcomes import error_of

ALL_KINDS = 28


def crashes(act: Callable[[], Any], at: int) -> bool:
    """Run an act that dies at the `at`-th write of the journal; return whether it came that far. Every second such write is lost, too."""
    seen, whole = count(1), MergeJournal._transaction

    @contextmanager
    def ending(journal: MergeJournal, **options: Any) -> Iterator[Any]:
        here = next(seen) == at
        if here and at % 2:
            raise Crash
        with whole(journal, **options) as held:
            yield held
        if here:
            raise Crash

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MergeJournal, "_transaction", ending)
        try:
            act()
        except Crash:
            return True
    return False


@pytest.mark.campaign
@pytest.mark.parametrize("undoing", [False, True])
def test_a_crash_at_any_write_of_the_journal(app_crm: Crm, tmp_path: Path, undoing: bool) -> None:
    for at in count(1, 3):
        context, path = MergeContext(app_crm, ORIGIN, tmp_path / f"state{at}"), tmp_path / f"{at}.plan"
        world, chance = World.make(app_crm, f"j{int(undoing)}_{at}"), random.Random(ALL_KINDS)
        groups = world.fill(chance, 1)
        before = world.snapshot()
        merges = world.plan(chance, groups, path, ORIGIN)
        if undoing:
            assert error_of(apply(context, path)) is None
        came = crashes((lambda: unmerge(context)) if undoing else (lambda: apply(context, path)), at)  # noqa: B023
        if came and newest_job(context).is_running:
            assert at > 10
            return  # the last write of a merge releases its lease; after a crash nothing does
        if not undoing:
            assert error_of(resume(context)) is None
            world.check_merged(merges)
        taken = unmerge(context)
        assert error_of(taken) is None
        assert world.snapshot() == before, at
        world.remove()
        if not came:
            assert at > 10
            return


@pytest.mark.parametrize(("seed", "number"), [(4, 2), (5, 4), (2, 1), (21, 6)])
def test_an_undo_says_beforehand_how_many_requests_it_takes_at_most(app_crm: Crm, tmp_path: Path, seed: int, number: int) -> None:
    context, path = MergeContext(app_crm, ORIGIN, tmp_path / "state"), tmp_path / "plan"
    world, chance = World.make(app_crm, f"f{seed}"), random.Random(seed)
    world.plan(chance, world.fill(chance, number), path, ORIGIN)
    assert error_of(apply(context, path)) is None
    said = list[int]()

    def approve(plan: Any) -> None:
        requests_made(context)  # type: ignore[arg-type]
        said.append(plan.requests)

    done = undo(context, UndoRequest(newest_job(context).id), approve)  # type: ignore[arg-type]
    assert error_of(done) is None
    assert done.requests <= said[0] <= 2 * done.requests
    world.remove()
