"""Read JSON arrays and JSON lines as rows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from crmctl.errors import RejectedError, json_words
from crmctl.files.encodings import Encoding, Lines, count_lines, open_text, refuse_nul
from crmctl.files.rows import RECORD_LIMIT, Dialect, Format, Row, Source
from crmctl.models import jsontext
from crmctl.models.findings import Finding
from crmctl.models.jsontext import Json

RESOURCE_FIELDS = frozenset({"id", "objectId", "data", "createdAt", "updatedAt"})
"""The wire fields of a record. An object with only these (and result columns, `_...`) has its values under `data`."""

HEADER_SAMPLE = 1000
"""Number of records whose keys form the header of a JSON file."""


def row_of(read: Row, value: Any) -> Row:
    """Return the row of one parsed value, with a problem unless it is an object of valid text. `read` is the row so far."""
    if not isinstance(value, dict):
        message = f"a record is an object, not {jsontext.TYPE_NAMES.get(type(value).__name__, 'number')}"
        return problem_row(read, Finding("not_an_object", message, hint="write every record as a JSON object"))
    if "\\u" in read.raw and jsontext.holds_half(value):
        half = "half a character (a lone surrogate such as \\ud800)"
        return problem_row(read, Finding("invalid_text", half, hint="the file was cut or written wrongly"))
    return read._replace(value=_flat(value))


def problem_row(read: Row, problem: Finding) -> Row:
    return read._replace(problem=problem.at(read.ordinal, read.first_line, read.last_line))


def json_problem(error: Exception) -> Finding:
    """Return the finding for text that is not one JSON value, or that repeats a key."""
    column = getattr(error, "colno", None)
    if column is None:
        twice = "twice" in str(error)
        return Finding("duplicate_key" if twice else "invalid_json", str(error), hint="keep one of them" if twice else None)
    words = json_words(getattr(error, "msg", ""))
    return Finding("invalid_json", f"not JSON: {words} at character {column}", hint="JSONL holds one whole object per line")


def _flat(value: Json) -> Json:
    data = value.get("data")
    if not isinstance(data, dict) or not all(key in RESOURCE_FIELDS or key.startswith("_") for key in value):
        return value
    fields = {key: field for key, field in value.items() if key != "data"}
    return value if fields.keys() & data.keys() else {**fields, **data}


BLOCK = 256 * 1024
_SPACE = re.compile(r"[ \t\r\n]*")


class JsonSource(Source):
    """Records of a JSON array, or one per line. Invalid JSON in an array ends the read with a RejectedError that names line and column."""

    header_complete = False
    header_text = ""

    def __init__(self, path: Path, name: str, dialect: Dialect) -> None:
        self.path = path
        self.name = name
        self.blank_lines = 0
        self.dialect = dialect
        self.header = list(dict.fromkeys(key for row in islice(self.rows(), HEADER_SAMPLE) for key in row.value or {}))
        self.dialect = replace(dialect, header=self.header)

    def rows(self) -> Iterator[Row]:
        encoding = Encoding(self.dialect.encoding, self.dialect.bom)
        with open_text(self.path, self.name, encoding, compressed=self.dialect.compressed) as text:
            if self.dialect.format is Format.JSON:
                yield from _Elements(text, self.name).rows()
                return
            ordinal, number = 0, 0
            for number, line in enumerate(Lines(text, self.name), start=1):
                raw = line.rstrip("\r\n")
                if not raw.strip():
                    continue
                ordinal += 1
                row = Row(ordinal, number, number, raw, [])
                try:
                    value = jsontext.loads(raw, spelled=True)
                except ValueError as error:
                    yield problem_row(row, json_problem(error))
                else:
                    yield row_of(row, value)
        self.blank_lines = number - ordinal


class _Elements:
    """Reads the elements of an array. `buffer` from `pos` on is the unread text, `line` the number of the line at `pos`."""

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
        """Return the value at `pos` and the position after it, with the problem of a value that is valid JSON but not allowed."""
        while True:
            problem: Exception | None = None
            failure: json.JSONDecodeError | None = None
            value, end = None, self.pos
            try:
                value, end = jsontext.scan(self.buffer, self.pos, spelled=True)
            except json.JSONDecodeError as error:
                failure = error
            except ValueError as error:
                problem, end = error, self._end_of_flawed(error)
            # a number may continue in the next block, so an element is complete only if another character follows
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
        """Skip white space; return the next character, or "" at the end of the text."""
        while True:
            space = _SPACE.match(self.buffer, self.pos)
            self._advance(space.end() if space else self.pos)
            if self.pos < len(self.buffer):
                return self.buffer[self.pos]
            if self.ended:
                return ""
            self._fill()

    def _advance(self, pos: int) -> None:
        """Move to `pos` and count the lines passed."""
        lines = count_lines(self.buffer, self.pos, pos)
        if lines:
            self.line += lines
            self.line_start = max(self.buffer.rfind("\n", self.pos, pos), self.buffer.rfind("\r", self.pos, pos)) + 1
        self.pos = pos

    def _fill(self) -> None:
        """Drop read text and read more. Doubling the unread text keeps the cost of long elements linear."""
        unused = len(self.buffer) - self.pos
        block = self.text.read(max(BLOCK, unused))
        if "\0" in block:
            refuse_nul(self.name, self.line + count_lines(self.buffer, self.pos) + count_lines(block, 0, block.index("\0")))
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
