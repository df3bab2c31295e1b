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
    return Record.parse({"id": letter, "objectId": "o", "data": data})


ROWS = [Prepared(n, {"n": n, "note": f"note number {n} of many", "country": "DE"}) for n in range(1, 6)]


def test_an_altered_record_is_paired_with_its_row() -> None:
    agreed = pair_altered(ROWS, [record("a", n=3, note="note number 3", country="DE")], ROWS, ())
    assert (agreed.found, agreed.possible) == ({3: "a"}, frozenset())


def test_a_stranger_that_shares_a_common_value_is_no_row() -> None:
    agreed = pair_altered(ROWS, [record("a", n=77, note="somebody else", country="DE")], ROWS, ())
    assert (agreed.found, agreed.possible) == ({}, frozenset())


def test_one_record_that_several_rows_may_have_become_leaves_these_in_doubt() -> None:
    rows = [Prepared(n, {"note": f"a note that is cut off before {n}"}) for n in (1, 2)]
    agreed = pair_altered(rows, [record("a", note="a note that is cut")], rows, ())
    assert (agreed.found, agreed.possible) == ({}, frozenset({1, 2}))


def test_a_record_of_another_row_is_not_paired() -> None:
    agreed = pair_altered(ROWS[:1], [record("a", n=3, note="note number 3", country="DE")], ROWS, ROWS[1:])
    assert (agreed.found, agreed.possible) == ({}, frozenset())


def test_twins_that_differ_in_capitals_are_distinguished_after_truncation() -> None:
    """Both rows share all other values: only the case of the rest of their names tells them apart."""
    rows = [
        Prepared(n, {"name": name, "email": "a@x.com", "country": "DE"}) for n, name in ((1, "Ann of the North"), (2, "aNN OF THE nORTH"))
    ]
    altered = [record("b", name="aNN OF", email="a@x.com", country="DE"), record("a", name="Ann of", email="a@x.com", country="DE")]
    assert pair_altered(rows, altered, rows, ()).found == {1: "a", 2: "b"}
    assert pair_altered(rows, altered[:1], rows, ()).found == {2: "b"}


def test_rows_that_may_be_each_other_exist_if_there_are_enough_records() -> None:
    """Which row has which record is uncertain; that both rows exist is not."""
    rows = [Prepared(n, {"name": name, "note": note}) for n, name, note in ((1, "ANN LEE", "one"), (2, "Ann Lee", "one"))]
    agreed = pair_altered(rows, [record("a", name="ann l", note="one"), record("b", name="ann le", note="one")], rows, ())
    assert (agreed.found, agreed.possible, agreed.ids) == ({1: None, 2: None}, frozenset(), {"a", "b"})


def test_one_attribute_may_be_altered_beyond_recognition() -> None:
    rows = [Prepared(n, {"name": f"Name {n}", "phone": f"+49 30 {n}", "email": f"P{n}+list@acme.com"}) for n in (1, 2)]
    altered = record("a", name="Name 1", phone="+49 30 1", email="p1@acme.com")
    assert pair_altered(rows, [altered], rows, ()).found == {1: "a"}


def test_a_weak_candidate_does_not_leave_a_paired_row_in_doubt() -> None:
    records = [record("a", n=3, note="note number 3", country="DE"), record("b", n=3, note="something else", country="FR")]
    agreed = pair_altered(ROWS, records, ROWS, ())
    assert (agreed.found, agreed.possible) == ({3: "a"}, frozenset())
