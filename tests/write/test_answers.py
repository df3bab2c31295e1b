"""Imports against a service that alters values, answers wrongly and lists late: every row exists once, or the job names it."""

from __future__ import annotations

import pytest

from tests.support.answerruns import ALTERATIONS, ANSWERS, AnswerPlay, play


@pytest.mark.parametrize("number", [0, 1, 2])
def test_rows_that_differ_in_capitals_keep_their_own_records(number: int) -> None:
    """Some rows of a batch are created and the answer is lost: the service lists one spelling and not the other."""
    outcome = play(AnswerPlay("capitals", answers=((number, "503, applied to the last rows"),)))
    assert outcome.is_right, outcome


@pytest.mark.parametrize("answer", [name for name in ANSWERS if name.startswith(("no answer", "503"))])
@pytest.mark.parametrize("altered", [None, 7])
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
@pytest.mark.parametrize("recognition", ["content", "unique"])
def test_a_wrong_answer_is_found_out_before_the_job_ends(answer: str, recognition: str) -> None:
    """The last look compares what exists with what was written: exit 0 only if every row exists once."""
    for number in (1, 4):
        outcome = play(AnswerPlay(recognition, answers=((number, answer),)))
        assert outcome.is_right, outcome
