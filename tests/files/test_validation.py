"""Whole files: each bad row with its place, the payloads of the good ones, and the same on a second pass."""

from __future__ import annotations

from decimal import Decimal

import pytest

from crmctl.errors import RejectedError, UsageError
from crmctl.files.cell_values import ValueOptions
from crmctl.files.json_files import HEADER_SAMPLE
from crmctl.files.mapping import MappingOptions, Mode, build_mapping
from crmctl.files.payloads import RowBuilder
from crmctl.files.validation import MAX_FINDINGS, payloads, validate
from crmctl.models.findings import Severity
from tests.support.bulkfiles import attribute, select, source_of

A = "0b0c3b5a-5b1e-4d5c-9c43-0123456789ab"
B = "1b0c3b5a-5b1e-4d5c-9c43-0123456789ab"

PEOPLE = [
    attribute("name", "name", isRequired=True),
    attribute("email", "email", isUnique=True),
    attribute("amount", "currency"),
    attribute("score", "number"),
    attribute("born", "date"),
    select("stage", "New", "Done"),
    attribute("address", "address"),
    attribute("notes"),
]


class Input:
    """A file with its mapping, ready for validation."""

    def __init__(self, directory, text, name="people.csv", values=None, attributes=PEOPLE, **mapping):
        self.source = source_of(directory, text, name)
        self.attributes = attributes
        self.values = values or ValueOptions()
        self.mapping = build_mapping(self.source.header, attributes, MappingOptions(**mapping), header_complete=self.source.header_complete)

    def payloads(self):
        return list(payloads(self.source, self.mapping, self.attributes, self.values))

    def data(self):
        return [payload.data for payload in self.payloads() if not payload.rejected]

    def validate(self, **options):
        return validate(self.source, RowBuilder(self.mapping, self.attributes, self.values), **options)

    def found(self):
        return [(finding.code, finding.first_line, finding.column) for payload in self.payloads() for finding in payload.findings]


def test_every_bad_cell_is_reported_with_line_column_value_and_reason(tmp_path):
    text = 'name,email,score,Stage\nAda,ada@x.com,1,new\n"Bob\nJr",nope,x,zzz\n,c@x.com,2,Done\n'
    report = Input(tmp_path, text).validate()
    assert (report.rows, report.valid, report.rejected) == (3, 1, 2)
    assert [(f.code, f.ordinal, f.first_line, f.last_line, f.column, f.value) for f in report.findings] == [
        ("invalid_email", 2, 3, 4, "email", "nope"),
        ("invalid_number", 2, 3, 4, "score", "x"),
        ("unknown_option", 2, 3, 4, "Stage", "zzz"),
        ("required_missing", 3, 5, 5, "name", ""),
    ]
    assert report.unknown_options == {"Stage": {"zzz": 1}}
    assert report.findings[0].to_text() == "lines 3-4, column email: not an email address (value 'nope')"


def test_structure_problems_are_findings_of_their_rows(tmp_path):
    text = 'name,email\nAda\nBob,b@x.com,extra\nCyd,c@x.com\nDan,"open\n'
    assert Input(tmp_path, text).found() == [("too_few_cells", 2, None), ("too_many_cells", 3, None), ("unclosed_quote", 5, None)]
    assert Input(tmp_path, text).data() == [{"name": "Cyd", "email": "c@x.com"}]


def test_text_is_sent_as_it_is_and_blank_cells_are_left_out(tmp_path):
    text = "name,notes,score,email\nAda, 00123 NA ,,\nBob,NULL,0,\n"
    assert Input(tmp_path, text).data() == [{"name": "Ada", "notes": " 00123 NA "}, {"name": "Bob", "notes": "NULL", "score": 0}]


def test_blank_clear_sends_null_and_counts(tmp_path):
    checked = Input(
        tmp_path, "name,notes,address.city\nAda,,\nBob,x,Paris\n", values=ValueOptions(blank={"": "clear"}, null_strings=("x",))
    )
    assert checked.data() == [{"name": "Ada", "notes": None, "address": None}, {"name": "Bob", "notes": None, "address": {"city": "Paris"}}]
    assert checked.validate().clears == 3


def test_a_required_value_may_not_be_cleared(tmp_path):
    checked = Input(tmp_path, f"id,name\n{A},\n", mode=Mode.UPSERT, values=ValueOptions(blank={"": "clear"}))
    assert checked.found() == [("required_missing", 2, "name")]


def test_parts_fill_composites_in_the_form_that_existing_records_show(tmp_path):
    text = "Name.First,name.Last,Address.City,address.zip\nAda,Lovelace,Paris,01234\n,Solo,,\n"

    def data(*samples):
        return Input(tmp_path, text, values=ValueOptions(samples=samples)).data()

    assert data() == [
        {"name": {"first": "Ada", "last": "Lovelace"}, "address": {"city": "Paris", "zip": "01234"}},
        {"name": {"last": "Solo"}},
    ]
    assert data({"name": {"firstName": "X", "lastName": "Y"}, "address": {"postalCode": "1", "town": "T"}})[0] == {
        "name": {"firstName": "Ada", "lastName": "Lovelace"},
        "address": {"town": "Paris", "postalCode": "01234"},
    }
    assert data({"name": "Grace Hopper", "address": "1 Main St"}) == [{"name": "Ada Lovelace", "address": "Paris, 01234"}, {"name": "Solo"}]


def test_two_spellings_of_one_part_are_refused(tmp_path):
    samples = ({"address": {"postalCode": "1"}},)
    with pytest.raises(UsageError, match=r"address\.postalCode"):
        Input(tmp_path, "name,address.zip,address.postcode\nAda,1,2\n", values=ValueOptions(samples=samples)).payloads()


def test_constants_are_in_every_row(tmp_path):
    checked = Input(tmp_path, "email\na@x.com\n,\n\n", attributes=[*PEOPLE], set_values=("name.first=Ada",))
    assert checked.data() == [{"name": {"first": "Ada"}, "email": "a@x.com"}]


def test_an_empty_row_is_refused_not_sent(tmp_path):
    attributes = [attribute("a"), attribute("b")]
    assert Input(tmp_path, "a,b\n,\n", attributes=attributes).found() == [("empty_row", 2, None)]
    assert Input(tmp_path, "a\n1\n", attributes=attributes, set_values=("b=x",)).data() == [{"b": "x", "a": "1"}]
    assert Input(tmp_path, 'a\n""\n', attributes=attributes, set_values=("b=x",)).found() == [("empty_row", 2, None)]


def test_a_value_that_must_be_unique_is_refused_the_second_time_without_case_and_composition(tmp_path):
    text = "name,email\nAda,\u00e9@x.com\nBob,b@x.com\nAda,E\u0301@x.com \nEve,\nFay,\n"
    [finding] = Input(tmp_path, text).validate().findings
    assert (finding.code, finding.first_line, finding.column) == ("duplicate_value", 4, "email")
    assert "line 2 has the same value" in finding.message


def test_upsert_takes_ids_and_asks_required_values_of_new_records_only(tmp_path):
    text = f"id,name,score\n{A},,1\n,,2\nnope,Bob,3\n{B},Cyd,4\n{A.upper()},Dan,5\n"
    checked = Input(tmp_path, text, mode=Mode.UPSERT)
    assert [(payload.id, payload.data) for payload in checked.payloads() if not payload.rejected] == [
        (A, {"score": 1}),
        (B, {"name": "Cyd", "score": 4}),
    ]
    assert checked.found() == [("required_missing", 3, "name"), ("invalid_id", 4, "id"), ("duplicate_id", 6, "id")]
    assert checked.validate().updates == 2


def test_the_ids_of_an_export_are_not_sent_in_create_mode(tmp_path):
    [payload] = Input(tmp_path, f"id,name,createdAt\n{A},Ada,2024-01-01\n").payloads()
    assert (payload.id, payload.data) == (None, {"name": "Ada"})


@pytest.mark.parametrize("cells", [["1.234", "1,5"], ["1,5", "2", "1.234"]])
def test_a_point_that_may_group_thousands_stops_the_whole_import(tmp_path, cells):
    text = "name;score\n" + "".join(f"Ada;{cell}\n" for cell in cells)
    report = Input(tmp_path, text).validate()
    assert report.is_fatal
    [fatal] = [finding for finding in report.findings if finding.severity is Severity.FATAL]
    assert (fatal.code, fatal.first_line) == ("ambiguous_decimal", len(cells) + 1)
    declared = Input(tmp_path, text, values=ValueOptions(decimal_marks={"": "comma"}))
    assert {row["score"] for row in declared.data()} >= {1234, 1.5}


def test_points_alone_are_decimal(tmp_path):
    assert [row["score"] for row in Input(tmp_path, "name,score\nA,1.234\nB,12345678901234567890.5\n").data()] == [
        1.234,
        Decimal("12345678901234567890.5"),
    ]


def test_undeclared_dates_are_refused_with_their_possible_forms(tmp_path):
    text = "name,born\nA,03/04/2024\nB,13/04/2024\nC,2024-01-02\n"
    report = Input(tmp_path, text).validate()
    assert report.rejected == 2
    assert report.dates == {"born": {"swappable": 1, "onlyDayFirst": 1, "onlyMonthFirst": 0}}
    declared = Input(tmp_path, "name,born\nA,03/04/2024\nB,13/04/2024\n", values=ValueOptions(date_formats={"born": "%d/%m/%Y"}))
    assert [row["born"] for row in declared.data()] == ["2024-04-03", "2024-04-13"]
    assert declared.validate().dates == {"born": {"swappable": 1, "onlyDayFirst": 0, "onlyMonthFirst": 0}}


@pytest.mark.parametrize(
    ("cell", "swappable", "day_first", "month_first"),
    [("12/11/2024", 1, 0, 0), ("11/12/2024", 1, 0, 0), ("13/12/2024", 0, 1, 0), ("12/13/2024", 0, 0, 1), ("13/11/2024", 0, 1, 0)],
)
def test_a_year_has_twelve_months(tmp_path, cell, swappable, day_first, month_first):
    report = Input(tmp_path, f"name,born\nA,{cell}\nB,12/12/2024\nC,13/14/2024\nD,14/13/2024\n").validate()
    assert report.dates == {"born": {"swappable": swappable, "onlyDayFirst": day_first, "onlyMonthFirst": month_first}}
    text = f"name,born\nA,{cell}\nB,12/12/2024\n"
    declared = Input(tmp_path, text, values=ValueOptions(date_formats={"born": "%m/%d/%Y" if month_first else "%d/%m/%Y"})).validate()
    assert declared.dates.get("born", {}).get("swappable", 0) == swappable


def test_values_spoilt_by_a_spreadsheet_in_a_text_column_are_kept_with_a_warning(tmp_path):
    checked = Input(tmp_path, "name,notes\nA,1.23E+11\nB,#REF!\nC,#1 fan\nD,12E\nE,'=1\nF,'n roll\n")
    assert [row["notes"] for row in checked.data()] == ["1.23E+11", "#REF!", "#1 fan", "12E", "'=1", "'n roll"]
    report = checked.validate()
    assert (report.warnings, report.rejected) == (3, 0)
    assert dict(report.counts) == {"spreadsheet_number": 1, "spreadsheet_error": 1, "guarded_formula": 1}


def test_json_records_may_bring_keys_late(tmp_path, monkeypatch):
    monkeypatch.setattr("crmctl.files.json_files.HEADER_SAMPLE", 1)
    lines = [
        '{"name": {"first": "Ada"}}',
        '{"name": "Bob", "Score": 1.50}',
        '{"name": "Cyd", "emial": "c@x.com"}',
        '{"name": "Dan", "score": 1, "Score": 2}',
        '{"name": "Eve", "address.city": "Paris", "notes": null}',
        '{"name": "Fay", "name.first": "F"}',
    ]
    checked = Input(tmp_path, "\n".join(lines), "p.jsonl")
    assert checked.data() == [{"name": {"first": "Ada"}}, {"name": "Bob", "score": 1.5}, {"name": "Eve", "address": {"city": "Paris"}}]
    assert checked.found() == [("unknown_column", 3, "emial"), ("duplicate_target", 4, "Score"), ("duplicate_target", 6, "name.first")]
    assert len(Input(tmp_path, "\n".join(lines), "p.jsonl", ignore_unknown=True).data()) == 4


def test_a_second_pass_gives_the_same_payloads(tmp_path):
    checked = Input(tmp_path, "name,email,score\nA,a@x.com,1.234\nB,a@x.com,x\nC\nD,d@x.com,2\n")
    assert checked.payloads() == checked.payloads()


def test_the_report_counts_everything_but_keeps_only_the_first_findings(tmp_path):
    heard = []
    report = Input(tmp_path, "name,score\n\n" + "A,x\n" * (MAX_FINDINGS + 50)).validate(report=heard.append)
    every, count = MAX_FINDINGS + 50, report.counts["invalid_number"]
    assert (len(report.findings), len(heard), count) == (MAX_FINDINGS, every, every)
    assert report.to_document().keys() == {
        "rows", "valid", "rejected", "updates", "blankLines", "clears", "warnings", "counts", "unknownOptions", "dates", "findings",
    }  # fmt: skip
    assert report.blank_lines == 1


def test_a_broken_array_is_not_half_accepted(tmp_path):
    with pytest.raises(RejectedError):
        Input(tmp_path, '[{"name": "Ada"}, {"name": ', "p.json").validate()


def test_an_inactive_required_attribute_asks_nothing(tmp_path):
    attributes = [attribute("a"), attribute("b", isRequired=True, isActive=False)]
    assert Input(tmp_path, "a\n1\n", attributes=attributes).data() == [{"a": "1"}]


def test_the_parts_and_the_id_of_a_json_record(tmp_path):
    lines = f'{{"id": "{A}", "address.city": "Rome", "address.street": "Via 1", "amount": 5}}\n{{"name": "Bob", "id": null, "score": 1}}\n'
    first, second = Input(tmp_path, lines, "people.jsonl", mode=Mode.UPSERT).payloads()
    assert (first.id, second.id) == (A, None)
    assert first.parts == {"address": {"city": "Rome", "street": "Via 1"}, "amount": {"amount": 5}}
    assert not first.findings
    assert not second.findings


@pytest.mark.parametrize("keys", [("address.city", "address"), ("address", "address.city"), ("address.city", "Address.City")])
def test_a_json_record_fills_nothing_twice(tmp_path, keys):
    """A late record has keys that the header sample lacks; an additional key of its own does no harm."""
    early = '{"name": "Ada"}\n' * HEADER_SAMPLE
    late = '{"name": "Ada", ' + ", ".join(f'"{key}": "Rome"' for key in keys) + ', "notes": "x"}\n'
    assert Input(tmp_path, early + late, "people.jsonl").found() == [("duplicate_target", HEADER_SAMPLE + 1, keys[1])]


def test_a_currency_column_ignores_blanks_around_its_codes(tmp_path):
    data = Input(tmp_path, "name,amount,amount_currency\nA,5, EUR \nB,6,  \n").data()
    assert [row["amount"] for row in data] == [{"amount": 5, "currency": "EUR"}, 6]


@pytest.mark.parametrize(
    ("amounts", "codes"),
    [([], []), ([{"amount": 1, "currency": "EUR"}], ["missing_currency"]), ([{"amount": 1, "currency": "EUR"}, 3], []), ([3], [])],
)
def test_an_amount_needs_a_currency_where_every_record_has_one(tmp_path, amounts, codes):
    values = ValueOptions(samples=[{"amount": amount} for amount in amounts])
    checked = Input(tmp_path, "name,amount\nAda,5\n", values=values).payloads()
    assert [finding.code for payload in checked for finding in payload.findings] == codes
