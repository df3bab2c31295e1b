"""crmctl reads back every character that csv.writer writes, in any dialect and encoding, twice, with the right line numbers."""

from __future__ import annotations

import csv
import gzip
import io
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crmctl.errors import RejectedError, UsageError
from crmctl.files.encodings import count_lines
from crmctl.models import jsontext
from tests.support.bulkfiles import source_of

CELL = st.text(
    st.one_of(st.sampled_from("\"',;|\t\r\n =#_aé"), st.characters(exclude_categories=["Cs"], exclude_characters="\0")), max_size=12
)
TABLE = st.integers(1, 5).flatmap(lambda width: st.lists(st.lists(CELL, min_size=width, max_size=width), min_size=1, max_size=8))
ENCODINGS = st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-32", "utf-16-le", "utf-16-be", "utf-32-be"])


def write_csv(table: list[list[str]], delimiter: str, quoting: int, newline: str) -> str:
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=delimiter, quoting=quoting, lineterminator=newline)
    writer.writerow([f"column{index}" for index in range(len(table[0]))])
    writer.writerows(table)
    return text.getvalue()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=150)
@given(
    table=TABLE,
    delimiter=st.sampled_from(",;\t|:"),
    style=st.sampled_from([(csv.QUOTE_ALL, "\n"), (csv.QUOTE_ALL, "\r\n"), (csv.QUOTE_ALL, "\r"), (csv.QUOTE_MINIMAL, "\r\n")]),
    encoding=ENCODINGS,
    compressed=st.booleans(),
    final_newline=st.booleans(),
)
def test_any_table_written_by_csv_is_read_back_exactly(table, delimiter, style, encoding, compressed, final_newline):
    quoting, newline = style
    text = write_csv(table, delimiter, quoting, newline)
    if not final_newline:
        text = text.removesuffix(newline)
    data = text.encode(encoding)
    declared = encoding if encoding.endswith(("-le", "-be")) else None
    with tempfile.TemporaryDirectory() as directory:
        source = source_of(Path(directory), gzip.compress(data, 1) if compressed else data, "t.csv", delimiter=delimiter, encoding=declared)
        rows = list(source.rows())
        again = list(source.rows())
    assert [row.cells for row in rows] == table
    assert rows == again
    assert [row.problem for row in rows] == [None] * len(table)
    # The original texts of all records, joined, are the file, and the line numbers fit their places in it.
    assert newline.join([source.header_text, *(row.raw for row in rows)]).rstrip("\r\n") == text.rstrip("\r\n")
    place = 0
    for row in rows:
        place = text.index(row.raw, place + (len(source.header_text) if row.ordinal == 1 else 0))
        assert row.first_line == 1 + count_lines(text[:place])
        assert row.last_line == row.first_line + count_lines(row.raw)
        place += len(row.raw)


PIECES = st.sampled_from(
    ["a", ",", ";", '"', "\n", "\r", "\t", "|", "{", "}", "[", "]", ":", "1", " ", "\ufeff", "é", "\\ud800", '{"a":1}', '""', "sep=;"]
)


@settings(deadline=None, max_examples=300)
@given(
    pieces=st.lists(PIECES, max_size=25),
    tail=st.sampled_from([b"", b"\xe9", b"\0"]),
    name=st.sampled_from(["x", "x.csv", "x.tsv", "x.json", "x.jsonl"]),
)
def test_any_file_gives_whole_rows_or_an_error_a_user_can_act_on(pieces, tail, name):
    with tempfile.TemporaryDirectory() as directory:
        try:
            source = source_of(Path(directory), "".join(pieces).encode() + tail, name)
            rows = list(source.rows())
            again = list(source.rows())
        except (UsageError, RejectedError):
            return
    assert rows == again
    assert [row.ordinal for row in rows] == list(range(1, len(rows) + 1))
    for row in rows:
        assert row.problem is not None or isinstance(row.value, dict) or len(row.cells) == len(source.header)
        assert row.problem is None or (row.problem.ordinal, row.problem.first_line) == (row.ordinal, row.first_line)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | CELL,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(CELL, inner, max_size=3),
    max_leaves=6,
)
RECORDS = st.lists(st.dictionaries(CELL.map(lambda text: "k" + text), JSON, max_size=4), min_size=1, max_size=6)


@settings(deadline=None, max_examples=100)
@given(records=RECORDS, encoding=ENCODINGS, array=st.booleans(), indent=st.sampled_from([None, 1]))
def test_any_json_records_are_read_back_exactly(records, encoding, array, indent):
    text = jsontext.dumps(records, indent=indent) if array else "\n".join(jsontext.dumps(record) for record in records)
    declared = encoding if encoding.endswith(("-le", "-be")) else None
    with tempfile.TemporaryDirectory() as directory:
        source = source_of(Path(directory), text.encode(encoding), "t.json" if array else "t.jsonl", encoding=declared)
        rows = list(source.rows())
        again = list(source.rows())
    assert [row.value for row in rows] == records
    assert rows == again
    assert [jsontext.loads(row.raw) for row in rows] == records
