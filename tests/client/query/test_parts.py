"""Conditions on parts of composites, with random values: the prefilter on the whole value excludes no record that the part admits."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crmctl.client.query.clauses import part_filter
from crmctl.models.resources import Attribute, Record
from crmctl.values.conditions import value_test
from crmctl.values.filters import Clause
from crmctl.values.operators import Operator

texts = st.text(alphabet="aAäÄ\u0308ßSsİiς ,'\"%Rome\u0301", max_size=6)
parts = st.sampled_from(["city", "street", "town", "Zip", "first", "firstName", "last", "odd"])
values: st.SearchStrategy[Any] = st.one_of(st.none(), texts, st.dictionaries(parts, st.one_of(st.none(), texts), max_size=4))
operators = st.sampled_from([operator for operator in Operator if operator not in (Operator.IS_TRUE, Operator.IS_FALSE)])


@settings(max_examples=300)
@given(kind=st.sampled_from(["name", "address"]), many=st.booleans(), value=values, operator=operators, wanted=texts, drawn=st.data())
def test_the_prefilter_keeps_what_a_part_admits(
    kind: str, many: bool, value: Any, operator: Operator, wanted: str, drawn: st.DataObject
) -> None:
    attribute = Attribute(id="", slug="it", type=kind, is_list=many)
    if isinstance(value, dict) and value and drawn.draw(st.booleans()):
        wanted = drawn.draw(st.sampled_from([text or "" for text in value.values()]))
    name = drawn.draw(parts)
    found = part_filter(attribute, name, Clause(f"it.{name}", operator, (wanted if operator.takes_value else "true",)))
    record = Record(id="1", data={"it": [value, None] if many else value})
    if not all(condition.admits(record) for condition in found.local_conditions):
        return
    for prefilter in found.prefilters:
        assert any(value_test(attribute, each.operator, each.value)(record.data["it"]) for each in prefilter.conditions)


@pytest.mark.parametrize(
    ("value", "text", "holds"),
    [
        ({"city": "Rome"}, ("city", Operator.EQUALS, "Rome"), True),
        ({"town": "Rome"}, ("city", Operator.EQUALS, "Rome"), True),
        ({"city": "rome"}, ("city", Operator.EQUALS, "Rome"), False),
        ({"city": "Roma"}, ("city", Operator.STARTS_WITH, "ROM"), True),
        ({"street": "Rome"}, ("city", Operator.EQUALS, "Rome"), False),
        ("Rome", ("city", Operator.EQUALS, "Rome"), False),
        (None, ("city", Operator.NOT_EQUALS, "Rome"), True),
        ({"city": ""}, ("city", Operator.IS_EMPTY, "true"), True),
    ],
)
def test_parts(value: Any, text: tuple[str, Operator, str], holds: bool) -> None:
    attribute = Attribute(id="", slug="it", type="address")
    name, operator, wanted = text
    [condition] = part_filter(attribute, name, Clause(f"it.{name}", operator, (wanted,))).local_conditions
    assert condition.admits(Record(id="1", data={"it": value})) is holds
