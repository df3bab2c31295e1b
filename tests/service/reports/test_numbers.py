"""Numbers survive conversion to keys and back, and sums are exact."""

from __future__ import annotations

from decimal import Context, Decimal

from hypothesis import given, settings
from hypothesis import strategies as st

from crmctl.models.resources import AttributeType
from crmctl.service.reports.report_definition import Measure, Plan, aggregate
from crmctl.service.store.record_tables import Schema
from crmctl.values.attribute_types import StoredAttribute
from crmctl.values.value_readers import number_key, number_of

AMOUNT = StoredAttribute("a", 1, "amount", AttributeType.NUMBER)
numbers = st.one_of(
    st.integers(-(10**40), 10**40),
    st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**30), max_value=10**30, places=9),
    st.sampled_from([0, Decimal("1e900"), Decimal("-1e900"), Decimal("1e-900"), Decimal("-1.5e-900"), 0.1, -0.0]),
)


@given(numbers)
def test_a_key_converts_back_to_its_number(number: int | float | Decimal) -> None:
    exact = Decimal(repr(number)) if isinstance(number, float) else Decimal(number)
    assert number_of(number_key(number)) == exact


@settings(deadline=None)
@given(st.lists(numbers, max_size=20))
def test_measures_are_exact_for_numbers_of_any_size(values: list[int | float | Decimal]) -> None:
    measures = [Measure(function, function, AMOUNT) for function in ("sum", "min", "max", "count")]
    plan = Plan(Schema("o", 1, {"amount": AMOUNT}), [], [], None, None, measures, [], None, None, False, 10)
    keys = [number_key(value) for value in values]
    [group] = aggregate(plan, [(seq, *[key] * 4) for seq, key in enumerate(keys)])
    found = [tally.result(group.records) for tally in group.tallies]
    exact = [Decimal(repr(value)) if isinstance(value, float) else Decimal(value) for value in values]
    wide = Context(prec=5000)
    total = Decimal(0)
    for number in exact:
        total = wide.add(total, number)
    assert found == [total, min(exact, default=None), max(exact, default=None), len(values)]
