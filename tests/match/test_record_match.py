"""Records matched with rows: equal rows, surplus records, and names given before."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import pytest

from crmctl.match.record_match import Known, Recognition, RecordMatch, Twins, match
from crmctl.models.resources import Record
from tests.support.bulkjobs import Prepared

CONTENT = Recognition(frozenset({"n"}), unique=False)


def matched(
    rows: Sequence[int], there: str, twins: Twins | None = None, names: Mapping[int, str] | None = None, further: str = ""
) -> RecordMatch:
    """Match rows by ordinal with records of one letter each, oldest first, all with equal values."""

    def told(keys: Collection[str]) -> Mapping[str, Mapping[str, Twins]]:
        return {key: {CONTENT.form({"n": 5}): twins} for key in keys} if twins is not None else {}

    entries = [Prepared(ordinal, {"n": 5}) for ordinal in rows]
    records = [Record.parse({"id": letter, "objectId": "o", "data": {"n": 5}}) for letter in there]
    return match(entries, records, CONTENT, Known(told, names or {}, frozenset(further)))


def test_rows_that_are_alike_stand_for_one_another() -> None:
    assert matched([1, 2], "ab") == RecordMatch({1: "a", 2: "b"})


def test_surplus_records_are_only_the_surplus() -> None:
    assert matched([1, 2], "abcd") == RecordMatch({1: "a", 2: "b"}, {2: ["c", "d"]})


def test_a_row_keeps_the_record_it_is_known_to_have_become() -> None:
    assert matched([1, 2], "ab", names={2: "a"}) == RecordMatch({1: "b", 2: "a"})


def test_a_record_that_is_gone_is_no_row_of_ours() -> None:
    assert matched([1], "b", names={1: "a"}).found == {1: "b"}


def test_the_record_of_a_row_elsewhere_is_not_too_many() -> None:
    assert matched([1], "abc", Twins(frozenset("b")), {1: "a"}) == RecordMatch({1: "a"}, {1: ["c"]})


def test_a_named_surplus_record_is_not_counted_again() -> None:
    """Row 1 was found twice before its twin was sent: `b` is surplus, and `c` belongs to the twin."""
    assert matched([1], "abc", Twins(unnamed=1), {1: "a"}, "b") == RecordMatch({1: "a"})


def test_a_named_surplus_record_stands_for_no_other_row() -> None:
    """Otherwise deleting it would lose that row."""
    assert matched([2], "ab", Twins(frozenset("a")), further="b") == RecordMatch()
    assert matched([2], "abc", Twins(frozenset("a"), 1), further="b") == RecordMatch(ambiguous=frozenset({2}))


@pytest.mark.parametrize(("there", "told"), [("a", RecordMatch(ambiguous=frozenset({1}))), ("ab", RecordMatch({1: None}))])
def test_with_a_twin_that_may_be_there_it_takes_records_for_both(there: str, told: RecordMatch) -> None:
    assert matched([1], there, Twins(unnamed=1)) == told


def by_name(rows: Sequence[str], there: Sequence[str]) -> RecordMatch:
    """Match rows from 1 and records from "a" with these names."""
    records = [Record.parse({"id": chr(97 + at), "objectId": "o", "data": {"name": name}}) for at, name in enumerate(there)]
    entries = [Prepared(ordinal, {"name": name}) for ordinal, name in enumerate(rows, 1)]
    return match(entries, records, Recognition(frozenset({"name"}), unique=False), Known())


@pytest.mark.parametrize("other", ["r..x", " R..X", "R..X "])
def test_rows_that_differ_only_in_capitals_or_outer_blanks_are_distinguished(other: str) -> None:
    assert by_name([other, "R..X"], ["R..X"]) == RecordMatch({2: "a"})
    assert by_name(["R..X", other], [other, "R..X"]).found == {1: "b", 2: "a"}
    assert by_name([other, "R..X"], ["R..X", "R..X", other, other]).extra == {1: ["d"], 2: ["b"]}


def test_a_copy_belongs_to_the_row_whose_record_it_equals() -> None:
    """The service lowers names: the copies of row 1 look more like row 2."""
    pairs = by_name([" aNN BOB", "Ann bob"], [" ann bob", "ann bob", " ann bob", "ann bob"])
    assert (pairs.found, pairs.extra) == ({1: "a", 2: "b"}, {1: ["c"], 2: ["d"]})


def test_a_record_spelled_like_another_row_may_be_its_copy() -> None:
    both = by_name(["r..x", "R..X"], ["r..x", "r..x"])
    assert (both.found, both.ambiguous, both.extra) == ({1: "a"}, {2}, {})
    assert by_name(["R..X", "r..x"], ["r..x"]).found == {2: "a"}


@pytest.mark.parametrize(
    ("there", "is_ours"),
    [
        ({"phone": "+49 (30) 12345", "home": {"city": "BERLIN", "country": "DE"}, "score": 1.24, "note": "a long no"}, True),
        ({"phone": "030 12345", "home": {"city": "Berlin"}, "score": 1.239, "note": "a long note"}, True),
        ({"due": "2026-01-01T22:30:00Z"}, True),
        ({"due": "2026-01-01T23:30:00Z"}, False),
        ({"phone": "+49307777", "home": {"city": "Berlin"}, "score": 1.239, "note": "a long note"}, False),
        ({"phone": "+493012345", "home": {"city": "Berlin"}, "score": 7, "note": "a long note"}, False),
        ({"phone": "+493012345", "home": {"city": "Berlin"}, "score": 1.239}, False),
    ],
    ids=str,
)
@pytest.mark.parametrize("changed", [False, True])
def test_a_record_with_the_key_is_ours_unless_it_was_created_with_something_else(
    there: Mapping[str, object], is_ours: bool, changed: bool
) -> None:
    """Services spell values in their own way, and people change records; neither makes a record another client's."""
    sent = {"email": "a@b.de", "phone": "03012345", "home": {"city": "Berlin"}, "score": 1.239, "note": "a long note"}
    sent |= {"due": "2026-01-02T00:30:00+02:00"}
    there = {**sent, **there} if "due" in there else {"due": sent["due"], **there}
    by_email = Recognition(frozenset({"email"}), unique=True)
    made, at = "2026-01-01T00:00:00Z", "2026-01-01T00:10:00Z" if changed else "2026-01-01T00:00:00.2Z"
    wire = {"id": "a", "objectId": "o", "data": {"email": "A@b.de", **there}, "createdAt": made, "updatedAt": at}
    found = match([Prepared(1, sent)], [Record.parse(wire)], by_email, Known())
    assert (found.found, found.taken) == (({1: "a"}, frozenset()) if is_ours or changed else ({}, frozenset({1})))
