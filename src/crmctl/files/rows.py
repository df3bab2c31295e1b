"""Rows of an input, and the base class of sources."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from datetime import date
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from crmctl.errors import RejectedError, reason, storage_error
from crmctl.files.spills import chunks
from crmctl.frozen import frozen
from crmctl.models import jsontext
from crmctl.models.findings import Finding
from crmctl.models.jsontext import Json

RECORD_LIMIT = 16 * 1024 * 1024
"""Most characters in one record. A longer record is nearly always an unclosed quote, or the file is not a table."""

QUOTE = '"'


class Format(StrEnum):
    CSV = "csv"
    TSV = "tsv"
    JSONL = "jsonl"
    JSON = "json"
    XLSX = "xlsx"
    PARQUET = "parquet"

    @property
    def is_delimited(self) -> bool:
        """Whether rows are cells of text, as in CSV."""
        return self not in (Format.JSONL, Format.JSON)

    @property
    def is_text(self) -> bool:
        return self not in (Format.XLSX, Format.PARQUET)

    @property
    def of_results(self) -> str:
        """Format of the result files for such a file."""
        return str(self) if self.is_text else "csv"


class Row(NamedTuple):
    """One data record.

    `ordinal` counts records from 1. Lines are physical lines of the (decompressed) file, from 1. `raw` is the original text without its
    line ending. `cells` is for delimited formats, `value` for JSON. With a `problem`, the cells or the value must not be used.
    """

    ordinal: int
    first_line: int
    last_line: int
    raw: str
    cells: list[str]
    value: Json | None = None
    problem: Finding | None = None


class Block:
    """Consecutive rows of a source."""

    ordinals: range

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows
        self.ordinals = range(rows[0].ordinal, rows[-1].ordinal + 1)
        self.has_problems = any(row.problem for row in rows)

    def rows(self) -> Sequence[Row]:
        return self._rows

    def texts(self) -> Iterable[tuple[int, int, str]]:
        """Return ordinal, first line and original text of each row."""
        return ((row.ordinal, row.first_line, row.raw) for row in self._rows)

    def cells(self) -> Sequence[list[str]]:
        """Return the cells of each row; none for a row with a problem."""
        return [[] if row.problem else row.cells for row in self._rows]


@frozen
class SourceOptions:
    """Options about a file. None means that crmctl detects the setting.

    `delimiter` may be a name (tab, comma, semicolon, pipe, space). `sheet` names a sheet of a workbook, by default the first. `excel_safe`
    removes the apostrophes that an export with --excel-safe puts before formulas.
    """

    format: str | None = None
    encoding: str | None = None
    delimiter: str | None = None
    sheet: str | None = None
    excel_safe: bool = False


@frozen
class Dialect:
    """The detected or declared way of reading a file, shown to the user."""

    format: Format
    compressed: bool
    encoding: str
    bom: bool
    delimiter: str | None = None
    header: list[str] = field(default_factory=list)
    header_line: int = 1
    notes: list[str] = field(default_factory=list)

    @property
    def told(self) -> list[str]:
        """Messages shown before rows are read, with everything that was detected."""
        return [f"read as {self.described}", *self.notes]

    @property
    def described(self) -> str:
        """The dialect in words, for example `csv, separated by ';', utf-8 with a byte order mark, gzip`."""
        separated = f"separated by {self.delimiter!r}" if self.delimiter and self.format.is_text else ""
        encoded = f"{self.encoding}{' with a byte order mark' if self.bom else ''}" if self.format.is_text else ""
        return ", ".join(part for part in (self.format, separated, encoded, "gzip" if self.compressed else "") if part)

    def to_document(self) -> Json:
        return {
            "format": str(self.format),
            "compressed": self.compressed,
            "encoding": self.encoding,
            "bom": self.bom,
            "delimiter": self.delimiter,
            "quote": QUOTE if self.delimiter is not None else None,
            "columns": self.header,
            "notes": self.notes,
        }


class Source:
    """A file that can be read repeatedly; every pass yields the same rows.

    `header` lists the columns; for a JSON file only the keys of the first records (`header_complete` is False). `header_text` is the
    original header line. `blank_lines` is the number of blank lines skipped in the last complete pass.
    """

    name: str
    path: Path
    dialect: Dialect
    header: list[str]
    header_complete: bool
    header_text: str
    blank_lines: int

    def rows(self) -> Iterator[Row]:
        """Read the file from its beginning. Raises UsageError for undecodable bytes, RejectedError if reading cannot continue."""
        raise NotImplementedError

    def blocks(self) -> Iterator[Block]:
        """Read all rows like `rows`, in blocks of at least one row."""
        return map(Block, chunks(self.rows()))


def spool_rows(rows: Iterable[Mapping[str, Any]], path: Path) -> None:
    """Write one line for each row into a private file (0600), with dates as ISO text and UUIDs as text.

    Raises RejectedError for a row that is not a JSON object, StorageError on a full disk, and the errors of `rows`.
    """
    _spool((_line(number, row) for number, row in enumerate(rows, 1)), path)


def spool_ids(ids: Iterable[str], path: Path) -> None:
    """Write a table with one column, `id`, into a private file (0600). Raises StorageError on a full disk."""
    _spool(chain(["id"], ids), path)


def _spool(lines: Iterable[str], path: Path) -> None:
    path.touch(mode=0o600)
    try:
        with path.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(f"{line}\n" for line in lines)
    except OSError as error:
        raise storage_error(error, path) from error


def _line(number: int, row: Mapping[str, Any]) -> str:
    if not isinstance(row, Mapping):
        raise RejectedError(f"row {number} is no mapping of columns to values but {type(row).__name__}", code="unusable_row")
    try:
        return jsontext.dumps({str(name): _plain(value) for name, value in row.items()})
    except (TypeError, ValueError, RecursionError) as error:
        raise RejectedError(f"row {number} cannot be sent as JSON: {reason(error)}", code="unusable_row") from error


def _plain(value: Any) -> Any:
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
