"""Odd files and their results: cells, problems with their lines, or a refusal. crmctl pads, shifts and guesses nothing."""

from __future__ import annotations

import gzip
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crmctl.errors import RejectedError, UsageError
from crmctl.files import encodings
from crmctl.files.delimited import DelimitedSource
from crmctl.files.rows import Dialect, Format, SourceOptions
from crmctl.files.sources import open_source
from tests.support.bulkfiles import read, source_of

TEXTS = {
    "quoted delimiter, quote and newline": ('a,b\n"1,2","say ""hi""\nthere"\n', [["1,2", 'say "hi"\nthere']]),
    "quoted CRLF is kept": ('a,b\r\n"1\r\n2",3\r\n', [["1\r\n2", "3"]]),
    "CR only": ("a,b\r1,2\r3,4\r", [["1", "2"], ["3", "4"]]),
    "mixed line endings": ("a,b\r\n1,2\n3,4\r5,6", [["1", "2"], ["3", "4"], ["5", "6"]]),
    "no newline at the end": ("a,b\n1,2", [["1", "2"]]),
    "blank lines anywhere": ("\n\na,b\n\n1,2\n   \n3,4\n\n", [["1", "2"], ["3", "4"]]),
    "blank and quoted empty are one": ('a,b,c\n,"",x\n', [["", "", "x"]]),
    "spaces belong to the cell": ("a,b\n 1 , 2\n", [[" 1 ", " 2"]]),
    "a quote inside a cell is text": ('a,b\n5" pipe,x"y\n', [['5" pipe', 'x"y']]),
    "a late quote that looks open is text": ('a,b\n5",6"\n', [['5"', '6"']]),
    "leading zeros, NA and NULL stay": ("a,b,c\n00123,NA,NULL\n", [["00123", "NA", "NULL"]]),
    "unicode separators are not line ends": ("a,b\n1\u2028\x0b\x0c\x85,2\n", [["1\u2028\x0b\x0c\x85", "2"]]),
    "too few and too many cells": ("a,b\n1\n1,2,3\n1,2\n", ["too_few_cells", "too_many_cells", ["1", "2"]]),
    "an empty extra cell is still one too many": ("a,b\n1,2,\n", ["too_many_cells"]),
    "trailing unnamed empty column": ("a,b,\n1,2,\n3,4,\n", [["1", "2"], ["3", "4"]]),
    "trailing unnamed column with a value": ("a,b,\n1,2,\n3,4,x\n1,2\n", [["1", "2"], "unnamed_column", "too_few_cells"]),
    "text after a closing quote": ('a,b\n"x"y,1\n"say "hi" now",2\n3,4\n', ["text_after_quote", "text_after_quote", ["3", "4"]]),
    "space after a closing quote": ('a,b\n"x" ,1\n', ["text_after_quote"]),
    "unclosed quote takes the rest": ('a,b\n1,2\n3,"x\n5,6\n', [["1", "2"], "unclosed_quote"]),
    "one column, nothing splits": ("email\na@x.com\n\nb@x.com\n", [["a@x.com"], ["b@x.com"]]),
    "one column with a quoted empty cell": ('a\n""\nx\n', [[""], ["x"]]),
    "one column of lists": ("tags\na;b\nc\n", [["a;b"], ["c"]]),
    "one column, one row splits": ("email\na@x.com\nb@x.com,extra\n", [["a@x.com"], "too_many_cells"]),
    "all cells empty is a row": ("a,b\n,\n", [["", ""]]),
    "a spreadsheet's sep line": ("sep=;\na;b\n1;2,5\n", [["1", "2,5"]]),
    "semicolons with decimal commas": ("a;b\n1,5;2,5\n3,5;4,5\n", [["1,5", "2,5"], ["3,5", "4,5"]]),
    "tabs": ("a\tb\n1,5\t\n", [["1,5", ""]]),
    "pipes": ("a|b\nx;y|1\n", [["x;y", "1"]]),
    "commas although every row holds one semicolon": ("a,b\n1;2,3\n4;5,6\n", [["1;2", "3"], ["4;5", "6"]]),
    "delimiters inside quotes do not count": ('a;b\n"x,y";"1,2"\n', [["x,y", "1,2"]]),
    "header only": ("a,b\n", []),
}


@pytest.mark.parametrize("case", TEXTS)
def test_the_cells_and_problems_of_a_file(tmp_path, case):
    text, expected = TEXTS[case]
    assert read(tmp_path, text) == expected


@given(st.sampled_from(["a,b1", "b1", '"b\n1"', '"a,b1"']), st.text('ab1,"\n\r \t', max_size=60), st.integers(1, 20))
def test_blocks_of_lines_give_the_rows_of_single_lines(tmp_path_factory, header, text, size):
    path = tmp_path_factory.mktemp("blocks") / "data.csv"
    path.write_bytes(f"{header}\n{text}".encode())
    dialect = Dialect(Format.CSV, False, "utf-8", False, ",")
    with patch.object(DelimitedSource, "_split", return_value=None):
        one_by_one = _rows_or_error(DelimitedSource(path, "data.csv", dialect, SourceOptions()))
    with patch.object(encodings, "BLOCK", size):
        source = DelimitedSource(path, "data.csv", dialect, SourceOptions())
        assert _rows_or_error(source) == one_by_one
        if isinstance(one_by_one, tuple):
            blocks = [*source.blocks()]
            assert ([row for block in blocks for row in block.rows()], source.blank_lines) == one_by_one
            rows = one_by_one[0]
            assert [text for block in blocks for text in block.texts()] == [(row.ordinal, row.first_line, row.raw) for row in rows]
            assert [cells for block in blocks for cells in block.cells()] == [[] if row.problem else row.cells for row in rows]
            assert [number for block in blocks for number in block.ordinals] == [row.ordinal for row in rows]


def _rows_or_error(source):
    try:
        return [*source.rows()], source.blank_lines
    except RejectedError as error:
        return error.message


LINES = {
    "ragged": ("a,b\n\n1\n", (3, 3), "1 cell where the header has 2"),
    "a record over several lines": ('a,b\n"1\n\n2",3,4\n', (2, 4), "3 cells where the header has 2"),
    "the opening quote": ('a,b\n1,2\n"x\ny",2\nz,"open\nrest\nmore', (5, 7), "the quote opened on line 5 is never closed"),
    "the opening quote of a later line": ('a,b\n"x\ny","open\nrest\n', (2, 4), "the quote opened on line 3 is never closed"),
}


@pytest.mark.parametrize("case", LINES)
def test_a_problem_names_its_lines(tmp_path, case):
    text, lines, message = LINES[case]
    problem = [row.problem for row in source_of(tmp_path, text).rows() if row.problem][-1]
    assert (problem.first_line, problem.last_line) == lines
    assert message in problem.message


REFUSED = {
    "empty": (b"", "data.csv", {}, "empty_file"),
    "only blank lines": (b"\n\r\n\n", "data.csv", {}, "empty_file"),
    "no column has a name": (b",,\n1,2,3\n", "data.csv", {}, "empty_header"),
    "two dialects tie": (b"a;b,c\n1;2,3\n", "data.csv", {}, "ambiguous_delimiter"),
    "header only, two dialects": (b"a;b,c\n", "data.csv", {}, "ambiguous_delimiter"),
    "one column, rows split in two ways": (b"notes\none, two; three\n", "data.csv", {}, "ambiguous_delimiter"),
    "cp1252": ("name,city\nJos\u00e9,M\u00fcnchen\n".encode("cp1252"), "data.csv", {}, "undecodable"),
    "cut inside a character": ("name\nJos\u00e9".encode()[:-1], "data.csv", {}, "undecodable"),
    "utf-16 without a mark": ("a,b\n1,2\n".encode("utf-16-le"), "data.csv", {}, "undecodable"),
    "declared utf-16 without a mark": ("a,b\n1,2\n".encode("utf-16-le"), "data.csv", {"encoding": "utf-16"}, "unknown_encoding"),
    "NUL in a cell": (b"a,b\n1,2\0\n", "data.csv", {}, "undecodable"),
    "no such encoding": (b"a\n1\n", "data.csv", {"encoding": "utf-9"}, "unknown_encoding"),
    "no text encoding": (b"a\n1\n", "data.csv", {"encoding": "base64"}, "unknown_encoding"),
    "no such format": (b"a\n1\n", "data.csv", {"format": "xml"}, "unknown_format"),
    "an Excel workbook": (b"PK\x03\x04rest", "data.csv", {}, "unknown_format"),
    "a 7-Zip archive": (b"7z\xbc\xaf\x27\x1c\0\x04", "data.csv", {}, "unknown_format"),
    "a picture": (b"\x89PNG\r\n\x1a\n\0\0", "data.csv", {}, "unknown_format"),
    "a photograph": (b"\xff\xd8\xff\xe0\0\x10JFIF", "data.csv", {}, "unknown_format"),
    "a text document (RTF)": (b"{\\rtf1\\ansi}", "data.csv", {}, "unknown_format"),
    "an HTML page": (b"\n<!DOCTYPE html><html>", "data.csv", {}, "unknown_format"),
    "truncated gzip": (gzip.compress(b"a,b\n" + b"1,2\n" * 9000)[:-20], "data.csv.gz", {}, "unreadable_file"),
    "garbage after gzip": (gzip.compress(b"a,b\n1,2\n") + b"garbage", "data.csv.gz", {}, "unreadable_file"),
    "a damaged gzip": (gzip.compress(b"a,b\n1,2\n")[:-8] + b"\1\2\3\4\5\6\7\x08", "data.csv.gz", {}, "unreadable_file"),
    "two characters as delimiter": (b"a\n1\n", "data.csv", {"delimiter": "||"}, "usage"),
    "a quote as delimiter": (b"a\n1\n", "data.csv", {"delimiter": '"'}, "usage"),
    "a delimiter for JSON": (b"[]", "data.json", {"delimiter": ";"}, "usage"),
    "a sheet of a text": (b"a\n1\n", "data.csv", {"sheet": "Sheet1"}, "usage"),
}


@pytest.mark.parametrize(
    ("data", "name"),
    [(b"", "-"), (b"a,b\n", "data.csv"), (b" [ ] ", "data.json"), (b"\n\n", "data.jsonl")],
)
def test_a_file_without_rows_is_read_as_one(tmp_path, data, name):
    source = source_of(tmp_path, data, name)
    assert list(source.rows()) == []
    assert source.dialect.notes == []


@pytest.mark.parametrize("case", REFUSED)
def test_an_unreadable_file_is_a_usage_error(tmp_path, case):
    data, name, options, code = REFUSED[case]
    with pytest.raises(UsageError) as caught:
        list(source_of(tmp_path, data, name, **options).rows())
    assert caught.value.code == code


def test_an_undecodable_byte_late_in_a_file_names_offset_line_and_a_likely_encoding(tmp_path):
    before = "name,city\n" + "Ada,Zürich\n" * 30_000
    data = before.encode() + b"Jos\xe9,Paris\n"
    source = source_of(tmp_path, data)
    with pytest.raises(UsageError) as caught:
        list(source.rows())
    assert caught.value.details == {"offset": len(before.encode()) + 3, "line": 30_002, "encoding": "utf-8", "likely": "cp1252"}
    assert "0xe9" in caught.value.message
    assert "--encoding cp1252" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("text", "likely"), [("имя,город\nАнна,Москва\n", "cp1251"), ("名前,都市\n花子,東京\n", "shift_jis"), ("prénom\nZoé\n", "cp1252")]
)
def test_the_hint_at_an_encoding_is_likely(tmp_path, text, likely):
    with pytest.raises(UsageError) as caught:
        source_of(tmp_path, text.encode(likely))
    assert caught.value.details["likely"] == likely
    assert source_of(tmp_path, text.encode(likely), encoding=likely).header == text.splitlines()[0].split(",")


@pytest.mark.parametrize(
    ("text", "written", "readings"),
    [
        ("name\nAntonín\nDvořák\n", "cp1250", ["cp1250 ('Dvořák')", "cp1252 ('Dvoøák')"]),
        ("name\nRenée\nMuñoz\n", "cp1252", ["cp1252 ('Muñoz')", "cp1250 ('Muńoz')"]),
        ("name\nJürgen\nMüller\n", "mac_roman", ["mac_roman ('Jürgen')"]),
        ("email,name\na@b.jp,山田太郎\nb@b.jp,ソニー株式会社\n", "shift_jis", ["shift_jis ('山田太郎')"]),
    ],
)
def test_the_hint_shows_how_a_word_reads(tmp_path: Path, text: str, written: str, readings: list[str]) -> None:
    """Bytes hardly show their encoding, but a user recognizes the words."""
    with pytest.raises(UsageError) as caught:
        source_of(tmp_path, text.encode(written))
    assert [one for one in readings if one not in (caught.value.hint or "")] == []


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_a_byte_order_mark_is_not_part_of_the_first_header_even_if_quoted(tmp_path, encoding):
    source = source_of(tmp_path, '"name","b"\n1,2\n'.encode(encoding))
    assert source.header == ["name", "b"]
    assert source.dialect.bom


def test_a_byte_order_mark_against_the_declared_encoding_is_the_hint(tmp_path):
    with pytest.raises(UsageError) as caught:
        source_of(tmp_path, "a,b\n".encode("utf-16"), encoding="utf-8")
    assert caught.value.details["likely"] == "utf-16-le"


def test_a_declared_encoding_keeps_working_with_its_mark(tmp_path):
    assert source_of(tmp_path, "é,b\n".encode("utf-8-sig"), encoding="utf-8").header == ["é", "b"]
    assert source_of(tmp_path, "é,b\n".encode("cp1252"), encoding="windows-1252").header == ["é", "b"]


def test_the_dialect_tells_everything_that_was_found(tmp_path):
    source = source_of(tmp_path, gzip.compress("a;b\n1;2\n".encode("utf-16")), "export.csv.gz")
    assert source.dialect.to_document() == {
        "format": "csv",
        "compressed": True,
        "encoding": "utf-16-le",
        "bom": True,
        "delimiter": ";",
        "quote": '"',
        "columns": ["a", "b"],
        "notes": [],
    }


FORMATS = [
    ("data.tsv", b"a\tb\n1\t2\n", "tsv"),
    ("data.csv", b"a\tb\n1\t2\n", "csv"),
    ("<stdin>", b"a\tb\n1\t2\n", "tsv"),
    ("<stdin>", b"a,b\n1,2\n", "csv"),
    ("<stdin>", b'\n {"a": 1}\n', "jsonl"),
    ("<stdin>", b' [ {"a": 1} ]', "json"),
    ("<stdin>", gzip.compress(b'{"a":1}\n', mtime=0), "jsonl"),
    ("data.json", b'{"a": 1}\n{"a": 2}\n', "jsonl"),
    ("data.ndjson", b'{"a": 1}\n', "jsonl"),
    ("data.jsonl.gz", gzip.compress(b'[{"a": 1}]', mtime=0), "json"),
    ("DATA.CSV.GZ", b"a,b\n1,2\n", "csv"),
    ("[brackets].txt", b"[id],b\n1,2\n", "csv"),
]


@pytest.mark.parametrize(("name", "data", "format"), FORMATS, ids=range(len(FORMATS)))
def test_the_format_follows_from_name_or_content(tmp_path, name, data, format):
    assert str(source_of(tmp_path, data, name).dialect.format) == format


def test_concatenated_gzip_members_are_one_file(tmp_path):
    assert read(tmp_path, gzip.compress(b"a,b\n1,") + gzip.compress(b"2\n3,4\n"), "d.csv.gz") == [["1", "2"], ["3", "4"]]


def test_a_declared_delimiter_wins(tmp_path):
    assert read(tmp_path, "a;b,c\n1;2,3\n", delimiter="semicolon") == [["1", "2,3"]]
    assert read(tmp_path, "a b\n1 2\n", delimiter="space") == [["1", "2"]]


@pytest.mark.parametrize("quoted", [True, False])
def test_a_cell_may_be_far_longer_than_the_standard_library_takes(tmp_path, quoted):
    cell = "x" * 1_000_000
    assert read(tmp_path, f'a,b\n"{cell}",1\n' if quoted else f"a,b\n{cell},1\n") == [[cell, "1"]]


def test_a_record_over_the_limit_is_refused_at_the_line_of_its_quote(tmp_path):
    source = source_of(tmp_path, 'a,b\n1,2\n"open\n' + ("x" * 1000 + "\n") * 17_000, delimiter=",")
    with pytest.raises(RejectedError, match="opened on line 3") as caught:
        list(source.rows())
    assert caught.value.code == "unclosed_quote"


def test_a_line_over_the_limit_is_refused(tmp_path):
    with pytest.raises(RejectedError) as caught:
        source_of(tmp_path, "x" * 17_000_000)
    assert caught.value.code == "record_too_large"


def test_blank_lines_are_counted(tmp_path):
    source = source_of(tmp_path, "a,b\n\n1,2\n  \n\r\n3,4\n\n")
    assert len(list(source.rows())) == 2
    assert source.blank_lines == 4


def test_a_sep_line_is_no_blank_line_and_lines_stay_true(tmp_path):
    source = source_of(tmp_path, "sep=;\r\na;b\r\n1;2\r\n\r\n3\r\n")
    assert [(row.first_line, row.problem and row.problem.code) for row in source.rows()] == [(3, None), (5, "too_few_cells")]
    assert source.blank_lines == 1


def test_the_original_text_of_a_record_is_kept(tmp_path):
    source = source_of(tmp_path, 'a,b\r\n"1", "x"\r\n"q\r\n""z""",2\r\n')
    assert source.header_text == "a,b"
    assert [row.raw for row in source.rows()] == ['"1", "x"', '"q\r\n""z""",2']


def test_a_directory_and_a_missing_file_are_usage_errors(tmp_path):
    from crmctl.files.sources import open_source

    for path in (tmp_path, tmp_path / "missing.csv"):
        with pytest.raises(UsageError) as caught:
            open_source(path)
        assert caught.value.code == "unreadable_file"


@pytest.mark.parametrize(("text", "format"), [('{"a": 1}\n', "jsonl"), ('[{"a": 1}]', "json"), ("a,b\n1,2\n", "csv")])
def test_a_text_named_like_a_workbook_is_read_as_text_with_a_note(tmp_path, text, format):
    said = source_of(tmp_path, text, "people.xlsx").dialect.told
    assert said[0].startswith(f"read as {format}")
    assert "it is text, though its name says otherwise" in said
    assert "it is text, though its name says otherwise" not in source_of(tmp_path, text, "people").dialect.told


@pytest.mark.parametrize(
    ("text", "written", "read_as", "said"),
    [
        ("name\nJosé Müller\n", "latin-1", "latin-1", "iso8859-1 reads 'José', 'Müller'"),
        ("name\nJan Dvořák\n", "cp1250", "cp1252", "cp1252 reads 'Dvoøák'"),
        ("name\n山田太郎\n", "shift_jis", "shift_jis", "shift_jis reads '山田太郎'"),
        (f"name\n{'Jan' * 50_000}\nDvořák\n", "cp1250", "cp1250", "cp1250 reads 'Dvořák'"),
        ("name\nDvořák\n", "utf-16", "utf-16", ""),
        ("name\nJan\n", "cp1252", "cp1252", ""),
    ],
)
def test_words_show_how_an_encoding_reads(tmp_path: Path, text: str, written: str, read_as: str, said: str) -> None:
    (tmp_path / "a.csv").write_bytes(text.encode(written))
    notes = open_source(tmp_path / "a.csv", SourceOptions(encoding=read_as)).dialect.notes
    assert [said in note for note in notes] == ([True] if said else [])
