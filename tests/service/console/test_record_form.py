"""The form of a record writes only changed values, and only the changed parts of composites."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crmctl.models import jsontext
from crmctl.models.resources import AttributeType
from crmctl.service.console.record_form import FormField, changes, fields_for, fingerprints, merged, submitted

TARGET = "9b2f5a3e-0000-4000-8000-000000000001"


def attribute(type: str, is_list: bool = False, slug: str = "it") -> dict[str, Any]:
    config = {"select": {"options": ["red", "green"]}, "reference": {"allowed_object_id": TARGET}}.get(type)
    return {"slug": slug, "name": slug.title(), "type": type, "isList": is_list, "isRequired": False, "config": config}


def as_sent_by_a_browser(fields: list[FormField]) -> dict[str, list[str]]:
    """Return the form as a browser sends it: with CRLF, and without line ends in fields of one line."""
    form = {}
    for field in fields:
        for control in field.inputs:
            many = control.kind in ("textarea", "lines", "json")
            form[control.name] = [control.text.replace("\n", "\r\n") if many else control.text.replace("\n", "")]
    return form


def edit(kind: dict[str, Any], value: Any, **typed: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the changes and problems after typing over these parts (`_` is the whole value)."""
    data = {} if value is None else {kind["slug"]: value}
    stored = fields_for([kind], data, {})
    form = as_sent_by_a_browser(stored)
    form |= {f"f:{kind['slug']}" + (f":{part}" if part != "_" else ""): [text] for part, text in typed.items()}
    return changes(submitted(stored, form))


texts = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\x00"), max_size=12)
parts = st.dictionaries(st.sampled_from(["first", "last", "title", "street", "city", "zip", "x:y", ""]), st.none() | texts, max_size=5)
numbers = (
    st.integers(-(10**20), 10**20) | st.floats(allow_nan=False, allow_infinity=False) | st.decimals(allow_nan=False, allow_infinity=False)
)
money = numbers | st.fixed_dictionaries({"amount": numbers}, optional={"currency": st.none() | texts})
singles: dict[str, Any] = dict.fromkeys(AttributeType, texts) | {
    AttributeType.NAME: texts | parts,
    AttributeType.ADDRESS: texts | parts,
    AttributeType.CURRENCY: money,
    AttributeType.NUMBER: numbers,
    AttributeType.CHECKBOX: st.booleans(),
    AttributeType.LIST: st.lists(texts | numbers, max_size=4),
}


@given(st.data())
def test_an_unchanged_form_writes_nothing(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(list(AttributeType)))
    is_list = data.draw(st.booleans())
    values = st.lists(singles[kind], max_size=4) if is_list and kind is not AttributeType.LIST else singles[kind]
    value = jsontext.loads(jsontext.dumps(data.draw(st.none() | values)))
    assert edit(attribute(kind, is_list), value) == ({}, {})


@pytest.mark.parametrize("kind", list(AttributeType))
def test_a_line_end_lost_in_a_field_of_one_line_is_no_change(kind: str) -> None:
    for value in ("0\r0", "0\n0", "0\r\n 0"):
        assert edit(attribute(kind), value) == ({}, {})


@pytest.mark.parametrize(
    ("kind", "before", "typed", "after"),
    [
        (
            "name",
            {"first": "Ada", "title": "Dr", "odd": "kept"},
            {"last": "King"},
            {"first": "Ada", "title": "Dr", "odd": "kept", "last": "King"},
        ),
        ("name", {"first": "Ada", "last": "King"}, {"first": ""}, {"last": "King"}),
        ("name", {"first": "Ada"}, {"first": " "}, None),
        ("name", "Ada King", {"_": "Ada Lovelace"}, "Ada Lovelace"),
        ("address", {"city": "Paris", "zip": None}, {"country": "FR"}, {"city": "Paris", "zip": None, "country": "FR"}),
        ("currency", {"amount": 12.5, "currency": "EUR"}, {"amount": "13"}, {"amount": 13, "currency": "EUR"}),
        ("currency", 12.5, {"currency": "usd"}, {"amount": 12.5, "currency": "USD"}),
        ("currency", {"amount": 1, "currency": "EUR"}, {"amount": ""}, None),
        ("list", ["a", 2, "b"], {"_": "a\r\n2\r\nc"}, ["a", 2, "c"]),
        ("list", ["a"], {"_": ""}, None),
        ("checkbox", True, {"_": "false"}, False),
        ("checkbox", None, {"_": "true"}, True),
        ("number", 1, {"_": "12345678901234567890.5"}, jsontext.loads("12345678901234567890.5")),
        ("select", "red", {"_": ""}, None),
        ("date", None, {"_": "2026-01-31"}, "2026-01-31"),
        ("text", None, {"_": "x"}, "x"),
        ("reference", None, {"_": "Acme", "pick": TARGET}, TARGET),
    ],
)
def test_only_changed_parts_are_written(kind: str, before: Any, typed: dict[str, str], after: Any) -> None:
    assert edit(attribute(kind), before, **typed) == ({"it": after}, {})


@pytest.mark.parametrize(
    ("kind", "typed"),
    [
        ("number", {"_": "many"}),
        ("currency", {"amount": "1", "currency": "euro"}),
        ("currency", {"currency": "EUR"}),
        ("currency", {"amount": "1"}),
        ("date", {"_": "soon"}),
    ],
)
def test_a_bad_value_is_reported_and_writes_nothing(kind: str, typed: dict[str, str]) -> None:
    written, problems = edit(attribute(kind), None, **typed)
    assert (written, list(problems)) == ({}, ["it"])


def test_a_new_amount_has_the_default_or_the_typed_currency() -> None:
    kind = attribute("currency") | {"currency": "EUR"}
    assert edit(kind, None) == ({}, {})
    assert edit(kind, None, amount="12,500.50") == ({"it": {"amount": 12500.5, "currency": "EUR"}}, {})
    assert edit(kind, None, amount="5", currency="usd") == ({"it": {"amount": 5, "currency": "USD"}}, {})
    assert edit(kind, {"amount": 1, "currency": "CHF"}, amount="5") == ({"it": {"amount": 5, "currency": "CHF"}}, {})
    assert edit(kind, None, amount="5", currency="") == ({}, {"it": "an amount needs a currency, such as EUR"})


def test_a_conflict_keeps_my_entries_and_shows_saved_values() -> None:
    kinds = [attribute("text", slug=slug) for slug in ("mine", "theirs", "both", "same")]
    base = dict.fromkeys(("mine", "theirs", "both", "same"), "old")
    first = fields_for(kinds, base, {})
    form = as_sent_by_a_browser(first) | {"f:mine": ["typed"], "f:both": ["typed"]}
    now = fields_for(kinds, base | {"theirs": "saved", "both": "saved"}, {})
    result = merged(submitted(now, form), fingerprints(first))
    assert [(field.inputs[0].text, field.inputs[0].was) for field in result] == [
        ("typed", None),
        ("saved", None),
        ("typed", "saved"),
        ("old", None),
    ]
