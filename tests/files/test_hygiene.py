"""Formats declared for a column, and dates that no time zone shifts."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from crmctl.errors import UsageError
from crmctl.files.cell_values import ValueOptions
from crmctl.files.column_names import parse_blanks, parse_date_formats, parse_decimal_marks
from crmctl.files.mapping import MappingOptions
from crmctl.files.rows import SourceOptions
from crmctl.plan.import_plan import ImportPlan, open_input
from tests.support.bulkfiles import attribute

ATTRIBUTES = [attribute("ref"), attribute("score", "number"), attribute("born", "date"), attribute("amount", "number")]


def planned(directory, text, values, **source):
    path = directory / "file.csv"
    path.write_text(text)
    plan = ImportPlan(SourceOptions(**source), MappingOptions(), values)
    assert ImportPlan.from_document(plan.to_document()) == plan, "a job that is resumed reads as it did"
    return open_input(plan, path, "file.csv", ATTRIBUTES)


def data(directory, text, values, **source):
    return [payload.data for payload in planned(directory, text, values, **source).payloads()]


def test_blank_cells_clear_in_the_columns_that_say_so(tmp_path):
    text = "ref,Score,amount\na,,\n"
    assert data(tmp_path, text, ValueOptions()) == [{"ref": "a"}]
    assert data(tmp_path, text, ValueOptions(blank=parse_blanks(["clear", "Score=skip"]))) == [{"ref": "a", "amount": None}]
    assert data(tmp_path, text, ValueOptions(blank=parse_blanks(["score=clear"]))) == [{"ref": "a", "score": None}]


def test_a_token_clears_where_blanks_are_skipped_and_only_as_the_whole_cell(tmp_path):
    values = ValueOptions(clear_tokens=("-",), null_strings=("NULL",))
    assert data(tmp_path, "ref,score,amount\n- -,-,NULL\n", values) == [{"ref": "- -", "score": None}]


def test_columns_have_their_own_decimal_mark(tmp_path):
    text = 'ref,score,amount\na,"1,5",1.5\n'
    assert data(tmp_path, text, ValueOptions(decimal_marks=parse_decimal_marks(["score=,"]))) == [{"ref": "a", "score": 1.5, "amount": 1.5}]
    marks = parse_decimal_marks(["amount=point"], comma=True)
    assert data(tmp_path, text, ValueOptions(decimal_marks=marks)) == [{"ref": "a", "score": 1.5, "amount": 1.5}]


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("--blank", ValueOptions(blank={"scroe": "clear"})),
        ("--decimal-mark", ValueOptions(decimal_marks={"scroe": "comma"})),
        ("--date-format", ValueOptions(date_formats={"scroe": "%d/%m/%Y"})),
    ],
)
def test_a_declaration_for_a_column_that_is_not_there_is_refused(tmp_path, option, values):
    with pytest.raises(UsageError, match=f"{option}: the file has no column 'scroe'"):
        planned(tmp_path, "ref,score\na,1\n", values)


@pytest.mark.parametrize(
    ("parse", "texts"),
    [
        (parse_blanks, ["maybe"]),
        (parse_blanks, ["a=skip", "a=clear"]),
        (parse_decimal_marks, ["score=;"]),
        (parse_date_formats, ["born=%Y"]),
        (parse_date_formats, ["%d/%m/%Y", "%m/%d/%Y"]),
    ],
)
def test_meaningless_and_ambiguous_declarations_are_refused(parse, texts):
    with pytest.raises(UsageError):
        parse(texts)


READ = """
from crmctl.values.typed_text import read_date
print(read_date("2024-03-31"), read_date("31/03/2024", "%d/%m/%Y"))
"""


@pytest.mark.parametrize("zone", ["Pacific/Auckland", "America/Los_Angeles"])
def test_no_time_zone_moves_a_day(zone):
    run = subprocess.run([sys.executable, "-c", READ], env={**os.environ, "TZ": zone}, capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["2024-03-31", "2024-03-31"]
