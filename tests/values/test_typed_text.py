"""Text to wire values: exact numbers, real dates, unambiguous words; and the assignments of --set."""

from __future__ import annotations

import os
import subprocess
import sys
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crmctl.errors import RejectedError
from crmctl.models import jsontext
from crmctl.models.numbers import read_number
from crmctl.models.resources import Attribute
from crmctl.values.attribute_types import reader, typed
from crmctl.values.typed_text import TextRules, date_directives
from tests.support.bulkfiles import attribute, select

UUID = "0b0c3b5a-5b1e-4d5c-9c43-0123456789aB"

GOOD = [
    ("text", " 1.23E+11 ", " 1.23E+11 "),
    ("text", "NULL", "NULL"),
    ("number", "12", 12),
    ("number", "-12.50", -12.5),
    ("number", " 7 ", 7),
    ("number", "0012", 12),
    ("number", ".5", 0.5),
    ("number", "12345678901234567890.123", Decimal("12345678901234567890.123")),
    ("number", "0.1", 0.1),
    ("number", "1e3", 1000),
    ("number", "15E-1", 1.5),
    ("number", f"{'7' * 400}e0", int("7" * 400)),
    ("number", "90071992547409931", 90071992547409931),
    ("currency", "12.50", 12.5),
    ("currency", "12.50 EUR", {"amount": 12.5, "currency": "EUR"}),
    ("currency", "USD 3", {"amount": 3, "currency": "USD"}),
    ("currency", '{"value": 1.10, "code": "EUR"}', {"value": 1.1, "code": "EUR"}),
    ("date", "2024-02-29", "2024-02-29"),
    ("date", "2024-03-01T23:30:00-08:00", "2024-03-01T23:30:00-08:00"),
    ("checkbox", "Yes", True),
    ("checkbox", "off", False),
    ("checkbox", "0", False),
    ("email", " ada@example.com ", "ada@example.com"),
    ("email", "Zoë@exämple.com", "Zoë@exämple.com"),
    ("phone_number", "+44 (20) 7946-0958 x12", "+44 (20) 7946-0958 x12"),
    ("phone_number", "0049123", "0049123"),
    ("reference", UUID, UUID),
    ("reference", f' {{"id": "{UUID}"}}', UUID),
    ("reference", f'["{UUID}"]', UUID),
    ("list", "a; b;;c, d", ["a", "b", "c, d"]),
    ("list", '["a,b", 1.50, null]', ["a,b", 1.5, None]),
    ("list", "[on hold]; x", ["[on hold]", "x"]),
    ("name", "Ada Lovelace", "Ada Lovelace"),
    ("name", '{"first": "Ada"}', {"first": "Ada"}),
    ("name", "{nick} Ada", "{nick} Ada"),
    ("address", "1 Main St", "1 Main St"),
    ("a type of the future", "x", "x"),
]


@pytest.mark.parametrize(("type", "text", "value"), GOOD)
def test_a_text_becomes_its_wire_value(type, text, value):
    read = typed(text, attribute("it", type))
    assert read == value
    assert isinstance(read, bool) == isinstance(value, bool)


BAD = [
    ("number", "abc", "invalid_number"),
    ("number", "1,5", "decimal_comma"),
    ("number", "1.234,56", "decimal_comma"),
    ("number", "1,234", "invalid_number"),
    ("number", "1,234.50", "invalid_number"),
    ("number", "1 234", "invalid_number"),
    ("number", "NaN", "invalid_number"),
    ("number", "Infinity", "invalid_number"),
    ("number", "1_000", "invalid_number"),
    ("number", "١٢", "invalid_number"),
    ("number", "9" * 1001, "invalid_number"),
    ("number", "12%", "invalid_number"),
    ("currency", "$12", "invalid_number"),
    ("currency", "1,234.50 EUR", "invalid_number"),
    ("date", "31/12/2024", "invalid_date"),
    ("date", "2023-02-29", "invalid_date"),
    ("date", "2024-1-2", "invalid_date"),
    ("date", "20240102", "invalid_date"),
    ("date", "45292", "invalid_date"),
    ("date", "2024-01-01T25:00", "invalid_date"),
    ("checkbox", "maybe", "invalid_checkbox"),
    ("checkbox", "2", "invalid_checkbox"),
    ("email", "not-an-email", "invalid_email"),
    ("email", "a@b@c.com", "invalid_email"),
    ("email", "ada@.com", "invalid_email"),
    ("email", "a b@c.com", "invalid_email"),
    ("email", "a@x.com; b@x.com", "invalid_email"),
    ("phone_number", "1.23E+11", "spreadsheet_number"),
    ("phone_number", "4,4E+11", "spreadsheet_number"),
    ("phone_number", "1.23e+11", "spreadsheet_number"),
    ("phone_number", "none", "invalid_phone"),
    ("reference", "Acme Inc", "invalid_reference"),
    ("reference", f'["{UUID}", "{UUID}"]', "invalid_reference"),
]


@pytest.mark.parametrize(("type", "text", "code"), BAD)
def test_a_text_that_does_not_fit_is_refused_with_the_attribute_named(type, text, code):
    with pytest.raises(RejectedError, match=r"^it: ") as caught:
        typed(text, attribute("it", type))
    assert caught.value.code == code


@given(
    st.decimals(allow_nan=False, allow_infinity=False, places=8)
    | st.integers().map(Decimal)
    | st.decimals(allow_nan=False, allow_infinity=False, min_value=-1e9)
)
def test_no_digit_of_a_number_is_lost(number):
    text = format(number, "f")
    if len(text) <= 1000:
        assert Decimal(jsontext.dumps(read_number(text))) == number


def test_a_declared_decimal_comma_reads_both_marks_one_way():
    read = reader(attribute("amount", "number"), TextRules(decimal_comma=True))
    assert [read(text) for text in ("1,5", "1.234,5", "1.234", "12", "1,234")] == [1.5, 1234.5, 1234, 12, 1.234]
    for text in ("1.5", "1,234.5", "12.34,5", "1.2345"):
        with pytest.raises(RejectedError):
            read(text)


def test_a_declared_date_format_decides_day_and_month():
    day_first, month_first = (
        reader(attribute("born", "date"), TextRules(date_format=date_directives(text))) for text in ("%d/%m/%Y", "MM/DD/YYYY")
    )
    assert day_first("03/04/2024") == "2024-04-03"
    assert month_first("03/04/2024") == "2024-03-04"
    for text in ("13/13/2024", "2024-04-03", "29/02/2023"):
        with pytest.raises(RejectedError):
            day_first(text)
    for text in ("%m/%Y", "dd/mm/yyyy hh:mm", "%d/%m/%Y %e", "%d/%m/%Y %Q", "%d/%m/%Y %", "%x %d/%m/%Y", "%%d/%m/%Y"):
        with pytest.raises(RejectedError):
            date_directives(text)


@pytest.mark.parametrize("zone", ["Pacific/Auckland", "America/Los_Angeles"])
def test_a_date_is_the_same_day_in_every_time_zone(zone):
    code = (
        "from crmctl.values.typed_text import read_date;"
        "print(read_date('2024-03-31'), read_date('31.03.2024', '%d.%m.%Y'), read_date('2024-03-31T23:59:59Z'))"
    )
    run = subprocess.run([sys.executable, "-c", code], env={**os.environ, "TZ": zone}, capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["2024-03-31", "2024-03-31", "2024-03-31T23:59:59Z"]


def test_a_select_takes_the_services_spelling_and_never_guesses():
    stage = select("stage", "New", "In Progress", "OPEN", "Open", "\u00c9t\u00e9")
    assert typed("E\u0301te\u0301", stage) == "\u00c9t\u00e9"
    assert typed("in progress", stage) == "In Progress"
    assert typed("Open", stage) == "Open"
    for text, hint in (("open", "exactly"), ("In Progres", "did you mean In Progress"), ("zzz", "options: New, In Progress")):
        with pytest.raises(RejectedError) as caught:
            typed(text, stage)
        assert caught.value.code == "unknown_option"
        assert hint in caught.value.hint


def test_a_list_of_typed_values_types_each_element():
    assert typed("1; 2.5", attribute("scores", "number", isList=True)) == [1, 2.5]
    with pytest.raises(RejectedError):
        typed("1;x", attribute("scores", "number", isList=True))


@pytest.mark.parametrize(
    ("text", "items"), [("a,b", ["a", "b"]), ("A, b", ["a", "b"]), ("a;b", ["a", "b"]), ("c,d", ["c,d"]), ("a;c,d", ["a", "c,d"])]
)
def test_options_are_also_split_at_commas(text: str, items: list[str]) -> None:
    options = Attribute(id="1", slug="roles", type="select", is_list=True, config={"options": ["a", "b", "c,d"]})
    assert typed(text, options) == items
    for wrong in ("a,x", "a,b;c"):
        with pytest.raises(RejectedError, match="not an option"):
            typed(wrong, options)
