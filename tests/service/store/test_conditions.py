"""The tables of types, families and operators cover each other completely."""

from __future__ import annotations

import itertools

import pytest

from crmctl.models.resources import AttributeType
from crmctl.service.faults import BadRequest
from crmctl.service.store.condition_sql import compile_condition
from crmctl.service.store.tx import SqliteDialect
from crmctl.values.attribute_types import TYPES, Family, StoredAttribute
from crmctl.values.filters import Condition
from crmctl.values.operators import Operator

ANY = {Operator.EQUALS, Operator.NOT_EQUALS, Operator.IS_EMPTY, Operator.IS_NOT_EMPTY}
ORDERED = ANY | {
    Operator.GREATER_THAN,
    Operator.LESS_THAN,
    Operator.GREATER_THAN_OR_EQUAL,
    Operator.LESS_THAN_OR_EQUAL,
}
TEXTUAL = ORDERED | {Operator.CONTAINS, Operator.NOT_CONTAINS, Operator.STARTS_WITH, Operator.ENDS_WITH}

TAKEN = {
    Family.TEXT: TEXTUAL,
    Family.IDENTITY: TEXTUAL,
    Family.CHOICE: TEXTUAL,
    Family.NUMBER: ORDERED,
    Family.DATE: ORDERED,
    Family.TRUTH: ANY | {Operator.IS_TRUE, Operator.IS_FALSE},
}
OPERANDS = {Family.NUMBER: "1", Family.DATE: "2026-01-31", Family.TRUTH: "true"}


def test_every_type_has_a_family_and_every_family_its_operators() -> None:
    assert set(TYPES) == set(AttributeType)
    assert {kind.family for kind in TYPES.values()} == set(Family)
    assert set(TAKEN) == set(Family)
    assert set.union(*TAKEN.values()) == set(Operator)


@pytest.mark.parametrize(("type", "holds_many"), list(itertools.product(AttributeType, (False, True))), ids=str)
@pytest.mark.parametrize("operator", Operator, ids=str)
def test_every_operator_compiles_or_is_refused_by_name(type: AttributeType, holds_many: bool, operator: Operator) -> None:
    family = TYPES[type].family
    attributes = {"field": StoredAttribute("id", 1, "field", type, is_list=holds_many, options=("new", "old"))}
    condition = Condition("field", operator, OPERANDS.get(family, "new") if operator.takes_value else "true")
    if operator in TAKEN[family]:
        where = compile_condition(condition, attributes, SqliteDialect())
        assert where.sql.count("?") == len(where.params)
        return
    with pytest.raises(BadRequest, match="does not apply to this type") as refused:
        compile_condition(condition, attributes, SqliteDialect())
    named = set(str(refused.value).rpartition("what does is: ")[2].split(", "))
    assert named == {str(operator) for operator in TAKEN[family]}
