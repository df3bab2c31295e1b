"""Exports from a service under constant change: each record that existed throughout appears once, as new as the last pass over changes."""

from __future__ import annotations

import random

import pytest

from crmctl.errors import ServiceError
from crmctl.models.resources import Record
from crmctl.read import stable_pages as anchoring
from crmctl.read.export_passes import GatherMark
from crmctl.read.stable_pages import SURE, GroupWalk, Slice, weigh
from crmctl.values.moments import MICROS
from tests.support.campaigns import rest_in_campaigns
from tests.support.churn import START, TIES, Churn, ChurningService, Outcome, export_under_churn

CALM = Churn()


def complete(outcome: Outcome) -> bool:
    return not (outcome.lost or outcome.stale or outcome.invented)


def random_service(seed: int, ties: str) -> ChurningService:
    chance = random.Random(f"{ties}-{seed}")
    churn = Churn(chance.choice([0, 0.5, 3]), chance.choice([0, 0.5, 5]), chance.choice([0, 0.3, 2, 10]), chance.choice([0, 0.3]))
    return ChurningService(
        seed,
        chance.choice([0, 1, 50, 99, 100, 101, 300, 500]),
        chance.choice([1, 2, 3, 10, 50, 98, 99, 100, 101, 150, 250]),
        ties,
        churn,
        gives_total=chance.random() < 0.7,
        filters_time=chance.random() < 0.5,
    )


@pytest.mark.parametrize("ties", TIES)
def test_nothing_that_existed_throughout_is_lost_or_stale(ties: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """benchmarks/export_churn.py plays many more."""
    monkeypatch.setattr(anchoring, "REBASE", 150)
    for seed in range(16):
        service = random_service(seed, ties)
        outcome = export_under_churn(service, prune=seed % 4 == 0)
        assert complete(outcome), (seed, outcome)


@pytest.mark.parametrize(
    ("ties", "group", "deletes", "most"),
    rest_in_campaigns([
        ("random", 10, 0.1, 62), ("arrival", 250, 0.1, 56), ("id", 1, 0, 54), ("id", 100, 0, 54), ("reversed", 250, 0.1, 56),
        ("arrival", 99, 0, 55), ("random", 1, 0, 54), ("random", 98, 0, 55), ("random", 100, 0, 330), ("random", 250, 0, 400),
    ], 3),
)  # fmt: skip
def test_requests_stay_near_those_of_plain_paging(ties: str, group: int, deletes: float, most: int) -> None:
    """4,900 records are 49 full pages."""
    service = ChurningService(7, 4900, group, ties, Churn(0.2, 0.2, deletes))
    outcome = export_under_churn(service)
    assert complete(outcome)
    assert outcome.sweep_requests <= most
    assert outcome.requests <= outcome.sweep_requests + 30


@pytest.mark.parametrize(
    ("group", "churn", "seed"),
    [(150, Churn(1), 7), (150, Churn(1), 10), (150, Churn(2, 1, 1), 5), (250, Churn(3), 0), (250, Churn(3), 3), (250, Churn(updates=4), 1)],
)
def test_of_many_changes_of_one_moment_none_is_missed_while_others_write(group: int, churn: Churn, seed: int) -> None:
    """New changes come first and move all others down; the service orders changes of one moment anew for every page."""
    mark = GatherMark(START - 2 * 86_400 * MICROS, START, START)
    outcome = export_under_churn(ChurningService(seed, 400, group, "random", churn), mark=mark)
    assert complete(outcome)
    assert "unstable_ties" not in outcome.state.flags


@pytest.mark.campaign
def test_thousands_of_changes_of_one_moment_do_not_look_like_a_restless_list() -> None:
    mark = GatherMark(START - 2 * 86_400 * MICROS, START, START)
    assert complete(export_under_churn(ChurningService(1, 2500, 2400, "random", Churn(0.1)), mark=mark))


def test_a_record_read_and_deleted_does_not_stand_for_one_that_was_missed() -> None:
    """The group is 0 to 150. 150 is read and deleted; 0 to 149 remain, and 149 is not on the pages of the first walk."""
    walks = [
        [page(0, [-1, 150, *range(98)]), page(100, [*range(98, 149), None])],
        [page(0, [-1, *range(99)]), page(100, [*range(99, 150), None])],
    ]
    shown = iter([one for walk in walks for one in walk])
    walk = GroupWalk(1, lambda: next(shown), lambda _: next(shown), lambda _: False)
    read = {row.id for rows in walk.pages() for row in rows}
    assert walk.walks == 2
    assert {str(number) for number in range(150)} <= read


def page(offset: int, numbers: list[int | None]) -> Slice:
    """Return a page of the group of key 1; -1 is a record before it, None one after it."""
    keys = [2 if number is None else min(number, 0) + 1 for number in numbers]
    rows = [Record.parse({"id": str(number)}) for number in numbers]
    return Slice(rows, keys, offset, is_last=False, total=500)


def test_an_order_is_evidence_only_while_it_holds() -> None:
    group = [(str(number), "then") for number in range(13)]
    assert weigh(group, group) > SURE
    assert weigh(group[:5], group[3:9]) == pytest.approx(1.0)
    assert weigh(group, group[::-1]) < 0
    moved = [*group[1:], (group[0][0], "changed since")]
    assert weigh(group, moved) > 0


def test_an_order_is_not_trusted_before_it_has_proved_to_hold() -> None:
    for seed in range(40):
        assert complete(export_under_churn(ChurningService(seed, 350, 12, "random", CALM))), seed


def test_a_list_that_can_be_filtered_by_time_is_read_with_small_offsets() -> None:
    service = ChurningService(1, 6000, 10, "arrival", Churn(0.5, 0.5, 0.5), filters_time=True, cap=anchoring.REBASE + 200)
    assert complete(export_under_churn(service))


def test_a_list_that_ends_at_some_depth_is_read_from_both_ends() -> None:
    service = ChurningService(1, 1800, 10, "arrival", Churn(0.5, 0.5, 0.2), cap=1000)
    assert complete(export_under_churn(service))


def test_a_list_that_cannot_be_read_whole_is_an_error_not_a_short_file() -> None:
    service = ChurningService(1, 2500, 10, "arrival", CALM, cap=1000)
    with pytest.raises(ServiceError) as caught:
        export_under_churn(service)
    assert caught.value.code == "offset_capped"


def test_a_group_that_never_rests_is_flagged() -> None:
    service = ChurningService(3, 3000, 1500, "random", Churn(deletes=8))
    assert "unstable_ties" in export_under_churn(service).state.flags


def test_records_without_times_are_one_group() -> None:
    service = ChurningService(1, 450, 1, "arrival", CALM)
    service.untimed = True
    outcome = export_under_churn(service)
    assert not outcome.lost
    assert set(outcome.state.flags) == {"unsorted", "updates_unseen"}
