"""The result files of a job: rows that are ok, failed, in doubt, unsent. Projections of journal and input: deleted, they come back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import TextIO

from crmctl.bulk.atomic_file import whole_file
from crmctl.bulk.journal.journal import CREATED, Journal, RowEntry
from crmctl.bulk.journal.states import RESULT_FILES, JobState, RowState
from crmctl.bulk.run.feed import FILE_NAME, KeptValues
from crmctl.bulk.run.result_rows import ADDED, ADDED_BY_FEED, Outcome, ResultFormat, result_format
from crmctl.bulk.sources.rows import Row, Source
from crmctl.bulk.sources.text_encodings import BLOCK, Encoding, open_text

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
"""What states mean where rows are records to be deleted."""

CHUNK_ROWS = 500
UNSENT = RowEntry(RowState.UNSENT)


def write_results(journal: Journal, source: Source, failed_copy: Path | None = None) -> dict[str, Path | None]:
    """Write the result files into the job's folder; a file without rows is not there (None).

    `failed_copy` gets the failed and rejected rows too, and has at least a header. Raises UsageError when a file cannot be written.
    """
    if journal.state is JobState.CHECKING:
        return dict.fromkeys(RESULT_FILES)
    counts = journal.counts()
    rows_of = {name: sum(counts[state] for state in RowState if FILE_OF[state] == name) for name in RESULT_FILES}
    paths = {name: journal.folder / f"{name}.{source.dialect.format.of_results}" for name in RESULT_FILES}
    is_fed = (journal.folder / FILE_NAME).exists()
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
        told = files.enter_context(closing(KeptValues(journal.folder))).told if is_fed else None
        for rows, entry in _judged(journal, source):
            kept = () if told is None else (told(rows[0].ordinal),)
            for sink in sinks[FILE_OF[entry.state]]:
                sink.write(rows, (words.get(entry.state, entry.state), entry.record_id, entry.error, *kept))
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


def _judged(journal: Journal, source: Source) -> Iterator[tuple[Sequence[Row], RowEntry]]:
    """Every row of the input with what the journal knows of it; rows in sequence of which it knows the same may come together."""
    rows = source.rows()
    while chunk := list(islice(rows, CHUNK_ROWS)):
        first, last = chunk[0].ordinal, chunk[-1].ordinal
        if journal.count_created(first, last) == len(chunk):
            yield chunk, CREATED
            continue
        entries = journal.rows(first, last)
        for row in chunk:
            yield (row,), entries.get(row.ordinal, UNSENT)


def newline_of(source: Source) -> str:
    """The first line ending of the input; a bare line feed where it has none."""
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
    """A result file in the input's encoding; what that cannot express in a message is escaped."""
    with whole_file(path, encoding=source.dialect.encoding, errors="backslashreplace", mode=mode) as stream:
        if source.dialect.bom:
            stream.write("\ufeff")
        yield stream
