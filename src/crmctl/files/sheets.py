"""Read Excel workbooks and Parquet files as rows."""

from __future__ import annotations

import math
import re
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, date, datetime, time
from decimal import Decimal
from itertools import repeat
from pathlib import Path
from typing import Any, cast

from crmctl.errors import UsageError, reason
from crmctl.files.delimited import DelimitedSource, QuotedRecord
from crmctl.files.rows import Dialect, Format, SourceOptions
from crmctl.files.whole_files import require_files_extra
from crmctl.models import jsontext
from crmctl.models.field_paths import delimited_row
from crmctl.models.findings import Finding

EXACT = 10**15
"""Excel keeps 15 digits of a number. Longer numbers have already lost some."""

_ESCAPED = re.compile(r"_x([0-9A-Fa-f]{4})_")
_FORMULA = re.compile(rb"<f[ >/]")

TableRow = tuple[int, list[Any], Finding | None]
Rows = Callable[[], Iterator[TableRow]]
"""Yields number, values and problem of every row, header first. Every call starts from the beginning."""


def read_workbook(path: Path, name: str, sheet: str | None) -> tuple[Rows, str]:
    """Return a function that reads the rows, and the name of the sheet (by default the first).

    Raises UsageError for a bad workbook or a missing sheet.
    """
    with _open(path, name, values=True) as book:
        names = [sheet.title for sheet in book.worksheets]
    if not names or (sheet is not None and sheet not in names):
        raise UsageError(f"{name} has no sheet {sheet or ''}".rstrip(), hint=f"its sheets: {', '.join(names)}", code="no_such_sheet")
    chosen = sheet or names[0]
    formulas = _has_formulas(path)
    return (lambda: _rows(path, name, chosen, formulas=formulas)), chosen


def _rows(path: Path, name: str, sheet: str, *, formulas: bool) -> Iterator[TableRow]:
    with ExitStack() as books:
        book = books.enter_context(_open(path, name, values=True))
        written: Iterable[Any] = repeat(None)
        if formulas:
            # only the text of a formula distinguishes an empty cell from one that was never computed
            written = _rows_of(books.enter_context(_open(path, name, values=False)), sheet)
        header: list[Any] = []
        for number, (cells, texts) in enumerate(zip(_rows_of(book, sheet), written, strict=formulas), 1):
            values = [_value(cell.value) for cell in cells]
            yield number, values, _problem(cells, texts, header)
            header = header or values


@contextmanager
def _open(path: Path, name: str, *, values: bool) -> Iterator[Any]:
    openpyxl = require_files_extra("openpyxl")
    with _as_workbook(name), path.open("rb") as file:  # given a path, openpyxl would refuse other endings than .xlsx
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # ignore warnings about styles and extensions, which do not affect values
            book = openpyxl.load_workbook(file, read_only=True, data_only=values)
        with closing(book):
            yield book


def _rows_of(book: Any, sheet: str) -> Iterator[Any]:
    """Return the rows of a sheet. The size that the sheet states is ignored: it may be too small, or a million empty rows."""
    book[sheet].reset_dimensions()
    return cast(Iterator[Any], book[sheet].iter_rows())


@contextmanager
def _as_workbook(name: str) -> Iterator[None]:
    """Turn the library's errors into UsageError. Invalid XML raises SyntaxError."""
    try:
        yield
    except (OSError, LookupError, ValueError, TypeError, AttributeError, SyntaxError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        hint = "open it in Excel and save it again, or as CSV (UTF-8)"
        raise UsageError(f"{name} cannot be read as an Excel workbook: {reason(error)}", hint=hint, code="unreadable_file") from error


def _has_formulas(path: Path) -> bool:
    with zipfile.ZipFile(path) as archive:
        for part in archive.namelist():
            if part.startswith("xl/worksheets/"):
                with archive.open(part) as stream:
                    tail = b""
                    while block := stream.read(1 << 20):
                        if _FORMULA.search(tail + block):
                            return True
                        tail = block[-4:]
    return False


def _problem(cells: Any, texts: Any, header: Sequence[Any]) -> Finding | None:
    for place, cell in enumerate(cells):
        value = cell.value
        title = header[place] if place < len(header) else None
        column = title if isinstance(title, str) and title.strip() else f"#{place + 1}"
        if cell.data_type == "e":
            return Finding("error_cell", f"the cell holds the error {value}", hint="correct it in the sheet").on(column, str(value))
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) >= EXACT:
            message = "a number of more than 15 digits, of which a sheet keeps 15"
            return Finding("lost_digits", message, hint="format it as text").on(column, str(value))
        if value is None and texts is not None and texts[place].data_type == "f":
            message = "the formula was never computed"
            return Finding("formula_without_value", message, hint="open the file in Excel and save it").on(column, str(texts[place].value))
    return None


def _value(value: Any) -> Any:
    """Return a value with its escaped characters; a text with half of an escaped pair stays as it is written."""
    if not isinstance(value, str) or "_x" not in value:
        return value
    text = _ESCAPED.sub(lambda match: chr(int(match[1], 16)), value)
    try:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError:
        return value


BATCH = 2000


def read_parquet(path: Path, name: str) -> Rows:
    """Return a function that reads the rows, column names first. Raises UsageError for a damaged file."""
    pyarrow, parquet = require_files_extra("pyarrow"), require_files_extra("pyarrow.parquet")

    def rows() -> Iterator[TableRow]:
        try:
            with parquet.ParquetFile(path) as file:
                yield 1, list(file.schema_arrow.names), None
                number = 1
                for batch in file.iter_batches(batch_size=BATCH):
                    for values in zip(*(_values(pyarrow, column) for column in batch.columns), strict=True):
                        number += 1
                        yield number, list(values), _parquet_problem(values)
        except (OSError, OverflowError, pyarrow.ArrowException) as error:  # Python has no dates beyond the year 9999
            raise UsageError(f"{name} cannot be read as Parquet: {reason(error)}", code="unreadable_file") from error

    return rows


def _values(pyarrow: Any, column: Any) -> list[Any]:
    """Return plain Python values. Times are cut to microseconds."""
    kind = column.type
    if pyarrow.types.is_timestamp(kind) and kind.unit == "ns":
        column = column.cast(pyarrow.timestamp("us", kind.tz), safe=False)
    return list(column.to_pylist())


def _parquet_problem(values: tuple[Any, ...]) -> Finding | None:
    for place, value in enumerate(values):
        if isinstance(value, bytes):
            return Finding("not_text", f"column {place + 1} holds bytes, not text", hint="write the column as strings").on(
                f"#{place + 1}", repr(value[:20])
            )
    return None


def open_table(path: Path, name: str, format: Format, sheet: str | None) -> TableSource:
    """Open a table. Raises UsageError for an unreadable file, a missing sheet, or a library that is not installed."""
    notes: list[str] = []
    rows: Rows
    if format is Format.XLSX:
        rows, chosen = read_workbook(path, name, sheet)
        notes = [f"the sheet {chosen} is read"]
    else:
        rows = read_parquet(path, name)
    return TableSource(path, name, Dialect(format, False, "utf-8", False, ",", notes=notes), rows)


class TableSource(DelimitedSource):
    """Rows of a table, as if saved as CSV without loss. `raw` is that CSV; lines are row numbers."""

    def __init__(self, path: Path, name: str, dialect: Dialect, rows: Rows) -> None:
        self._table = rows
        super().__init__(path, name, dialect, SourceOptions())

    def _records(self) -> Iterator[QuotedRecord]:
        width = 0
        for number, values, problem in self._table():
            cells = [text_of(value) for value in values]
            while cells and not cells[-1]:
                cells.pop()
            if not cells and problem is None:
                yield QuotedRecord(number, number, "", None)
                continue
            width = width or len(cells)
            cells += [""] * (width - len(cells))
            yield QuotedRecord(number, number, delimited_row(cells).rstrip("\n"), cells, problem)


def text_of(value: Any) -> str:
    """Return a typed value as the text of a cell: numbers in full, dates as ISO, nested values as JSON, null as ""."""
    if value is None or (isinstance(value, float) and math.isnan(value)):  # tables use NaN for null
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() and abs(value) < 1e15 else format(Decimal(repr(value)), "f")
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, datetime):
        is_whole_day = value.time() == time() and value.tzinfo is None
        return value.date().isoformat() if is_whole_day else _instant(value)
    if isinstance(value, date | time):
        return value.isoformat()
    return jsontext.dumps(_plain(value)) if isinstance(value, list | dict) else str(value)


def _instant(value: datetime) -> str:
    return value.isoformat() if value.tzinfo is None else value.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return value if value is None or isinstance(value, str | bool | int | float | Decimal) else text_of(value)
