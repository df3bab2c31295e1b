"""Excel workbooks: the typed cells of one sheet. Errors, formulas without a value and cut numbers are problems of their row."""

from __future__ import annotations

import re
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from crmctl.bulk.extras import require_files_extra
from crmctl.bulk.findings import Finding
from crmctl.errors import UsageError, reason

EXACT = 10**15
"""Excel keeps 15 digits of a number: a longer one has lost some already."""

_ESCAPED = re.compile(r"_x([0-9A-Fa-f]{4})_")
_FORMULA = re.compile(rb"<f[ >/]")

TableRow = tuple[int, list[Any], Finding | None]


def read_workbook(path: Path, name: str, sheet: str | None) -> tuple[Callable[[], Iterator[TableRow]], str]:
    """A function that reads the rows, and the name of their sheet: the given one, else the first.

    Raises UsageError for a file that is no workbook, and for a sheet that is not there.
    """
    with closing(_open(path, name, values=True)) as book:
        names = [one.title for one in book.worksheets]
    if not names or (sheet is not None and sheet not in names):
        raise UsageError(f"{name} has no sheet {sheet or ''}".rstrip(), hint=f"its sheets: {', '.join(names)}", code="no_such_sheet")
    chosen = sheet or names[0]
    formulas = _has_formulas(path)
    return (lambda: _rows(path, name, chosen, formulas=formulas)), chosen


def _rows(path: Path, name: str, sheet: str, *, formulas: bool) -> Iterator[TableRow]:
    with _as_workbook(name), closing(_open(path, name, values=True)) as book:
        if not formulas:
            for number, cells in enumerate(book[sheet].iter_rows(), 1):
                yield number, [_value(cell.value) for cell in cells], _problem(cells, None)
            return
        # The text of a formula tells a cell that was never computed from an empty one.
        with closing(_open(path, name, values=False)) as written:
            pairs = zip(book[sheet].iter_rows(), written[sheet].iter_rows(), strict=True)
            for number, (cells, texts) in enumerate(pairs, 1):
                yield number, [_value(cell.value) for cell in cells], _problem(cells, texts)


def _open(path: Path, name: str, *, values: bool) -> Any:
    openpyxl = require_files_extra("openpyxl")
    with _as_workbook(name), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of styles and extensions, which have nothing to do with values
        return openpyxl.load_workbook(path, read_only=True, data_only=values)


@contextmanager
def _as_workbook(name: str) -> Iterator[None]:
    """Raises UsageError for what the library stumbles over; SyntaxError is that of XML."""
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


def _problem(cells: Any, texts: Any) -> Finding | None:
    for place, cell in enumerate(cells):
        value = cell.value
        column = f"#{place + 1}"
        if cell.data_type == "e":
            return Finding("error_cell", f"the cell in column {place + 1} holds the error {value}", hint="correct it in the sheet").on(
                column, str(value)
            )
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) >= EXACT:
            return Finding(
                "lost_digits", f"a number of more than 15 digits in column {place + 1}, of which a sheet keeps 15", hint="format it as text"
            ).on(column, str(value))
        if value is None and texts is not None and texts[place].data_type == "f":
            return Finding(
                "formula_without_value", f"the formula in column {place + 1} was never computed", hint="open the file in Excel and save it"
            ).on(column, str(texts[place].value))
    return None


def _value(value: Any) -> Any:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), value) if isinstance(value, str) and "_x" in value else value
