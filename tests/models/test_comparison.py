"""Conditions on values as other services send them: what has another kind than its attribute says is no match, and no error."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from crmctl.errors import RejectedError
from crmctl.models.attributes import Attribute
from crmctl.models.comparison import keys_of, value_test
from crmctl.models.filters import Operator


def attribute(type: str) -> Attribute:
    return Attribute.model_validate({"id": "a", "slug": "x", "name": "X", "type": type})


@pytest.mark.parametrize(
    ("type", "value", "keys"),
    [
        ("number", 5, [5]), ("number", "5.50 ", [Decimal("5.5")]), ("number", True, []), ("number", False, []), ("number", "many", []),
        ("number", "NaN", []), ("number", float("inf"), []), ("number", [1, "2", None, [3]], [1, 2]), ("number", {"amount": 5}, []),
        ("currency", {"amount": "12.5", "currency": "EUR"}, [Decimal("12.5")]), ("currency", {"value": 7, "currencyCode": "EUR"}, [7]),
        ("currency", {"currency": "EUR"}, []), ("currency", {"amount": None}, []), ("checkbox", "TRUE", [True]), ("checkbox", 1, []),
        ("checkbox", False, [False]), ("date", 20260101, []), ("date", "soon", []), ("text", 5, ["5"]), ("text", None, []),
        ("text", "", []),
        ("text", [], []), ("text", ["B", "", None], ["b"]), ("reference", {"id": "ABC"}, ["abc"]),
        ("reference", {"recordId": "D", "name": "x"}, ["d"]),
        ("reference", {"name": "x"}, []), ("name", {"first": "Ada", "last": None}, ["ada"]), ("name", {"first": "", "last": ""}, []),
    ],
)  # fmt: skip
def test_a_value_is_compared_by_its_keys(type: str, value: Any, keys: list[Any]) -> None:
    assert keys_of(attribute(type), value) == keys
    assert value_test(attribute(type), Operator.IS_EMPTY, "")(value) is not bool(keys)


@pytest.mark.parametrize(
    ("type", "operator", "wanted", "said"),
    [
        ("number", "contains", "5", "contains does not apply to x, a number attribute"), ("number", "equals", "five", "x holds numbers"),
        ("currency", "greaterThan", "", "x holds numbers"), ("date", "lessThan", "soon", "x holds dates"),
        ("checkbox", "equals", "maybe", "x is yes or no"),
        ("text", "isTrue", "", "isTrue does not apply to x, a text attribute"),
        ("checkbox", "startsWith", "t", "startsWith does not apply to x"),
    ],
)  # fmt: skip
def test_a_condition_that_means_nothing_is_refused(type: str, operator: str, wanted: str, said: str) -> None:
    with pytest.raises(RejectedError, match=said):
        value_test(attribute(type), Operator(operator), wanted)
