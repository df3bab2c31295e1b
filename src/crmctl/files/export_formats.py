"""The formats of an export."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cached_property
from importlib import import_module
from pathlib import Path as FilePath
from pathlib import PurePath
from typing import IO, Any

from crmctl.errors import RejectedError, UsageError, install_command
from crmctl.files.spills import chunks
from crmctl.files.whole_files import whole_bytes, whole_file
from crmctl.frozen import frozen
from crmctl.models import jsontext
from crmctl.models.field_paths import Path, delimited_row, narrow, record_places
from crmctl.models.ids import suggestion
from crmctl.models.resources import Attribute
from crmctl.values.composites import AttributeColumns, RecordColumns, attribute_columns

JSON_FORMATS = ("jsonl", "json")
SPREAD_FORMATS = ("csv", "tsv", "xlsx")
"""Formats whose readers are people, so that they get money and addresses in columns, not as JSON."""

_TIMES: dict[Path, str] = {("createdAt",): "time", ("updatedAt",): "time"}

Wires = Callable[[], Iterable[str]]
"""Yields the records to write as JSON text. Every call starts from the first record."""


@frozen
class Layout:
    """The format, and the attributes that are its columns.

    JSON formats contain records as the service sends them. `fields` limits and orders the output: it maps each name to its place in a
    record. `spread`, by slug, are attributes with other columns than one of JSON, if `is_spread` wants any.
    """

    format: str = "jsonl"
    attributes: Sequence[Attribute] = ()
    excel_safe: bool = False
    fields: Mapping[str, Path] | None = None
    is_spread: bool = True
    spread: Mapping[str, AttributeColumns] = field(default_factory=dict)

    def spread_over(self, wires: Iterable[str]) -> Layout:
        """Return the layout with columns for the parts that occur in these records."""
        if not self.is_table:
            return self
        samples = (data for wire in wires if isinstance(data := jsontext.loads(wire).get("data"), dict))
        return replace(
            self,
            spread=attribute_columns(self.attributes, samples, are_all=True, is_spread=self.is_spread and self.format in SPREAD_FORMATS),
        )

    @property
    def is_table(self) -> bool:
        return self.format not in JSON_FORMATS

    @cached_property
    def _columns(self) -> RecordColumns:
        every = record_places(attribute.slug for attribute in self.attributes)
        return RecordColumns(every if self.fields is None else self.fields, self.spread)

    @property
    def columns(self) -> list[str] | None:
        """Column names of a table, or the requested fields. None for the JSON formats with all fields."""
        return None if self.fields is None and not self.is_table else self._columns.names

    @property
    def kinds(self) -> list[str]:
        """The type of every column: its attribute's type, `time`, or `text`."""
        types: dict[Path, str] = {
            ("data", attribute.slug): "text" if attribute.is_list else attribute.type or "text" for attribute in self.attributes
        }
        types |= _TIMES
        kinds: list[str] = []
        for path in self._columns.places.values():
            spread = self._columns.of(path)
            kinds += [types.get(path, "text")] if spread is None else ["text"] * len(spread.names)
        return kinds

    def cells(self, wire: str) -> list[Any]:
        return self._columns.cells(jsontext.loads(wire))

    def text(self, wire: str) -> str:
        return wire if self.fields is None else jsontext.dumps(narrow(jsontext.loads(wire), self.fields.values()))


BATCH = 5000
SHEET_ROWS = 1_048_576
CELL_LENGTH = 32_767
EXACT_DIGITS = 15
"""Number of digits that a spreadsheet keeps."""
LARGEST = 10**EXACT_DIGITS
"""Smallest number that may have lost digits in a sheet. An import refuses it and larger ones."""

_ILLEGAL = re.compile(r"[\x00-\x08\x0b-\x1f\ufffe\uffff]|_(?=x[0-9A-Fa-f]{4}_)")


def write_parquet(raw: IO[bytes], layout: Layout, wires: Wires) -> None:
    """Write one row group per 5,000 records. A column has the type of its attribute if every value fits it exactly, or else it is text."""
    pyarrow, parquet = require_files_extra("pyarrow"), require_files_extra("pyarrow.parquet")
    kinds = [kind if kind in _TYPED else "text" for kind in layout.kinds]
    for wire in wires():
        for place, value in enumerate(layout.cells(wire)):
            if kinds[place] != "text" and value is not None and _as(kinds[place], value) is None:
                kinds[place] = "text"
    types = {"number": pyarrow.float64(), "checkbox": pyarrow.bool_(), "date": pyarrow.date32(), "time": pyarrow.timestamp("us", "UTC")}
    columns = layout.columns or []
    schema = pyarrow.schema([(name, types.get(kind, pyarrow.string())) for name, kind in zip(columns, kinds, strict=True)])
    with parquet.ParquetWriter(raw, schema) as writer:
        for chunk in chunks(map(layout.cells, wires()), BATCH):
            arrays = [
                pyarrow.array([_as(kind, row[place]) for row in chunk], field.type)
                for place, (kind, field) in enumerate(zip(kinds, schema, strict=True))
            ]
            writer.write_batch(pyarrow.record_batch(arrays, schema=schema))


def write_xlsx(raw: IO[bytes], layout: Layout, wires: Wires) -> None:
    """Write one sheet, row by row.

    Text is never a formula. Numbers of more than 15 digits, which Excel would cut, are written as text. Raises RejectedError for more
    records than a sheet can hold, and for text too long for a cell.
    """
    openpyxl, cells = require_files_extra("openpyxl"), require_files_extra("openpyxl.cell")
    book = openpyxl.Workbook(write_only=True)
    sheet = book.create_sheet("records")
    sheet.freeze_panes = "A2"

    def cell(value: Any) -> Any:
        sheet_cell = cells.WriteOnlyCell(sheet)
        sheet_cell._value, sheet_cell.data_type = value, "n" if isinstance(value, int | float) else "s"
        if isinstance(value, bool):
            sheet_cell.data_type = "b"
        elif isinstance(value, date):
            sheet_cell.value = value
            sheet_cell.number_format = "yyyy-mm-dd hh:mm:ss" if isinstance(value, datetime) else "yyyy-mm-dd"
        return sheet_cell

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


_TYPED = ("number", "checkbox", "date", "time")


def _as(kind: str, value: Any) -> Any:
    """Return a value in the type of its column, None if it does not fit that exactly."""
    if kind == "text" or value is None:
        return value if value is None or isinstance(value, str) else jsontext.dumps(value)
    if kind == "checkbox":
        return value if isinstance(value, bool) else None
    if kind == "number":
        is_exact = isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**53)
        return float(value) if is_exact and not isinstance(value, bool) else None
    try:
        if kind == "date" and re.fullmatch(r"\d{4}-\d\d-\d\d", value):
            return date.fromisoformat(value)
        moment = datetime.fromisoformat(value) if kind == "time" else None
    except (ValueError, TypeError):
        return None
    return moment if moment is not None and moment.tzinfo is not None else None


def _sheet_value(kind: str, value: Any, owner: str) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float) and len(Decimal(str(value)).as_tuple().digits) <= EXACT_DIGITS and abs(value) < LARGEST:
        return value
    typed = _as(kind, value) if kind in ("date", "time") else None
    if isinstance(typed, datetime):
        return typed.astimezone(UTC).replace(tzinfo=None)
    if typed is not None and typed.year >= 1900:
        return typed
    return _sheet_text(value if isinstance(value, str) else jsontext.dumps(value), owner)


def _sheet_text(text: str, owner: str) -> str:
    """Escape characters that a workbook cannot contain, as Excel does: `_x000B_`."""
    escaped = _ILLEGAL.sub(lambda match: f"_x{ord(match[0]):04X}_", text)
    if len(escaped) > CELL_LENGTH:
        raise RejectedError(
            f"{owner} has a text of {len(escaped):,} characters, and a cell holds {CELL_LENGTH:,}",
            hint="export csv or parquet",
            code="cell_too_long",
        )
    return escaped


TEXT_FORMATS = ("jsonl", "csv", "tsv", "json")
BINARY_FORMATS = ("parquet", "xlsx")
FORMATS = TEXT_FORMATS + BINARY_FORMATS
SUFFIXES = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".tsv": "tsv", ".tab": "tsv", ".json": "json", ".parquet": "parquet",
    ".xlsx": "xlsx",
}  # fmt: skip


def export_format(name: str | None, declared: str | None) -> str:
    """Return the declared format, or the one of the file's name (without `.gz`), or jsonl. Raises UsageError for an unknown format."""
    chosen = declared
    if declared is None:
        suffix = PurePath(name.removesuffix(".gz")).suffix.lower() if name is not None else ".jsonl"
        chosen = SUFFIXES.get(suffix)
    if chosen not in FORMATS:
        problem = f"unknown format {declared}" if declared is not None else f"the name {name} does not say which format is wanted"
        raise UsageError(problem, hint=suggestion(declared or "", FORMATS, f"--format {'|'.join(FORMATS)}"), code="unknown_format")
    if chosen in BINARY_FORMATS and (name is None or name.endswith(".gz")):
        problem = "is not for a pipe" if name is None else "is compressed already"
        raise UsageError(f"{chosen} {problem}", hint=f"write it with -O FILE.{chosen}", code="unknown_format")
    return chosen


def require_files_extra(library: str) -> Any:
    """Import a library of the extra `files`. Raises UsageError with the command to install it."""
    try:
        return import_module(library)
    except ImportError as error:
        raise UsageError(
            f"Parquet and Excel files need {library.partition('.')[0]}, which is not installed",
            hint=install_command("files"),
            code="not_installed",
        ) from error


def check_libraries(format: str) -> None:
    """Raise UsageError if the library for this format is not installed. Call it before reading anything."""
    if format in BINARY_FORMATS:
        require_files_extra("pyarrow" if format == "parquet" else "openpyxl")


def write_file(path: FilePath, layout: Layout, wires: Wires) -> None:
    """Replace `path` by a complete file. Raises UsageError if the file cannot be written, RejectedError if it cannot hold the records."""
    if layout.format in BINARY_FORMATS:
        write = write_parquet if layout.format == "parquet" else write_xlsx
        with whole_bytes(path) as raw:
            write(raw, layout, wires)
        return
    with whole_file(path) as stream:
        for text in texts(layout, wires()):
            stream.write(text)


def texts(layout: Layout, wires: Iterable[str]) -> Iterator[str]:
    """Yield the text of an export in a text format."""
    pieces = chunks(wires if layout.is_table else map(layout.text, wires))
    if layout.format == "jsonl":
        for chunk in pieces:
            yield "\n".join(chunk) + "\n"
    elif layout.format == "json":
        opening = "["
        for chunk in pieces:
            yield opening + ",".join("\n" + wire for wire in chunk)
            opening = ","
        yield "\n]\n" if opening == "," else "[]\n"
    else:
        delimiter = "\t" if layout.format == "tsv" else ","
        yield delimited_row(layout.columns or [], delimiter)
        for chunk in pieces:
            yield "".join(delimited_row(layout.cells(wire), delimiter, excel_safe=layout.excel_safe) for wire in chunk)
