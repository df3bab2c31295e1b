"""Check every row of a file and group payloads into batches."""

from __future__ import annotations

import hashlib
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Mapping as MappingOf
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import accumulate, islice, repeat
from operator import itemgetter
from typing import Any, NamedTuple

from crmctl.client.session import encode_json
from crmctl.files.cell_values import ValueOptions
from crmctl.files.mapping import Mapping
from crmctl.files.payloads import RowBuilder, RowEncoder, Seen, can_encode
from crmctl.files.rows import Row, Source
from crmctl.frozen import frozen
from crmctl.models import jsontext
from crmctl.models.findings import Finding, Severity
from crmctl.models.jsontext import Json
from crmctl.models.resources import BULK_LIMIT, Attribute
from crmctl.values.composites import NO_PARTS, Parts

DEFAULT_BYTES = 1_000_000
"""Most bytes of encoded records in one request. A larger record is sent alone."""


class Entry(NamedTuple):
    """One row of a batch: its ordinal, the record as JSON for the bulk call, and the record's id if sent.

    It also serves as a valid row without findings.
    """

    ordinal: int
    encoded: bytes
    id: str | None = None

    @classmethod
    def of(cls, ordinal: int, data: MappingOf[str, Any], record_id: str | None = None) -> Entry:
        return cls(ordinal, encode_json({"data": data} if record_id is None else {"data": data, "id": record_id}), record_id)

    @property
    def data(self) -> Json:
        data: Json = jsontext.loads(self.encoded)["data"]
        return data

    @property
    def findings(self) -> Sequence[Finding]:
        return ()


NEW_ENTRY: Callable[[tuple[Any, ...]], Entry] = partial(tuple.__new__, Entry)
"""Takes half the time of calling Entry."""


@frozen
class Batch:
    """At most 100 records in input order, sent in one request."""

    entries: tuple[Entry, ...]

    def __len__(self) -> int:
        return len(self.entries)

    @cached_property
    def ordinals(self) -> list[int]:
        return [entry.ordinal for entry in self.entries]

    @cached_property
    def records(self) -> list[bytes]:
        return [entry.encoded for entry in self.entries]

    @cached_property
    def size(self) -> int:
        """Bytes of the encoded records."""
        return sum(len(entry.encoded) for entry in self.entries)

    @cached_property
    def digest(self) -> bytes:
        return hashlib.blake2b(b"\n".join(self.records), digest_size=16).digest()

    def halves(self) -> tuple[Batch, Batch]:
        middle = len(self.entries) // 2
        return Batch(self.entries[:middle]), Batch(self.entries[middle:])


def entry_of(row: SendableRow, *, with_id: bool, target: str | None = None) -> Entry:
    """Return the record of a row for the bulk call. Only upserts (`with_id`) send an id.

    `target` is the id for a row without one.
    """
    entry = row if isinstance(row, Entry) else Entry.of(row.ordinal, row.data)
    if with_id and (record_id := row.id or target):
        return Entry(row.ordinal, b'%s,"id":%s}' % (entry.encoded[:-1], encode_json(record_id)), record_id)
    return entry


class Batcher:
    """Splits entries into batches. A batch is complete when the next entry does not fit."""

    def __init__(self, max_rows: int = BULK_LIMIT, max_bytes: int = DEFAULT_BYTES) -> None:
        self.max_rows = max_rows
        self.max_bytes = max_bytes
        self._entries: list[Entry] = []

    def full(self, entries: Iterable[Entry]) -> Iterator[Batch]:
        """Add entries, and yield the batches that are complete."""
        entries = iter(entries)
        while more := list(islice(entries, self.max_rows + 1 - len(self._entries))):
            self._entries += more
            while (fitting := self._fitting()) < len(self._entries):
                batch, self._entries = self._entries[:fitting], self._entries[fitting:]
                yield Batch(tuple(batch))

    def _fitting(self) -> int:
        """Return the number of waiting entries that fit into one batch."""
        sizes = accumulate(map(len, map(itemgetter(1), self._entries[: self.max_rows])))
        return max(1, bisect([*sizes], self.max_bytes))

    def batches(self, entries: Iterable[Entry]) -> Iterator[Batch]:
        """Yield all batches, including the rest."""
        yield from self.full(entries)
        if (last := self.flush()) is not None:
            yield last

    def flush(self) -> Batch | None:
        """Return the remaining entries as a batch, or None."""
        batch = Batch(tuple(self._entries)) if self._entries else None
        self._entries = []
        return batch


MAX_FINDINGS = 1000
MAX_UNKNOWN_OPTIONS = 100


class Payload(NamedTuple):
    """A row to send, unless a finding rejects it; then `data` must not be used.

    `parts` are values that an update gives only in part. `data` has such values as in a new record.
    """

    ordinal: int
    first_line: int
    last_line: int
    data: Json
    id: str | None
    findings: list[Finding]
    row: Row
    clears: int = 0
    parts: MappingOf[str, Parts] = NO_PARTS

    @property
    def rejected(self) -> bool:
        return any(finding.rejects for finding in self.findings)


SendableRow = Payload | Entry
"""A checked row."""


@dataclass
class ValidationReport:
    """The result of reading a whole file.

    `findings` holds the first findings; `counts` by code covers all. `clears` counts attributes cleared by blank cells.
    `unknown_options` counts values that match no option, by column. `dates` lists the columns whose day and month can be swapped.
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
    unknown_options: dict[str, Counter[str]] = field(default_factory=dict)
    dates: dict[str, Json] = field(default_factory=dict)

    def add(self, finding: Finding) -> None:
        self.counts[finding.code] += 1
        self.is_fatal = self.is_fatal or finding.severity is Severity.FATAL
        self.warnings += finding.severity is Severity.WARNING
        if len(self.findings) < MAX_FINDINGS:
            self.findings.append(finding)
        if finding.code == "unknown_option" and finding.column is not None and finding.value is not None:
            values = self.unknown_options.setdefault(finding.column, Counter())
            if finding.value in values or len(values) < MAX_UNKNOWN_OPTIONS:
                values[finding.value] += 1

    def reject(self, finding: Finding) -> None:
        """Count a row as rejected although it was valid alone."""
        self.valid -= 1
        self.rejected += 1
        self.add(finding)

    def to_document(self) -> Json:
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
    """Yield every data row in input order, typed and checked, with findings about duplicates of earlier rows.

    Raises UsageError for undecodable bytes, RejectedError if reading cannot continue (a broken JSON array, a huge record).
    """
    return _payloads(source, RowBuilder(mapping, attributes, options))


def encoded_payloads(source: Source, mapping: Mapping, attributes: Sequence[Attribute], options: ValueOptions) -> Iterator[Payload | Entry]:
    """Yield payloads, with only encoded entries for most rows without findings."""
    builder = RowBuilder(mapping, attributes, options)
    if not source.dialect.format.is_delimited or not can_encode(builder):
        yield from _payloads(source, builder)
        return
    encoder = RowEncoder(builder, len(source.header))
    unique = builder.unique
    with Seen() as seen:
        for block in source.blocks():
            records = encoder.encode(block.cells())
            if not unique and None not in records:
                yield from map(NEW_ENTRY, zip(block.ordinals, records, repeat(None)))
                continue
            for row, encoded in zip(block.rows(), records, strict=True):
                if encoded is None:
                    yield _payload(row, builder, seen)
                elif unique and (findings := _duplicates(seen, unique, encoder.values(row.cells, unique), row)):
                    yield Payload(row.ordinal, row.first_line, row.last_line, Entry(row.ordinal, encoded).data, None, findings, row)
                else:
                    yield Entry(row.ordinal, encoded)


def validate(
    source: Source,
    builder: RowBuilder,
    report: Callable[[Finding], object] = lambda _: None,
    each: Callable[[Payload], object] = lambda _: None,
    translate: Callable[[Iterator[Payload]], Iterator[Payload]] = iter,
) -> ValidationReport:
    """Read the whole file once and return a report. `report` hears every finding, `each` every row; `translate` may change the rows."""
    result = ValidationReport()
    for payload in translate(_payloads(source, builder)):
        result.rows += 1
        each(payload)
        result.clears += payload.clears
        for finding in payload.findings:
            result.add(finding)
            report(finding)
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


def _duplicates(seen: Seen, unique: Sequence[str], data: Json, row: Row) -> list[Finding]:
    findings = []
    for slug in unique:
        value = data.get(slug)
        if value not in (None, "", [], {}) and (line := seen.first_line(slug, value, row.first_line)) is not None:
            findings.append(_duplicate("duplicate_value", slug, line, row).on(slug, value))
    return findings


def _duplicate(code: str, column: str, line: int, row: Row) -> Finding:
    message = f"{column} must be unique, and line {line} has the same value"
    return Finding(code, message, hint="keep one of the two rows").at(row.ordinal, row.first_line, row.last_line)
