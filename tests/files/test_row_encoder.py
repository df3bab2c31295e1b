"""Encoded rows equal rows built as data, and a row with findings is never encoded."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crmctl.files import payloads as encoding
from crmctl.files.cell_values import ValueOptions
from crmctl.files.column_names import parse_date_formats
from crmctl.files.mapping import MappingOptions, Mode, build_mapping
from crmctl.files.validation import Entry, encoded_payloads, entry_of, payloads
from tests.support.bulkfiles import attribute, select, source_of

TARGET = "0b0c3b5a-5b1e-4d5c-9c43-0123456789ab"
ATTRIBUTES = [
    attribute("title", isRequired=True),
    attribute("mail", "email", isUnique=True),
    attribute("amount", "number"),
    attribute("phone", "phone_number"),
    attribute("active", "checkbox"),
    attribute("person", "name"),
    attribute("budget", "currency"),
    attribute("since", "date"),
    select("stage", "New", "Done, at last"),
    attribute("labels", "list"),
    attribute("boss", "reference"),
]
COLUMNS = [one.slug for one in ATTRIBUTES]
CELLS = {
    "title": [
        "Ada",
        "",
        " ",
        "two\nlines",
        'say "hi"',
        "#N/A",
        "1.23E+11",
        "1,5",
        "日本語",
        "\u2028",
        "NULL",
        "x" * 50,
        "back\\slash",
        "tab\tinside",
        " 'a' ",
        "\ufeffa",
        "\x7f",
        '{"data":{,',
        '{"data":{}}',
    ],
    "mail": ["ada@x.com", "o'neil@x.com", "a_b%c@x-y.co.uk", "ADA@x.com ", "b@x.com", "nope", ""],
    "amount": ["1", "0.10", "1.234", "1,5", "12345678901234567890", "1e400", "", "x"],
    "phone": ["+49 30 123456", "020 7946 0958", "+1 555 0100", "1.23E+11", ""],
    "active": ["yes", "0", "maybe", " "],
    "person": ["Ada Lovelace", '{"first": "Ada"}', ""],
    "budget": ["1.50 EUR", "3", "1.234", "1,5", ""],
    "since": ["2024-02-29", "2023-02-29", "2024-02-28", "0000-01-01", "2024-13-01", "٢٠٢٤-01-01", "03/04/2024", ""],
    "stage": ["new", "Done, at last", "lost", ""],
    "labels": ["a;b", ";", "[1,2]", ""],
    "boss": [TARGET, "nobody", ""],
}
OPTIONS = [
    ValueOptions(),
    ValueOptions(null_strings=("NULL", "nope")),
    ValueOptions(blank={"": "clear"}),
    ValueOptions(clear_tokens=("3",), default_region="GB"),
    ValueOptions(decimal_marks={"": "comma"}, default_region="GB"),
    ValueOptions(date_formats=parse_date_formats(["%d/%m/%Y"])),
]
MAPPINGS = [MappingOptions(), MappingOptions(set_values=("labels=set",), map_pairs=("labels=",)), MappingOptions(map_pairs=("title=",))]
CLEAN = ["Ada", "ada@x.com", "1.5", "+49 30 123456", "yes", "Ada", "3 EUR", "2024-02-29", "new", "a;b", TARGET]
BLANK = ["Bob", *[""] * 10]
EMPTY = [""] * 11


@st.composite
def rows(draw):
    """Draw a clean row with at most three odd cells: with more, hardly any row would be encoded."""
    row = list(draw(st.sampled_from([CLEAN, BLANK, EMPTY])))
    for place in draw(st.sets(st.integers(0, len(COLUMNS) - 1), max_size=3)):
        row[place] = draw(st.sampled_from(CELLS[COLUMNS[place]]))
    return row


ROWS = st.lists(rows(), min_size=1, max_size=12)


def both_ways(directory, rows, values=OPTIONS[0], mapping=MAPPINGS[0], header=COLUMNS):
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    source = source_of(directory, text.getvalue())
    decided = build_mapping(source.header, ATTRIBUTES, mapping, header_complete=True)
    whole = list(payloads(source, decided, ATTRIBUTES, values))
    return whole, list(encoded_payloads(source, decided, ATTRIBUTES, values))


@pytest.fixture(autouse=True, params=[(4096, 256), (4096, 2), (2, 2)])
def memory(request, monkeypatch):
    """Test columns with many different texts and with a full memo, too: they match or convert each text anew."""
    monkeypatch.setattr(encoding, "MEMO_CELLS", request.param[0])
    monkeypatch.setattr(encoding, "DIFFERENT_CELLS", request.param[1])


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=ROWS, values=st.sampled_from(OPTIONS), mapping=st.sampled_from(MAPPINGS))
def test_the_record_and_the_findings_of_every_row_are_the_same_either_way(tmp_path, rows, values, mapping):
    whole, encoded = both_ways(tmp_path, rows, values, mapping)
    assert [row.ordinal for row in whole] == [row.ordinal for row in encoded]
    for one, other in zip(whole, encoded, strict=True):
        assert list(other.findings) == one.findings
        if not one.rejected:
            assert entry_of(other, with_id=False) == entry_of(one, with_id=False)
            assert other.data == one.data


def test_a_text_that_counts_as_blank_is_no_value_for_a_required_attribute(tmp_path):
    _, encoded = both_ways(tmp_path, [["NULL", *[""] * 10]], ValueOptions(null_strings=("NULL",)))
    assert [finding.code for finding in encoded[0].findings] == ["required_missing"]


def test_clean_rows_come_encoded_and_no_others(tmp_path):
    rows = [CLEAN, BLANK, ["", "b@x.com", *[""] * 9], ["Eve", "ADA@x.com", *[""] * 9], ["#N/A", *[""] * 10]]
    _, encoded = both_ways(tmp_path, rows)
    assert [isinstance(row, Entry) for row in encoded] == [True, True, False, False, False]
    assert [[finding.code for finding in row.findings] for row in encoded[2:]] == [
        ["required_missing"],
        ["duplicate_value"],
        ["spreadsheet_error"],
    ]


def test_a_column_set_for_all_rows_takes_part_in_the_search_for_duplicates(tmp_path):
    mapping = MappingOptions(set_values=("mail=ada@x.com",), map_pairs=("mail=",))
    _, encoded = both_ways(tmp_path, [["Ada", *[""] * 10], BLANK], mapping=mapping)
    assert [[finding.code for finding in row.findings] for row in encoded] == [[], ["duplicate_value"]]


@pytest.mark.parametrize(("column", "mode"), [("id", Mode.UPSERT), ("person.first", Mode.CREATE)])
def test_ids_and_parts_of_values_are_left_to_the_builder(tmp_path, column, mode):
    _, encoded = both_ways(tmp_path, [["Ada", TARGET], ["Bob", ""]], mapping=MappingOptions(mode=mode), header=["title", column])
    assert not any(isinstance(row, Entry) for row in encoded)
