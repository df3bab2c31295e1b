"""JSONL and JSON arrays: records, exports, bad lines, numbers, and the place where an array is broken."""

from __future__ import annotations

from decimal import Decimal

import pytest

from crmctl.errors import RejectedError
from crmctl.files import json_files
from tests.support.bulkfiles import read, source_of


def test_a_bad_line_is_a_finding_and_the_next_lines_are_read(tmp_path):
    lines = {
        '{"a": 1}': {"a": 1},
        "": None,
        "not json": "invalid_json",
        "[1]": "not_an_object",
        '"text"': "not_an_object",
        "null": "not_an_object",
        '{"a": 1, "a": 2}': "duplicate_key",
        '{"b": {"c": 1, "c": 2}}': "duplicate_key",
        '{"a": "\\ud800"}': "invalid_text",
        '{"a": NaN}': "invalid_json",
        '{"a": 2': "invalid_json",
        '{"a": 3}': {"a": 3},
    }
    text = "\n".join(lines)
    assert read(tmp_path, text, "data.jsonl") == [expected for expected in lines.values() if expected is not None]
    problems = [row.problem for row in source_of(tmp_path, text, "data.jsonl").rows() if row.problem]
    assert [problem.first_line for problem in problems] == [3, 4, 5, 6, 7, 8, 9, 10, 11]
    assert problems[0].message == "not JSON: a value is missing at character 1"


def test_numbers_lose_no_digit(tmp_path):
    text = '{"a": 12345678901234567890, "b": 0.1, "c": 3.14159265358979323846, "d": 1e400}\n'
    [value] = read(tmp_path, text, "data.jsonl")
    assert value == {"a": 12345678901234567890, "b": 0.1, "c": Decimal("3.14159265358979323846"), "d": Decimal("1e400")}
    assert read(tmp_path, f"[{text}]", "data.json") == [value]


def test_an_exported_record_becomes_flat(tmp_path):
    export = '{"id": "x", "objectId": "o", "data": {"name": {"first": "Ada"}, "n": 1}, "createdAt": "t", "updatedAt": "t"}\n'
    assert read(tmp_path, export, "data.jsonl") == [
        {"id": "x", "objectId": "o", "createdAt": "t", "updatedAt": "t", "name": {"first": "Ada"}, "n": 1}
    ]
    unclear = '{"data": {"a": 1}, "other": 2}\n{"id": "x", "data": {"id": "y"}}\n'
    assert read(tmp_path, unclear, "data.jsonl") == [{"data": {"a": 1}, "other": 2}, {"id": "x", "data": {"id": "y"}}]


def test_the_header_is_the_union_of_the_first_records(tmp_path):
    source = source_of(tmp_path, '{"b": 1}\n{"a": 1, "b": 2}\n', "data.jsonl")
    assert source.header == ["b", "a"]
    assert not source.header_complete


def test_array_elements_keep_lines_and_original_text(tmp_path):
    text = '[\r\n {"a": 1},\n {"a":\n  2.50}, {"a": 3, "a": 4},\n 7 ]\n'
    rows = list(source_of(tmp_path, text, "data.json").rows())
    assert [(row.ordinal, row.first_line, row.last_line, row.raw) for row in rows] == [
        (1, 2, 2, '{"a": 1}'), (2, 3, 4, '{"a":\n  2.50}'), (3, 4, 4, '{"a": 3, "a": 4}'), (4, 5, 5, "7"),
    ]  # fmt: skip
    assert [row.problem.code if row.problem else row.value for row in rows] == [{"a": 1}, {"a": 2.5}, "duplicate_key", "not_an_object"]


BROKEN = {
    "cut inside a record": ('[{"a": 1},\n {"a": [1,', 2, 2, "cut off"),
    "cut inside a string": ('[{"a": 1},\n {"a": "x', 2, 2, "cut off"),
    "cut after a record": ('[{"a": 1}\n', 2, 1, "not closed"),
    "cut after a comma": ('[{"a": 1},\n', 2, 1, "cut off"),
    "a missing comma": ('[{"a": 1}\n{"a": 2}]', 2, 1, "expected , or ]"),
    "a comma too many": ('[{"a": 1},\n]', 2, 1, "not JSON"),
    "a single quote": ("[{\"a\": 1},\n {'a': 2}]", 2, 3, "not JSON"),
    "text after the array": ('[{"a": 1}]\n[{"a": 2}]', 2, 1, "after the end"),
    "an object": ('{"a": 1}', 1, 1, "must be an array"),
}


@pytest.mark.parametrize("block", [1, 7, 1 << 18])
@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_array_says_where(tmp_path, case, block, monkeypatch):
    monkeypatch.setattr(json_files, "BLOCK", block)
    text, line, column, message = BROKEN[case]
    with pytest.raises(RejectedError, match=message) as caught:
        list(source_of(tmp_path, text, "data.json", format="json").rows())
    assert caught.value.details == {"line": line, "column": column}


@pytest.mark.parametrize("block", [1, 2, 3, 5, 64])
def test_the_block_size_does_not_change_an_array(tmp_path, block, monkeypatch):
    text = '[{"a": 1.25, "b": "x,]}\\""}, 12.5, 1234 , true,\n\n null, "a\\u00e9", [{}], {"c": -1e5}]'
    whole = list(source_of(tmp_path, text, "data.json").rows())
    monkeypatch.setattr(json_files, "BLOCK", block)
    assert list(source_of(tmp_path, text, "data.json").rows()) == whole
    assert [row.raw for row in whole][1:4] == ["12.5", "1234", "true"]


def test_a_single_line_array_of_many_megabytes_is_streamed(tmp_path):
    record = '{"name": "' + "x" * 1000 + '"}'
    text = "[" + ",".join([record] * 20_000) + "]"
    assert sum(1 for _ in source_of(tmp_path, text, "<stdin>").rows()) == 20_000


def test_an_element_over_the_limit_is_refused(tmp_path):
    with pytest.raises(RejectedError) as caught:
        source_of(tmp_path, '[{"a": "' + "x" * 17_000_000 + '"}]', "data.json")
    assert caught.value.code == "record_too_large"
