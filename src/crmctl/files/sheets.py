"""Read Excel workbooks and Parquet files as rows."""

from __future__ import annotations

import math
import re
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from itertools import repeat
from pathlib import Path
from typing import Any

from crmctl.errors import UsageError, reason
from crmctl.files.delimited import DelimitedSource, QuotedRecord
from crmctl.files.export_formats import require_files_extra
from crmctl.files.rows import Dialect, Format, SourceOptions
from crmctl.models import jsontext
from crmctl.models.field_paths import delimited_row
from crmctl.models.findings import Finding
from crmctl.models.jsontext import Json

EXACT = 10**15
"""Excel keeps 15 digits of a number. Longer numbers have already lost some."""

LAST_ROW = 2**20
"""Number of the last row that a sheet can have."""

_ESCAPED = re.compile(r"_x([0-9A-Fa-f]{4})_")
_FORMULA = re.compile(rb"<(\w{1,20}:)?f[ >/]")

Cells = dict[int, Json]
"""Cells of one row by their column, from 1, each with its `value` and `data_type`."""


TableRow = tuple[int, list[Any], Finding | None]
Rows = Callable[[], Iterator[TableRow]]
"""Yields number, values and problem of every row, header first. Every call starts from the beginning."""


def _rows(path: Path, name: str, sheet: str, *, formulas: bool) -> Iterator[TableRow]:
    with ExitStack() as books:
        rows = _rows_of(books.enter_context(_open(path, name, values=True)), sheet)
        written: Iterable[tuple[int, Cells]] = repeat((0, {}))
        if formulas:
            # only the text of a formula distinguishes an empty cell from one that was never computed
            written = _rows_of(books.enter_context(_open(path, name, values=False)), sheet)
        header: list[Any] = []
        last = 0
        for (number, cells), (_, texts) in zip(rows, written, strict=formulas):
            yield from ((empty, [], None) for empty in range(last + 1, number))
            last = number
            values = [_value(cells[column]["value"]) if column in cells else None for column in range(1, max(cells, default=0) + 1)]
            yield number, values, _problem(cells, texts, header)
            header = header or values


@contextmanager
def _open(path: Path, name: str, *, values: bool) -> Iterator[Any]:
    openpyxl = require_files_extra("openpyxl")
    warnings.filterwarnings("ignore", module=r"openpyxl\.")  # they are about styles and extensions, and cells that are findings
    with ExitStack() as files:
        files.enter_context(_as_workbook(name))
        file = files.enter_context(path.open("rb"))  # given a path, openpyxl would refuse other endings than .xlsx
        yield files.enter_context(closing(openpyxl.load_workbook(file, read_only=True, data_only=values)))


def _rows_of(book: Any, sheet: str) -> Iterator[tuple[int, Cells]]:
    """Yield number and cells of the rows that a sheet holds. Raises ValueError for a row or a cell that is repeated or misplaced.

    The parser of openpyxl is private. The public `iter_rows` silently drops such rows, and trusts the size that the sheet states.
    """
    table = book[sheet]
    reader = require_files_extra("openpyxl.worksheet._reader")
    formats = {"date_formats": book._date_formats, "timedelta_formats": book._timedelta_formats}
    with table._get_source() as xml:
        parser = reader.WorkSheetParser(xml, table._shared_strings, data_only=book.data_only, epoch=book.epoch, **formats)
        last = 0
        for number, row in parser.parse():
            cells = {cell["column"]: cell for cell in row}
            if not last < number <= LAST_ROW:
                raise ValueError(f"row {number} comes after row {last}" if number <= last else f"it has a row {number}")
            if len(cells) < len(row) or any(cell["row"] != number for cell in row):
                raise ValueError(f"row {number} has a cell twice, or a cell of another row")
            last = number
            yield number, cells


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
                        tail = block[-24:]
    return False


def _problem(cells: Cells, texts: Cells, header: Sequence[Any]) -> Finding | None:
    for column, cell in cells.items():
        value, text = cell["value"], texts.get(column)
        title = header[column - 1] if column <= len(header) else None
        name = title if isinstance(title, str) and title.strip() else f"#{column}"
        if cell["data_type"] == "e":
            return Finding("error_cell", f"the cell holds the error {value}", hint="correct it in the sheet").on(name, str(value))
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) >= EXACT:
            message = "a number of more than 15 digits, of which a sheet keeps 15"
            return Finding("lost_digits", message, hint="format it as text").on(name, str(value))
        if value is None and text is not None and text["data_type"] == "f":
            message = "the formula was never computed"
            return Finding("formula_without_value", message, hint="open the file in Excel and save it").on(name, str(text["value"]))
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
    """Open a table, of a workbook by default the first sheet.

    Raises UsageError for an unreadable file, a missing sheet, or a library that is not installed.
    """
    dialect = Dialect(format, False, "utf-8", False, ",")
    if format is Format.PARQUET:
        return TableSource(path, name, dialect, read_parquet(path, name))
    with _open(path, name, values=True) as book:
        names = [sheet.title for sheet in book.worksheets]
    if not names or (sheet is not None and sheet not in names):
        raise UsageError(f"{name} has no sheet {sheet or ''}".rstrip(), hint=f"its sheets: {', '.join(names)}", code="no_such_sheet")
    chosen, formulas = sheet or names[0], _has_formulas(path)
    dialect.notes.append(f"the sheet {chosen} is read")
    return TableSource(path, name, dialect, lambda: _rows(path, name, chosen, formulas=formulas))


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
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else format(Decimal(repr(value)), "f")
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, datetime):
        if value.tzinfo is not None:
            return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
        return value.date().isoformat() if value.time() == time() else value.isoformat()
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return _duration(value)
    return jsontext.dumps(_plain(value)) if isinstance(value, list | dict) else str(value)


def _duration(value: timedelta) -> str:
    """Return hours, minutes and seconds, for example 49:30:00. The hours of a cell `[h]:mm` may exceed 24."""
    hours, rest = divmod(abs(value), timedelta(hours=1))
    return f"{'-' if value < timedelta() else ''}{hours:02}{str(rest)[1:]}"


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return value if value is None or isinstance(value, str | bool | int | float | Decimal) else text_of(value)
