"""Files of typed cells, Excel workbooks and Parquet, as the cells of a CSV: an attribute's type reads the text of each value."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

from crmctl.bulk.findings import Finding
from crmctl.bulk.sources.delimited_source import DelimitedSource
from crmctl.bulk.sources.parquet import read_parquet
from crmctl.bulk.sources.quoted_text import QuotedRecord
from crmctl.bulk.sources.rows import Dialect, Format, SourceOptions
from crmctl.bulk.sources.workbook import read_workbook
from crmctl.models import jsontext
from crmctl.models.delimited_text import delimited_row

Rows = Callable[[], Iterator[tuple[int, list[Any], Finding | None]]]
"""Number, values and problem of every row, the header first, from the beginning at every call."""


def open_table(path: Path, name: str, format: Format, sheet: str | None) -> TableSource:
    """Raises UsageError for a file that cannot be read, a sheet that is not there, and a library that is not installed."""
    notes: list[str] = []
    rows: Rows
    if format is Format.XLSX:
        rows, chosen = read_workbook(path, name, sheet)
        notes = [f"the sheet {chosen} is read"]
    else:
        rows = read_parquet(path, name)
    return TableSource(path, name, Dialect(format, False, "utf-8", False, ",", '"', notes=notes), rows)


class TableSource(DelimitedSource):
    """Rows as if the table had been saved as CSV, without what that loses: `raw` is that CSV, lines are the numbers of rows."""

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
            yield QuotedRecord(number, number, delimited_row(cells, "csv").rstrip("\n"), cells, problem)


def text_of(value: Any) -> str:
    """A typed value as the text of a cell: numbers in full, dates ISO, nested values as JSON, nothing as the empty text."""
    if value is None or (isinstance(value, float) and math.isnan(value)):  # not a number is how tables say nothing
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
        whole = value.time() == time() and value.tzinfo is None
        return value.date().isoformat() if whole else _instant(value)
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
