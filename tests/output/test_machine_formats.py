"""json, jsonl, csv, tsv, yaml and ids: other programs read back the values that the service sent."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from crmctl.cli.verbs import NOUNS
from crmctl.errors import NetworkError
from crmctl.models.jsontext import dumps, loads
from tests.output.samples import NIL, TYPES, Run, record, view

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def pages(*sizes: int) -> Iterator[list[dict[str, Any]]]:
    number = 0
    for size in sizes:
        yield [record(number + offset) for offset in range(size)]
        number += size


@pytest.mark.parametrize("sizes", [(), (0,), (1,), (2, 3), (2, 0, 1)])
def test_json_is_one_document_indented_by_two(sizes: tuple[int, ...]) -> None:
    run = Run("json")
    assert run.emitter.emit_pages(pages(*sizes), view()) == sum(sizes)
    everything = [item for page in pages(*sizes) for item in page]
    assert run.out == dumps(everything, indent=2) + "\n"


@given(items=st.lists(st.dictionaries(st.text(), JSON, max_size=4), max_size=4))
def test_any_items_come_back_from_json_jsonl_and_yaml(items: list[dict[str, Any]]) -> None:
    printed = {}
    for kind in ("json", "jsonl", "yaml"):
        run = Run(kind)
        run.emitter.emit_items(items, NOUNS["objects"].view)
        printed[kind] = run.out
    assert loads(printed["json"]) == items
    assert [loads(line) for line in printed["jsonl"].split("\n")[:-1]] == items
    assert yaml.safe_load(printed["yaml"]) == items


def test_no_digit_is_lost() -> None:
    text = '{"id":"1","a":12345678901234567890.123456789,"b":1E+400,"c":12345678901234567890123,"d":0.10}'
    for kind, wanted in (("jsonl", text.replace("0.10", "0.1") + "\n"), ("csv", None), ("yaml", None)):
        run = Run(kind)
        run.emitter.emit_items([loads(text)])
        if wanted:
            assert run.out == wanted
        assert "12345678901234567890.123456789" in run.out
        assert "12345678901234567890123" in run.out
    assert "b: 1.0e+400" in run.out
    assert "'" not in run.out.replace("'1'", "")


def test_a_page_is_printed_before_the_next_request() -> None:
    for kind in ("jsonl", "csv", "ids"):
        run = Run(kind)

        def fetch(run: Run = run) -> Iterator[list[dict[str, Any]]]:
            yield [record(1)]
            assert NIL in run.out
            yield [record(2)]

        assert run.emitter.emit_pages(fetch(), view()) == 2


@pytest.mark.parametrize("format", ["json", "yaml", "table", "csv", "jsonl"])
def test_an_error_leaves_no_part_of_a_document(format: str) -> None:
    def fetch() -> Iterator[list[dict[str, Any]]]:
        if format not in ("csv", "jsonl"):  # these formats stream: only an error in the first page leaves nothing
            yield [record(1)]
        raise NetworkError("gone")

    run = Run(format)
    with pytest.raises(NetworkError):
        run.emitter.emit_pages(fetch(), view())
    assert run.out == ""


def test_csv_has_id_slugs_in_display_order_and_times() -> None:
    run = Run("csv")
    run.emitter.emit_items([record(1), record(2, text=None, extra="unknown")], view())
    rows = list(csv.reader(io.StringIO(run.out, newline="")))
    parts = {"currency": ["currency", "currency_currency"], "name": ["name", "name.first", "name.last"]}
    parts["address"] = ["address", "address.line1", "address.city", "address.country"]
    assert rows[0] == ["id", *(column for kind in TYPES for column in parts.get(kind, [kind])), "createdAt", "updatedAt"]
    first = dict(zip(rows[0], rows[1], strict=True))
    assert (first["id"], first["number"], first["checkbox"], first["text"]) == (f"{NIL}000000000001", "-5", "true", "[on hold] Zoë")
    assert first["list"] == "a;b"
    assert (first["name"], first["name.first"], first["name.last"]) == ("", "Ada", "Lovelace")
    assert rows[2][1] == ""
    assert "\r" not in run.out


CELL = st.text(st.characters(codec="utf-8") | st.sampled_from('",\t\r\n =+-@'))


@given(cells=st.lists(st.lists(CELL, min_size=2, max_size=2), min_size=1))
@pytest.mark.parametrize(("format", "delimiter"), [("csv", ","), ("tsv", "\t")])
def test_any_text_survives_another_reader(format: str, delimiter: str, cells: list[list[str]]) -> None:
    run = Run(format)
    run.emitter.emit_items([{"id": first, "b": second} for first, second in cells])
    assert list(csv.reader(io.StringIO(run.out, newline=""), delimiter=delimiter, strict=True)) == [["id", "b"], *cells]


def test_a_single_empty_column_is_no_blank_line() -> None:
    run = Run("csv", fields=["text"])
    run.emitter.emit_items([record(1, text=""), record(2, text="x")], view())
    assert run.out == 'text\n""\nx\n'


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        ("=1+1", "'=1+1"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\tx", "'\tx"),
        ("\rx", '"\'\rx"'),
        ("+cmd|x", "'+cmd|x"),
        ("-1+2", "'-1+2"),
        ("-5", "-5"),
        ("+33123456789", "+33123456789"),
        ("-1.5e3", "-1.5e3"),
        (-5, "-5"),
        (Decimal("-12345678901234567890.5"), "-12345678901234567890.5"),
        ("a=b", "a=b"),
    ],
)
def test_excel_safe_neutralises_formulas_and_leaves_numbers(value: Any, cell: str) -> None:
    printed = []
    for safe in (True, False):
        run = Run("csv", excel_safe=safe)
        run.emitter.emit_items([{"v": value}])
        printed.append(run.out)
    assert printed[0] == f"v\n{cell}\n"
    assert "'" not in printed[1]


def test_an_empty_list_is_a_header_or_an_empty_document_and_a_sentence() -> None:
    expected = {"json": "[]\n", "yaml": "[]\n", "jsonl": "", "ids": "", "table": "", "csv": "id,role,createdAt,user\n"}
    for kind, out in expected.items():
        run = Run(kind)
        assert run.emitter.emit_items([], NOUNS["members"].view) == 0
        assert (run.out, run.err) == (out, "no members found\n"), kind


@pytest.mark.parametrize("fields", [None, ["name"]])
def test_an_empty_list_of_unknown_columns_has_no_header_and_no_wrong_field(fields: list[str] | None) -> None:
    for kind, out in {"json": "[]\n", "csv": "", "tsv": "", "table": ""}.items():
        run = Run(kind, fields=fields)
        run.emitter.emit_rows([], "jobs")
        assert (run.out, run.err) == (out, "no jobs found\n"), kind


def test_ids_are_one_a_line_for_every_noun() -> None:
    run = Run("ids")
    run.emitter.emit_items([record(1), record(2)], view())
    run.emitter.emit_item({"id": "x", "name": "y"})
    run.emitter.emit_result({"deleted": 3})
    run.emitter.emit_item({"profile": "work", "key": "crm_…cdef"})
    run.emitter.emit_item({"key": "timeout", "value": 30, "profile": None})
    assert run.out == f"{NIL}000000000001\n{NIL}000000000002\nx\nwork\ntimeout\n"


def test_results_of_actions_in_every_format() -> None:
    expected = {
        "json": '{\n  "count": 12\n}\n',
        "jsonl": '{"count":12}\n',
        "yaml": "count: 12\n",
        "csv": "count\n12\n",
        "tsv": "count\n12\n",
        "ids": "",
        "table": "12\n",
    }
    for kind, out in expected.items():
        run = Run(kind)
        run.emitter.emit_result({"count": 12}, text="12")
        assert run.out == out, kind


def test_a_resource_of_the_models_is_printed_as_it_came() -> None:
    from crmctl.models.resources import Object

    wire = {"zeta": 1, "id": "1", "slug": "people", "isActive": "odd"}
    run = Run("jsonl")
    run.emitter.emit_items([Object.parse(wire)], NOUNS["objects"].view)
    run.emitter.emit_item(Object.parse(wire), NOUNS["objects"].view)
    assert run.out == dumps(wire) + "\n" + dumps(wire) + "\n"
