"""`bulk inspect`: detected format, values of each column, and the attributes they would fill."""

from __future__ import annotations

import pytest

from crmctl.files.json_files import HEADER_SAMPLE
from crmctl.files.mapping import MappingOptions, build_mapping
from crmctl.models import jsontext
from crmctl.plan.inspect_file import MAX_COLUMNS, MAX_DISTINCT, SHOWN_PROBLEMS, inspect
from tests.support.bulkfiles import attribute, select, source_of

ATTRIBUTES = [
    attribute("name", "name"),
    attribute("email", "email"),
    attribute("address", "address"),
    select("stage", "New"),
    attribute("vip", "checkbox"),
]

TEXT = (
    "Work Email,First Name,Last Name,zip,VIP,createdAt,Foo,_row\n"
    "a@x.com,Ada,Lovelace,01234,yes,2024-01-01,,1\n"
    "b@x.com,Ada,,1235,no,2024-01-02,,2\n"
    "c@x.com,Bob\n"
)


def test_columns_show_their_content(tmp_path):
    report = inspect(source_of(tmp_path, TEXT))
    assert (report.rows, report.problems, [finding.code for finding in report.findings]) == (3, 1, ["too_few_cells"])
    columns = {column["column"]: column for column in report.column_documents()}
    assert columns["First Name"] == {
        "column": "First Name",
        "position": 2,
        "filled": 2,
        "fillRate": 0.6667,
        "distinct": 1,
        "distinctExact": True,
        "longest": 3,
        "type": "text",
        "samples": ["Ada"],
        "target": None,
        "confidence": None,
        "suggestions": [],
        "values": {},
        "note": None,
    }
    assert {name: column["type"] for name, column in columns.items()} == {
        "Work Email": "email",
        "First Name": "text",
        "Last Name": "text",
        "zip": "text",
        "VIP": "checkbox",
        "createdAt": "date",
        "Foo": "text",
        "_row": "number",
    }


def test_an_import_accepts_the_proposed_mapping(tmp_path):
    source = source_of(tmp_path, TEXT)
    report = inspect(source, ATTRIBUTES)
    by_name = {column.header: column for column in report.columns}
    assert (by_name["VIP"].target, by_name["VIP"].confidence) == ("vip", 0.9)
    assert (by_name["Work Email"].target, by_name["Work Email"].suggestions[0], by_name["Work Email"].confidence) == (None, "email", 0.5)
    assert by_name["createdAt"].note == "left out: the service sets it"
    assert [column.header for column in report.unknown] == ["Work Email", "First Name", "Last Name", "zip", "Foo"]
    assert report.map_arguments == ["Work Email=email", "First Name=name.first", "Last Name=name.last", "zip=address.postalCode"]
    mapping = build_mapping(source.header, ATTRIBUTES, MappingOptions(map_pairs=(*report.map_arguments, "Foo=")))
    assert [column.target for column in mapping.columns][:5] == ["email", "name.first", "name.last", "address.postalCode", "vip"]


def test_the_proposed_mapping_fills_a_value_whole_or_by_parts(tmp_path):
    report = inspect(source_of(tmp_path, "Name,First Name,Home City,Home Address\nAda L,Ada,Rome,Via 1\n"), ATTRIBUTES)
    assert report.map_arguments == ["Home City=address.city", "Home Address=address.street"]


def test_the_proposed_import_names_columns_without_a_name_by_position(tmp_path):
    source = source_of(tmp_path, ",email,Foo\n1,a@x.com,2\n")
    assert inspect(source, ATTRIBUTES).import_arguments() == ["--map", "#1=", "--map", "Foo="]


def test_colliding_columns_say_so(tmp_path):
    report = inspect(source_of(tmp_path, "email,E-Mail,x,x\n1,2,3,4\n"), ATTRIBUTES)
    assert [column.note for column in report.columns] == [None, "collides with column 1 (email)", None, "collides with column 3 (x)"]
    unmapped = inspect(source_of(tmp_path, "email,E-Mail,x,x\n1,2,3,4\n"))
    assert [column.note for column in unmapped.columns] == [None, None, None, "collides with column 3 (x)"]


@pytest.mark.parametrize(
    ("texts", "times", "guess"), [(2, 10, "select"), (20, 5, "select"), (21, 5, "text"), (20, 4, "text"), (1, 4, "text")]
)
def test_few_repeated_texts_look_like_a_select(tmp_path, texts, times, guess):
    cells = [f"Stage {chr(97 + number)}" for number in range(texts)] * times
    report = inspect(source_of(tmp_path, "stage\n" + "\n".join(cells) + "\n"))
    assert report.columns[0].guessed_type == guess


def test_a_long_report_is_cut(tmp_path):
    rows = [f"{number},x\n" for number in range(5)] + ["too,many,cells\n"] * (SHOWN_PROBLEMS + 5)
    report = inspect(source_of(tmp_path, "a,b\n" + "".join(rows)))
    assert (report.problems, len(report.findings)) == (SHOWN_PROBLEMS + 5, SHOWN_PROBLEMS)
    assert [column.samples for column in report.columns] == [["0", "1", "2"], ["x"]]
    few = '{"k0": 1}\n' * HEADER_SAMPLE
    wide = "{" + ", ".join(f'"k{number}": 1' for number in range(MAX_COLUMNS + 5)) + "}\n"
    assert len(inspect(source_of(tmp_path, few + wide, "a.jsonl")).columns) == MAX_COLUMNS


def test_distinct_values_are_counted_up_to_a_limit(tmp_path):
    text = "a,b\n" + "".join(f"{number},{number % MAX_DISTINCT}\n" for number in range(MAX_DISTINCT + 10))
    columns = inspect(source_of(tmp_path, text)).columns
    assert [(column.distinct, column.distinct_exact) for column in columns] == [(MAX_DISTINCT, False), (MAX_DISTINCT, True)]


def test_json_records_are_columns_of_their_keys(tmp_path):
    report = inspect(source_of(tmp_path, '{"email": "a@x.com"}\n{"name": {"first": "Ada"}, "n": 1.50}\nnope\n', "a.jsonl"), ATTRIBUTES)
    assert [(column.header, column.filled, column.target, column.samples) for column in report.columns] == [
        ("email", 1, "email", ["a@x.com"]),
        ("name", 1, "name", ['{"first":"Ada"}']),
        ("n", 1, None, ["1.5"]),
    ]
    assert report.problems == 1


def test_the_document_is_json_with_every_key(tmp_path):
    document = inspect(source_of(tmp_path, TEXT), ATTRIBUTES).to_document()
    assert jsontext.loads(jsontext.dumps(document)) == document
    assert list(document) == ["file", "dialect", "rows", "blankLines", "columns", "unknown", "map", "value", "problems", "findings"]
    assert document["dialect"]["delimiter"] == ","
