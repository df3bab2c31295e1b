"""Lines to records of a delimited text: quoting, quoted line breaks, physical line numbers, original text. Knows no header and no file.

A quote opens a quoted cell only as the cell's first character; anywhere else it is an ordinary character.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from typing import Any, NamedTuple

from crmctl.bulk.findings import Finding
from crmctl.bulk.sources.rows import RECORD_LIMIT
from crmctl.errors import RejectedError

CSV_FIELD_LIMIT = 100_000
"""Longer lines bypass the standard library's parser: its field limit is a setting of the whole process, which is not ours to change."""


class QuotedRecord(NamedTuple):
    """`cells` is None for a blank line. `raw` has no line ending. A record with a `problem` has the cells found before it."""

    first_line: int
    last_line: int
    raw: str
    cells: list[str] | None
    problem: Finding | None = None


def split_records(lines: Iterator[str], delimiter: str, quote: str | None, *, lines_before: int = 0) -> Iterator[QuotedRecord]:
    """Split physical lines (with their endings) into records; `lines_before` lines of the file precede them.

    Raises RejectedError when an open quote swallows more than the record limit. A quote that is never closed takes the rest of the
    text into one last record with a problem.
    """
    number = lines_before
    strict = csv.reader([], delimiter=delimiter, quotechar=quote, strict=True).dialect if quote else None
    parse: Any = csv.reader
    new = tuple.__new__  # half the time of calling QuotedRecord, for nearly every line
    for line in lines:
        number += 1
        text = line.rstrip("\r\n")
        if not text:
            yield QuotedRecord(number, number, text, None)
        elif quote is None or quote not in text:
            yield new(QuotedRecord, (number, number, text, text.split(delimiter), None))
        else:
            record = None
            if len(text) <= CSV_FIELD_LIMIT:
                try:
                    record = new(QuotedRecord, (number, number, text, next(parse((text,), strict)), None))
                except csv.Error:
                    record = None
                if record is not None and text.count(quote) % 2 and any(_opens_late(cell, quote) for cell in record.cells or ()):
                    record = None
            if record is None:
                record = _Scan(lines, delimiter, quote, number).read(line)
            number = record.last_line
            yield record


class _Scan:
    """Reads one record that quotes make difficult: over several lines, very long, or malformed."""

    def __init__(self, lines: Iterator[str], delimiter: str, quote: str, number: int) -> None:
        self.lines = lines
        self.delimiter = delimiter
        self.quote = quote
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
            if self.text.startswith(self.quote, pos):
                opened = self.number
                end = self._quoted(pos + 1, opened)
                if end is None:
                    return self._record(_unclosed(opened))
                pos = end
                if pos == len(self._body()):
                    return self._record()
                if not self.text.startswith(self.delimiter, pos):
                    # Reading goes on all the same: a later cell may hold line ends, and its lines are no records of their own.
                    self.problem = self.problem or _after_quote(self.number, len(self.cells), self._body()[pos : pos + 20])
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
        """Read a quoted cell from after its opening quote; the position after its closing quote, or None at the end of the text."""
        quote = self.quote
        pieces: list[str] = []
        while True:
            end = self.text.find(quote, pos)
            if end < 0:
                pieces.append(self.text[pos:])
                line = next(self.lines, None)
                if line is None:
                    return None
                self._go_on(line, opened)
                pos = 0
            elif self.text.startswith(quote, end + 1):
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
        """Take one more line. Raises RejectedError when that is too much for what began on the line `opened`."""
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
        """The record as read. Where quotes do not pair nobody can tell which lines after it are inside of one, so it takes them all."""
        problem = self.problem or problem
        unpaired = sum(line.count(self.quote) for line in self.raw) % 2 == 1
        if problem is None and unpaired and any(_opens_late(cell, self.quote) for cell in self.cells):
            problem = _late_quote(self.number)
        if problem is not None and (unpaired or self.is_torn):
            for line in self.lines:
                self._go_on(line, self.first)
        return QuotedRecord(self.first, self.number, "".join(self.raw).rstrip("\r\n"), self.cells, problem)


def _opens_late(cell: str, quote: str) -> bool:
    return cell[:1].isspace() and cell.lstrip().startswith(quote)


def _late_quote(line: int) -> Finding:
    return Finding(
        "text_before_quote",
        f"a blank before a quote on line {line} that no other one closes",
        hint="take the blank away, or give --quote none if quotes have no meaning in this file",
    )


def _unclosed(line: int) -> Finding:
    return Finding(
        "unclosed_quote",
        f"the quote opened on line {line} is never closed",
        hint=f"close the quote that begins on line {line}, or give --quote none if quotes have no meaning in this file",
    )


def _after_quote(line: int, cell: int, text: str) -> Finding:
    return Finding(
        "text_after_quote",
        f"text after the closing quote of cell {cell} on line {line}: {text!r}",
        hint="a quote inside a quoted cell is written twice",
    )
