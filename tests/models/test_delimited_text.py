"""Rows of CSV and TSV: quotes, cells that a spreadsheet would run as formulas, and reading them back."""

from __future__ import annotations

import csv

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crmctl.models.field_paths import delimited_row, without_guard

GUARDED = ["=1+1", "+49 30", "-x", "-5 + 2", "--5", "@x", "\t=x", "＝1", "'=1", "''=1", "'-5"]
UNGUARDED = ["plain", "", "'", "'tis", "a=1", "-5", "+5", "-5.25", "+1e-3", "'''", "5"]


def cell(value: object, delimiter: str = ",", *, excel_safe: bool = False) -> str:
    return next(csv.reader([delimited_row([value, "end"], delimiter, excel_safe=excel_safe)], delimiter=delimiter))[0]


def test_a_spreadsheet_runs_nothing_and_numbers_stay_numbers() -> None:
    assert [cell(value, excel_safe=True) for value in GUARDED] == [f"'{value}" for value in GUARDED]
    assert [cell(value, excel_safe=True) for value in UNGUARDED] == UNGUARDED
    assert [cell(value, excel_safe=True) for value in (-5, None, True, {"a": 1})] == ["-5", "", "true", '{"a":1}']


@given(st.text(st.characters(codec="utf-8", exclude_characters="\r\n\x00")))
def test_the_way_back_is_exact(text: str) -> None:
    assert without_guard(cell(text, excel_safe=True)) == text


@pytest.mark.parametrize("value", [*GUARDED, *UNGUARDED])
def test_a_value_comes_back_from_both_formats(value: str) -> None:
    assert cell(value) == value
    assert cell(value, "\t") == value
    assert without_guard(cell(value, excel_safe=True)) == value


def test_quotes_stand_where_they_are_needed() -> None:
    assert delimited_row(["a,b", 'say "x"', " blank", "tab\there", "line\nend"]) == '"a,b","say ""x"""," blank",tab\there,"line\nend"\n'
    assert delimited_row(["a,b", "tab\there", "blank "], "\t") == 'a,b\t"tab\there"\t"blank "\n'
    assert delimited_row([""]) == delimited_row([None]) == '""\n'
    assert delimited_row([]) == "\n"
    assert delimited_row([None, ""]) == ",\n"
