"""The three-way table (value the feed wrote last, value in the file, value of the record) for whole values and for parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from crmctl.errors import UsageError
from crmctl.plan.feed import Policy, ThreeWay, ValueChoice
from tests.support.bulkfiles import attribute

ATTRIBUTES = {
    each.slug: each
    for each in (
        attribute("email", "email"),
        attribute("note"),
        attribute("phone", "phone_number"),
        attribute("n", "number"),
        attribute("address", "address"),
        attribute("amount", "currency"),
        attribute("tags", "text", isList=True),
    )
}


def hash_of(unit: str, form: str) -> str:
    return f"{unit}:{form}"


def decide(policy: str, base: Any, file: Any, record: Any, slug: str = "note") -> tuple[Any, ValueChoice | None, bool | None]:
    """Return the value to write (None: none) and the conflict; an unknown `base` is "?"."""
    rule = ThreeWay(Policy.parse(policy), ATTRIBUTES)
    known = {} if base == "?" else rule.first({slug: base}, {}, hash_of).bases
    merge = rule.merge(({slug: file}, {}), {slug: record}, known, hash_of)
    written = merge.reduced({slug: file}, {})[0].get(slug) if file != record else None
    (chosen,) = merge.chosen or [None]
    assert (slug in merge.bases) is (written is not None or chosen is None)
    return written, chosen.choice if chosen else None, chosen.is_conflict if chosen else None


TABLE = [  # base, file, record, and the result of each policy: keep, take, fail, fill
    ("a", "a", "a", [(None, None, None)] * 4),
    ("a", "b", "a", [("b", None, None)] * 4),
    ("a", "a", "x", [(None, "kept", False), ("a", "taken", False), (None, "kept", False), (None, "kept", False)]),
    ("a", "a", None, [(None, "kept", False), ("a", "taken", False), (None, "kept", False), (None, "kept", False)]),
    ("a", "b", "x", [(None, "kept", True), ("b", "taken", True), (None, "failed", True), (None, "kept", True)]),
    ("a", "b", None, [(None, "kept", True), ("b", "taken", True), (None, "failed", True), ("b", "filled", True)]),
    ("a", "b", "b", [(None, None, None)] * 4),
    ("?", "b", "x", [(None, "kept", True), ("b", "taken", True), (None, "failed", True), (None, "kept", True)]),
    ("?", "b", None, [(None, "kept", True), ("b", None, None), (None, "failed", True), ("b", None, None)]),
    ("?", "b", "b", [(None, None, None)] * 4),
]


@pytest.mark.parametrize(("base", "file", "record", "outcomes"), TABLE)
def test_the_table(base: Any, file: Any, record: Any, outcomes: list[Any]) -> None:
    for policy, outcome in zip(("keep", "take", "fail", "fill"), outcomes, strict=True):
        assert decide(policy, base, file, record) == outcome, policy


@pytest.mark.parametrize(
    ("slug", "wrote", "shown"),
    [
        ("email", "Ada@ACME.com", "ada@acme.com"),
        ("phone", "+44 20 7946 0958", "+442079460958"),
        ("phone", "+442079460958", {"countryCode": "+44", "number": "20 7946 0958"}),
        ("n", 12.0, 12),
        ("note", " caf\u00e9 ", "cafe\u0301"),
        ("tags", ["a", "b"], ["a", "b "]),
    ],
)
def test_a_service_that_spells_a_value_in_its_own_way_has_not_changed_it(slug: str, wrote: Any, shown: Any) -> None:
    assert decide("keep", wrote, wrote, shown, slug) == (None, None, None)
    other = {"n": 13, "tags": ["c"]}.get(slug, "+4499" if slug == "phone" else "other@x.com")
    assert decide("keep", wrote, other, shown, slug) == (other, None, None)


def test_a_different_capital_in_text_is_an_edit() -> None:
    assert decide("keep", "ada", "ada", "Ada") == (None, ValueChoice.KEPT, False)


def of_parts(file: Mapping[str, Any], wrote: Mapping[str, Any], record: Any, slug: str = "address") -> tuple[Any, list[tuple[str, str]]]:
    rule = ThreeWay(Policy(), ATTRIBUTES)
    known = rule.first({}, {slug: wrote}, hash_of).bases
    merge = rule.merge(({slug: dict(file)}, {slug: file}), {slug: record}, known, hash_of)
    return merge.reduced({slug: dict(file)}, {slug: file})[1].get(slug), [(one.unit, str(one.choice)) for one in merge.chosen]


def test_each_part_that_the_file_names_counts_by_itself() -> None:
    wrote = {"city": "Rome", "street": "Via 1"}
    record = {"City": "Roma", "street": "Via 1", "country": "IT"}
    assert of_parts({"city": "Rome", "street": "Via 2"}, wrote, record) == ({"street": "Via 2"}, [("address.city", "kept")])
    assert of_parts({"city": "Rome", "street": "Via 1"}, wrote, record) == ({"street": "Via 1"}, [("address.city", "kept")])
    assert of_parts({"city": "Rome"}, {"city": "Rome"}, record) == (None, [("address.city", "kept")])


@pytest.mark.parametrize("record", [{"amount": 5, "currency": "EUR"}, 5])
def test_an_amount_counts_without_its_currency(record: Any) -> None:
    assert of_parts({"amount": 7}, {"amount": 5}, record, "amount") == ({"amount": 7}, [])
    assert of_parts({"amount": 7}, {"amount": 4}, record, "amount") == (None, [("amount.amount", "kept")])


def test_policies() -> None:
    policy = Policy.parse("take, phone=keep,notes=fill", ["phone", "notes"])
    assert [str(policy.of(slug)) for slug in ("phone", "notes", "email")] == ["keep", "fill", "take"]
    assert str(Policy.parse("notes=fill").of("phone")) == "keep"
    for wrong in ("perhaps", "=keep", "phone="):
        with pytest.raises(UsageError, match="--on-conflict takes keep, take, fail, fill"):
            Policy.parse(wrong)
    with pytest.raises(UsageError, match="there is no attribute fax"):
        Policy.parse("fax=keep", ["phone"])
