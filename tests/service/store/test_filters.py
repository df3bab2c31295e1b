"""All operators on all types, compared with a model without SQL."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crmctl.models.resources import Attribute, AttributeType
from crmctl.service.faults import BadRequest
from crmctl.service.store import records
from crmctl.values.conditions import value_test
from crmctl.values.operators import Operator
from tests.service.store.conftest import Store, new_id, opened
from tests.support.databases import ENGINES, fresh_database

OPTIONS = ["new", "New", "done", "Äpfel", "äpfel 2", "100%"]
IDS = [new_id() for _ in range(4)]

fragments = st.sampled_from(
    [
        "a",
        "A",
        "b",
        "ä",
        "Ä",
        "a\u0308",
        "ß",
        "SS",
        "ﬃ",
        "İ",
        "ς",
        "%",
        "_",
        "\\",
        "'",
        '"',
        "*",
        " ",
        "\U0010ffff",
        "\ud7ff",
        "1",
        ",",
        "[",
    ]
)
texts = st.lists(fragments, max_size=4).map("".join)
numbers = st.one_of(
    st.sampled_from(
        [
            0,
            -0.0,
            1,
            1.0,
            -1,
            10,
            9,
            0.1,
            -0.1,
            1e300,
            2**63,
            2**63 + 1,
            2**70,
            -(2**64),
            Decimal("1.00000000000000000001"),
            Decimal("12345678901234567890.5"),
        ]
    ),
    st.integers(-20, 20),
    st.floats(-100, 100, allow_nan=False),
)
dates = st.one_of(
    st.dates().map(lambda day: day.isoformat()),
    st.sampled_from(
        [
            "2024-02-29",
            "2024-02-29T00:00:00Z",
            "2024-02-29T01:00:00+01:00",
            "2024-02-29T12:30",
            "2024-02-28T23:59:59.999999-00:30",
            "0999-01-01",
        ]
    ),
)
names = st.one_of(texts, st.fixed_dictionaries({}, optional={"first": st.one_of(st.none(), texts), "last": texts}))
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "text": texts,
    "email": st.sampled_from(["", "ada@example.com", "ADA@example.com", "b_c@x.org", "b%@x.org"]),
    "phone_number": st.sampled_from(["", "+49 30 123", "+4930123", "0800-X"]),
    "name": names,
    "address": texts,
    "list": st.one_of(texts, numbers),
    "number": numbers,
    "currency": st.one_of(numbers, numbers.map(lambda amount: {"amount": amount, "currency": "EUR"})),
    "date": dates,
    "checkbox": st.booleans(),
    "select": st.sampled_from(OPTIONS),
    "reference": st.sampled_from([*IDS, *(record_id.upper() for record_id in IDS)]),
}

SHAPES = [(type_, many) for type_ in VALUES for many in (False, True) if many or type_ != "list"]
"""Every type alone and with isList; a list attribute is always an array."""


def fold(text: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", text).casefold())


def plain(type: str, value: Any) -> Any:
    """Return one value in a form that Python compares, "" for an empty one."""
    if type in ("number", "currency"):
        amount = value["amount"] if isinstance(value, dict) else value
        return Decimal(str(amount))
    if type == "date":
        when = datetime.fromisoformat(value)
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).astimezone(UTC)
    if type == "name" and isinstance(value, dict):
        return " ".join(value[part] for part in ("first", "last") if value.get(part))
    if type == "list" and not isinstance(value, str):
        return str(value)
    return value.lower() if type == "reference" else value


def elements(type: str, is_many: bool, value: Any) -> list[Any]:
    if value is None:
        return []
    return [element for element in (plain(type, item) for item in (value if is_many else [value])) if element != ""]


COMPARE: dict[Operator, Callable[[Any, Any], bool]] = {
    Operator.GREATER_THAN: lambda left, right: left > right,
    Operator.LESS_THAN: lambda left, right: left < right,
    Operator.GREATER_THAN_OR_EQUAL: lambda left, right: left >= right,
    Operator.LESS_THAN_OR_EQUAL: lambda left, right: left <= right,
}
PATTERN: dict[Operator, Callable[[str, str], bool]] = {
    Operator.CONTAINS: lambda left, right: right in left,
    Operator.STARTS_WITH: str.startswith,
    Operator.ENDS_WITH: str.endswith,
}


def matches(type: str, found: list[Any], operator: Operator, operand: str) -> bool:
    if operator is Operator.IS_EMPTY:
        return not found
    if operator is Operator.IS_NOT_EMPTY:
        return bool(found)
    if operator is Operator.NOT_EQUALS:
        return not matches(type, found, Operator.EQUALS, operand)
    if operator is Operator.NOT_CONTAINS:
        return not matches(type, found, Operator.CONTAINS, operand)
    if type == "checkbox":
        wanted = {Operator.IS_TRUE: True, Operator.IS_FALSE: False}.get(operator, operand == "true")
        return wanted in found
    if type in ("number", "currency", "date"):
        right = plain(type, Decimal(operand) if type != "date" else operand)
        return any(value == right if operator is Operator.EQUALS else COMPARE[operator](value, right) for value in found)
    if operator is Operator.EQUALS:
        return operand in [*found, *([""] if not found else [])] if type != "reference" else operand.lower() in (found or [""])
    compare = COMPARE.get(operator) or PATTERN[operator]
    return any(compare(fold(value), fold(operand)) for value in found)


def operators(type: str) -> list[Operator]:
    presence = [Operator.IS_EMPTY, Operator.IS_NOT_EMPTY, Operator.EQUALS, Operator.NOT_EQUALS]
    if type == "checkbox":
        return [*presence, Operator.IS_TRUE, Operator.IS_FALSE]
    if type in ("number", "currency", "date"):
        return [*presence, *COMPARE]
    return [*presence, *COMPARE, *PATTERN, Operator.NOT_CONTAINS]


def as_operand(type: str, value: Any) -> str:
    if type == "checkbox":
        return "true" if value else "false"
    if type in ("number", "currency"):
        return str(value["amount"] if isinstance(value, dict) else value)
    return str(plain(type, value)) if type != "date" else value


def test_the_model_covers_every_type_and_operator() -> None:
    """A new type or operator fails here until the model has it, then below until the service supports it completely."""
    assert set(VALUES) == {str(kind) for kind in AttributeType}
    assert {operator for kind in VALUES for operator in operators(kind)} == set(Operator)


@pytest.fixture(scope="module", params=ENGINES)
def filled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Store, str]]:
    """One object with an attribute of every type, single and isList. Other tests check references, so these point to real records."""
    with fresh_database(request, tmp_path_factory.mktemp("filters")) as url, opened(url) as store:
        yield store, fill(store)


def fill(store: Store) -> str:
    target = store.object("targets")
    for record_id in IDS:
        store.engine.write(lambda tx, made=record_id: records.create_record(tx, target, {}, ids=iter([made, new_id()]).__next__, now=0.0))
    configs = {"select": {"options": OPTIONS}, "reference": {"allowed_object_id": target}}
    definitions = [
        {"slug": f"{each}_{'many' if many else 'one'}", "type": each, "is_list": many, "config": configs.get(each)} for each, many in SHAPES
    ]
    return store.object("things", *definitions)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn=st.data())
@pytest.mark.parametrize(("type", "many"), SHAPES, ids=str)
def test_every_operator_agrees_with_the_model(filled: tuple[Store, str], type: str, many: bool, drawn: st.DataObject) -> None:
    store, object_id = filled
    slug = f"{type}_{'many' if many else 'one'}"
    one = st.lists(VALUES[type], max_size=3) if many else VALUES[type]
    values = drawn.draw(st.lists(st.one_of(st.none(), one), max_size=8), label="values")
    operator = drawn.draw(st.sampled_from(operators(type)), label="operator")
    operand = as_operand(type, drawn.draw(VALUES[type] if type != "name" else texts, label="operand")) if operator.takes_value else "true"
    sort, order = drawn.draw(st.sampled_from(["created_at", "updated_at"])), drawn.draw(st.sampled_from(["asc", "desc"]))

    # Each example sees only its own rows: no other example shares their time.
    store.clock.advance(1)
    outcome = store.write(records.bulk_write, object_id, "create", [{"data": {slug: value}} for value in values])
    assert outcome == {"created": len(values), "updated": 0, "failed": []}
    ours = ("created_at", "equals", datetime.fromtimestamp(store.clock.now(), UTC).isoformat())
    found = [record["data"].get(slug) for record in store.find(object_id, (slug, str(operator), operand), ours, sort=sort, order=order)]

    expected = [value for value in values if matches(type, elements(type, many, value), operator, operand)]
    assert found == (expected if order == "asc" else expected[::-1])
    here = value_test(Attribute(id="", slug=slug, type=type, is_list=many), operator, operand)
    assert [value for value in values if here(value)] == expected, "crmctl's own evaluation agrees with the service"
    assert store.total(object_id, (slug, str(operator), operand), ours) == len(expected)


@pytest.mark.parametrize(
    ("slug", "operator", "value", "named"),
    [
        ("nope", "equals", "x", "nope"),
        ("text_one", "like", "x", "like"),
        ("number_one", "equals", "ten", "number_one"),
        ("number_one", "greaterThan", "NaN", "number_one"),
        ("number_one", "equals", "1_000", "number_one"),
        ("number_one", "contains", "1", "contains"),
        ("date_one", "lessThan", "2023-02-30", "date_one"),
        ("checkbox_one", "equals", "maybe", "checkbox_one"),
        ("text_one", "isTrue", "true", "isTrue"),
        ("text_one", "isEmpty", "false", "isEmpty"),
        ("text_one", "contains", "a\x00", "text_one"),
        ("text_one", "contains", "\ud800", "text_one"),
        ("text_one", "contains", {"a": 1}, "text_one"),
        ("created_at", "greaterThan", "yesterday", "created_at"),
        ("\ud800", "equals", "x", "ud800"),
    ],
)
def test_a_meaningless_condition_is_refused_by_name(filled: tuple[Store, str], slug: str, operator: str, value: Any, named: str) -> None:
    store, object_id = filled
    with pytest.raises(BadRequest, match=named) as caught:
        store.find(object_id, (slug, operator, value))
    assert caught.value.error == "bad_request"
    caught.value.message.encode()


def test_records_are_found_by_id_and_times(store: Store) -> None:
    things = store.object("things")
    made = []
    for _ in range(5):
        made.append(store.create(things))
        store.clock.advance(0.000_001)
    third = made[2]
    assert store.find(things, ("id", "equals", third["id"].upper())) == [third]
    assert store.find(things, ("created_at", "equals", third["createdAt"])) == [third]
    assert store.find(things, ("created_at", "lessThan", third["createdAt"])) == made[:2]
    assert store.find(things, ("updated_at", "greaterThanOrEqual", third["updatedAt"])) == made[2:]
    assert store.find(things, ("updated_at", "notEquals", third["updatedAt"])) == made[:2] + made[3:]
    assert store.find(things, ("id", "isEmpty", "true")) == []


def test_records_match_all_conditions(store: Store) -> None:
    things = store.object("things", {"slug": "stage", "type": "select", "config": {"options": ["a", "b"]}}, {"slug": "n", "type": "number"})
    made = [store.create(things, stage="ab"[n % 2], n=n) for n in range(20)]
    assert store.find(things, ("stage", "equals", "a"), ("n", "greaterThan", "3"), ("n", "lessThan", "9")) == [made[4], made[6], made[8]]
    assert store.find(things, ("stage", "notEquals", "a"), ("n", "notEquals", "1"), ("n", "lessThan", "6")) == [made[3], made[5]]
