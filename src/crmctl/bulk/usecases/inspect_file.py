"""A look at a file before it is imported: how it was read, what its columns hold, and which attributes they would fill. Writes nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from crmctl.bulk.context import BulkContext
from crmctl.bulk.findings import Finding, shorten
from crmctl.bulk.rows.column_names import Names
from crmctl.bulk.rows.mapping import Mode, Role, resolve_column
from crmctl.bulk.run.job_start import temporary_input
from crmctl.bulk.sources.open_source import open_source
from crmctl.bulk.sources.rows import Dialect, Row, Source
from crmctl.bulk.usecases.file_duplicates import FileColumns, FileDuplicates, count_duplicates
from crmctl.bulk.usecases.requests import ReadRequest, check_choice
from crmctl.bulk.usecases.targets import check_places, resolve_target, store_of
from crmctl.errors import RejectedError, UsageError
from crmctl.models import jsontext
from crmctl.models.attributes import Attribute
from crmctl.models.ids import is_uuid
from crmctl.models.numbers import read_number
from crmctl.models.typed_text import read_checkbox, read_date, read_email, read_phone

MOST_ROWS = 10
"""Rows of one group: more that share a value say nothing."""

MAX_DISTINCT = 1000
MAX_COLUMNS = 2000
SAMPLES = 3
SHOWN_PROBLEMS = 20
CONFIDENCE = {"slug": 1.0, "name": 0.95, "folded": 0.9, "record field": 1.0, "result column": 1.0}
SUGGESTED = 0.5
"""Confidence of a suggestion: an import does not follow it unless `--map` says so."""

_TELLING_PHONE = re.compile(r"\s*(?:\+|00|\()[0-9]")


@dataclass(frozen=True, kw_only=True)
class InspectRequest(ReadRequest):
    """A file to look at; with an object its columns are mapped for an import in that mode. With `duplicates`, or rules to `match`, its rows
    are compared with each other."""

    file: str
    object: str | None = None
    mode: str = "create"
    duplicates: bool = False
    match: Sequence[str] = ()


def _is_phone(text: str) -> bool:
    read_phone(text)
    return _TELLING_PHONE.match(text) is not None


def _is_checkbox(text: str) -> bool:
    read_checkbox(text)
    return text.strip().lower() not in ("1", "0", "x", "t", "f")


TESTS: dict[str, Any] = {
    "checkbox": _is_checkbox,
    "number": lambda text: read_number(text) is not None and not re.match(r"\s*[+-]?0[0-9]", text),
    "date": lambda text: bool(read_date(text)),
    "email": lambda text: bool(read_email(text)),
    "reference": is_uuid,
    "phone_number": _is_phone,
}
"""Types that a column's text can be recognised as; each test answers, or raises RejectedError. Text with leading zeros is no number."""


@dataclass
class ColumnReport:
    """What one column holds, and what it would fill. `distinct` stops counting at 1,000 (`distinct_exact` is then False)."""

    header: str
    index: int
    filled: int = 0
    distinct: int = 0
    distinct_exact: bool = True
    longest: int = 0
    samples: list[str] = field(default_factory=list)
    guessed_type: str = "text"
    target: str | None = None
    confidence: float | None = None
    suggestions: list[str] = field(default_factory=list)
    note: str | None = None


@dataclass
class InspectReport:
    """The result of an inspection; `to_document` is its JSON form, `columns` the rows of a table."""

    name: str
    dialect: Dialect
    rows: int
    blank_lines: int
    columns: list[ColumnReport]
    problems: int
    findings: list[Finding]
    duplicates: FileDuplicates | None = None

    @property
    def unknown(self) -> list[ColumnReport]:
        """Columns that an import would refuse unless `--map` or `--ignore-unknown` is given."""
        return [column for column in self.columns if column.target is None and column.note is None]

    @property
    def map_arguments(self) -> list[str]:
        """`COLUMN=SLUG` for every column with a suggestion only; a suggestion is used once, and never for a target already filled."""
        used = {column.target for column in self.columns}
        pairs = []
        for column in self.unknown:
            best = next((slug for slug in column.suggestions if slug not in used), None)
            if best is not None:
                used.add(best)
                pairs.append(f"{column.header}={best}")
        return pairs

    def column_documents(self) -> list[dict[str, Any]]:
        return [
            {
                "column": column.header,
                "position": column.index + 1,
                "filled": column.filled,
                "fillRate": round(column.filled / self.rows, 4) if self.rows else 0.0,
                "distinct": column.distinct,
                "distinctExact": column.distinct_exact,
                "longest": column.longest,
                "type": column.guessed_type,
                "samples": column.samples,
                "target": column.target,
                "confidence": column.confidence,
                "suggestions": column.suggestions,
                "note": column.note,
            }
            for column in self.columns
        ]

    def to_document(self) -> dict[str, Any]:
        """The JSON form, every key always present."""
        return {
            "file": self.name,
            "dialect": self.dialect.to_document(),
            "rows": self.rows,
            "blankLines": self.blank_lines,
            "columns": self.column_documents(),
            "unknown": [column.header for column in self.unknown],
            "map": self.map_arguments,
            "problems": self.problems,
            **({"duplicates": self.duplicates.to_document()} if self.duplicates is not None else {}),
            "findings": [finding.to_document() for finding in self.findings],
        }


def inspect_file(context: BulkContext, request: InspectRequest) -> InspectReport:
    """Look at the file of a request. Raises UsageError for one that cannot be read, NotFoundError for an object that is not there."""
    check_choice("--mode", request.mode, tuple(Mode))
    check_places(None, request.file)
    attributes = resolve_target(context, request.object).attributes if request.object is not None else None
    with temporary_input(store_of(context), request.file, context.stdin) as given:
        report = inspect(open_source(given.path, request.source(), name=request.file), attributes, mode=Mode(request.mode))
        if request.duplicates or request.match:
            again = open_source(given.path, request.source(), name=request.file)
            report.duplicates = count_duplicates(again, _as_attributes(report, attributes or ()), tuple(request.match), MOST_ROWS)
        return report


def _as_attributes(report: InspectReport, attributes: Sequence[Attribute]) -> FileColumns:
    """The columns as what rules of matching name."""
    columns = [Attribute(id=one.header, slug=one.header, type=one.guessed_type) for one in report.columns if one.header]
    targets = {one.header: one.target for one in report.columns if one.target is not None}
    filled = {target.partition(".")[0] for target in targets.values()}
    return FileColumns(columns, [one for one in attributes if one.slug in filled and one.slug not in targets], targets)


def inspect(source: Source, attributes: Sequence[Attribute] | None = None, *, mode: Mode = Mode.CREATE) -> InspectReport:
    """Read the whole file once, with flat memory. Without `attributes` no mapping is proposed.

    Raises UsageError for bytes that cannot be decoded, RejectedError where reading cannot go on.
    """
    tallies = [_Tally(header, index) for index, header in enumerate(source.header)]
    by_key = {tally.report.header: tally for tally in tallies}
    rows, problems = 0, 0
    findings: list[Finding] = []
    for row in source.rows():
        rows += 1
        if row.problem is not None:
            problems += 1
            if len(findings) < SHOWN_PROBLEMS:
                findings.append(row.problem)
        elif row.value is None:
            for tally, cell in zip(tallies, row.cells, strict=True):
                if cell:
                    tally.add(cell)
        else:
            _add_object(row, tallies, by_key)
    names = Names(attributes) if attributes is not None else None
    columns = [_finished(tally, names, mode) for tally in tallies]
    _note_shared_targets(columns)
    return InspectReport(source.name, source.dialect, rows, source.blank_lines, columns, problems, findings)


def _add_object(row: Row, tallies: list[_Tally], by_key: dict[str, _Tally]) -> None:
    for key, value in (row.value or {}).items():
        tally = by_key.get(key)
        if tally is None and len(tallies) < MAX_COLUMNS:
            tally = by_key[key] = _Tally(key, len(tallies))
            tallies.append(tally)
        if tally is not None and value not in (None, ""):
            tally.add(value if isinstance(value, str) else jsontext.dumps(value))


def _finished(tally: _Tally, names: Names | None, mode: Mode) -> ColumnReport:
    report = tally.finish()
    if names is None:
        return report
    try:
        column = resolve_column(report.header, report.index, names, mode)
    except UsageError as error:
        report.note = error.message
        return report
    report.target = column.target
    if column.role is Role.UNKNOWN:
        report.suggestions = names.nearest(report.header) if report.header.strip() else []
        report.confidence = SUGGESTED if report.suggestions else None
    else:
        report.confidence = CONFIDENCE.get(column.by or "")
        report.note = "left out: " + (column.note or column.by or "") if column.role is Role.IGNORED else None
    return report


def _note_shared_targets(columns: Sequence[ColumnReport]) -> None:
    """An import refuses two columns with one name or one target, so the table says which ones collide."""
    owners: dict[str, ColumnReport] = {}
    for column in columns:
        for key in {f"name {column.header}", f"target {column.target or column.index}"} if column.header else set():
            owner = owners.setdefault(key, column)
            if owner is not column:
                column.note = f"collides with column {owner.index + 1} ({owner.header})"


class _Tally:
    """Counts one column. A type stays possible until a cell does not fit it."""

    def __init__(self, header: str, index: int) -> None:
        self.report = ColumnReport(header, index)
        self._possible = list(TESTS)
        self._seen: set[int] = set()

    def add(self, text: str) -> None:
        report = self.report
        report.filled += 1
        report.longest = max(report.longest, len(text))
        if self._possible:
            self._possible = [kind for kind in self._possible if _fits(kind, text)]
        if len(report.samples) < SAMPLES and (shown := shorten(text)) not in report.samples:
            report.samples.append(shown)
        if len(self._seen) < MAX_DISTINCT:
            self._seen.add(hash(text))
        elif report.distinct_exact and hash(text) not in self._seen:
            report.distinct_exact = False

    def finish(self) -> ColumnReport:
        self.report.distinct = len(self._seen)
        if self.report.filled and self._possible:
            self.report.guessed_type = self._possible[0]
        elif (
            self.report.filled
            and self.report.distinct_exact
            and self.report.distinct <= 20
            and self.report.filled >= 5 * self.report.distinct
        ):
            self.report.guessed_type = "select"
        return self.report


def _fits(kind: str, text: str) -> bool:
    try:
        return bool(TESTS[kind](text))
    except RejectedError:
        return False
