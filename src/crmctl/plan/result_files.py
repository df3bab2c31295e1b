"""Write the result files of a job."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TextIO

from crmctl.files.encodings import BLOCK, Encoding, open_text
from crmctl.files.rows import QUOTE, Format, Row, Source
from crmctl.files.whole_files import chunks, whole_file
from crmctl.models import jsontext
from crmctl.write.database import RESULT_FILES, JobState, RowState
from crmctl.write.jobs import Summary
from crmctl.write.journal import CREATED, Journal, RowEntry, surplus_records

ADDED = ("_row", "_line", "_status", "_id", "_error")
ADDED_BY_FEED = (*ADDED, "_kept")

Outcome = tuple[str | None, ...]
"""Cells added after a row's number and line: status, id and error, and for a feed the kept values."""

WIDTH_PROBLEMS = frozenset({"too_few_cells", "too_many_cells", "unnamed_column"})
"""Problems of rows whose text is still a line of cells. An import of the result file reports them again."""


class ResultFormat(ABC):
    """Text of a result file: `head`, groups of `rows` with one outcome (`first` for the first group), and `foot`."""

    head: str
    foot: str

    @abstractmethod
    def rows(self, rows: Sequence[Row], outcome: Outcome, *, first: bool) -> str: ...


def result_format(source: Source, newline: str, added: Sequence[str] = ADDED) -> ResultFormat:
    """Return the format of result files for this input. `newline`: the line ending of the input."""
    if source.dialect.format.is_delimited:
        return _Delimited(source, newline, added)
    return _Array(added) if source.dialect.format is Format.JSON else _Lines(added, newline)


class _Delimited(ResultFormat):
    foot = ""

    def __init__(self, source: Source, newline: str, added: Sequence[str]) -> None:
        dialect, header, header_text = source.dialect, tuple(source.header), source.header_text
        self._delimiter = dialect.delimiter or ","
        self._newline = newline
        self._kept = next((len(header) - len(names) for names in (ADDED, ADDED_BY_FEED) if header[-len(names) :] == names), None)
        self._special = re.compile(f"[{re.escape(self._delimiter)}{QUOTE}\r\n]|^\\s|\\s$")
        self._cell = _cell_pattern(self._delimiter)
        bare = header_text.rstrip(self._delimiter)
        # Name the unnamed columns at the end of the header, because an unnamed column must be the last. Imports ignore these names.
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
        # Quote the whole row, so that a stray quote does not swallow the added cells.
        return self._text(row.raw)

    def _original(self, raw: str) -> str:
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
        if self._special.search(text):
            return QUOTE + text.replace(QUOTE, QUOTE * 2) + QUOTE
        return text


def _cell_pattern(delimiter: str) -> re.Pattern[str]:
    plain = f"[^{re.escape(delimiter)}]*"
    return re.compile(f'"(?:[^"]|"")*"{plain}|{plain}')


def _json_object(row: Row, outcome: Outcome, names: Sequence[str]) -> str:
    """Return the row's original text with the added keys before its closing brace."""
    added = dict(zip(names, (row.ordinal, row.first_line, *outcome), strict=True))
    raw = row.raw.strip()
    if row.value is None:
        return jsontext.dumps({"unreadable": raw, **added})
    if any(key in row.value for key in ADDED_BY_FEED):
        return jsontext.dumps({**{key: value for key, value in jsontext.loads(raw).items() if key not in ADDED_BY_FEED}, **added})
    body = raw[1:-1].rstrip()
    return "{" + body + ("," if body.strip() else "") + jsontext.dumps(added)[1:]


class _Lines(ResultFormat):
    head = foot = ""

    def __init__(self, added: Sequence[str], newline: str) -> None:
        self._added = added
        self._newline = newline

    def rows(self, rows: Sequence[Row], outcome: Outcome, *, first: bool) -> str:
        return "".join(_json_object(row, outcome, self._added) + self._newline for row in rows)


class _Array(ResultFormat):
    head = "["
    foot = "\n]\n"

    def __init__(self, added: Sequence[str]) -> None:
        self._added = added

    def rows(self, rows: Sequence[Row], outcome: Outcome, *, first: bool) -> str:
        return ("\n" if first else ",\n") + ",\n".join(_json_object(row, outcome, self._added) for row in rows)


FILE_OF: dict[RowState, str] = {
    RowState.CREATED: "ok",
    RowState.UPDATED: "ok",
    RowState.UNCHANGED: "ok",
    RowState.SKIPPED: "ok",
    RowState.FAILED: "failed",
    RowState.REJECTED: "failed",
    RowState.IN_DOUBT: "inDoubt",
    RowState.UNSENT: "unsent",
}

OF_DELETIONS = {RowState.UPDATED: "deleted", RowState.CREATED: "notFound", RowState.SKIPPED: "notFound"}
"""Status words for rows of a deletion."""

UNSENT = RowEntry(RowState.UNSENT)


def lacks_files(summary: Summary) -> bool:
    return any(count and summary.files[FILE_OF[state]] is None for state, count in summary.counts.items())


def write_results(journal: Journal, source: Source, failed_copy: Path | None = None) -> dict[str, Path | None]:
    """Write the result files into the job's folder. Return their paths; None for a file that would be empty.

    `failed_copy` also gets the failed and rejected rows, or at least a header. Raises UsageError if a file cannot be written.
    """
    if journal.state is JobState.CHECKING:
        return dict.fromkeys(RESULT_FILES)
    counts = journal.counts()
    rows_of = {name: sum(counts[state] for state in RowState if FILE_OF[state] == name) for name in RESULT_FILES}
    duplicates = surplus_records(journal)
    rows_of["duplicates"] = len(duplicates)
    paths = {name: journal.folder / f"{name}.{source.dialect.format.of_results}" for name in RESULT_FILES}
    is_fed = bool(journal.header.plan.get("feed"))
    form = result_format(source, newline_of(source), ADDED_BY_FEED if is_fed else ADDED)
    words = OF_DELETIONS if journal.header.mode == "delete" else {}
    with ExitStack() as files:
        sinks: dict[str, list[_Sink]] = {name: [] for name in RESULT_FILES}
        for name, path in paths.items():
            if rows_of[name]:
                sinks[name].append(_Sink(files.enter_context(_open(path, source, mode=0o600)), form))
            else:
                path.unlink(missing_ok=True)
        if failed_copy is not None:
            sinks["failed"].append(_Sink(files.enter_context(_open(failed_copy, source)), form))
        told = None
        if is_fed:
            from crmctl.plan.feed import KeptValues

            told = files.enter_context(closing(KeptValues(journal.folder))).told
        for rows, entry in _judged(journal, source, duplicates):
            kept = () if told is None else (told(rows[0].ordinal),)
            for sink in sinks[FILE_OF[entry.state]]:
                sink.write(rows, (words.get(entry.state, entry.state), entry.record_id, entry.error, *kept))
            if further := duplicates.get(rows[0].ordinal):
                sinks["duplicates"][0].write(rows, (entry.state, entry.record_id, f"there more than once: {', '.join(further)}", *kept))
        for sink in (sink for group in sinks.values() for sink in group):
            sink.finish()
    return {name: path if rows_of[name] else None for name, path in paths.items()}


class _Sink:
    """One file being written."""

    def __init__(self, stream: TextIO, form: ResultFormat) -> None:
        self._stream = stream
        self._form = form
        self._first = True
        stream.write(form.head)

    def write(self, rows: Sequence[Row], outcome: Outcome) -> None:
        self._stream.write(self._form.rows(rows, outcome, first=self._first))
        self._first = False

    def finish(self) -> None:
        self._stream.write(self._form.foot)


def _judged(journal: Journal, source: Source, alone: Mapping[int, object]) -> Iterator[tuple[Sequence[Row], RowEntry]]:
    """Yield every row of the input with its journal entry. Consecutive rows with equal entries may come together, except those `alone`."""
    for chunk in chunks(source.rows()):
        first, last = chunk[0].ordinal, chunk[-1].ordinal
        entries = journal.rows(first, last)
        if len(entries) == len(chunk) and all(entry is CREATED for entry in entries.values()) and alone.keys().isdisjoint(entries):
            yield chunk, CREATED
            continue
        for row in chunk:
            yield (row,), entries.get(row.ordinal, UNSENT)


def newline_of(source: Source) -> str:
    """Return the first line ending of the input; a line feed if there is none."""
    dialect = source.dialect
    if not dialect.format.is_text:
        return "\n"
    with open_text(source.path, source.name, Encoding(dialect.encoding, dialect.bom), compressed=dialect.compressed) as text:
        while block := text.read(BLOCK):
            ends = [at for mark in "\r\n" if (at := block.find(mark)) >= 0]
            if ends:
                at = min(ends)
                return "\r\n" if (block + text.read(1))[at : at + 2] == "\r\n" else block[at]
    return "\n"


@contextmanager
def _open(path: Path, source: Source, *, mode: int = 0o666) -> Iterator[TextIO]:
    """Open a result file in the input's encoding. Characters it cannot express are escaped."""
    with whole_file(path, encoding=source.dialect.encoding, errors="backslashreplace", mode=mode) as stream:
        if source.dialect.bom:
            stream.write("\ufeff")
        yield stream
