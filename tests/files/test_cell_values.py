"""Single values: cells, JSON values, blanks, and the form of existing records."""

from __future__ import annotations

from decimal import Decimal

import pytest

from crmctl.errors import UsageError
from crmctl.files.cell_values import ValueOptions
from crmctl.files.column_names import parse_date_formats, parse_decimal_marks
from crmctl.models import jsontext
from crmctl.models.findings import Finding, Severity
from crmctl.values import yaml_text
from tests.support.bulkfiles import attribute, read, select
from tests.support.sheetreading import convert

DEFAULT = ValueOptions()
UUID = "0b0c3b5a-5b1e-4d5c-9c43-0123456789ab"

JSON_VALUES = [
    ("number", 12, 12),
    ("number", Decimal("1.00000000000000000001"), Decimal("1.00000000000000000001")),
    ("number", "12.5", 12.5),
    ("text", 12345678901234567890, "12345678901234567890"),
    ("phone_number", "+44 20 7946 0958", "+442079460958"),
    ("checkbox", True, True),
    ("checkbox", 0, False),
    ("checkbox", "no", False),
    ("currency", {"amount": 1}, {"amount": 1}),
    ("name", {"first": "Ada"}, {"first": "Ada"}),
    ("name", ["Ada", "Lovelace"], ["Ada", "Lovelace"]),
    ("name", '{"first": "Ada"}', '{"first": "Ada"}'),
    ("phone_number", ["+442079460000"], ["+442079460000"]),
    ("reference", {"id": UUID}, UUID),
    ("reference", {"objectId": "o", "recordId": UUID}, UUID),
    ("reference", [UUID], UUID),
    ("reference", {"name": "Acme"}, {"name": "Acme"}),
    ("list", ["a", 1, None], ["a", 1, None]),
    ("list", "a; b", ["a", "b"]),
    ("list", 5, 5),
    ("list", '["a;b"]', ["a;b"]),
    ("future", True, True),
    ("text", None, None),
    ("text", "", None),
    ("number", "  ", None),
    ("text", "  ", "  "),
]


@pytest.mark.parametrize(("type", "value", "wire"), JSON_VALUES)
def test_a_value_becomes_its_wire_value(type, value, wire):
    converted = convert(value, attribute("it", type), DEFAULT)
    assert converted == wire
    assert isinstance(converted, bool) == isinstance(wire, bool)


@pytest.mark.parametrize(
    ("type", "value", "code"),
    [
        ("text", True, "wrong_type"),
        ("text", {"a": 1}, "wrong_type"),
        ("text", ["a"], "wrong_type"),
        ("number", True, "wrong_type"),
        ("number", [1], "wrong_type"),
        ("number", {"a": 1}, "wrong_type"),
        ("date", 20240101, "invalid_date"),
        ("checkbox", 2, "invalid_checkbox"),
        ("email", 5, "invalid_email"),
        ("reference", 5, "invalid_reference"),
    ],
)
def test_a_value_that_does_not_fit_is_a_finding_with_column_and_value(type, value, code):
    finding = convert(value, attribute("it", type), DEFAULT, header="It")
    assert isinstance(finding, Finding)
    assert (finding.code, finding.column, finding.severity) == (code, "It", Severity.ERROR)
    assert finding.value == (value if isinstance(value, str) else jsontext.dumps(value))


@pytest.mark.parametrize("number", ["1.10", "1e3", "1E-2", "-0.0", "0.50", "12345678901234567890.0", "3"])
def test_a_number_in_a_json_file_keeps_its_spelling_as_text_and_is_plain_as_a_number(tmp_path, number):
    for name, content in (("a.jsonl", f'{{"value": {number}}}'), ("a.json", f'[{{"value": {number}}}]')):
        [row] = read(tmp_path, content, name)
        assert convert(row["value"], attribute("value"), DEFAULT) == number
        assert convert(row["value"], select("value", number), DEFAULT) == number
        wire = convert(row["value"], attribute("value", "number"), DEFAULT)
        assert jsontext.dumps(wire) == jsontext.dumps(jsontext.loads(number))
        assert jsontext.loads(jsontext.dumps(yaml_text.loads(yaml_text.dumps({"value": wire})))) == {"value": float(number)}


def test_a_long_value_is_shortened_in_a_finding():
    assert len(convert("x" * 500, attribute("it", "number"), DEFAULT).value) == 80


def test_a_list_of_typed_values_types_each_element_once():
    dates = attribute("dates", "date", isList=True)
    options = ValueOptions(date_formats={"": "%d/%m/%Y"})
    assert convert("01/02/2024; 03/04/2024", dates, options) == ["2024-02-01", "2024-04-03"]
    assert convert(["01/02/2024"], dates, options) == ["2024-02-01"]
    assert convert("new;DONE", select("stages", "New", "Done", isList=True), DEFAULT) == ["New", "Done"]
    assert convert("new", select("stages", "New", isList=True), DEFAULT) == ["New"]
    assert convert("a,b", attribute("tags", "list"), ValueOptions(list_separator=",")) == ["a", "b"]
    assert convert("New; nope", select("stages", "New", isList=True), DEFAULT).code == "unknown_option"


def test_null_strings_are_an_exact_match_and_opt_in():
    assert convert("NULL", attribute("it"), DEFAULT) == "NULL"
    options = ValueOptions(null_strings=("NULL", "N/A"))
    assert convert("NULL", attribute("it"), options) is None
    assert convert("null", attribute("it"), options) == "null"
    assert convert("N/A", attribute("it", "number"), options) is None


def test_decimal_marks_and_date_formats_are_declared_by_column():
    amount, born = attribute("amount", "number"), attribute("born", "date")
    options = ValueOptions(
        decimal_marks=parse_decimal_marks(["Betrag=comma"]), date_formats=parse_date_formats(["%m/%d/%Y", "Geburtstag=DD.MM.YYYY"])
    )
    assert convert("1,5", amount, options, header="Betrag") == 1.5
    assert convert("1,5", amount, options, header="Amount").code == "decimal_comma"
    assert convert("03.04.2024", born, options, header="Geburtstag") == "2024-04-03"
    assert convert("03/04/2024", born, options, header="Born") == "2024-03-04"
    with pytest.raises(UsageError):
        parse_date_formats(["Born=%Y"])


def test_money_follows_the_form_of_existing_records():
    amount = attribute("amount", "currency")
    samples = ({"amount": None}, {"amount": {"value": 1, "currencyCode": "EUR"}})
    assert convert("12.5 EUR", amount, DEFAULT) == {"amount": 12.5, "currency": "EUR"}
    assert convert("12.5 EUR", amount, ValueOptions(samples=samples)) == {"value": 12.5, "currencyCode": "EUR"}
    assert convert("12.5", amount, ValueOptions(samples=samples)) == 12.5
