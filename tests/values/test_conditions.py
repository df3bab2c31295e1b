"""Conditions on values as other services send them: a value of another kind than its attribute is no match, and no error."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from crmctl.errors import RejectedError
from crmctl.models.resources import Attribute
from crmctl.values.conditions import keys_of, value_test
from crmctl.values.operators import OPERATORS, Operator
from crmctl.values.value_readers import number_of


def attribute(type: str) -> Attribute:
    return Attribute.parse({"id": "a", "slug": "x", "name": "X", "type": type})


@pytest.mark.parametrize(
    ("type", "value", "keys"),
    [
        ("number", 5, [5]), ("number", "5.50 ", [Decimal("5.5")]), ("number", True, []), ("number", False, []), ("number", "many", []),
        ("number", "NaN", []), ("number", float("inf"), []), ("number", [1, "2", None, [3]], [1, 2]), ("number", {"amount": 5}, []),
        ("currency", {"amount": "12.5", "currency": "EUR"}, [Decimal("12.5")]), ("currency", {"value": 7, "currencyCode": "EUR"}, [7]),
        ("currency", {"currency": "EUR"}, []), ("currency", {"amount": None}, []), ("checkbox", "TRUE", ["true"]), ("checkbox", 1, []),
        ("checkbox", False, ["false"]), ("date", 20260101, []), ("date", "soon", []), ("text", 5, ["5"]), ("text", None, []),
        ("text", "", []),
        ("text", [], []), ("text", ["B", "", None], ["b"]), ("reference", {"id": "ABC"}, ["abc"]),
        ("reference", {"recordId": "D", "name": "x"}, ["d"]),
        ("reference", {"name": "x"}, []), ("name", {"first": "Ada", "last": None}, ["ada"]), ("name", {"first": "", "last": ""}, []),
    ],
)  # fmt: skip
def test_a_value_is_compared_by_its_keys(type: str, value: Any, keys: list[Any]) -> None:
    found = keys_of(attribute(type), value)
    assert (list(map(number_of, found)) if type in ("number", "currency") else found) == keys
    assert value_test(attribute(type), Operator.IS_EMPTY, "true")(value) is not bool(keys)


@pytest.mark.parametrize(
    ("type", "operator", "wanted", "said"),
    [
        ("number", "contains", "5", "the filter on 'x' with contains does not apply to this type"),
        ("number", "equals", "five", "needs a number"),
        ("currency", "greaterThan", "", "needs a number"), ("date", "lessThan", "soon", "must be a date"),
        ("checkbox", "equals", "maybe", "needs true or false"),
        ("text", "isTrue", "true", "'x' with isTrue does not apply"),
        ("checkbox", "startsWith", "t", "with startsWith does not apply"),
    ],
)  # fmt: skip
def test_a_condition_that_means_nothing_is_refused(type: str, operator: str, wanted: str, said: str) -> None:
    with pytest.raises(RejectedError, match=said):
        value_test(attribute(type), OPERATORS[operator], wanted)
