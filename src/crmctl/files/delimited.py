"""CSV and TSV files: quoting, headers and row widths."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count, repeat
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from crmctl.errors import RejectedError, UsageError
from crmctl.files.encodings import Encoding, Lines, count_lines, open_text
from crmctl.files.rows import QUOTE, RECORD_LIMIT, Block, Dialect, Row, Source, SourceOptions
from crmctl.files.spills import CHUNK_ROWS
from crmctl.models.field_paths import without_guard
from crmctl.models.findings import Finding


class QuotedRecord(NamedTuple):
    """One record. `cells` is None for a blank line, `raw` has no line ending. With a `problem`, `cells` are those before it."""

    first_line: int
    last_line: int
    raw: str
    cells: list[str] | None
    problem: Finding | None = None


class OrdinaryLines(NamedTuple):
    """Lines of a table that are one record each, without problems: the number of the first, their texts without line ends, their cells.

    `cells` is None if they were split before.
    """

    first_line: int
    texts: list[str]
    cells: list[list[str]] | None


class OrdinaryBlock(Block):
    """Rows of ordinary lines, split into cells on demand."""

    def __init__(self, first: int, lines: OrdinaryLines, delimiter: str) -> None:
        self._lines = lines
        self._delimiter = delimiter
        self.ordinals = range(first, first + len(lines.texts))
        self.has_problems = False

    def rows(self) -> Sequence[Row]:
        numbers = range(self._lines.first_line, self._lines.first_line + len(self.ordinals))
        fields = zip(self.ordinals, numbers, numbers, self._lines.texts, self.cells(), repeat(None), repeat(None))
        return list(map(_NEW_ROW, fields))

    def texts(self) -> Iterable[tuple[int, int, str]]:
        return zip(self.ordinals, count(self._lines.first_line), self._lines.texts)

    def cells(self) -> Sequence[list[str]]:
        return self._lines.cells or _cells(self._lines.texts, self._delimiter) or ()


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
            record = _Scan(lines, delimiter, number).read(line)
            number = record.last_line
            yield record


class _Scan:
    """Reads one record with quotes, perhaps over several lines, very long, or malformed."""

    def __init__(self, lines: Iterator[str], delimiter: str, number: int) -> None:
        self.lines = lines
        self.delimiter = delimiter
        self.first = self.number = number
        self.text = ""
        self.raw: list[str] = []
        self.length = 0
        self.cells: list[str] = []
        self.problem: Finding | None = None
        self.is_torn = False

    def read(self, line: str) -> QuotedRecord:
        self._take(line)
        pos = 0
        while True:
            if self.text.startswith(QUOTE, pos):
                opened = self.number
                end = self._quoted(pos + 1, opened)
                if end is None:
                    return self._record(_unclosed(opened))
                pos = end
                if pos == len(self._body()):
                    return self._record()
                if not self.text.startswith(self.delimiter, pos):
                    # continue: a later cell may contain line ends, and its lines are not records
                    place, rest = f"cell {len(self.cells)} on line {self.number}", self._body()[pos : pos + 20]
                    message = f"text after the closing quote of {place}: {rest!r}"
                    hint = "a quote inside a quoted cell is written twice"
                    self.problem = self.problem or Finding("text_after_quote", message, hint=hint)
                    self.is_torn = self.is_torn or opened != self.number
                    pos = self.text.find(self.delimiter, pos)
                    if pos < 0:
                        return self._record()
                pos += 1
            else:
                end = self.text.find(self.delimiter, pos)
                if end < 0:
                    self.cells.append(self._body()[pos:])
                    return self._record()
                self.cells.append(self.text[pos:end])
                pos = end + 1

    def _quoted(self, pos: int, opened: int) -> int | None:
        """Read a quoted cell after its opening quote; return the position after its closing quote, or None at the end of the text."""
        pieces: list[str] = []
        while True:
            end = self.text.find(QUOTE, pos)
            if end < 0:
                pieces.append(self.text[pos:])
                line = next(self.lines, None)
                if line is None:
                    return None
                self._go_on(line, opened)
                pos = 0
            elif self.text.startswith(QUOTE, end + 1):
                pieces.append(self.text[pos : end + 1])
                pos = end + 2
            else:
                pieces.append(self.text[pos:end])
                self.cells.append("".join(pieces))
                return end + 1

    def _take(self, line: str) -> None:
        self.text = line
        self.length += len(line)
        self.raw.append(line)

    def _go_on(self, line: str, opened: int) -> None:
        """Add one more line. Raises RejectedError if the record that began on the line `opened` grows too large."""
        self.number += 1
        self._take(line)
        if self.length > RECORD_LIMIT:
            problem = _unclosed(opened)
            raise RejectedError(
                f"{problem.message} within {RECORD_LIMIT // 1024 // 1024} MB",
                hint=problem.hint,
                code=problem.code,
                details={"line": opened},
            )

    def _body(self) -> str:
        return self.text.rstrip("\r\n")

    def _record(self, problem: Finding | None = None) -> QuotedRecord:
        """Return the record. With an unpaired quote, it takes all remaining lines, because they may belong to a cell."""
        problem = self.problem or problem
        unpaired = sum(line.count(QUOTE) for line in self.raw) % 2 == 1
        if problem is None and unpaired and any(cell[:1].isspace() and cell.lstrip().startswith(QUOTE) for cell in self.cells):
            hint = 'remove the blank, or quote the whole cell and write each quote inside it as ""'
            message = f"a blank before a quote on line {self.number} that no other one closes"
            problem = Finding("text_before_quote", message, hint=hint)
        if problem is not None and (unpaired or self.is_torn):
            for line in self.lines:
                self._go_on(line, self.first)
        return QuotedRecord(self.first, self.number, "".join(self.raw).rstrip("\r\n"), self.cells, problem)


def _unclosed(line: int) -> Finding:
    return Finding(
        "unclosed_quote",
        f"the quote opened on line {line} is never closed",
        hint=f'close the quote that begins on line {line}, or quote the whole cell and write each quote inside it as ""',
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
        for item in self._items():
            if isinstance(item, Block):
                yield from item.rows()
            else:
                yield item

    def blocks(self) -> Iterator[Block]:
        rows: list[Row] = []
        for item in self._items():
            if isinstance(item, Row):
                rows.append(item)
            if rows and (isinstance(item, Block) or len(rows) == CHUNK_ROWS):
                yield Block(rows)
                rows = []
            if isinstance(item, Block):
                yield item
        if rows:
            yield Block(rows)

    def _items(self) -> Iterator[Row | Block]:
        """Yield blocks of ordinary lines, and the other rows one by one."""
        ordinal, blank, header_seen = 0, 0, False
        for record in self._records():
            if isinstance(record, OrdinaryLines):
                yield OrdinaryBlock(ordinal + 1, record, self._delimiter)
                ordinal += len(record.texts)
            elif record.cells is not None and not header_seen:
                header_seen = True
            elif (row := self._row(record, ordinal + 1)) is not None:
                ordinal += 1
                yield row
            else:
                blank += 1
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

    def _records(self) -> Iterator[QuotedRecord | OrdinaryLines]:
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
            while block := lines.rest() or lines.next_block():
                if (ordinary := self._split(block, number + 1)) is not None:
                    yield ordinary
                    number += len(ordinary.texts)
                    continue
                lines.unread(block)
                end = number + count_lines(block)
                for record in split_records(lines, self._delimiter, lines_before=number):
                    yield record
                    number = record.last_line
                    if number >= end:
                        break

    def _split(self, block: str, first_line: int) -> OrdinaryLines | None:
        """Split whole lines after the header. None if one of them needs a closer look. This is the hot path of large files."""
        text = block.replace("\r\n", "\n") if "\r" in block else block
        texts = text.removesuffix("\n").split("\n")
        if first_line in self._ordinary:
            return OrdinaryLines(first_line, texts, None)
        if "\r" in text or "" in texts or len(self.header) != self._width or self._excel_safe:
            return None
        cells = _cells(texts, self._delimiter)
        if cells is None or {*map(len, cells)} != {self._width} or self.header[-1] in map(itemgetter(-1), cells):
            return None
        self._ordinary.add(first_line)
        return OrdinaryLines(first_line, texts, cells)


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
