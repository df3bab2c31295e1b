"""Merges on a real service: at every crash, and whoever else writes, a group is merged or unchanged, and an undo restores everything."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from crmctl.errors import NetworkError, PartialError, RejectedError
from crmctl.models.resources import Record
from crmctl.plan.merge_steps import GroupState, MergeJournal
from crmctl.write.steps import MERGE_ORDER, StepKind, StepState
from tests.support.merges import Crash, CrashingService, World, apply, merge_context, newest_job, resume, unmerge
from tests.support.outcomes import error_of
from tests.support.service import RunningService, running_service
from tests.support.warm_program import run_module

NUMBERS = count(1)
SEEDS = (1,)
THREE_LOSERS = 20
ALL_KINDS = 28
"""The seed of a world whose merge takes a step of every kind."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with running_service(tmp_path_factory.mktemp("merges") / "service") as running:
        yield running


class Case:
    """A world with its plan."""

    def __init__(self, service: RunningService, folder: Path, seed: int = 1, groups: int = 1) -> None:
        self.service, self.folder = service, folder
        self.chance = random.Random(seed)
        self.state = folder / f"state{next(NUMBERS)}"
        self.path = self.state.with_suffix(".plan")
        self.groups = groups

    def __enter__(self) -> Case:
        self._context = merge_context(self.service.base_url, self.service.key, self.state)
        self.context = self._context.__enter__()
        self.crm = self.context.service
        self.world = World.make(self.crm, f"w{next(NUMBERS)}")
        self.ids = self.world.fill(self.chance, self.groups)
        self.before = self.world.snapshot()
        self._drawn = self.chance.getstate()
        self._codes = [[str(self._known()[one].data["code"]) for one in ids] for ids in self.ids]
        self.merges = self.world.plan(self.chance, self.ids, self.path, self.service.base_url)
        return self

    def _known(self) -> dict[str, Record]:
        return {record.id: record for record in self.world.records(self.world.contacts)}

    def plan_again(self, number: int) -> None:
        """Plan the same merges again for records that have new ids after an undo."""
        ids = {str(record.data["code"]): one for one, record in self._known().items()}
        self.ids = [[ids[code] for code in codes] for codes in self._codes]
        self.path = self.path.with_suffix(f".{number}")
        self.chance.setstate(self._drawn)
        self.merges = self.world.plan(self.chance, self.ids, self.path, self.service.base_url)

    def __exit__(self, *error: Any) -> None:
        self.world.remove()
        self._context.__exit__(*error)

    def apply(self) -> Any:
        return apply(self.context, self.path)

    def crash(self, act: Any, at: int, when: str) -> bool:
        """Run an act with a crash at the `at`-th write; return whether it came that far."""
        self.context.service = CrashingService(self.crm, at, when)
        try:
            act()
        except Crash:
            return True
        finally:
            self.context.service = self.crm
        return False

    def undone(self) -> None:
        """Undo all merges and compare the world with its state before."""
        done = unmerge(self.context)
        assert error_of(done) is None, str(error_of(done))
        assert self.world.snapshot() == self.before


@pytest.mark.parametrize("seed", SEEDS)
def test_random_merges_are_undone(service: RunningService, tmp_path: Path, seed: int) -> None:
    with Case(service, tmp_path, seed, groups=3) as case:
        done = case.apply()
        assert error_of(done) is None
        assert done.to_document()["merged"] == 3
        case.world.check_merged(case.merges)
        case.undone()
        again = unmerge(case.context)
        assert (again.groups, error_of(again)) == (0, None), "it can be said twice"


def when(at: int) -> str:
    """Every second crash comes before the request leaves, the others after the answer; the benchmark plays both for each write."""
    return "before" if at % 2 else "after"


@pytest.mark.campaign
def test_a_crash_at_any_write_of_a_merge_loses_nothing(service: RunningService, tmp_path: Path) -> None:
    for at in count(1):
        with Case(service, tmp_path, seed=ALL_KINDS) as case:
            if not case.crash(case.apply, at, when(at)):
                assert at > 6, "a step of every kind"
                return
            assert error_of(resume(case.context)) is None
            case.world.check_merged(case.merges)
            case.undone()


@pytest.mark.campaign
def test_a_crash_at_any_write_of_an_undo_loses_and_doubles_nothing(service: RunningService, tmp_path: Path) -> None:
    for at in count(1):
        with Case(service, tmp_path, seed=ALL_KINDS) as case:
            assert error_of(case.apply()) is None
            if not case.crash(lambda: unmerge(case.context), at, when(at)):
                assert at > 5
                return
            case.undone()


def test_a_process_killed_at_any_step_goes_on_where_it_was(service: RunningService, tmp_path: Path) -> None:
    def is_killed(case: Case, action: str, at: int) -> bool:
        given = [case.state, service.base_url, service.key, action, at, when(at), case.path]
        return run_module("tests.support.mergechild", *given) == -signal.SIGKILL

    under_way = set[StepKind]()
    with Case(service, tmp_path, seed=ALL_KINDS) as case:
        for at in count(1):
            dies = is_killed(case, "apply", at)
            if dies:
                with closing(MergeJournal(newest_job(case.context).folder, case.context.clock)) as journal:
                    under_way |= {kind for kind, state in journal.step_counts() if state is StepState.SENDING}
                assert error_of(resume(case.context)) is None
            case.world.check_merged(case.merges)
            dies_undoing = is_killed(case, "undo", at)
            case.undone()
            if not dies and not dies_undoing:
                assert at > 6
                assert under_way == set(MERGE_ORDER)
                return
            case.plan_again(at)


def test_losers_that_refer_to_each_other_do_so_again(service: RunningService, tmp_path: Path) -> None:
    with Case(service, tmp_path, seed=THREE_LOSERS) as case:
        last = max(case.ids[0])  # these are recreated last; until then the others lack the reference
        for one in case.ids[0]:
            case.crm.update_record(case.world.contacts, one, {"manager": last})
        case.before = case.world.snapshot()
        case.merges = case.world.plan(case.chance, case.ids, case.path, service.base_url)
        while case.merges[0].survivor == last:
            case.merges = case.world.plan(case.chance, case.ids, case.path, service.base_url)
        assert error_of(case.apply()) is None
        case.undone()


# -- other clients -------------------------------------------------------------------------------------------------------------------------


def test_a_group_whose_record_moved_is_refused_by_name_and_the_rest_goes_on(service: RunningService, tmp_path: Path) -> None:
    with Case(service, tmp_path, seed=5, groups=3) as case:
        moved, gone = case.merges[0], case.merges[2]
        case.crm.update_record(case.world.contacts, moved.losers[0], {"title": "Somebody else"})
        case.crm.delete_record(case.world.contacts, gone.survivor)
        done = case.apply()
        assert isinstance(error_of(done), PartialError)
        document = done.to_document()
        assert (document["merged"], document["refused"]) == (1, 2)
        assert [(row["group"], row["error"]) for row in document["rows"]["refused"]] == [
            (1, f"record {moved.losers[0]} has changed since the plan was made"),
            (3, f"record {gone.survivor} is not there any more"),
        ]
        there = {record.id for record in case.world.records(case.world.contacts)}
        assert set(case.ids[0]) <= there
        assert there & set(case.ids[1]) == {case.merges[1].survivor}


def test_a_loser_changed_while_it_is_merged_stays_and_its_group_is_taken_back(service: RunningService, tmp_path: Path) -> None:
    with Case(service, tmp_path, seed=ALL_KINDS) as case:
        (merge,) = case.merges

        def edit() -> None:
            case.crm.update_record(case.world.contacts, merge.losers[0], {"title": "Edited meanwhile"})

        case.context.service = Meddling(case.crm, 1, edit)
        done = case.apply()
        assert isinstance(error_of(done), RejectedError)
        assert f"record {merge.losers[0]} was changed while it was merged" in str(error_of(done))
        after = case.world.snapshot()
        edited = {name for name in after if after[name] != case.before.get(name)}
        assert [after[name]["title"] for name in edited] == ["Edited meanwhile"]
        assert done.counts[GroupState.FAILED] == 1


def test_new_references_to_a_loser_move_to_the_survivor(service: RunningService, tmp_path: Path) -> None:
    with Case(service, tmp_path, seed=ALL_KINDS) as case:
        (merge,) = case.merges
        link = {"objectId": case.world.contacts, "recordId": merge.losers[0]}

        def refer() -> None:
            case.crm.create_record(case.world.tickets, {"code": "late", "asker": merge.losers[0]})
            late = {"title": f"{case.world.slug} late", "summary": "", "linkedRecords": [link], "participants": []}
            case.crm.create_activity(late)

        case.context.service = Meddling(case.crm, 1, refer)
        assert error_of(case.apply()) is None
        case.world.check_merged(case.merges)
        case.context.service = case.crm
        assert error_of(unmerge(case.context)) is None
        code = next(name for name, one in case.world.snapshot().items() if name == "ticket late")
        assert case.world.snapshot()[code]["asker"] in case.before


def test_changes_after_a_merge_stay_and_are_reported(service: RunningService, tmp_path: Path) -> None:
    with Case(service, tmp_path, seed=ALL_KINDS) as case:
        assert error_of(case.apply()) is None
        (merge,) = case.merges
        written = next(slug for slug in ("score", "phone") if merge.values[slug].sources[0] != merge.survivor)
        new = {"score": 99, "phone": "+442079460000"}[written]
        case.crm.update_record(case.world.contacts, merge.survivor, {written: new})
        done = unmerge(case.context)
        assert isinstance(error_of(done), PartialError)
        assert done.conflicts == [{"group": 1, "id": merge.survivor, "attributes": [written]}]
        after = case.world.snapshot()
        differs = {name for name in case.before if after.get(name) != case.before[name]}
        assert len(differs) == 1
        assert after[differs.pop()][written] == new
        again = unmerge(case.context)
        assert again.conflicts == done.conflicts, "it is said again, and nothing is made twice"
        assert len(case.world.snapshot()) == len(case.before)


def test_a_lost_answer_makes_no_record_twice(service: RunningService, tmp_path: Path) -> None:
    with Case(service, tmp_path, seed=ALL_KINDS) as case:
        assert error_of(case.apply()) is None
        case.context.service = LostAnswers(case.crm)
        case.undone()


def test_a_refused_step_undoes_its_group(service: RunningService, tmp_path: Path) -> None:
    with Case(service, tmp_path, seed=ALL_KINDS) as case:
        case.context.service = Refusing(case.crm)
        done = case.apply()
        assert isinstance(error_of(done), RejectedError)
        assert "no deletion today" in str(error_of(done))
        assert case.world.snapshot() == case.before
        assert newest_job(case.context).to_document()["failed"] == 1


@pytest.mark.parametrize("refused", ["update_activity", "bulk_write"], ids=["links", "references"])
def test_an_undo_names_refused_steps_and_can_be_repeated(service: RunningService, tmp_path: Path, refused: str) -> None:
    with Case(service, tmp_path, seed=ALL_KINDS) as case:
        assert error_of(case.apply()) is None
        case.context.service = RefusingWrites(case.crm, refused, case.world.tickets)
        done = unmerge(case.context)
        assert isinstance(error_of(done), PartialError)
        assert {row["error"] for row in done.failed} == {"not today"}
        assert (done.undone, done.to_document()["activities"] if refused == "update_activity" else 0) == (0, 0)
        case.context.service = case.crm
        case.undone()


def test_a_record_silently_kept_undoes_its_group(service: RunningService, tmp_path: Path) -> None:
    with Case(service, tmp_path, seed=ALL_KINDS) as case:
        case.context.service = Keeping(case.crm)
        done = case.apply()
        assert error_of(done) is not None
        assert "still there" in str(error_of(done))
        assert case.world.snapshot() == case.before


class Meddling(CrashingService):
    """Another client acts after the `at`-th write."""

    def __init__(self, crm: Any, at: int, act: Any) -> None:
        super().__init__(crm, at, "after")
        self.act = act

    def _crash(self, when: str) -> None:
        if self.writes == self._at and when == self._when:
            self.act()


class LostAnswers(CrashingService):
    """A service that loses the answer to every second creation."""

    made = 0

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._crm, name)
        if name != "create_record":
            return call

        def create(*arguments: Any) -> Any:
            self.made += 1
            answer = call(*arguments)
            if self.made % 2:
                raise NetworkError("no answer came", outcome_unknown=True)
            return answer

        return create


class Refusing(CrashingService):
    """A service that refuses deletions."""

    def __getattr__(self, name: str) -> Any:
        def refuse(*_: Any, **__: Any) -> Any:
            raise RejectedError("no deletion today", status=409)

        return refuse if name == "bulk_delete" else getattr(self._crm, name)


class RefusingWrites(CrashingService):
    """A service that refuses changes of activities, or of one object's records."""

    def __init__(self, crm: Any, name: str, object_id: str) -> None:
        super().__init__(crm, 0, "after")
        self._name, self._object_id = name, object_id

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._crm, name)

        def refuse(target: str, *arguments: Any, **more: Any) -> Any:
            if name == "bulk_write" and target != self._object_id:
                return call(target, *arguments, **more)
            raise RejectedError("not today", status=409)

        return refuse if name == self._name else call


class Keeping(CrashingService):
    """A service that deletes nothing and tells only by its count."""

    def __getattr__(self, name: str) -> Any:
        return (lambda *_, **__: 0) if name == "bulk_delete" else getattr(self._crm, name)
