"""Excel and Parquet files: every value as its full text, and values lost by a spreadsheet as a problem of their row."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from datetime import UTC, date, datetime
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


@pytest.mark.parametrize("size", [b"A1", b"A1:XFD1048576"])
def test_the_size_that_a_sheet_states_is_ignored(tmp_path: Path, size: bytes) -> None:
    path = workbook(tmp_path / "people.xlsx", [["name", "score"], ["Ada", 1], ["Bo", 2]])
    misstated = tmp_path / "misstated.xlsx"
    with zipfile.ZipFile(path) as book, zipfile.ZipFile(misstated, "w") as copy:
        for part in book.namelist():
            copy.writestr(part, book.read(part).replace(b'<dimension ref="A1:B3"', b'<dimension ref="' + size + b'"'))
    assert [row.cells for row in read(misstated)] == [["Ada", "1"], ["Bo", "2"]]


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
