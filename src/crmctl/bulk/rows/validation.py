"""Every row of a file, typed and checked before anything is sent: `payloads` for the writer, `validate` for the report.

What a row becomes is a function of the input, the mapping, the schema and the options only, so a second pass gives the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Mapping as MappingOf
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from crmctl.bulk.findings import Finding, Severity
from crmctl.bulk.rows.batches import Entry
from crmctl.bulk.rows.cell_values import ValueOptions
from crmctl.bulk.rows.mapping import Mapping
from crmctl.bulk.rows.record_builder import RowBuilder
from crmctl.bulk.rows.row_encoder import RowEncoder, can_encode
from crmctl.bulk.rows.unique_values import Seen
from crmctl.bulk.sources.rows import Row, Source
from crmctl.models.attributes import Attribute
from crmctl.models.composites import NO_PARTS, Parts

BLOCK_ROWS = 500
EXAMPLES = 5
MAX_FINDINGS = 1000
MAX_UNKNOWN_OPTIONS = 100


class Payload(NamedTuple):
    """A row as it will be sent. With a finding that rejects, it will not be: `data` is then not to be used.

    `parts` are what it says of values of the record it updates, and does not give whole; `data` has these as a new record would."""

    ordinal: int
    first_line: int
    last_line: int
    data: dict[str, Any]
    id: str | None
    findings: list[Finding]
    row: Row
    clears: int = 0
    parts: MappingOf[str, Parts] = NO_PARTS

    @property
    def rejected(self) -> bool:
        return any(finding.rejects for finding in self.findings)


@dataclass
class ValidationReport:
    """The outcome of reading a whole file.

    `findings` holds the first ones (`counts` and `examples` by code count them all); `clears` attributes cleared by blank cells;
    `unknown_options` counts what fits no option, by column; `dates` tells where day and month can be swapped.
    """

    rows: int = 0
    valid: int = 0
    rejected: int = 0
    warnings: int = 0
    blank_lines: int = 0
    clears: int = 0
    updates: int = 0
    is_fatal: bool = False
    findings: list[Finding] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[Finding]] = field(default_factory=dict)
    unknown_options: dict[str, Counter[str]] = field(default_factory=dict)
    dates: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, finding: Finding, max_findings: int) -> None:
        self.counts[finding.code] += 1
        self.is_fatal = self.is_fatal or finding.severity is Severity.FATAL
        self.warnings += finding.severity is Severity.WARNING
        if len(self.findings) < max_findings:
            self.findings.append(finding)
        examples = self.examples.setdefault(finding.code, [])
        if len(examples) < EXAMPLES:
            examples.append(finding)
        if finding.code == "unknown_option" and finding.column is not None and finding.value is not None:
            values = self.unknown_options.setdefault(finding.column, Counter())
            if finding.value in values or len(values) < MAX_UNKNOWN_OPTIONS:
                values[finding.value] += 1

    def reject(self, finding: Finding) -> None:
        """Count a row as rejected that was valid by itself."""
        self.valid -= 1
        self.rejected += 1
        self.add(finding, MAX_FINDINGS)

    def to_document(self) -> dict[str, Any]:
        """The JSON form, every key always present."""
        return {
            "rows": self.rows,
            "valid": self.valid,
            "rejected": self.rejected,
            "updates": self.updates,
            "blankLines": self.blank_lines,
            "clears": self.clears,
            "warnings": self.warnings,
            "counts": dict(self.counts),
            "unknownOptions": {column: dict(values.most_common()) for column, values in self.unknown_options.items()},
            "dates": self.dates,
            "findings": [finding.to_document() for finding in self.findings],
        }


def payloads(source: Source, mapping: Mapping, attributes: Sequence[Attribute], options: ValueOptions) -> Iterator[Payload]:
    """Every data row in input order, typed and checked; the findings of a row include duplicates of earlier rows.

    Raises UsageError for bytes that cannot be decoded, RejectedError where reading cannot go on (a broken JSON array, a huge record).
    """
    return _payloads(source, RowBuilder(mapping, attributes, options))


def encoded_payloads(source: Source, mapping: Mapping, attributes: Sequence[Attribute], options: ValueOptions) -> Iterator[Payload | Entry]:
    """The same, for those who want no more of rows without findings than the record that is sent: most of them come as that only."""
    builder = RowBuilder(mapping, attributes, options)
    if not source.dialect.format.is_delimited or not can_encode(builder):
        yield from _payloads(source, builder)
        return
    encoder = RowEncoder(builder, len(source.header))
    new = tuple.__new__  # half the time of calling Entry
    unique = builder.unique
    with Seen() as seen:
        rows = source.rows()
        while block := list(islice(rows, BLOCK_ROWS)):
            for row, encoded in zip(block, encoder.encode(block), strict=True):
                if encoded is None:
                    yield _payload(row, builder, seen)
                elif unique and (found := _duplicates(seen, unique, encoder.values(row.cells, unique), row)):
                    yield Payload(row.ordinal, row.first_line, row.last_line, Entry(row.ordinal, encoded).data, None, found, row)
                else:
                    yield new(Entry, (row.ordinal, encoded, None))


@dataclass(frozen=True)
class Heard:
    """Who hears of every finding as it is made, and of every row; the report keeps the first `kept` findings."""

    finding: Callable[[Finding], object] = lambda _: None
    row: Callable[[Payload], object] = lambda _: None
    kept: int = MAX_FINDINGS


def validate(
    source: Source, builder: RowBuilder, heard: Heard = Heard(), translate: Callable[[Iterator[Payload]], Iterator[Payload]] = iter
) -> ValidationReport:
    """Read the whole file once and report. `translate` may still change what is made of the rows."""
    result = ValidationReport()
    for payload in translate(_payloads(source, builder)):
        result.rows += 1
        heard.row(payload)
        result.clears += payload.clears
        for finding in payload.findings:
            result.add(finding, heard.kept)
            heard.finding(finding)
        if payload.findings and payload.rejected:
            result.rejected += 1
        else:
            result.valid += 1
            result.updates += payload.id is not None
    result.blank_lines = source.blank_lines
    result.dates = {column: watch.to_document() for column, watch in builder.date_watches.items() if watch.tells}
    return result


def _payloads(source: Source, builder: RowBuilder) -> Iterator[Payload]:
    with Seen() as seen:
        for row in source.rows():
            yield _payload(row, builder, seen)


def _payload(row: Row, builder: RowBuilder, seen: Seen) -> Payload:
    data, record_id, findings, clears, parts = builder.build(row)
    if builder.unique:
        findings += _duplicates(seen, builder.unique, data, row)
    if record_id is not None and (line := seen.first_line("\0id", record_id, row.first_line)) is not None:
        findings.append(_duplicate("duplicate_id", "id", line, row).on("id", record_id))
    return Payload(row.ordinal, row.first_line, row.last_line, data, record_id, findings, row, clears, parts)


def _duplicates(seen: Seen, unique: Sequence[str], data: dict[str, Any], row: Row) -> list[Finding]:
    found = []
    for slug in unique:
        value = data.get(slug)
        if value not in (None, "", [], {}) and (line := seen.first_line(slug, value, row.first_line)) is not None:
            found.append(_duplicate("duplicate_value", slug, line, row).on(slug, value))
    return found


def _duplicate(code: str, column: str, line: int, row: Row) -> Finding:
    message = f"{column} must be unique, and line {line} has the same value"
    return Finding(code, message, hint="keep one of the two rows").at(row.ordinal, row.first_line, row.last_line)
