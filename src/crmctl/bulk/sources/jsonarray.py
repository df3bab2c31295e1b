"""A JSON array of objects, read element by element: memory holds one element and one block, however long the array is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from crmctl.bulk.sources.jsonrecords import HEADER_SAMPLE, header_of, json_problem, problem_row, row_of
from crmctl.bulk.sources.rows import RECORD_LIMIT, Dialect, Row
from crmctl.bulk.sources.text_encodings import Encoding, count_lines, nul_error, open_text
from crmctl.errors import RejectedError, json_words
from crmctl.models import jsontext

BLOCK = 256 * 1024
_SPACE = re.compile(r"[ \t\r\n]*")


class JsonArraySource:
    """A JSON file that is one array. Text that is not JSON ends the reading with a RejectedError that names line and column."""

    header_complete = False
    header_text = ""
    blank_lines = 0

    def __init__(self, path: Path, name: str, dialect: Dialect) -> None:
        self.path = path
        self.name = name
        self._encoding = Encoding(dialect.encoding, dialect.bom)
        self._compressed = dialect.compressed
        sample = list(islice(self.rows(), HEADER_SAMPLE))
        self.header = header_of(sample)
        self.dialect = replace(dialect, header=self.header)

    def rows(self) -> Iterator[Row]:
        with open_text(self.path, self.name, self._encoding, compressed=self._compressed) as text:
            yield from _Elements(text, self.name).rows()


class _Elements:
    """The text read so far and not yet used (`buffer` from `pos`), and how many lines lie before `pos`."""

    def __init__(self, text: Any, name: str) -> None:
        self.text = text
        self.name = name
        self.buffer = ""
        self.pos = 0
        self.line = 1
        self.line_start = 0
        self.ended = False

    def rows(self) -> Iterator[Row]:
        if self._peek() != "[":
            raise self._error("a JSON file must be an array of objects", self.pos, hint="for one object per line, give --format jsonl")
        self._advance(self.pos + 1)
        if self._peek() == "]":
            self._advance(self.pos + 1)
        else:
            yield from self._elements()
        if self._peek():
            raise self._error("text after the end of the array", self.pos)

    def _elements(self) -> Iterator[Row]:
        ordinal = 0
        while True:
            self._peek()
            ordinal += 1
            first = self.line
            value, end, problem = self._element()
            raw = self.buffer[self.pos : end]
            self._advance(end)
            row = Row(ordinal, first, self.line, raw, [])
            yield problem_row(row, json_problem(problem)) if problem else row_of(row, value)
            mark = self._peek()
            if mark not in (",", "]"):
                raise self._error("expected , or ] after a record" if mark else "the array is not closed: the file is cut off", self.pos)
            self._advance(self.pos + 1)
            if mark == "]":
                return

    def _element(self) -> tuple[Any, int, Exception | None]:
        """The value at `pos`, the position after it, and what is wrong with it although it is JSON."""
        while True:
            problem: Exception | None = None
            failure: json.JSONDecodeError | None = None
            value, end = None, self.pos
            try:
                value, end = jsontext.scan(self.buffer, self.pos, unique_keys=True)
            except json.JSONDecodeError as error:
                failure = error
            except ValueError as error:
                problem, end = error, self._end_of_flawed(error)
            # A number may go on in the next block, so only an element that is followed by something is complete.
            if failure is None and (end < len(self.buffer) or self.ended) and self._follows(end):
                if end - self.pos > RECORD_LIMIT:
                    raise self._too_large()
                return value, end, problem
            if self.ended or len(self.buffer) - self.pos > RECORD_LIMIT:
                raise self._failure(failure, end)
            self._fill()

    def _end_of_flawed(self, error: ValueError) -> int:
        try:
            return jsontext.scan(self.buffer, self.pos)[1]
        except json.JSONDecodeError:
            return len(self.buffer)
        except ValueError:
            raise self._error(str(error), self.pos) from error

    def _follows(self, end: int) -> bool:
        space = _SPACE.match(self.buffer, end)
        after = space.end() if space else end
        return self.buffer[after : after + 1] in (",", "]", "") if self.ended else self.buffer[end : end + 1] in ",] \t\r\n"

    def _failure(self, failure: json.JSONDecodeError | None, end: int) -> RejectedError:
        if not self.ended:
            return self._too_large()
        if failure is None:
            return self._error("expected , or ] after a record", end)
        if failure.pos >= len(self.buffer.rstrip()) or failure.msg.startswith("Unterminated string"):
            return self._error("the file is cut off inside a record that begins", self.pos)
        return self._error(f"not JSON: {json_words(failure.msg)}", failure.pos)

    def _too_large(self) -> RejectedError:
        limit = RECORD_LIMIT // 1024 // 1024
        return RejectedError(f"{self.name}: the record that begins on line {self.line} is longer than {limit} MB", code="record_too_large")

    def _peek(self) -> str:
        """Skip white space; the next character, or an empty string at the end of the text."""
        while True:
            space = _SPACE.match(self.buffer, self.pos)
            self._advance(space.end() if space else self.pos)
            if self.pos < len(self.buffer):
                return self.buffer[self.pos]
            if self.ended:
                return ""
            self._fill()

    def _advance(self, pos: int) -> None:
        """Move to `pos`, counting the lines passed."""
        lines = count_lines(self.buffer, self.pos, pos)
        if lines:
            self.line += lines
            self.line_start = max(self.buffer.rfind("\n", self.pos, pos), self.buffer.rfind("\r", self.pos, pos)) + 1
        self.pos = pos

    def _fill(self) -> None:
        """Drop what is used and read on; at least doubles the unused text, so that a long element costs linear time."""
        unused = len(self.buffer) - self.pos
        block = self.text.read(max(BLOCK, unused))
        if "\0" in block:
            raise nul_error(self.name, self.line + count_lines(self.buffer, self.pos) + count_lines(block, 0, block.index("\0")))
        self.ended = not block
        self.line_start -= self.pos
        self.buffer = self.buffer[self.pos :] + block
        self.pos = 0

    def _error(self, message: str, pos: int, hint: str | None = None) -> RejectedError:
        line = self.line + count_lines(self.buffer, self.pos, pos)
        start = max(self.buffer.rfind("\n", 0, pos), self.buffer.rfind("\r", 0, pos)) + 1
        column = pos - (start if start else self.line_start) + 1
        return RejectedError(
            f"{self.name}: {message} (line {line}, column {column})",
            hint=hint,
            code="invalid_json",
            details={"line": line, "column": column},
        )
