"""Imports against a service that alters values, answers wrongly and lists late: every row exists once, or the job names it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from crmctl.write.database import RowState
from crmctl.write.journal import surplus_records
from crmctl.write.send_context import DeliveryOptions
from tests.support.answerruns import ALTERATIONS, ANSWERS, AnswerPlay, play
from tests.support.bulkjobs import Silent, new_journal, prepared, run
from tests.support.campaigns import rest_in_campaigns
from tests.support.clock import FakeClock
from tests.support.faultruns import MovingClock, client_of
from tests.support.faultservice import Fault, FaultService, Habits


@pytest.mark.parametrize("number", [0, 1, 2])
def test_rows_that_differ_in_capitals_keep_their_own_records(number: int) -> None:
    """Some rows of a batch are created and the answer is lost: the service lists one spelling and not the other."""
    outcome = play(AnswerPlay("capitals", answers=((number, "503, applied to the last rows"),)))
    assert outcome.is_right, outcome


@pytest.mark.parametrize("answer", rest_in_campaigns([name for name in ANSWERS if name.startswith(("no answer", "503"))], 2))
@pytest.mark.parametrize("altered", rest_in_campaigns([7, None]))
def test_rows_that_the_service_altered_are_not_sent_again(answer: str, altered: int | None) -> None:
    """An altered row is not recognised by what was sent: a new record that nothing explains may be it."""
    in_doubt = 0
    for alteration in ALTERATIONS:
        outcome = play(AnswerPlay(alteration=alteration, altered=altered, answers=((1, answer),)))
        assert outcome.is_right, f"{alteration}: {outcome}"
        in_doubt += outcome.in_doubt
    assert in_doubt <= len(ALTERATIONS)


@pytest.mark.parametrize("writer", ["others", "similar"])
def test_records_of_another_writer_are_neither_rows_nor_reasons_to_give_up(writer: str) -> None:
    for answer in ("no answer, applied half", "no answer, applied no"):
        for alteration in (None, "truncates text"):
            outcome = play(AnswerPlay("unique", alteration, 7, ((1, answer),), writer=writer))
            assert outcome.is_right, outcome
            assert outcome.in_doubt <= 1


def test_a_partly_refused_batch_confirms_its_accepted_rows() -> None:
    """Nothing else is confirmed after the lost request, and its rows are proven absent all the same."""
    outcome = play(AnswerPlay(answers=((3, "no answer, applied no"),), refused=22))
    assert (outcome.is_right, outcome.in_doubt) == (True, 0), outcome


@pytest.mark.parametrize("answer", [*ANSWERS])
@pytest.mark.parametrize("recognition", rest_in_campaigns(["content", "unique"]))
def test_a_wrong_answer_is_found_out_before_the_job_ends(answer: str, recognition: str) -> None:
    """The final comparison matches records with rows: exit 0 only if every row exists once."""
    for number in (1, 4):
        outcome = play(AnswerPlay(recognition, answers=((number, answer),)))
        assert outcome.is_right, outcome


@pytest.mark.parametrize(("lists", "alteration"), [("current", None), ("5 s late", "escapes text"), ("every second read late", None)])
@pytest.mark.parametrize("answer", ["429, applied all", "401, applied all", "403, applied all", "404, applied all"])
def test_rows_refused_the_second_time_are_created_if_the_first_request_created_them(
    answer: str, lists: str, alteration: str | None
) -> None:
    """A unique attribute makes the service refuse the repeated rows, one of which it stored altered."""
    outcome = play(AnswerPlay("unique", alteration, 3, ((0, answer),), lists, "similar"))
    assert outcome.is_right, outcome
    assert (outcome.failed, outcome.in_doubt) == (0, 0), outcome


def test_a_row_that_was_refused_does_not_take_the_copy_of_its_twin() -> None:
    """Row 6 is refused, row 5 differs from it in capitals and exists twice."""
    outcome = play(AnswerPlay("capitals", answers=((0, "404, applied all"),), lists="every second read late", refused=6))
    assert (outcome.is_right, outcome.failed) == (True, 1), outcome


def test_a_row_without_a_record_does_not_take_that_of_its_twin_in_doubt() -> None:
    """The service collapses blanks. It stored row 5 and lost the answer; it acknowledged row 6, other capitals, without effect."""
    faults = ((0, "503, applied to the last rows"), (1, "created, without effect"))
    outcome = play(AnswerPlay("capitals", "collapses blanks", None, faults, "each record late", total=False, refused=12, seed=1308))
    assert outcome.is_right, outcome


def test_a_lost_row_does_not_take_the_copy_of_its_twin_in_a_service_that_changes_capitals() -> None:
    """Row 5 was accepted without effect. Row 6, other capitals and no blanks, exists twice. Rows 9 and 10 show that blanks stay."""
    faults = ((0, "created, without effect"), (1, "created twice by a proxy"))
    outcome = play(AnswerPlay("capitals", "lowers text", answers=faults, seed=749))
    assert (outcome.is_right, outcome.duplicates) == (True, 5), outcome


def test_a_refused_row_does_not_take_the_copy_of_its_twin_in_a_service_that_trims() -> None:
    """Row 5, other capitals, exists twice; row 6 was refused, and its batch is in doubt."""
    faults = ((0, "401, applied all"), (2, "403, applied all"))
    outcome = play(AnswerPlay("capitals", "trims text", answers=faults, lists="every second read late", refused=6, seed=289))
    assert outcome.is_right, outcome


def test_a_refused_row_does_not_take_the_copy_of_its_twin_in_a_service_that_trims_and_has_no_totals() -> None:
    """Every batch is carried out twice, and row 6 refused each time. All other rows are recognised, so its twin's copy is left over."""
    faults = ((0, "429, applied all"), (1, "403, applied all"), (2, "404, applied all"), (3, "401, applied all"))
    outcome = play(AnswerPlay("capitals", "trims text", None, faults, "each record late", "similar", False, 6, seed=733, batch=8))
    assert (outcome.is_right, outcome.in_doubt) == (True, 1), outcome


TWINS = {
    "twins in two batches, one lost and one created twice, and the service trims": AnswerPlay(
        "capitals", "trims text", answers=((2, "created, without effect"), (3, "429, applied all")), refused=12, seed=647
    ),
    "the same, refused twice, and the service truncates": AnswerPlay(
        "capitals",
        "truncates text",
        answers=((0, "503, applied to the last rows"), (2, "429, applied all"), (4, "no answer, applied no")),
        lists="5 s late",
        total=False,
        refused=12,
        seed=411,
    ),
    "the twin of a row with two records is in doubt, and the service truncates": AnswerPlay(
        "capitals",
        "truncates text",
        answers=((0, "429, applied all"), (2, "503, applied to the last rows"), (5, "no answer, applied no")),
        lists="each record late",
        seed=1324,
    ),
    "all twins have three records but a refused one, and the service truncates": AnswerPlay(
        "capitals",
        "truncates text",
        answers=((0, "403, applied all"), (1, "404, applied all"), (2, "503, applied to the last rows")),
        lists="every second read late",
        writer="similar",
        refused=6,
        seed=30,
        batch=8,
    ),
    "a created row has no record, its twin in doubt has one, and the service escapes text": AnswerPlay(
        "capitals",
        "escapes text",
        answers=(
            (0, "created, without effect"),
            (1, "403, applied all"),
            (3, "no answer, applied all"),
            (4, "503, applied to the last rows"),
        ),
        writer="others",
        total=False,
        seed=25,
    ),
    "a row is lost, and the service makes it more like its twin than it was": AnswerPlay(
        "capitals",
        "writes titles",
        7,
        answers=((2, "no answer, applied half"), (3, "429, applied all"), (4, "403, applied all")),
        lists="every second read late",
        seed=62,
        batch=3,
    ),
    "a created row has no record, and one is most like its twin in doubt, in a service that alters keys": AnswerPlay(
        "capitals",
        "alters the unique attribute",
        answers=(
            (0, "401, applied all"),
            (2, "created, without effect"),
            (3, "404, applied all"),
            (5, "created twice by a proxy"),
        ),
        lists="every second read late",
        writer="similar",
        total=False,
        seed=803,
    ),
    "the service changes the capitals of a row, and its twin is lost": AnswerPlay(
        "capitals",
        "writes titles",
        3,
        answers=((1, "503, applied to the last rows"), (6, "no answer, applied no")),
        lists="every second read late",
        total=False,
        seed=921,
        batch=3,
    ),
    "one twin has three records and the other two, and the service alters another value": AnswerPlay(
        "capitals",
        "makes dates moments",
        answers=(
            (0, "404, applied all"),
            (1, "403, applied all"),
            (2, "no answer, applied half"),
            (3, "503, applied to the last rows"),
        ),
        lists="each record late",
        seed=318,
        batch=8,
    ),
    "one twin is lost, the other there twice, and the service alters only the blanks that tell them apart": AnswerPlay(
        "capitals",
        "collapses blanks",
        answers=((2, "created, without effect"), (3, "429, applied all")),
        lists="each record late",
        seed=3491,
        batch=3,
    ),
    "a refused row was created, and its record looks like a second one of its twin until it is sent again": AnswerPlay(
        "capitals",
        "trims text",
        answers=((0, "no answer, applied all"), (1, "403, applied all"), (4, "created, without effect"), (5, "no answer, applied all")),
        lists="every second read late",
        seed=4025,
    ),
    "late lists first show two records of one twin, and then two of the other": AnswerPlay(
        "capitals",
        "writes titles",
        answers=((4, "429, applied all"), (5, "404, applied all"), (12, "403, applied all")),
        lists="each record late",
        writer="others",
        seed=752,
        batch=2,
    ),
}


SEVERAL_PAGES = {
    "a batch has no effect, and as many rows are there twice after a refusal for now": AnswerPlay(
        "capitals",
        "trims text",
        150,
        answers=((1, "created, without effect"), (3, "429, applied all"), (5, "403, applied all")),
        lists="each record late",
        rows=330,
        seed=73,
        batch=60,
    ),
    "the list changes while copies are looked for": AnswerPlay(
        "capitals",
        "rounds numbers",
        150,
        answers=((1, "created twice by a proxy"),),
        lists="every second read late",
        writer="others",
        rows=330,
        seed=78,
        batch=60,
    ),
    "the same as the first, in a job that is too long to be read": AnswerPlay(
        answers=((2, "created, without effect"), (5, "429, applied all")), rows=1200, batch=100
    ),
}


@pytest.mark.campaign
@pytest.mark.parametrize("told", SEVERAL_PAGES.values(), ids=SEVERAL_PAGES.keys())
def test_copies_are_found_behind_the_newest_page(told: AnswerPlay) -> None:
    outcome = play(told)
    assert (outcome.is_right, outcome.duplicates) == (True, told.batch), outcome


@pytest.mark.parametrize("told", rest_in_campaigns(TWINS.values(), 3), ids=TWINS.keys())
def test_the_service_shows_which_twin_a_record_is_although_it_alters_values(told: AnswerPlay) -> None:
    outcome = play(told)
    assert outcome.is_right, outcome


def test_a_lost_row_does_not_take_the_copy_of_its_twin_because_the_service_alters_another_row() -> None:
    """Row 15 was accepted without effect. Row 16, other capitals, exists twice. The service escapes the name of row 8."""
    faults = ((2, "created, without effect"), (3, "created twice by a proxy"))
    outcome = play(AnswerPlay("capitals", "escapes text", 8, faults, "5 s late", "similar", seed=979))
    assert (outcome.is_right, outcome.duplicates) == (True, 5), outcome


def test_copies_are_named_with_the_row_whose_content_they_hold() -> None:
    """The first batch is repeated after a 429: rows 1 and 2 differ in capitals, which the service lowers, and in a blank."""
    faults = ((0, "429, applied all"), (1, "no answer, applied all"))
    outcome = play(AnswerPlay("capitals", "lowers text", answers=faults, lists="5 s late", writer="others", seed=885))
    assert (outcome.is_right, outcome.duplicates) == (True, 5), outcome


def test_a_row_accepted_without_effect_does_not_take_the_record_of_its_twin_in_doubt() -> None:
    """Row 6, other capitals and no blanks, exists and is in doubt. Rows 9 and 10 show that the service keeps blanks."""
    faults = ((0, "created, without effect"), (1, "403, applied all"))
    outcome = play(AnswerPlay("capitals", "lowers text", answers=faults, lists="each record late", refused=12, seed=814))
    assert outcome.is_right, outcome


def test_rows_in_doubt_that_exist_do_not_hide_acknowledged_rows_that_do_not() -> None:
    """The number of records fits: the batch in doubt exists, and the last one was accepted without effect."""
    faults = ((0, "403, applied all"), (4, "created, without effect"))
    outcome = play(AnswerPlay("capitals", "escapes text", answers=faults, total=False, refused=12, seed=208))
    assert outcome.is_right, outcome


def test_lists_that_jump_between_two_states_do_not_keep_a_job_reading() -> None:
    told = AnswerPlay(
        "capitals", "collapses blanks", 8, ((2, "no answer, applied no"),), "every second read late", "others", False, 6, seed=14
    )
    outcome = play(told)
    assert outcome.is_right, outcome
    assert outcome.reads < 300


def test_a_job_that_ended_before_its_lists_caught_up_waits_as_long_the_next_time() -> None:
    """Rows 6 and 7 are refused as already used; the lists, 20 s late, do not show yet that an earlier request created them."""
    faults = ((1, "503, applied to the last rows"), (5, "403, applied all"))
    outcome = play(AnswerPlay("unique", "makes dates moments", 3, faults, "each record late", seed=120))
    assert (outcome.is_right, outcome.failed) == (True, 0), outcome


@pytest.mark.parametrize("total", [True, False], ids=["totals", "no totals"])
@pytest.mark.parametrize("writer", [False, True], ids=["alone", "another writer"])
def test_copies_in_the_middle_of_a_large_job_are_named(tmp_path: Path, total: bool, writer: bool) -> None:
    """Without totals, the place of the newest older record tells how many new ones there are."""
    clock = MovingClock()
    service = FaultService(clock, {4: Fault("a proxy sends it twice", "twice", "good")}, Habits(total=total, strangers=writer))
    for n in range(3):
        service.create({"n": -n})
    clock.advance(3600)
    with closing(new_journal(tmp_path / "job", clock=clock)) as journal:
        result = run(client_of(service, clock), journal, prepared(1000), DeliveryOptions(concurrency=1), clock=clock)
        duplicates = surplus_records(journal)
        assert (result.error, journal.counts()[RowState.CREATED]) == (None, 1000)
    there = {one["wire"]["id"]: one["wire"]["data"]["n"] for one in service.records}
    assert {row: [there[record_id] for record_id in ids] for row, ids in duplicates.items()} == {n: [n] for n in range(401, 501)}


@pytest.mark.parametrize(("total", "reads"), [(True, 2), (False, 3)], ids=["totals", "no totals"])
def test_a_clean_job_reads_twice_or_without_totals_three_times(tmp_path: Path, total: bool, reads: int) -> None:
    clock = MovingClock()
    service, progress = FaultService(clock, habits=Habits(total=total)), Silent()
    service.create({"n": 0})
    clock.advance(3600)
    with closing(new_journal(tmp_path / "job", clock=clock)) as journal:
        assert run(client_of(service, clock), journal, prepared(3000), clock=clock, progress=progress).error is None
    assert (service.reads, service.writes, progress.notes) == (reads, 30, [])


@pytest.mark.parametrize("applies", rest_in_campaigns(["no", "half"]))
@pytest.mark.parametrize("total", [True, False], ids=["totals", "no totals"])
def test_a_lost_early_request_costs_two_announced_readings_of_later_records(tmp_path: Path, applies: str, total: bool) -> None:
    """Looks before the settle time read few pages: with every later batch, the rows are further down.

    If the number of records shows that nothing arrived, or the rows are found at their place in the list, later looks read few pages, too.
    """
    clock = MovingClock()
    service, progress = FaultService(clock, {1: Fault("lost", applies, "drop")}, Habits(total=total)), Silent()
    service.create({"n": 0})
    clock.advance(3600)
    with closing(new_journal(tmp_path / "job", clock=clock)) as journal:
        assert run(client_of(service, clock), journal, prepared(3000), clock=clock, progress=progress).error is None
        assert journal.counts()[RowState.CREATED] == 3000
    assert service.reads < (60 if total and applies == "no" else 110)
    notes = progress.notes.count("reading more than 20 pages of new records to find rows in doubt")
    assert notes == 0 if total else 1 <= notes <= 2


@pytest.mark.parametrize("page", [100, 40, 25])
@pytest.mark.parametrize("ties", ["id", "random"])
def test_small_pages_of_records_of_one_moment_put_no_row_in_doubt(tmp_path: Path, page: int, ties: str) -> None:
    """Without totals, the newest page does not show which records of one moment are missing; their number does."""
    clock = FakeClock()
    service = FaultService(clock, habits=Habits(total=False, page=page, ties=ties))
    for n in range(150):
        service.create({"n": -n})
    clock.advance(3600)
    with closing(new_journal(tmp_path / "job", clock=clock)) as journal:
        assert run(client_of(service, clock), journal, prepared(230), clock=clock).error is None
        assert journal.counts()[RowState.CREATED] == 230
    assert service.reads == 3


def test_another_writer_costs_one_reading_of_the_new_records(tmp_path: Path) -> None:
    clock = MovingClock()
    service = FaultService(clock, habits=Habits(strangers=True))
    service.create({"n": 0})
    clock.advance(3600)
    with closing(new_journal(tmp_path / "job", clock=clock)) as journal:
        assert run(client_of(service, clock), journal, prepared(1000), clock=clock).error is None
    assert service.reads <= 2 + 1010 // 99 + 1


def test_a_play_is_the_same_each_time() -> None:
    told = AnswerPlay("capitals", "lowers text", None, ((1, "no answer, applied half"), (2, "503, applied to the last rows")), "5 s late")
    assert play(told) == play(told)


@pytest.mark.parametrize("recognition", ["content", "unique", "capitals"])
@pytest.mark.parametrize("total", [True, False])
def test_rows_of_a_job_of_which_nothing_was_stored_are_in_doubt(recognition: str, total: bool) -> None:
    """The service accepts the only batch and stores nothing: nobody has seen a row of it, so none counts as created."""
    outcome = play(AnswerPlay(recognition, answers=((0, "created, without effect"),), rows=5, total=total))
    assert outcome.is_right, outcome
    assert outcome.in_doubt == 5
