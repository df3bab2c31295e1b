"""Numbers to the last digit: from text, to the wire, and one form for all spellings."""

from __future__ import annotations

from decimal import Decimal

import pytest

from crmctl.errors import RejectedError
from crmctl.models.numbers import MAX_DIGITS, canonical_number, check_number, check_numbers, plain_decimal, read_number

LONGEST = "9" * MAX_DIGITS
TOO_LONG, BEYOND = f"more than {MAX_DIGITS:,} digits", "a number beyond the range of a double, which ends at 1.8e308"


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("9007199254740993", 9007199254740993), ("-9007199254740993", -9007199254740993), ("999999999999999", 999999999999999),
        ("1234567890123456", 1234567890123456), ("12345678901234567", 12345678901234567), (LONGEST, int(LONGEST)),
        ("0.1", 0.1), ("00012", 12), ("12.000", 12), ("9007199254740993.0", 9007199254740993),
        ("9007199254740993.5", Decimal("9007199254740993.5")),
        ("3.14159265358979323846", Decimal("3.14159265358979323846")), (".5", 0.5), ("5.", 5), ("1e3", 1000), ("1.5E-3", 0.0015), ("+7", 7),
    ],
)  # fmt: skip
def test_a_text_is_the_number_it_says(text: str, number: object) -> None:
    for spelling in (text, f" {text} "):
        assert read_number(spelling) == number
        assert type(read_number(spelling)) is type(number) or text == "1e3"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("1" + LONGEST, TOO_LONG), (f"0.{LONGEST}1", TOO_LONG), ("1e999", BEYOND), ("-1e999", BEYOND), ("1e99999999", BEYOND),
        ("1e-99999", TOO_LONG),
        ("1e400", BEYOND), ("2e308", BEYOND), ("1e-1001", TOO_LONG), (f"1{LONGEST}e5", TOO_LONG),
        ("1,5", "not a number: a comma as decimal mark was not declared"), ("1,500", "not a number: thousands separators can be misread"),
        ("1 500", "not a number: thousands separators can be misread"), ("0x10", "not a number"), ("", "not a number"),
        ("NaN", "not a number"),
        ("Infinity", "not a number"), ("１２", "not a number"), ("1_000", "not a number"),
    ],
)  # fmt: skip
def test_unsendable_numbers_are_refused_with_the_reason(text: str, problem: str) -> None:
    with pytest.raises(RejectedError) as caught:
        read_number(text)
    assert caught.value.message == problem


@pytest.mark.parametrize(
    ("number", "problem"),
    [
        (int(LONGEST) + 1, TOO_LONG), (-int(LONGEST) - 1, TOO_LONG), (float("inf"), BEYOND), (float("nan"), BEYOND),
        (Decimal("1e400"), BEYOND), (Decimal("NaN"), BEYOND), (Decimal(f"0.{LONGEST}1"), TOO_LONG), (Decimal("1e-1001"), TOO_LONG),
    ],
)  # fmt: skip
def test_a_number_that_cannot_be_sent_is_found_at_any_depth(number: object, problem: str) -> None:
    with pytest.raises(RejectedError) as caught:
        check_numbers({"a": [1, {"b": number}]})
    assert caught.value.message == problem


def test_numbers_at_the_bounds_are_sent() -> None:
    for number in (int(LONGEST), -int(LONGEST), 1.7e308, Decimal("1e308"), Decimal(f"0.{LONGEST}"), Decimal("1e-1000"), 0):
        check_number(number)
    check_numbers({"a": [True, None, "1e999", {"b": 1}]})


def test_one_text_for_all_spellings_of_a_number() -> None:
    assert {canonical_number(one) for one in (1, 1.0, Decimal("1.000"), Decimal("1e0"))} == {"1"}
    assert {canonical_number(one) for one in (0, -0.0, Decimal("-0.00"))} == {"0"}
    assert canonical_number(Decimal("1e3")) == canonical_number(1000) == "1000"
    assert len({canonical_number(one) for one in (9007199254740992, 9007199254740993, Decimal("9007199254740993.5"))}) == 3
    assert plain_decimal(Decimal("1e5")) == "100000"
    assert plain_decimal(Decimal("1e1000000")) == "1E+1000000"
