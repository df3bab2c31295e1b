"""The values each attribute type accepts; projections compare like the values."""

from __future__ import annotations

import unicodedata
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crmctl.models import jsontext
from crmctl.models.resources import AttributeType
from crmctl.service.faults import BadRequest, Fault
from crmctl.service.store.condition_sql import read_condition
from crmctl.values.attribute_types import StoredAttribute
from crmctl.values.filters import Condition
from crmctl.values.folded_text import fold
from crmctl.values.operators import Operator
from crmctl.values.projection import EMPTY, Projection, keys_in, project, project_all
from crmctl.values.value_readers import Invalid, date_key, number_key, number_of, parse_number

ID = "0b0e7a52-4f7e-4c0c-9d3a-1f7f0f1f2a3b"


def attribute(type: str, **flags: Any) -> StoredAttribute:
    return StoredAttribute("id", 1, "field", AttributeType(type), **flags)


GOOD: list[tuple[str, Any, str | None]] = [
    ("text", "Ärger", "ärger"),
    ("text", "", None),
    ("email", "Ada@Example.com", "ada@example.com"),
    ("phone_number", "+49 30 1234", "+49 30 1234"),
    ("checkbox", False, "false"),
    ("name", {"last": "Lovelace", "first": "Ada"}, "ada lovelace"),
    ("name", "Ada Lovelace", "ada lovelace"),
    ("name", {"first": "", "last": None}, None),
    ("name", {}, None),
    ("address", {"country": "FR", "city": "Paris", "street": "1 Rue X", "door": "b"}, "1 rue x, paris, fr, b"),
    ("currency", {"amount": 12.5, "currency": "EUR"}, number_key(12.5)),
    ("currency", {"amount": 12.5}, number_key(12.5)),
    ("currency", 12.5, number_key(12.5)),
    ("date", "2024-02-29", "2024-02-29T00:00:00.000000Z"),
    ("date", "2024-02-29T23:30:00.123456789-01:00", "2024-03-01T00:30:00.123456Z"),
    ("date", "0001-01-01", "0001-01-01T00:00:00.000000Z"),
    ("reference", ID.upper(), ID),
    ("list", ["B", 2, ""], '["b","2"]'),
    ("list", [], None),
    ("list", [""], None),
]


@pytest.mark.parametrize(("type", "value", "column"), GOOD, ids=repr)
def test_a_value_projects_to_its_canonical_form(type: str, value: Any, column: str | None) -> None:
    assert project(attribute(type), value).column == column


BAD: list[tuple[str, Any]] = [
    *[("text", value) for value in (1, True, ["a"], {"a": "b"}, "a\x00", "\udc00", "x" * 100_001)],
    *[("email", value) for value in ("ada", "@x", "a@", "a b@x.org", "a@b@c", "a@x.org\n", "a" * 320 + "@x")],
    *[("phone_number", value) for value in (4930, "1" * 101)],
    *[("number", value) for value in (True, "1", "", float("nan"), float("inf"), Decimal("NaN"), Decimal("1e5000"), 10**1001, [1], {})],
    *[
        ("currency", value)
        for value in (True, "1", {}, {"currency": "EUR"}, {"amount": "1"}, {"amount": 1, "currency": 5}, {"amount": 1, "tax": 2})
    ],
    *[("checkbox", value) for value in (0, 1, "true", "", [])],
    *[("name", value) for value in (1, ["Ada"], {"first": 1}, {"first": ["a"]}, {"first\x00": "a"}, {str(n): "a" for n in range(31)})],
    *[("address", value) for value in (1, {"city": {"name": "Paris"}})],
    *[
        ("date", value)
        for value in (
            "2023-02-29",
            "2024-13-01",
            "2024-1-1",
            "20240101",
            "",
            "tomorrow",
            20240101,
            "2024-01-01T25:00",
            "2024-01-01T10:00+24:00",
        )
    ],
    *[
        ("date", value)
        for value in ("0000-01-01", "0001-01-01T00:00+01:00", "9999-12-31T23:59-01:00", "２０２４-01-01", "2024-01-01 ", "2024-W01-1")
    ],
    *[("reference", value) for value in ("people", 5, ID[:-1], ID.replace("-", ""), "{" + ID + "}", "")],
    *[("list", value) for value in ("a", [None], [True], [["a"]], [{}], ["a\x00"], ["a"] * 1001, {"0": "a"}, [10**1001], [float("nan")])],
]


@pytest.mark.parametrize(("type", "value"), BAD, ids=lambda value: repr(value)[:40])
def test_a_value_of_the_wrong_kind_is_refused(type: str, value: Any) -> None:
    with pytest.raises(Invalid):
        project(attribute(type), value)


def test_null_is_empty_for_every_type() -> None:
    for each in AttributeType:
        assert project(attribute(each), None) is EMPTY


def test_select_takes_its_options_to_the_letter() -> None:
    stage = attribute("select", options=("New", "Done"))
    assert project(stage, "New") == Projection("New", None, ("New",))
    for wrong in ("new", "", 1, ["New"]):
        with pytest.raises(Invalid, match="New, Done"):
            project(stage, wrong)


def test_a_list_of_values_names_the_element_that_is_wrong() -> None:
    many = attribute("number", is_list=True)
    assert keys_in(many, project(many, [1, 2.0, 10]).column) == (number_key(1), number_key(2), number_key(10))
    with pytest.raises(Invalid, match="element 1 that must be a number"):
        project(many, [1, "2"])
    with pytest.raises(Invalid, match="array"):
        project(many, 1)


def test_exact_text_is_kept_only_where_it_differs() -> None:
    assert project(attribute("text"), "abc").exact is None
    assert project(attribute("text"), "aBc").exact == "aBc"
    assert project(attribute("text", is_list=True), ["a", "B"]) == Projection('["a","b"]', '["a","B"]', ("a", "b"))


def test_a_unique_text_fits_an_index() -> None:
    assert project(attribute("text", is_unique=True), "x" * 500).keys
    with pytest.raises(Invalid, match="unique"):
        project(attribute("text", is_unique=True), "x" * 501)


amounts = st.one_of(
    st.integers(),
    st.integers(-(10**40), 10**40),
    st.floats(allow_nan=False, allow_infinity=False),
    st.decimals(allow_nan=False, allow_infinity=False, min_value=Decimal("-1e60"), max_value=Decimal("1e60")),
)


def exact(number: Any) -> Decimal:
    return Decimal(repr(number)) if isinstance(number, float) else Decimal(number)


@given(amounts, amounts)
def test_keys_of_numbers_sort_as_the_numbers_do(left: Any, right: Any) -> None:
    assert (number_key(left) < number_key(right)) == (exact(left) < exact(right))
    assert (number_key(left) == number_key(right)) == (exact(left) == exact(right))


@given(amounts)
def test_a_number_survives_json_and_a_filter(number: Any) -> None:
    assert number_key(jsontext.loads(jsontext.dumps(number))) == number_key(number)
    assert parse_number(str(number)) == number_key(number)


@pytest.mark.parametrize("text", ["", "ten", "1_000", "٣", "0x10", "nan", "Infinity", "1e", "--1", "1,5", "1e9999999", "9" * 3000])
def test_filter_values_that_are_no_number(text: str) -> None:
    with pytest.raises(Invalid):
        parse_number(text)


moments = st.datetimes(min_value=datetime(2, 1, 1), max_value=datetime(9998, 12, 31))


@given(moments, moments, st.integers(-1439, 1439))
def test_keys_of_timestamps_sort_as_time_does(left: datetime, right: datetime, minutes: int) -> None:
    first, second = left.replace(tzinfo=UTC), right.replace(tzinfo=UTC)
    sign = "-" if minutes < 0 else "+"
    shifted = (left + timedelta(minutes=minutes)).isoformat() + f"{sign}{abs(minutes) // 60:02d}:{abs(minutes) % 60:02d}"
    assert (date_key(shifted) < date_key(right.isoformat() + "Z")) == (first < second)
    assert date_key(shifted) == date_key(left.isoformat())


@given(st.text())
def test_folding_is_blind_to_case_and_composition(text: str) -> None:
    assert fold(fold(text)) == fold(text)
    assert fold(unicodedata.normalize("NFD", text)) == fold(unicodedata.normalize("NFC", text)) == fold(text)


@given(st.text(alphabet=st.characters(codec="ascii")))
def test_folding_ascii_is_the_same_by_the_short_way(text: str) -> None:
    assert fold(text) == unicodedata.normalize("NFC", unicodedata.normalize("NFD", text).casefold())


def test_conditions_are_parsed_from_requests() -> None:
    assert read_condition("amount", "greaterThan", "5") == Condition("amount", Operator.GREATER_THAN, "5")
    assert read_condition("amount", "greaterThan", 5) == Condition("amount", Operator.GREATER_THAN, "5")
    assert read_condition("won", "isTrue", True) == Condition("won", Operator.IS_TRUE, "true")
    for wrong in (("a", "greaterthan", "x"), ("a", "equals", None), ("a", "equals", ["x"])):
        with pytest.raises(BadRequest):
            read_condition(*wrong)


def test_a_fault_can_always_be_sent() -> None:
    fault = Fault("odd \ud800 " + "x" * 5000)
    assert len(fault.message.encode()) < 2100
    assert fault.error == "internal_error"


@given(st.decimals(allow_nan=False, allow_infinity=False, places=6) | st.integers(-(10**300), 10**300).map(Decimal))
def test_a_key_tells_its_number(number: Decimal) -> None:
    assert number_of(number_key(number)) == number


@pytest.mark.parametrize(("count", "shown"), [(2, "o0, o1"), (20, "o18, o19"), (21, "o19, ...")])
def test_an_unknown_option_is_answered_with_the_first_options(count: int, shown: str) -> None:
    with pytest.raises(Invalid) as caught:
        project(attribute("select", options=tuple(f"o{number}" for number in range(count))), "other")
    assert str(caught.value).endswith(shown)


@pytest.mark.parametrize(
    ("type", "flags", "is_indexed"),
    [
        ("email", {}, True),
        ("number", {}, True),
        ("text", {}, False),
        ("text", {"is_unique": True}, True),
        ("number", {"is_list": True}, False),
        ("list", {"is_unique": True}, False),
    ],
)
def test_single_values_that_are_looked_up_have_an_index(type: str, flags: dict[str, bool], is_indexed: bool) -> None:
    assert attribute(type, **flags).is_indexed is is_indexed


VALUES = st.one_of(
    st.none(),
    st.text(max_size=5),
    st.sampled_from(["", "Ada", "Ärger", "\0", "a@b.example", "A@b.example", "\ud800", "x" * 501, "2024-02-29", "2024-02-30", ID]),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
    st.dictionaries(st.sampled_from(["first", "last", "city", "amount", "p" * 101]), st.none() | st.text(max_size=3), max_size=3),
    st.lists(st.sampled_from(["", "B", "Ä", "\0", 2, None]), max_size=3),
)


@pytest.mark.parametrize("flags", [{}, {"is_unique": True}, {"is_list": True}], ids=repr)
@pytest.mark.parametrize("type", [str(each) for each in AttributeType])
@settings(max_examples=30)
@given(data=st.data())
def test_values_that_are_read_together_are_read_as_each_alone(type: str, flags: dict[str, bool], data: st.DataObject) -> None:
    one = attribute(type, **flags, options=("Ada", "B"))
    taken = data.draw(st.lists(VALUES, max_size=6))
    alone = []
    for value in taken:
        try:
            alone.append(project(one, value))
        except Invalid:
            with pytest.raises(Invalid):
                project_all(one, taken)
            taken = [value for value in taken if _is_taken(one, value)]
            alone = [project(one, value) for value in taken]
            break
    together = project_all(one, taken)
    assert together == alone
    assert all(isinstance(each, Projection) for each in together)


def _is_taken(one: StoredAttribute, value: Any) -> bool:
    try:
        project(one, value)
    except Invalid:
        return False
    return True
