"""Rows paired with records whose values the service altered."""

from __future__ import annotations

from typing import Any

import pytest

from crmctl.match.agreement import EXPLAINED, agreement, pair_altered
from crmctl.models.resources import Record
from tests.support.bulkjobs import Prepared


@pytest.mark.parametrize(
    ("sent", "there", "is_altered"),
    [
        ("a long note", "a long", True),
        ("two  blanks", "two blanks", True),
        ("Smith & Co", "Smith &amp; Co", True),
        ("2026-01-02", "2026-01-02T00:00:00Z", True),
        ("row 17", "row 18", False),
        (1.237, 1.2, True),
        (1.237, 7, False),
        (["b", "a"], ["a", "b"], True),
        (["b", "a"], ["c"], False),
    ],
)
def test_agreement(sent: Any, there: Any, is_altered: bool) -> None:
    assert (agreement(sent, there) >= EXPLAINED) is is_altered


def record(letter: str, **data: Any) -> Record:
    return Record.model_validate({"id": letter, "objectId": "o", "data": data})


ROWS = [Prepared(n, {"n": n, "note": f"note number {n} of many", "country": "DE"}) for n in range(1, 6)]


def test_an_altered_record_is_paired_with_its_row() -> None:
    agreed = pair_altered(ROWS, [record("a", n=3, note="note number 3", country="DE")], ROWS, ())
    assert (agreed.found, agreed.possible, agreed.strangers) == ({3: "a"}, frozenset(), 0)


def test_a_stranger_that_shares_a_common_value_is_no_row() -> None:
    agreed = pair_altered(ROWS, [record("a", n=77, note="somebody else", country="DE")], ROWS, ())
    assert (agreed.found, agreed.possible, agreed.strangers) == ({}, frozenset(), 1)


def test_one_record_that_several_rows_may_have_become_leaves_these_in_doubt() -> None:
    rows = [Prepared(n, {"note": f"a note that is cut off before {n}"}) for n in (1, 2)]
    agreed = pair_altered(rows, [record("a", note="a note that is cut")], rows, ())
    assert (agreed.found, agreed.possible) == ({}, frozenset({1, 2}))


def test_a_record_of_another_row_is_not_paired() -> None:
    agreed = pair_altered(ROWS[:1], [record("a", n=3, note="note number 3", country="DE")], ROWS, ROWS[1:])
    assert (agreed.found, agreed.possible, agreed.strangers) == ({}, frozenset(), 1)
