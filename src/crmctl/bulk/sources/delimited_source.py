"""CSV and TSV files: header, width of rows, blank lines. Quoting is in quoted_text.py, the choice of a dialect in detection.py."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path

from crmctl.bulk.findings import Finding
from crmctl.bulk.sources.quoted_text import QuotedRecord, split_records
from crmctl.bulk.sources.rows import Dialect, Row, SourceOptions
from crmctl.bulk.sources.text_encodings import Encoding, open_text, read_lines
from crmctl.errors import RejectedError, UsageError
from crmctl.models.delimited_text import without_guard

RESULT_MARK = "_row"
"""A column of result files."""

REPEATED_HEADER = Finding("repeated_header", "the header once more: were files joined?", hint="delete the line")

SEPARATOR_LINE = "sep="
"""A first line `sep=;` is a spreadsheet's way to name the delimiter; it is not data."""


class DelimitedSource:
    """A CSV or TSV file whose dialect is known. Reads the header at once; raises UsageError for an empty file."""

    header_complete = True

    def __init__(self, path: Path, name: str, dialect: Dialect, options: SourceOptions) -> None:
        if dialect.delimiter is None:
            raise ValueError("a delimited file needs a delimiter")
        self.path = path
        self.name = name
        self.blank_lines = 0
        self._delimiter = dialect.delimiter
        self._quote = dialect.quote
        self._encoding = Encoding(dialect.encoding, dialect.bom)
        self._compressed = dialect.compressed
        self._pad_short = options.pad_short
        self._excel_safe = options.excel_safe
        header = next((record for record in self._records() if record.cells is not None), None)
        if header is None or header.cells is None:
            raise UsageError(
                f"{name} is empty: it does not even name its columns",
                hint="a table without rows still has a header; did what wrote the file fail?",
                code="empty_file",
            )
        if header.problem is not None:
            raise RejectedError(
                f"{name}: the header cannot be read: {header.problem.message}",
                hint=header.problem.hint,
                code=header.problem.code,
                details={"line": header.first_line},
            )
        self.header_text = header.raw
        self._width = len(header.cells)
        self.header = list(header.cells)
        while self.header and not self.header[-1].strip():
            self.header.pop()
        if not self.header:
            raise UsageError(f"{name}: the first line names no column", hint="the first line must name the columns", code="empty_header")
        if options.pad_short and RESULT_MARK in self.header:
            raise UsageError(
                f"--pad-short would shift the columns that a result file adds: {name} has a column {RESULT_MARK}",
                hint="add the missing cells in the file",
            )
        self.dialect = replace(dialect, header=self.header, header_line=header.first_line)

    def rows(self) -> Iterator[Row]:
        width, named = self._width, len(self.header)
        last_name = self.header[-1]
        ordinal, blank = 0, 0
        header_seen = False
        new = tuple.__new__  # half the time of calling Row
        for first, last, raw, cells, problem in self._records():
            if cells is None:
                blank += 1
                continue
            if not header_seen:
                header_seen = True
                continue
            if problem is None and len(cells) != width:
                if len(cells) == 1 and not cells[0].strip():
                    blank += 1
                    continue
                if self._pad_short and len(cells) < width and not self._is_torn(raw):
                    raw += self._delimiter * (width - len(cells))
                    cells = cells + [""] * (width - len(cells))
                else:
                    problem = _ragged(len(cells), width)
            elif problem is None and named != width:
                problem = _unnamed(cells, named)
                cells = cells[:named] if problem is None else cells
            if problem is None and cells[-1] == last_name and self._repeats_header(cells):
                problem = REPEATED_HEADER
            if self._excel_safe:
                cells = [without_guard(cell) for cell in cells]
            ordinal += 1
            yield new(Row, (ordinal, first, last, raw, cells, None, problem.at(ordinal, first, last) if problem else None))
        self.blank_lines = blank

    def _is_torn(self, raw: str) -> bool:
        """Whether a row has half a pair of quotes, and so is likely to be a part of another one."""
        return self._quote is not None and raw.count(self._quote) % 2 == 1

    def _repeats_header(self, cells: list[str]) -> bool:
        return cells[1:] == self.header[1:] and cells[0].lstrip("\ufeff") == self.header[0]

    def _records(self) -> Iterator[QuotedRecord]:
        with open_text(self.path, self.name, self._encoding, compressed=self._compressed) as text:
            lines, skipped = skip_separator_line(read_lines(text, self.name))
            yield from split_records(lines, self._delimiter, self._quote, lines_before=skipped)


def separator_of(line: str) -> str | None:
    """The delimiter that a `sep=` line names, or None for any other line."""
    text = line.rstrip("\r\n").strip('"')
    return text[4] if text.lower().startswith(SEPARATOR_LINE) and len(text) == len(SEPARATOR_LINE) + 1 else None


def skip_separator_line(lines: Iterator[str]) -> tuple[Iterator[str], int]:
    """The lines without a leading `sep=` line, and the number of lines left out (0 or 1)."""
    first = next(lines, None)
    if first is None:
        return iter(()), 0
    return (lines, 1) if separator_of(first) else (chain([first], lines), 0)


def _ragged(found: int, width: int) -> Finding:
    cells = "1 cell" if found == 1 else f"{found} cells"
    if found < width:
        return Finding(
            "too_few_cells",
            f"{cells} where the header has {width}",
            hint="add the missing delimiters, so that every cell stands under its column",
        )
    return Finding("too_many_cells", f"{cells} where the header has {width}", hint="a cell that holds the delimiter must be quoted")


def _unnamed(cells: list[str], named: int) -> Finding | None:
    """A finding when a cell under a column without a name holds something."""
    for index in range(named, len(cells)):
        if cells[index].strip():
            return Finding(
                "unnamed_column", f"a value under column {index + 1}, which has no name", hint="name the column in the header, or empty it"
            ).on(f"#{index + 1}", cells[index])
    return None
