"""A row of the input with what became of it added, in the input's own format: the original text stays as it was, to the byte. No I/O.

The added columns begin with `_`, which an import ignores, so that a result file can be corrected and imported as it is. A file that is a
result file already gets its added columns replaced.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

from crmctl.bulk.sources.rows import Format, Row, Source
from crmctl.models import jsontext

ADDED = ("_row", "_line", "_status", "_id", "_error")
ADDED_BY_FEED = (*ADDED, "_kept")

Outcome = tuple[str | None, ...]
"""What became of a row: its status, id and error, and of a feed the values that were kept; added after its number and line."""

WIDTH_PROBLEMS = frozenset({"too_few_cells", "too_many_cells", "unnamed_column"})
"""Problems after which a row's text is still a line of cells, and remains one that an import refuses."""


class ResultFormat(Protocol):
    """The text of a result file: `head`, `rows` of which the same became (`first` for those without a row before them), `foot`."""

    head: str
    foot: str

    def rows(self, rows: Sequence[Row], outcome: Outcome, *, first: bool) -> str: ...


def result_format(source: Source, newline: str, added: Sequence[str] = ADDED) -> ResultFormat:
    """The format of result files for this input; `newline` is the line ending the input uses."""
    if source.dialect.format.is_delimited:
        return _Delimited(source, newline, added)
    return _Array(added) if source.dialect.format is Format.JSON else _Lines(added, newline)


class _Delimited:
    foot = ""

    def __init__(self, source: Source, newline: str, added: Sequence[str]) -> None:
        dialect, header, header_text = source.dialect, tuple(source.header), source.header_text
        self._delimiter = dialect.delimiter or ","
        self._quote = dialect.quote
        self._newline = newline
        self._kept = next((len(header) - len(names) for names in (ADDED, ADDED_BY_FEED) if header[-len(names) :] == names), None)
        self._special = re.compile(f"[{re.escape(self._delimiter)}{re.escape(dialect.quote or '')}\r\n]|^\\s|\\s$")
        self._cell = _cell_pattern(self._delimiter, self._quote)
        bare = header_text.rstrip(self._delimiter)
        # Columns without a name at the end of the header get one that an import ignores: a nameless column must stay the last.
        unnamed = [f"_{number}" for number in range(1, len(header_text) - len(bare) + 1)]
        self.head = self._delimiter.join([self._original(self._delimiter.join([bare, *unnamed])), *added]) + newline

    def rows(self, rows: Sequence[Row], outcome: Outcome, *, first: bool) -> str:
        mark = self._delimiter
        tail = "".join(mark + self._text(text or "") for text in outcome) + self._newline
        if self._kept is None and not any(row.problem for row in rows):
            return "".join([f"{raw}{mark}{ordinal}{mark}{line}{tail}" for ordinal, line, _, raw, _, _, _ in rows])
        return "".join([f"{self._shown(row)}{mark}{row.ordinal}{mark}{row.first_line}{tail}" for row in rows])

    def _shown(self, row: Row) -> str:
        if row.problem is None or row.problem.code in WIDTH_PROBLEMS:
            return self._original(row.raw)
        # A quote that is wrong in itself must not swallow what follows.
        return self._text(row.raw)

    def _original(self, raw: str) -> str:
        """The text without the columns an earlier import added."""
        if self._kept is None:
            return raw
        end = -1
        for _ in range(self._kept):
            match = self._cell.match(raw, end + 1)
            if match is None or match.end() >= len(raw):
                return raw
            end = match.end()
        return raw[: max(end, 0)]

    def _text(self, text: str) -> str:
        quote = self._quote
        if quote is None:
            return re.sub(f"[{re.escape(self._delimiter)}\r\n]+", " ", text)
        if self._special.search(text):
            return quote + text.replace(quote, quote * 2) + quote
        return text


def _cell_pattern(delimiter: str, quote: str | None) -> re.Pattern[str]:
    plain = f"[^{re.escape(delimiter)}]*"
    if quote is None:
        return re.compile(plain)
    mark = re.escape(quote)
    return re.compile(f"{mark}(?:[^{mark}]|{mark}{mark})*{mark}{plain}|{plain}")


def _json_object(row: Row, outcome: Outcome, names: Sequence[str]) -> str:
    """The record's own text with the added keys before its closing brace."""
    added = dict(zip(names, (row.ordinal, row.first_line, *outcome), strict=True))
    raw = row.raw.strip()
    if row.value is None:
        return jsontext.dumps({"unreadable": raw, **added})
    if any(key in row.value for key in ADDED_BY_FEED):
        return jsontext.dumps({**{key: value for key, value in jsontext.loads(raw).items() if key not in ADDED_BY_FEED}, **added})
    body = raw[1:-1].rstrip()
    return "{" + body + ("," if body.strip() else "") + jsontext.dumps(added)[1:]


class _Lines:
    head = foot = ""

    def __init__(self, added: Sequence[str], newline: str) -> None:
        self._added = added
        self._newline = newline

    def rows(self, rows: Sequence[Row], outcome: Outcome, *, first: bool) -> str:
        return "".join(_json_object(row, outcome, self._added) + self._newline for row in rows)


class _Array:
    head = "["
    foot = "\n]\n"

    def __init__(self, added: Sequence[str]) -> None:
        self._added = added

    def rows(self, rows: Sequence[Row], outcome: Outcome, *, first: bool) -> str:
        return ("\n" if first else ",\n") + ",\n".join(_json_object(row, outcome, self._added) for row in rows)
