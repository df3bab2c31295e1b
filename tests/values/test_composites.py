"""Parts of values: named parts change, others stay, whatever form a service keeps values in."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crmctl.errors import RejectedError, UsageError
from crmctl.values.attribute_types import PART_NAMES
from crmctl.values.composites import Form, Merger, compose_phone, currency_code, learn_form, usual_name, usual_part
from tests.support.bulkfiles import attribute

KINDS = {"name": attribute("name", "name"), "address": attribute("address", "address"), "amount": attribute("amount", "currency")}
SPELLINGS = {
    slug: [name for usual, others in PART_NAMES[one.type or ""].items() for name in (usual, *others)] for slug, one in KINDS.items()
}
TEXT = st.text("abcdef ", min_size=1, max_size=6)


def merge(slug: str, parts: dict[str, Any], current: Any, *others: Any, currency: str | None = None) -> Any:
    form = learn_form(KINDS[slug], [{slug: other} for other in others])
    return Merger(KINDS, {slug: form}, currency).merge(slug, parts, current)


@given(st.data())
def test_unnamed_parts_never_change(data: st.DataObject) -> None:
    slug = data.draw(st.sampled_from(list(KINDS)))
    one = KINDS[slug]
    keys = st.lists(st.sampled_from([*SPELLINGS[slug], "own", "gate_code"]), unique_by=lambda key: usual_name(one, key) or key, max_size=4)
    current = {key: data.draw(TEXT | st.none() | st.integers()) for key in data.draw(keys)}
    parts = {key: data.draw(TEXT | st.none()) for key in data.draw(keys) if key != "own"}
    merged = merge(slug, parts, current) or {}
    if not isinstance(merged, dict):
        assert (slug, list(parts)) == ("amount", list(parts))
        merged = {"amount": merged}
    named = {usual_name(one, part) or part for part in parts}
    for key, value in current.items():
        if (usual_name(one, key) or key) not in named:
            assert merged.get(key) == (value if merged else merged.get(key))
            assert merged or value in (None, "")
    for part, value in parts.items():
        found = [item for key, item in merged.items() if (usual_name(one, key) or key) == (usual_name(one, part) or part)]
        assert (found or [None]) == [value]


@pytest.mark.parametrize(
    ("slug", "parts", "current", "merged"),
    [
        ("address", {"city": "Rome"}, {"street": "1 Main St", "city": "Paris"}, {"street": "1 Main St", "city": "Rome"}),
        ("address", {"zip": "1"}, {"postal_code": "2", "floor": 3}, {"postal_code": "1", "floor": 3}),
        ("address", {"city": None}, {"street": "1 Main St", "city": "Paris"}, {"street": "1 Main St", "city": None}),
        ("address", {"city": None}, {"city": "Paris"}, None),
        ("address", {"city": None}, {"street": "1 Main St"}, {"street": "1 Main St"}),
        ("address", {"city": "Rome"}, None, {"city": "Rome"}),
        ("name", {"first": "Ada"}, {"firstName": "A", "lastName": "L"}, {"firstName": "Ada", "lastName": "L"}),
        ("name", {"first": "Ada", "last": "L"}, "Ada L", "Ada L"),
        ("amount", {"amount": 5}, {"amount": 3, "currency": "EUR"}, {"amount": 5, "currency": "EUR"}),
        ("amount", {"amount": 5}, {"value": 3, "code": "EUR"}, {"value": 5, "code": "EUR"}),
        ("amount", {"amount": 5}, 3, 5),
        ("amount", {"currency": "EUR"}, 3, {"amount": 3, "currency": "EUR"}),
        ("amount", {"amount": 5}, None, 5),
    ],
)
def test_parts_are_merged_into_existing_values(slug: str, parts: dict[str, Any], current: Any, merged: Any) -> None:
    assert merge(slug, parts, current) == merged


def test_new_values_have_the_form_of_existing_records() -> None:
    assert merge("name", {"first": "Ada", "last": "L"}, None, {"firstName": "x", "lastName": "y"}) == {"firstName": "Ada", "lastName": "L"}
    assert merge("name", {"first": "Ada", "last": "L"}, None, "Grace Hopper") == "Ada L"
    assert merge("amount", {"amount": 5}, None, 3, {"amount": 3, "currency": "EUR"}) == 5
    with pytest.raises(RejectedError) as caught:
        merge("amount", {"amount": 5}, None, {"amount": 3, "currency": "EUR"})
    assert (caught.value.code, "--currency EUR" in (caught.value.hint or "")) == ("missing_currency", True)
    assert merge("amount", {"amount": 5}, None, {"amount": 3, "currency": "EUR"}, currency="USD") == {"amount": 5, "currency": "USD"}
    assert merge("amount", {"amount": 5}, {"amount": 3, "currency": "EUR"}, currency="USD") == {"amount": 5, "currency": "EUR"}
    assert merge("amount", {"amount": 5}, {"amount": 3, "currency": None}, currency="USD") == {"amount": 5, "currency": "USD"}


@pytest.mark.parametrize(
    ("slug", "current"), [("address", "1 Main St, Paris"), ("name", "Ada Lovelace"), ("amount", "12 EUR"), ("name", [1])]
)
def test_a_value_without_parts_is_named_and_left_alone(slug: str, current: Any) -> None:
    part = next(iter(PART_NAMES[KINDS[slug].type or ""]))
    with pytest.raises(RejectedError) as caught:
        merge(slug, {part: "x"}, current)
    assert str(current) in caught.value.message
    assert "all its parts" in (caught.value.hint or "")


def test_all_parts_replace_a_text() -> None:
    parts = dict.fromkeys(PART_NAMES["address"], "x")
    assert merge("address", parts, "1 Main St, Paris") == parts
    assert merge("name", {"first": "A", "last": "B"}, "Ada L", {"first": "x", "last": "y"}) == {"first": "A", "last": "B"}
    assert merge("name", {"first": "A", "last": "B"}, "Ada L", {"firstName": "x", "lastName": "y"}) == {"firstName": "A", "lastName": "B"}


def test_a_form_says_whether_records_differ() -> None:
    assert learn_form(KINDS["amount"], [{"amount": 1}, {"amount": {"amount": 1}}]) == Form(plain=True, keys=("amount",))


def test_a_currency_is_three_letters() -> None:
    assert (currency_code("eur"), currency_code(None)) == ("EUR", None)
    for text in ("", "€", "EURO", "12a"):
        with pytest.raises(UsageError):
            currency_code(text)


@pytest.mark.parametrize(
    ("sample", "extension", "value"),
    [
        (None, None, "+4930123"),
        (None, "7", "+4930123;ext=7"),
        ({"number": "+1"}, None, {"number": "+4930123"}),
        ({"number": "+1"}, "7", {"number": "+4930123;ext=7"}),
        ({"number": "+1", "extension": "2"}, None, {"number": "+4930123"}),
        ({"number": "+1", "extension": "2"}, "7", {"number": "+4930123", "extension": "7"}),
    ],
)
def test_a_phone_number_has_the_form_of_existing_records(sample: Any, extension: str | None, value: Any) -> None:
    phone = attribute("phone", "phone_number")
    form = learn_form(phone, [{"phone": sample}] if sample else [])
    assert compose_phone(phone, "+4930123", extension, form) == value


def test_unknown_forms_of_existing_records_are_not_assumed() -> None:
    merger = Merger(KINDS)
    assert merger.form("name") == Form(plain=False, keys=())
    said = {"name": {"last": "Byron"}, "address": {"city": "Rome"}}
    assert merger.merge_all(said, {"name": {"first": "Ada", "last": "Lovelace"}, "amount": 5}) == {
        "name": {"first": "Ada", "last": "Byron"},
        "address": {"city": "Rome"},
    }


def test_names_of_parts_that_clients_invent_take_no_memory_for_good() -> None:
    for number in range(3_000):
        assert usual_part("address", f"invented {number}") is None
    assert usual_part.cache_info().currsize <= 1_000
