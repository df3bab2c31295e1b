"""Changes by key, deletions, feeds, undos and parents against a service that answers wrongly: nothing is lost, doubled or overwritten."""

from __future__ import annotations

import pytest

from tests.support.changeruns import ChangePlay, play_change

PLAYS = {
    "a feed whose rows may hold parts is resumed after people edited unsent rows": ChangePlay(
        "feed", "sorts lists", answers=((0, "404, applied all"),), lists="each record late", writer="edits", seed=271
    ),
    "a feed reads its rows again in the thread of a sender": ChangePlay(
        "feed", "alters the unique attribute", answers=((0, "403, applied all"),), total=False, resumes=False
    ),
    "a deletion is refused after it was carried out": ChangePlay("delete", answers=((0, "403, applied all"),)),
    "half a deletion is carried out and refused": ChangePlay("delete", answers=((1, "401, applied all"), (2, "no answer, applied half"))),
}


@pytest.mark.parametrize("told", PLAYS.values(), ids=PLAYS.keys())
def test_what_a_play_once_showed(told: ChangePlay) -> None:
    outcome = play_change(told)
    assert outcome.is_right, outcome
