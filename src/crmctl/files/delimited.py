"""CSV and TSV files: quoting, headers and row widths."""

from __future__ import annotations

import csv
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, repeat
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from crmctl.errors import RejectedError, UsageError
from crmctl.files.encodings import Encoding, Lines, count_lines, open_text
from crmctl.files.rows import QUOTE, RECORD_LIMIT, Block, Dialect, Row, Source, SourceOptions
from crmctl.files.spills import CHUNK_ROWS
from crmctl.models.field_paths import without_guard
from crmctl.models.findings import Finding

csv.field_size_limit(2 * RECORD_LIMIT)  # so that the limit here comes first

_CLOSED = re.compile(r'(?:[^"]|"")*+"')
"""The rest of a cell that began on an earlier line."""


class QuotedRecord(NamedTuple):
    """One record. `cells` is None for a blank line, `raw` has no line ending. With a `problem`, `cells` must not be used."""

    first_line: int
    last_line: int
    raw: str
    cells: list[str] | None
    problem: Finding | None = None


class OrdinaryBlock(Block):
    """Lines, without their ends, that are one row each, without problems. They are split on demand unless `cells` are given."""

    has_problems = False

    def __init__(self, first_line: int, lines: list[str], delimiter: str, cells: list[list[str]] | None = None) -> None:
        self.numbers = range(first_line, first_line + len(lines))
        self._lines = lines
        self._delimiter = delimiter
        self._split = cells

    def rows(self) -> Sequence[Row]:
        fields = zip(self.ordinals, self.numbers, self.numbers, self._lines, self.cells(), repeat(None), repeat(None))
        return list(map(_NEW_ROW, fields))

    def texts(self) -> Iterable[tuple[int, int, str]]:
        return zip(self.ordinals, self.numbers, self._lines, strict=True)

    def cells(self) -> Sequence[list[str]]:
        return self._split or _cells(self._lines, self._delimiter) or ()


def _cells(lines: Sequence[str], delimiter: str) -> list[list[str]] | None:
    """Return the cells of lines that are one record each; None if a record is malformed or takes several lines."""
    cells = [line.split(delimiter) for line in lines]
    places = [place for place, line in enumerate(lines) if QUOTE in line]
    try:
        quoted = list(csv.reader([lines[place] for place in places], delimiter=delimiter, strict=True))
    except csv.Error:
        return None
    for place, record in zip(places, quoted, strict=False):
        cells[place] = record
    is_closed = len(quoted) == len(places) and not any(lines[place].count(QUOTE) % 2 for place in places)
    return cells if is_closed else None


def split_records(lines: Iterator[str], delimiter: str, *, lines_before: int = 0) -> Iterator[QuotedRecord]:
    """Split physical lines (with their endings) into records, preceded by `lines_before` lines of the file.

    An unclosed quote takes the rest of the text into one last record with a problem. Raises RejectedError if an open quote exceeds the
    record limit.
    """
    number = lines_before
    for line in lines:
        number += 1
        text = line.rstrip("\r\n")
        if not text:
            yield QuotedRecord(number, number, text, None)
        elif QUOTE not in text:
            yield QuotedRecord(number, number, text, text.split(delimiter))
        else:
            record = _read_quoted(line, lines, delimiter, number)
            number = record.last_line
            yield record


def _read_quoted(line: str, lines: Iterator[str], delimiter: str, first: int) -> QuotedRecord:
    """Read a record with quotes, which begins with `line`, the `first`, and may go on in `lines`.

    With a problem and an unpaired quote it takes all remaining lines, because they may belong to a cell.
    """
    raw: list[str] = []

    def take() -> Iterator[str]:
        length = 0
        for text in chain([line], lines):
            raw.append(text)
            length += len(text)
            if length > RECORD_LIMIT:
                problem = _unclosed(raw, delimiter, first)
                limit = f" within {RECORD_LIMIT // 1024 // 1024} MB"
                raise RejectedError(f"{problem.message}{limit}", hint=problem.hint, code=problem.code, details={"line": first})
            yield text

    taken, flaw, problem = take(), 0, None
    reader = csv.reader(taken, delimiter=delimiter, strict=True)
    try:
        cells = next(reader)
    except csv.Error:
        flaw = reader.line_num
        cells = next(csv.reader(chain([*raw], taken), delimiter=delimiter))
    unpaired = sum(text.count(QUOTE) for text in raw) % 2 == 1
    if flaw and _is_valid([*raw, QUOTE], delimiter):
        problem = _unclosed(raw, delimiter, first)
    elif flaw:
        message = f"text after a closing quote on line {first + flaw - 1}"
        problem = Finding("text_after_quote", message, hint="a quote inside a quoted cell is written twice")
    elif unpaired and any(cell[:1].isspace() and cell.lstrip().startswith(QUOTE) for cell in cells):
        message = f"a blank before a quote on line {first + len(raw) - 1} that no other one closes"
        hint = 'remove the blank, or quote the whole cell and write each quote inside it as ""'
        problem = Finding("text_before_quote", message, hint=hint)
    if problem is not None and (unpaired or any(_is_torn(text, delimiter) for text in raw[1:])):
        deque(taken, maxlen=0)
    return QuotedRecord(first, first + len(raw) - 1, "".join(raw).rstrip("\r\n"), cells, problem)


def _is_valid(lines: Sequence[str], delimiter: str) -> bool:
    try:
        deque(csv.reader(lines, delimiter=delimiter, strict=True), maxlen=0)
    except csv.Error:
        return False
    return True


def _is_torn(line: str, delimiter: str) -> bool:
    """Whether text follows the end of a cell that began on an earlier line: the quote was perhaps meant to open another cell."""
    closed = _CLOSED.match(line)
    return closed is not None and not line[closed.end() :].startswith((delimiter, "\r", "\n"))


def _unclosed(lines: Sequence[str], delimiter: str, first: int) -> Finding:
    """Return the finding for a quote that is still open at the end of these lines."""
    *_, last = csv.reader(lines, delimiter=delimiter)
    opened = first + len(lines) - 1 - count_lines(last[-1].removesuffix("\n").removesuffix("\r"))
    return Finding(
        "unclosed_quote",
        f"the quote opened on line {opened} is never closed",
        hint=f'close the quote that begins on line {opened}, or quote the whole cell and write each quote inside it as ""',
    )


REPEATED_HEADER = Finding("repeated_header", "the header once more: were files joined?", hint="delete the line")

SEPARATOR_LINE = "sep="
"""Start of a first line such as `sep=;`, which spreadsheets write to name the delimiter. It is not data."""


_NEW_ROW: Callable[[tuple[Any, ...]], Row] = partial(tuple.__new__, Row)
"""Takes half the time of calling Row."""


class DelimitedSource(Source):
    """A CSV or TSV file with a known dialect. Reads the header at once. Raises UsageError for an empty file."""

    header_complete = True

    def __init__(self, path: Path, name: str, dialect: Dialect, options: SourceOptions) -> None:
        if dialect.delimiter is None:
            raise ValueError("a delimited file needs a delimiter")
        self.path = path
        self.name = name
        self.blank_lines = 0
        self._delimiter = dialect.delimiter
        self._encoding = Encoding(dialect.encoding, dialect.bom)
        self._compressed = dialect.compressed
        self._excel_safe = options.excel_safe
        self._ordinary: set[int] = set()
        """Numbers of the first lines of blocks known to be ordinary. The file must not change."""
        header = next((record for record in self._records() if isinstance(record, QuotedRecord) and record.cells is not None), None)
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
        self.dialect = replace(dialect, header=self.header, header_line=header.first_line)

    def rows(self) -> Iterator[Row]:
        return chain.from_iterable(block.rows() for block in self.blocks())

    def blocks(self) -> Iterator[Block]:
        ordinal, blank, header_seen = 0, 0, False
        rows: list[Row] = []
        for record in self._records():
            if rows and (isinstance(record, OrdinaryBlock) or len(rows) == CHUNK_ROWS):
                yield Block(rows)
                rows = []
            if isinstance(record, OrdinaryBlock):
                record.ordinals = range(ordinal + 1, ordinal + 1 + len(record.numbers))
                ordinal += len(record.numbers)
                yield record
            elif record.cells is not None and not header_seen:
                header_seen = True
            elif (row := self._row(record, ordinal + 1)) is not None:
                ordinal += 1
                rows.append(row)
            else:
                blank += 1
        if rows:
            yield Block(rows)
        self.blank_lines = blank

    def _row(self, record: QuotedRecord, ordinal: int) -> Row | None:
        """Return the row of a record, with a problem if its cells do not fit the header; None for a blank line."""
        first, last, raw, cells, problem = record
        width, named = self._width, len(self.header)
        if cells is None:
            return None
        if problem is None and len(cells) == width == named and cells[-1] != self.header[-1] and not self._excel_safe:
            return _NEW_ROW((ordinal, first, last, raw, cells, None, None))
        if problem is None and len(cells) != width:
            if len(cells) == 1 and not cells[0].strip():
                return None
            problem = _ragged(len(cells), width, is_text=self.dialect.format.is_text)
        elif problem is None and named != width:
            problem = _unnamed(cells, named)
            cells = cells[:named] if problem is None else cells
        if problem is None and cells[1:] == self.header[1:] and cells[0].lstrip("\ufeff") == self.header[0]:
            problem = REPEATED_HEADER
        if self._excel_safe:
            cells = [without_guard(cell) for cell in cells]
        return Row(ordinal, first, last, raw, cells, None, problem.at(ordinal, first, last) if problem else None)

    def _records(self) -> Iterator[QuotedRecord | OrdinaryBlock]:
        with open_text(self.path, self.name, self._encoding, compressed=self._compressed) as text:
            lines = Lines(text, self.name)
            number = 1 if separator_of(first := next(lines, "")) else 0
            if not number:
                lines.unread(first + lines.rest())
            for record in split_records(lines, self._delimiter, lines_before=number):
                yield record
                number = record.last_line
                if record.cells is not None:
                    break  # the header
            while block := lines.rest():
                if (ordinary := self._split(block, number + 1)) is not None:
                    yield ordinary
                    number += len(ordinary.numbers)
                    continue
                lines.unread(block)
                end = number + count_lines(block)
                for record in split_records(lines, self._delimiter, lines_before=number):
                    yield record
                    number = record.last_line
                    if number >= end:
                        break

    def _split(self, block: str, first_line: int) -> OrdinaryBlock | None:
        """Split whole lines after the header. None if one of them needs a closer look. This is the hot path of large files."""
        text = block.replace("\r\n", "\n") if "\r" in block else block
        lines = text.removesuffix("\n").split("\n")
        if first_line in self._ordinary:
            return OrdinaryBlock(first_line, lines, self._delimiter)
        if "\r" in text or "" in lines or len(self.header) != self._width or self._excel_safe:
            return None
        cells = _cells(lines, self._delimiter)
        if cells is None or {*map(len, cells)} != {self._width} or self.header[-1] in map(itemgetter(-1), cells):
            return None
        self._ordinary.add(first_line)
        return OrdinaryBlock(first_line, lines, self._delimiter, cells)


def separator_of(line: str) -> str | None:
    """Return the delimiter named by a `sep=` line, or None."""
    text = line.rstrip("\r\n").strip('"')
    return text[4] if text.lower().startswith(SEPARATOR_LINE) and len(text) == len(SEPARATOR_LINE) + 1 else None


def _ragged(count: int, width: int, *, is_text: bool) -> Finding:
    cells = "1 cell" if count == 1 else f"{count} cells"
    if count < width:
        return Finding(
            "too_few_cells",
            f"{cells} where the header has {width}",
            hint="add the missing delimiters, so that every cell stands under its column",
        )
    hint = "a cell that holds the delimiter must be quoted" if is_text else "name the columns in the header, or empty the cells"
    return Finding("too_many_cells", f"{cells} where the header has {width}", hint=hint)


def _unnamed(cells: list[str], named: int) -> Finding | None:
    """Return a finding if a cell under an unnamed column is not empty."""
    for index in range(named, len(cells)):
        if cells[index].strip():
            return Finding(
                "unnamed_column", f"a value under column {index + 1}, which has no name", hint="name the column in the header, or empty it"
            ).on(f"#{index + 1}", cells[index])
    return None
