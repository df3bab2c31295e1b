"""The outcome of an import: findings, errors and files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import field, replace
from pathlib import Path
from typing import Any, TextIO

from crmctl.errors import CrmctlError, ExitCode, PartialError, RejectedError
from crmctl.files.encodings import Encoding, open_text
from crmctl.files.rows import RECORD_LIMIT, Block, Format, Row, Source
from crmctl.files.whole_files import whole_file
from crmctl.frozen import frozen
from crmctl.models import jsontext
from crmctl.models.field_paths import delimited_row
from crmctl.models.findings import Finding
from crmctl.write.database import RESULT_FILES, JobState, RowState
from crmctl.write.jobs import Summary, exit_code, summarize
from crmctl.write.journal import CREATED, RIVALS, Journal, RowEntry, doubtful, surplus_records

KEPT = 100
"""Maximum number of findings kept in memory; the file of failed rows holds all of them."""

ALIKE = 5
"""Findings of one column with the same message that are shown one by one; more of them share a line."""

UNKNOWN_OPTION = "unknown_option"


class FindingLog:
    """Collect the findings of one check and pass each to `report`.

    `count`: number of findings; `kept`: the first 100; `groups`: the first findings of one column that say the same, with their number.
    """

    def __init__(self, report: Callable[[Finding], None] = lambda _: None) -> None:
        self._report = report
        self.count = 0
        self.kept: list[Finding] = []
        self._options: dict[tuple[str | None, str | None], tuple[Finding, int]] = {}
        self._groups: dict[tuple[str, str | None, str], tuple[list[Finding], int]] = {}

    def __call__(self, finding: Finding) -> None:
        self.count += 1
        if finding.code == UNKNOWN_OPTION:
            option = (finding.column, finding.value)
            first, rows = self._options.get(option, (finding, 0))
            if rows or len(self._options) < KEPT:
                self._options[option] = (first, rows + 1)
        else:
            alike = (finding.code, finding.column, finding.message)
            examples, rows = self._groups.get(alike, ([], 0))
            if rows or len(self._groups) < KEPT:
                self._groups[alike] = (examples + [finding][: ALIKE - len(examples)], rows + 1)
        if len(self.kept) < KEPT:
            self.kept.append(finding)
        self._report(finding)

    @property
    def groups(self) -> list[tuple[list[Finding], int]]:
        return list(self._groups.values())

    @property
    def unknown_options(self) -> list[dict[str, Any]]:
        """Return unknown options, the most frequent first: column, value, number of rows, first line and a suggestion."""
        options = sorted(self._options.values(), key=lambda pair: -pair[1])
        return [
            {"column": first.column, "value": first.value, "rows": rows, "line": first.first_line, "hint": first.hint}
            for first, rows in options
        ]

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form: `findings`, and `unknownOptions` if there are any."""
        document: dict[str, Any] = {"findings": [finding.to_document() for finding in self.kept]}
        if self.unknown_options:
            document["unknownOptions"] = self.unknown_options
        return document


DUPLICATE_KEYS = "duplicate_keys"
NAMED_RIVALS = 20
"""Maximum number of rows in the message about keys that another client used too."""

LISTED_RIVALS = 100
"""Maximum number of such rows in the details of the error."""

IN_WORDS = {"failed": "failed", "rejected": "invalid", "inDoubt": "in doubt", "unsent": "not sent"}


@frozen
class ImportResult:
    """Outcome of an import, new or resumed.

    `input`: the file as the user named it. `error`: why some rows were not written exactly once, or None. `rivals`: the error about rows
    whose key another client's new record has too. `notes`: more information for the user. `failed_file`: holds the failed rows.
    `is_resumable`: work remains.
    """

    input: str
    summary: Summary
    findings: FindingLog = field(default_factory=FindingLog)
    error: CrmctlError | None = None
    rivals: CrmctlError | None = None
    notes: Sequence[str] = ()
    failed_file: Path | str | None = None
    is_resumable: bool = False

    @property
    def job(self) -> str | None:
        return self.summary.job

    def raise_for_error(self) -> None:
        if self.error is not None:
            raise self.error


def outcome_of(
    journal: Journal,
    error: CrmctlError | None = None,
    notes: Sequence[str] = (),
    *,
    is_resumable: bool = False,
    failed_copy: Path | None = None,
    unlinked: int = 0,
) -> ImportResult:
    """Return the outcome of a job's rows. `error`: what ended its last run early; `unlinked`: rows written, but not linked to another."""
    rows = journal.kept(RIVALS).items()
    rivals = [{"row": row, "key": key, "ids": ids} for row, (key, ids) in rows]
    result = ImportResult(
        journal.header.input, summarize(journal), rivals=_rivals(rivals) if rivals else None, notes=notes, is_resumable=is_resumable
    )
    file: str | None = result.summary.to_document()["files"]["failed"]
    result = replace(result, failed_file=failed_copy if file and failed_copy is not None else file)
    hint = f"crmctl bulk resume {result.job}" if is_resumable else None
    try:
        if error is not None:
            own = error.hint or ""
            error.hint = (own if not hint or hint in own else hint) or None
            raise error
        # A rejected job did not succeed, even if some rows are unchanged.
        is_rejected = journal.state is JobState.REJECTED or exit_code(result.summary.counts) is ExitCode.REJECTED
        if is_rejected and not unlinked:
            document, refusals = result.summary.to_document(), journal.refusals()
            if document["failed"]:
                raise _refused(document, result.failed_file, refusals)
            raise _orphans(document["rejected"], refusals) if refusals else rejected_rows(document["rejected"])
        reasons = journal.refusals()
        if not reasons and result.summary.counts[RowState.IN_DOUBT]:
            reasons = [*dict.fromkeys(batch.reason for batch in doubtful(journal) if batch.reason)]
        _raise_partial(result, reasons, hint)
    except CrmctlError as failure:
        return replace(result, error=failure)
    return result


def example_summary() -> dict[str, Any]:
    files = {name: Path(name) for name in RESULT_FILES}
    return Summary("", "", "", dict.fromkeys(RowState, 0), 0, 0.0, files).to_document()


def _raise_partial(result: ImportResult, reasons: Sequence[str], hint: str | None) -> None:
    """Raise PartialError unless every row was written once. `reasons`: why rows failed or are in doubt; `hint`: the command that goes on
    with the job."""
    document, duplicates = result.summary.to_document(), result.summary.duplicates
    counts = {name: document[name] for name in IN_WORDS if document[name]}
    twice = duplicates_text(duplicates) if duplicates else ""
    repair = f"crmctl bulk repair {result.job}"
    extra = {"duplicates": duplicates} if twice else {}
    if twice and not counts:
        raise PartialError(twice, hint=repair, details=extra)
    if result.rivals is not None and not counts:
        raise result.rivals
    if counts:
        text = ", ".join(f"{count:,} {IN_WORDS[name]}" for name, count in counts.items())
        correct = f"{result.failed_file} holds the rows and the reasons; correct it and import it" if result.failed_file else None
        if hint and document["inDoubt"] and not document["unsent"]:
            hint += " looks for them once more"
            if named := document["files"]["inDoubt"]:
                hint += f"; {named} names them: import those whose values are not in the service"
        notes = {"notes": list(result.notes)} if document["inDoubt"] and result.notes else {}
        why = _said(reasons)
        besides = f"; {twice}: {repair} names them" if twice else ""
        raise PartialError(f"not every row was written: {text}{why}{besides}", hint=hint or correct, details={**counts, **extra, **notes})


def duplicates_text(count: int) -> str:
    return "1 row exists more than once" if count == 1 else f"{count:,} rows exist more than once"


def _rivals(rivals: Sequence[dict[str, Any]]) -> PartialError:
    named = "; ".join(f"row {rival['row']} ({rival['key']}): {', '.join(rival['ids'])}" for rival in rivals[:NAMED_RIVALS])
    more = f"; and {len(rivals) - NAMED_RIVALS:,} more" if len(rivals) > NAMED_RIVALS else ""
    rows = "row has" if len(rivals) == 1 else "rows have"
    return PartialError(
        f"{len(rivals):,} {rows} a key that another client's new record has too: {named}{more}",
        hint="merge the records, or delete one of each",
        code=DUPLICATE_KEYS,
        details={"duplicates": list(rivals[:LISTED_RIVALS])},
    )


def service_words(reasons: Iterable[str]) -> str:
    """Return the end of a message with the first two different reasons of the service; empty without reasons."""
    words = [*dict.fromkeys(reasons)][:2]
    return f"; the service said: {'; '.join(words)}" if words else ""


def _said(reasons: Sequence[str]) -> str:
    """Return the reason if all rows share it, else the reason for the first row."""
    if not reasons:
        return ""
    return f": {reasons[0]}" if len(reasons) == 1 else f", the first with: {reasons[0]}"


def _refused(document: dict[str, Any], file: Path | str | None, reasons: Sequence[str]) -> RejectedError:
    count = document["failed"]
    rows = "the one row" if count == 1 else f"all {count:,} rows"
    return RejectedError(
        f"the service refused {rows} it was sent{_said(reasons)}; nothing was written",
        hint=f"{file} holds the rows and the reasons; correct it and import it" if file else None,
        code="refused_rows",
        details={name: document[name] for name in ("failed", "rejected", "unsent") if document[name]},
    )


def _orphans(count: int, reasons: Sequence[str]) -> RejectedError:
    rows = "row was" if count == 1 else "rows were"
    hint = "import the rows again in a minute: the lists of the service may be late; otherwise correct the records they refer to"
    return RejectedError(f"{count:,} {rows} not sent; {'; '.join(reasons)}", hint=hint, code="invalid_rows")


def rejected_rows(count: int) -> RejectedError:
    """Return the error for an import with invalid rows. Without any, the job's guards or its plan refused all of its rows."""
    if not count:
        return RejectedError("the job was refused as a whole; nothing was sent", hint="repeat its command to see why", code="rejected_job")
    rows = "row is" if count == 1 else "rows are"
    return RejectedError(
        f"{count:,} {rows} invalid; nothing was sent",
        hint="correct the file, or --on-error continue imports the valid rows",
        code="invalid_rows",
    )


ADDED = ("_row", "_line", "_status", "_id", "_error")
ADDED_BY_FEED = (*ADDED, "_kept")

Outcome = tuple[str | None, ...]
"""Cells added after a row's number and line: status, id and error, and for a feed the kept values."""

WIDTH_PROBLEMS = frozenset({"too_few_cells", "too_many_cells", "unnamed_column"})
"""Problems of rows whose text is still a line of cells. An import of the result file reports them again."""


class _DelimitedFile:
    """A result file of cells: the lines of the input, without those that an earlier import added, and the outcome of each row."""

    def __init__(self, stream: TextIO, source: Source, newline: str, added: Sequence[str]) -> None:
        header, header_text = tuple(source.header), source.header_text
        self._stream = stream
        self._newline = newline
        self._delimiter = source.dialect.delimiter or ","
        self._dropped = next((len(names) for names in (ADDED, ADDED_BY_FEED) if header[-len(names) :] == names), 0)
        plain = f"[^{re.escape(self._delimiter)}]*"
        self._cell = re.compile(f'"(?:[^"]|"")*"{plain}|{plain}')
        bare = header_text.rstrip(self._delimiter)
        # Name the unnamed columns at the end of the header, because an unnamed column must be the last. Imports ignore these names.
        unnamed = [f"_{number}" for number in range(1, len(header_text) - len(bare) + 1)]
        stream.write(self._delimiter.join([self._original(self._delimiter.join([bare, *unnamed]), len(header)), *added]) + newline)

    def write(self, rows: Block, outcome: Outcome) -> None:
        """Write rows that have one outcome."""
        mark = self._delimiter
        tail = mark + delimited_row(outcome, mark).removesuffix("\n") + self._newline
        if not self._dropped and not rows.has_problems:
            lines = [f"{raw}{mark}{ordinal}{mark}{line}{tail}" for ordinal, line, raw in rows.texts()]
        else:
            lines = [f"{self._shown(row)}{mark}{row.ordinal}{mark}{row.first_line}{tail}" for row in rows.rows()]
        self._stream.write("".join(lines))

    def finish(self) -> None:
        pass

    def _shown(self, row: Row) -> str:
        if row.problem is None or row.problem.code in WIDTH_PROBLEMS:
            return self._original(row.raw, len(row.cells))
        # Quote the whole row, so that a stray quote does not swallow the added cells.
        return delimited_row([row.raw], self._delimiter).removesuffix("\n")

    def _original(self, raw: str, cells: int) -> str:
        """Return a line without the cells that an earlier import added at its end."""
        if not self._dropped or cells <= self._dropped:
            return raw
        end = -1
        for _ in range(cells - self._dropped):
            match = self._cell.match(raw, end + 1)
            if match is None or match.end() >= len(raw):
                return raw
            end = match.end()
        return raw[:end]


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


class _JsonFile:
    """A result file with one object a line, or an array of them."""

    def __init__(self, stream: TextIO, newline: str, added: Sequence[str], *, is_array: bool) -> None:
        self._stream = stream
        self._newline = newline
        self._added = added
        self._is_array = is_array
        self._separator = "[\n"

    def write(self, rows: Block, outcome: Outcome) -> None:
        for row in rows.rows():
            text = _json_object(row, outcome, self._added)
            self._stream.write(f"{self._separator}{text}" if self._is_array else f"{text}{self._newline}")
            self._separator = ",\n"

    def finish(self) -> None:
        if self._is_array:
            self._stream.write("\n]\n" if self._separator == ",\n" else "[\n]\n")


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


def write_results(journal: Journal, source: Source, failed_copy: Path | None = None) -> None:
    """Write the result files into the job's folder, except those that would be empty.

    `failed_copy` also gets the failed and rejected rows, or at least a header. Raises UsageError if a file cannot be written.
    """
    if journal.state is JobState.CHECKING:
        return
    counts = journal.counts()
    rows_of = {name: sum(counts[state] for state in RowState if FILE_OF[state] == name) for name in RESULT_FILES}
    duplicates = surplus_records(journal)
    rows_of["duplicates"] = len(duplicates)
    paths = {name: journal.folder / f"{name}.{source.dialect.format.of_results}" for name in RESULT_FILES}
    is_fed = bool(journal.header.plan.get("feed"))
    added, newline, form = ADDED_BY_FEED if is_fed else ADDED, newline_of(source), source.dialect.format
    words = OF_DELETIONS if journal.header.mode == "delete" else {}
    with ExitStack() as files:

        def opened(path: Path, mode: int) -> _DelimitedFile | _JsonFile:
            stream = files.enter_context(_open(path, source, mode=mode))
            if form.is_delimited:
                return _DelimitedFile(stream, source, newline, added)
            return _JsonFile(stream, newline, added, is_array=form is Format.JSON)

        sinks: dict[str, list[_DelimitedFile | _JsonFile]] = {name: [] for name in RESULT_FILES}
        for name, path in paths.items():
            if rows_of[name]:
                sinks[name].append(opened(path, 0o600))
            else:
                path.unlink(missing_ok=True)
        if failed_copy is not None:
            sinks["failed"].append(opened(failed_copy, 0o666))
        told = None
        if is_fed:
            from crmctl.plan.feed import KeptValues

            told = files.enter_context(closing(KeptValues(journal.folder))).told
        for rows, entry in _judged(journal, source, duplicates):
            ordinal = rows.ordinals[0]
            kept = () if told is None else (told(ordinal),)
            for sink in sinks[FILE_OF[entry.state]]:
                sink.write(rows, (words.get(entry.state, entry.state), entry.record_id, entry.error, *kept))
            if further := duplicates.get(ordinal):
                sinks["duplicates"][0].write(
                    rows, (entry.state, entry.record_id, f"exists more than once, also as {', '.join(further)}", *kept)
                )
        for sink in (sink for group in sinks.values() for sink in group):
            sink.finish()


def _judged(journal: Journal, source: Source, alone: Mapping[int, object]) -> Iterator[tuple[Block, RowEntry]]:
    """Yield every row of the input with its journal entry. Consecutive rows with equal entries may come together, except those `alone`."""
    for block in source.blocks():
        first, last = block.ordinals[0], block.ordinals[-1]
        if journal.number_created(first, last) == len(block.ordinals) and alone.keys().isdisjoint(block.ordinals):
            yield block, CREATED
            continue
        entries = journal.rows(first, last)
        for row in block.rows():
            yield Block([row]), entries.get(row.ordinal, UNSENT)


def newline_of(source: Source) -> str:
    """Return the first line ending of the input; a line feed if there is none."""
    dialect = source.dialect
    if not dialect.format.is_text:
        return "\n"
    with open_text(source.path, source.name, Encoding(dialect.encoding, dialect.bom), compressed=dialect.compressed) as text:
        first_line = text.readline(RECORD_LIMIT)
    return next((end for end in ("\r\n", "\r", "\n") if first_line.endswith(end)), "\n")


@contextmanager
def _open(path: Path, source: Source, *, mode: int) -> Iterator[TextIO]:
    """Open a result file in the input's encoding. Characters it cannot express are escaped."""
    with whole_file(path, encoding=source.dialect.encoding, errors="backslashreplace", mode=mode) as stream:
        if source.dialect.bom:
            stream.write("\ufeff")
        yield stream
