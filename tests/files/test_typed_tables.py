"""Excel and Parquet files: every value as its full text, and values lost by a spreadsheet as a problem of their row."""

from __future__ import annotations

import re
import warnings
import zipfile
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import openpyxl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from openpyxl.utils.datetime import CALENDAR_MAC_1904

from crmctl.errors import UsageError
from crmctl.files.rows import Row, SourceOptions
from crmctl.files.sheets import text_of
from crmctl.files.sources import open_source


def workbook(path: Path, rows: list[list[Any]], *, change: Callable[[openpyxl.Workbook], None] = lambda _: None) -> Path:
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    change(book)
    book.save(path)
    return path


def read(path: Path, **options: Any) -> list[Row]:
    return list(open_source(path, SourceOptions(**options)).rows())


def test_cells_become_their_text_in_full(tmp_path: Path) -> None:
    path = workbook(
        tmp_path / "people.xlsx",
        [["name", "phone", "score", "born", "met", "member"],
         ["Zoë, =Ada", 491701234567890, 1.5, date(2026, 1, 2), datetime(2026, 1, 2, 3, 4, 5), True],
         ["00123", 123456789012345, 3.0, None, None, False],
         [None, None, None, None, None, None],
         ["short"]],
    )  # fmt: skip
    source = open_source(path)
    rows = list(source.rows())
    assert source.header == ["name", "phone", "score", "born", "met", "member"]
    assert rows[0].cells == ["Zoë, =Ada", "491701234567890", "1.5", "2026-01-02", "2026-01-02T03:04:05", "true"]
    assert rows[1].cells == ["00123", "123456789012345", "3", "", "", "false"]
    assert rows[2].cells == ["short", "", "", "", "", ""]
    assert [row.first_line for row in rows] == [2, 3, 5]
    assert source.blank_lines == 1
    assert rows[0].raw == '"Zoë, =Ada",491701234567890,1.5,2026-01-02,2026-01-02T03:04:05,true'


def test_escaped_characters_are_read_in_pairs_and_half_a_pair_as_written(tmp_path: Path) -> None:
    texts = ["two_x000A_lines", "_x005F_x0041_", "_xD83D__xDE00_", "_xD83D_"]
    path = workbook(tmp_path / "escaped.xlsx", [["name"], *([text] for text in texts)])
    assert [row.cells for row in read(path)] == [["two\nlines"], ["_x0041_"], ["😀"], ["_xD83D_"]]


def test_the_content_tells_a_workbook_whatever_its_name(tmp_path: Path) -> None:
    path = workbook(tmp_path / "people.xlsx", [["name"], ["Ada"]]).rename(tmp_path / "people.csv")
    assert [row.cells for row in read(path)] == [["Ada"]]


def test_a_row_wider_than_the_header_is_refused_in_words_of_a_sheet(tmp_path: Path) -> None:
    problem = read(workbook(tmp_path / "wide.xlsx", [["name"], ["Ada", None, "note"]]))[0].problem
    assert problem is not None
    assert (problem.code, problem.hint) == ("too_many_cells", "name the columns in the header, or empty the cells")


def rewritten(path: Path, *replacements: tuple[bytes, bytes]) -> Path:
    """Return a copy of a workbook with other bytes in its parts."""
    changed = path.with_name("rewritten.xlsx")
    with zipfile.ZipFile(path) as book, zipfile.ZipFile(changed, "w") as copy:
        for part in book.namelist():
            content = book.read(part)
            for before, after in replacements:
                content = content.replace(before, after)
            copy.writestr(part, content)
    return changed


@pytest.mark.parametrize("size", [b"A1", b"A1:XFD1048576"])
def test_the_size_that_a_sheet_states_is_ignored(tmp_path: Path, size: bytes) -> None:
    path = workbook(tmp_path / "people.xlsx", [["name", "score"], ["Ada", 1], ["Bo", 2]])
    misstated = rewritten(path, (b'<dimension ref="A1:B3"', b'<dimension ref="' + size + b'"'))
    assert [row.cells for row in read(misstated)] == [["Ada", "1"], ["Bo", "2"]]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (b'<row r="99999999"><c r="A99999999"', "it has a row 99999999"),
        (b'<row r="1"><c r="A1"', "row 1 comes after row 2"),
        (b'<row r="2"><c r="A2"', "row 2 comes after row 2"),
        (b'<row r="3"><c r="B3"', "row 3 has a cell twice, or a cell of another row"),
        (b'<row r="3"><c r="A4"', "row 3 has a cell twice, or a cell of another row"),
    ],
)
def test_misplaced_rows_and_cells_are_refused_at_once(tmp_path: Path, row: bytes, reason: str) -> None:
    path = workbook(tmp_path / "people.xlsx", [["name", "score"], ["Ada", 1], ["Bo", 2]])
    written = re.search(rb'<row r="3"[^>]*><c r="A3"', zipfile.ZipFile(path).read("xl/worksheets/sheet1.xml"))
    assert written
    with pytest.raises(UsageError, match=reason):
        read(rewritten(path, (written[0], row)))


def test_rows_that_a_sheet_leaves_out_are_blank_and_cells_may_stand_in_any_order(tmp_path: Path) -> None:
    path = workbook(tmp_path / "people.xlsx", [["name", "score"], ["Ada", 1], [2, "Bo"]])
    spread = rewritten(path, (b'r="3"', b'r="70000"'), (b'r="A3"', b'r="B70000"'), (b'r="B3"', b'r="A70000"'))
    source = open_source(spread)
    assert [(row.first_line, row.cells) for row in source.rows()] == [(2, ["Ada", "1"]), (70000, ["Bo", "2"])]
    assert source.blank_lines == 69997


def test_a_formula_is_found_whatever_the_prefix_of_the_sheet(tmp_path: Path) -> None:
    path = workbook(tmp_path / "sums.xlsx", [["name", "score"], ["Ada", "=1+1"]])
    names = [
        (b"<f>", b"<x:f>"),
        (b"</f>", b"</x:f>"),
        (b"<worksheet ", b'<worksheet xmlns:x="http://schemas.openxmlformats.org/spreadsheetml/2006/main" '),
    ]
    problem = read(rewritten(path, *names))[0].problem
    assert problem is not None
    assert problem.code == "formula_without_value"


def test_durations_are_hours_and_a_date_that_does_not_exist_is_a_finding_without_a_warning(tmp_path: Path) -> None:
    def change(book: openpyxl.Workbook) -> None:
        for row in (2, 3):
            book.active.cell(row, 2).number_format = "[h]:mm"
        book.active.cell(4, 2).number_format = "yyyy-mm-dd"

    path = workbook(tmp_path / "hours.xlsx", [["name", "hours"], ["Ada", 2.0625], ["Bo", 0.0625], ["Cy", 10**9]], change=change)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows = read(path)
    assert [row.cells for row in rows] == [["Ada", "49:30:00"], ["Bo", "01:30:00"], ["Cy", "#VALUE!"]]
    assert [row.problem and row.problem.code for row in rows] == [None, None, "error_cell"]
    assert (text_of(timedelta(minutes=-90)), text_of(-0.0)) == ("-01:30:00", "0")


def test_dates_count_from_the_epoch_of_the_workbook(tmp_path: Path) -> None:
    def mac(book: openpyxl.Workbook) -> None:
        book.epoch = CALENDAR_MAC_1904

    path = workbook(tmp_path / "mac.xlsx", [["born"], [date(2026, 1, 2)]], change=mac)
    assert "date1904" in zipfile.ZipFile(path).read("xl/workbook.xml").decode()
    assert read(path)[0].cells == ["2026-01-02"]


@pytest.mark.parametrize(
    ("cell", "code"),
    [("#N/A", "error_cell"), ("#DIV/0!", "error_cell"), (1234567890123456, "lost_digits"), (4.91701234567e15, "lost_digits"),
     ("=A1&B1", "formula_without_value")],
)  # fmt: skip
def test_values_lost_by_a_spreadsheet_are_refused_and_named(tmp_path: Path, cell: Any, code: str) -> None:
    rows = read(workbook(tmp_path / "a.xlsx", [["a", "b"], ["fine", 1], ["bad", cell]]))
    assert rows[0].problem is None
    assert rows[1].problem is not None
    assert (rows[1].problem.code, rows[1].problem.column) == (code, "b")
    untitled = read(workbook(tmp_path / "b.xlsx", [["a", None], ["bad", cell]]))
    assert untitled[0].problem is not None
    assert untitled[0].problem.column == "#2"


def test_the_first_sheet_is_read_or_the_one_that_is_named(tmp_path: Path) -> None:
    def second(book: openpyxl.Workbook) -> None:
        other = book.create_sheet("Second one")
        other.append(["x"])
        other.append([2])

    path = workbook(tmp_path / "two.xlsx", [["a"], [1]], change=second)
    assert open_source(path).header == ["a"]
    assert read(path, sheet="Second one")[0].cells == ["2"]
    with pytest.raises(UsageError, match="no sheet third") as caught:
        open_source(path, SourceOptions(sheet="third"))
    assert "Second one" in str(caught.value.hint)


@pytest.mark.parametrize("options", [{"format": "csv"}, {"delimiter": ";"}])
def test_options_of_text_are_refused(tmp_path: Path, options: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        open_source(workbook(tmp_path / "a.xlsx", [["a"], [1]]), SourceOptions(**options))


def test_parquet_values_become_their_text(tmp_path: Path) -> None:
    path = tmp_path / "people.parquet"
    table = pa.table({
        "name": ["Ada", None],
        "big": pa.array([2**62, None], pa.int64()),
        "score": [1.0, float("nan")],
        "amount": pa.array([Decimal("10.50"), None], pa.decimal128(10, 2)),
        "born": pa.array([date(2026, 1, 2), None], pa.date32()),
        "met": pa.array([1767323045000000123, None], pa.timestamp("ns", "UTC")),
        "tags": [["a", "b"], None],
        "place": [{"city": "Paris"}, None],
    })  # fmt: skip
    pq.write_table(table, path)
    source = open_source(path)
    rows = list(source.rows())
    assert source.header == ["name", "big", "score", "amount", "born", "met", "tags", "place"]
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).isoformat().replace("+00:00", "Z")
    assert rows[0].cells == ["Ada", "4611686018427387904", "1", "10.50", "2026-01-02", moment, '["a","b"]', '{"city":"Paris"}']
    assert len(rows) == 1
    assert source.blank_lines == 1


def test_a_parquet_date_that_does_not_exist_makes_the_file_unreadable(tmp_path: Path) -> None:
    path = tmp_path / "far.parquet"
    pq.write_table(pa.table({"born": pa.array([10**7], pa.date32())}), path)
    with pytest.raises(UsageError, match="out of range"):
        read(path)


def test_a_broken_file_is_an_error_not_a_traceback(tmp_path: Path) -> None:
    whole = workbook(tmp_path / "a.xlsx", [["a"], [1]])
    for name, content in (("cut.xlsx", whole.read_bytes()[:2000]), ("cut.parquet", b"PAR1 and no more"), ("b.zip", b"PK\x03\x04rest")):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(UsageError):
            open_source(path)
