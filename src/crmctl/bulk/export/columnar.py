"""Records as Parquet and as Excel workbooks. The only writer that knows pyarrow and openpyxl; both come with the extra `files`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from itertools import islice
from typing import IO, Any

from crmctl.bulk.export.layout import Layout, Wires
from crmctl.bulk.extras import require_files_extra
from crmctl.errors import RejectedError
from crmctl.models import jsontext

BATCH = 5000
SHEET_ROWS = 1_048_576
CELL_LENGTH = 32_767
EXACT_DIGITS = 15
"""What a spreadsheet keeps of a number."""
LARGEST = 10**EXACT_DIGITS
"""From here on a number in a sheet may have lost digits: an import refuses it."""

_ILLEGAL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]|_(?=x[0-9A-Fa-f]{4}_)")


def write_parquet(raw: IO[bytes], layout: Layout, wires: Wires) -> None:
    """One row group per 5,000 records. A column has the type of its attribute as long as every value fits it exactly, else it is text."""
    pyarrow, parquet = require_files_extra("pyarrow"), require_files_extra("pyarrow.parquet")
    kinds = _kinds(layout, wires)
    types = {"number": pyarrow.float64(), "checkbox": pyarrow.bool_(), "date": pyarrow.date32(), "time": pyarrow.timestamp("us", "UTC")}
    columns = layout.columns or []
    schema = pyarrow.schema([(name, types.get(kind, pyarrow.string())) for name, kind in zip(columns, kinds, strict=True)])
    rows = (layout.cells(wire) for wire in wires())
    with parquet.ParquetWriter(raw, schema) as writer:
        while chunk := list(islice(rows, BATCH)):
            arrays = [
                pyarrow.array([_as(kind, row[place]) for row in chunk], field.type)
                for place, (kind, field) in enumerate(zip(kinds, schema, strict=True))
            ]
            writer.write_batch(pyarrow.record_batch(arrays, schema=schema))


def write_xlsx(raw: IO[bytes], layout: Layout, wires: Wires) -> None:
    """One sheet, written row by row. Text is never a formula; numbers of more than 15 digits are text, which Excel would cut.

    Raises RejectedError for more records than a sheet holds, and for a text that is too long for a cell.
    """
    openpyxl, cells = require_files_extra("openpyxl"), require_files_extra("openpyxl.cell")
    book = openpyxl.Workbook(write_only=True)
    sheet = book.create_sheet("records")
    sheet.freeze_panes = "A2"

    def cell(value: Any) -> Any:
        made = cells.WriteOnlyCell(sheet)
        made._value, made.data_type = value, "n" if isinstance(value, int | float) else "s"
        if isinstance(value, bool):
            made.data_type = "b"
        elif isinstance(value, date):
            made.value = value
            made.number_format = "yyyy-mm-dd"
        return made

    columns = layout.columns or []
    kinds = layout.kinds
    try:
        sheet.append([cell(_sheet_text(column, "the header")) for column in columns])
        for count, wire in enumerate(wires(), 2):
            if count > SHEET_ROWS:
                raise RejectedError(
                    f"a sheet holds no more than {SHEET_ROWS - 1:,} records", hint="export csv or parquet", code="too_many_rows"
                )
            row, owner = layout.cells(wire), f"record {jsontext.loads(wire).get('id')}"
            values = [_sheet_value(kind, value, owner) for kind, value in zip(kinds, row, strict=True)]
            sheet.append([None if value is None else cell(value) for value in values])
    finally:
        sheet.close()
    book.save(raw)


def _kinds(layout: Layout, wires: Wires) -> Sequence[str]:
    """The kind of every column: that of its attribute, or text where one value does not fit it."""
    kinds = layout.kinds
    open_places = [place for place, kind in enumerate(kinds) if kind in _FITS]
    for wire in wires():
        row = layout.cells(wire)
        for place in [place for place in open_places if row[place] is not None and not _FITS[kinds[place]](row[place])]:
            kinds[place] = "text"
            open_places.remove(place)
    return kinds


def _is_double(value: Any) -> bool:
    return (isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**53) or isinstance(value, float)


def _is_date(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"\d{4}-\d\d-\d\d", value) is not None and _parses(date.fromisoformat, value)


def _is_time(value: Any) -> bool:
    return isinstance(value, str) and _parses(datetime.fromisoformat, value) and datetime.fromisoformat(value).tzinfo is not None


def _parses(parse: Any, text: str) -> bool:
    try:
        parse(text)
    except ValueError:
        return False
    return True


_FITS: dict[str, Any] = {"number": _is_double, "checkbox": lambda value: isinstance(value, bool), "date": _is_date, "time": _is_time}


def _as(kind: str, value: Any) -> Any:
    if value is None:
        return None
    if kind == "number":
        return float(value)
    if kind == "date":
        return date.fromisoformat(value)
    if kind == "time":
        return datetime.fromisoformat(value)
    return value if kind == "checkbox" or isinstance(value, str) else jsontext.dumps(value)


def _sheet_value(kind: str, value: Any, owner: str) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float) and len(Decimal(str(value)).as_tuple().digits) <= EXACT_DIGITS and abs(value) < LARGEST:
        return value
    if kind == "date" and _is_date(value) and date.fromisoformat(value).year >= 1900:
        return date.fromisoformat(value)
    return _sheet_text(value if isinstance(value, str) else jsontext.dumps(value), owner)


def _sheet_text(text: str, owner: str) -> str:
    """Characters that a workbook cannot hold, in the way of Excel itself: `_x000B_`."""
    escaped = _ILLEGAL.sub(lambda found: f"_x{ord(found[0]):04X}_", text)
    if len(escaped) > CELL_LENGTH:
        raise RejectedError(
            f"{owner} has a text of {len(escaped):,} characters, and a cell holds {CELL_LENGTH:,}",
            hint="export csv or parquet",
            code="cell_too_long",
        )
    return escaped
