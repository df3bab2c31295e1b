"""The vocabulary of reading: a row, the dialect a file was found to have, the options that override it, and what every source offers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from crmctl.bulk.findings import Finding

RECORD_LIMIT = 16 * 1024 * 1024
"""Most characters in one record. A longer one is refused: it is nearly always an unclosed quote or not a table at all."""


class Format(StrEnum):
    CSV = "csv"
    TSV = "tsv"
    JSONL = "jsonl"
    JSON = "json"
    XLSX = "xlsx"
    PARQUET = "parquet"

    @property
    def is_delimited(self) -> bool:
        """Whether rows are cells of text, as if the file were CSV."""
        return self not in (Format.JSONL, Format.JSON)

    @property
    def is_text(self) -> bool:
        return self not in (Format.XLSX, Format.PARQUET)

    @property
    def of_results(self) -> str:
        """The format of files that repeat rows of such a file."""
        return str(self) if self.is_text else "csv"


class Row(NamedTuple):
    """One data record. `ordinal` counts records from 1, lines are physical lines of the (decompressed) file from 1.

    `raw` is the record's original text without its line ending. `cells` belongs to delimited formats, `value` to JSON. A row that could not
    be read has a `problem`, and its cells or value must not be used.
    """

    ordinal: int
    first_line: int
    last_line: int
    raw: str
    cells: list[str]
    value: dict[str, Any] | None = None
    problem: Finding | None = None


@dataclass(frozen=True)
class SourceOptions:
    """What the user says about a file; None means: find out. `delimiter` may be a name (tab, comma, semicolon, pipe, space); `sheet` is one
    of a workbook, else the first. With `pad_short` a row with too few cells has blank ones at its end; with `excel_safe` the apostrophes
    that an export with --excel-safe puts before formulas are taken away."""

    format: str | None = None
    encoding: str | None = None
    delimiter: str | None = None
    quote: str | None = None
    sheet: str | None = None
    pad_short: bool = False
    excel_safe: bool = False


@dataclass(frozen=True)
class Dialect:
    """How a file is read: everything that was detected or declared, to be shown to the user. `bytes` counts the file as stored."""

    format: Format
    compressed: bool
    encoding: str
    bom: bool
    delimiter: str | None = None
    quote: str | None = None
    header: list[str] = field(default_factory=list)
    header_line: int = 1
    notes: list[str] = field(default_factory=list)

    @property
    def told(self) -> list[str]:
        """What a person is told before rows are read: nothing that was found out by itself stays unsaid."""
        return [f"read as {self.described}", *self.notes]

    @property
    def described(self) -> str:
        """The dialect in words, for example `csv, separated by ';', utf-8 with a byte order mark, gzip`."""
        separated = f"separated by {self.delimiter!r}" if self.delimiter and self.format.is_text else ""
        encoded = f"{self.encoding}{' with a byte order mark' if self.bom else ''}" if self.format.is_text else ""
        return ", ".join(part for part in (self.format, separated, encoded, "gzip" if self.compressed else "") if part)

    def to_document(self) -> dict[str, Any]:
        """The JSON form, every key always present."""
        return {
            "format": str(self.format),
            "compressed": self.compressed,
            "encoding": self.encoding,
            "bom": self.bom,
            "delimiter": self.delimiter,
            "quote": self.quote,
            "columns": self.header,
            "notes": self.notes,
        }


class Source(Protocol):
    """A file that can be read any number of times; every pass gives identical rows.

    `header` lists the columns; of a JSON file it lists the keys of the first records only (`header_complete` is False): later records may
    bring more. `header_text` is the original header line. `blank_lines` is the number of blank lines skipped in the last complete pass.
    """

    name: str
    path: Path
    dialect: Dialect
    header: list[str]
    header_complete: bool
    header_text: str
    blank_lines: int

    def rows(self) -> Iterator[Row]:
        """Read the file from its beginning. Raises UsageError for what cannot be decoded, RejectedError where reading cannot go on."""
        ...
