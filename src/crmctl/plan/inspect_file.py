"""Inspect a file before it is imported."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from crmctl.bulk_context import BulkContext
from crmctl.dedupe.candidates import MatchCandidates
from crmctl.dedupe.merge_plan import GroupCounts, find_groups
from crmctl.dedupe.rules import FORMS, Field, MatchRule, MatchTerm, parse_rules, plain_words, said, usual_form
from crmctl.errors import RejectedError, UsageError
from crmctl.files.column_names import Names
from crmctl.files.mapping import Mode, Role, resolve_column
from crmctl.files.rows import Dialect, Row, Source
from crmctl.files.sources import open_source
from crmctl.frozen import frozen
from crmctl.models import jsontext
from crmctl.models.findings import SHOWN_VALUE_LENGTH, Finding, shorten
from crmctl.models.ids import check_choice, is_uuid, nearest
from crmctl.models.numbers import read_number
from crmctl.models.resources import Attribute, AttributeType, document_of
from crmctl.plan.job_start import temporary_input
from crmctl.plan.requests import ReadRequest, check_places, resolve_target, store_of
from crmctl.values.typed_text import read_checkbox, read_date, read_email, read_phone, select_reader

SHOWN_GROUPS = 10
LARGEST_GROUP = 10
"""The maximum number of rows in a group of duplicates. Values shared by more rows are ignored."""

MOST_TEXTS = 200
"""Different texts of a column that are compared with the options of its attribute."""

TELLING = (AttributeType.EMAIL, AttributeType.PHONE_NUMBER)
"""Column types that become a match rule each if the user gives no rules."""


@dataclass
class FileDuplicates:
    """Duplicate rows of a file: the number of groups, and of the rows that exceed one per group."""

    match: Sequence[str]
    groups: int = 0
    rows: int = 0
    by_rule: dict[str, int] = field(default_factory=dict)
    examples: list[dict[str, Any]] = field(default_factory=list)


def count_duplicates(source: Source, columns: Sequence[ColumnReport], match: Sequence[str]) -> FileDuplicates:
    """Read the file again and compare its rows in constant memory. Raises UsageError for invalid rules."""
    by_header = {column.header: column for column in columns[::-1] if column.header}  # the first of several with one name
    attributes = [Attribute(id=name, slug=name, type=column.guessed_type) for name, column in by_header.items()][::-1]
    rules = parse_rules(match, attributes, "") if match else _usual_rules(attributes)
    duplicates = FileDuplicates([rule.said for rule in rules])
    if not rules:
        return duplicates
    with MatchCandidates(rules, LARGEST_GROUP) as candidates:
        for row in source.rows():
            if row.problem is None:
                cells = row.value if row.value is not None else dict(zip(source.header[::-1], row.cells[::-1], strict=True))
                candidates.add(str(row.first_line), cells)
        candidates.compare()
        for group in find_groups(candidates, GroupCounts(), LARGEST_GROUP):
            duplicates.groups += 1
            duplicates.rows += len(group.members) - 1
            texts = list(dict.fromkeys(rules[pair.rule].text for pair in group.pairs))
            for text in texts:
                duplicates.by_rule[text] = duplicates.by_rule.get(text, 0) + 1
            if len(duplicates.examples) < SHOWN_GROUPS:
                lines = [int(candidates.record(member)[0]) for member in group.members]
                duplicates.examples.append({"lines": lines, "rules": texts, "score": group.score})
    return duplicates


def _usual_rules(columns: Sequence[Attribute]) -> tuple[MatchRule, ...]:
    """Return a rule for each column of e-mail addresses or phone numbers; without such a column, one that compares all columns."""
    telling = [column for column in columns if column.type in TELLING]
    if telling or not columns:
        return tuple(MatchRule(column.slug, (MatchTerm((Field(column.slug),), usual_form(column, "")),)) for column in telling)
    return (MatchRule("all columns", (MatchTerm(tuple(Field(column.slug) for column in columns), _ALL),)),)


_ALL = replace(FORMS["text"], read=lambda value: plain_words(said(value)) or None)
"""Compares all values as text, even placeholders such as `n/a` and 000."""

MAX_DISTINCT = 1000
MAX_COLUMNS = 2000
SHOWN_SAMPLES = 3
SHOWN_PROBLEMS = 20
CONFIDENCE = {"slug": 1.0, "name": 0.95, "folded": 0.9, "record field": 1.0, "result column": 1.0}
SUGGESTED = 0.5
"""Confidence of a suggestion. An import uses a suggestion only with `--map`."""

_TELLING_PHONE = re.compile(r"\s*(?:\+|00|\()[0-9]")


@frozen(kw_only=True)
class InspectRequest(ReadRequest):
    """A request to inspect a file.

    With an object, crmctl maps the columns for an import in the given mode. With `duplicates` or `match` rules, which name columns, it
    compares the rows.
    """

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
"""Tests that recognise the type of a text. A test returns False or raises RejectedError for other text. Numbers have no leading zeros."""


@dataclass
class ColumnReport:
    """The content and target of one column. `distinct` stops counting at 1,000; `distinct_exact` is then False."""

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
    values: dict[str, str] = field(default_factory=dict)
    """Texts that are no option of the attribute, and the option that each resembles."""
    note: str | None = None
    reference: str | None = None
    """The `--ref` that finds the records of this column."""


@dataclass
class InspectReport:
    """The result of an inspection."""

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
        """The columns an import would refuse without `--map` or `--ignore-unknown`."""
        return [column for column in self.columns if column.target is None and column.note is None]

    @property
    def map_arguments(self) -> list[str]:
        """`COLUMN=SLUG` for each unknown column with a suggestion. Each target is used at most once, whole or by its parts."""
        used = {column.target for column in self.columns if column.target}
        pairs = []
        for column in self.unknown:
            best = next((slug for slug in column.suggestions if not any(_overlap(slug, other) for other in used)), None)
            if best is not None:
                used.add(best)
                pairs.append(f"{column.header}={best}")
        return pairs

    @property
    def value_arguments(self) -> list[str]:
        return [f"{column.header}:{text}={option}" for column in self.columns for text, option in column.values.items()]

    def import_arguments(self) -> list[str]:
        """Return the options that let an import read every column; columns of an unknown meaning are left out."""
        named = {pair.rpartition("=")[0] for pair in self.map_arguments}
        left_out = [column for column in self.unknown if column.header not in named]
        pairs = [*self.map_arguments, *(f"{column.header if column.header.strip() else f'#{column.index + 1}'}=" for column in left_out)]
        references = [column.reference for column in self.columns if column.reference is not None]
        options = {"--map": pairs, "--ref": references, "--value": self.value_arguments}
        return [word for option, texts in options.items() for text in texts for word in (option, text)]

    def column_documents(self) -> list[dict[str, Any]]:
        names = "column position filled fill_rate distinct distinct_exact longest type samples target confidence suggestions values note"
        return [
            document_of(
                column, names, column=column.header, position=column.index + 1, type=column.guessed_type,
                fillRate=round(column.filled / self.rows, 4) if self.rows else 0.0,
            )
            for column in self.columns
        ]  # fmt: skip

    def to_document(self) -> dict[str, Any]:
        names = "file dialect rows blank_lines columns unknown map value problems findings"
        document = document_of(
            self, names, file=self.name, dialect=self.dialect.to_document(), columns=self.column_documents(),
            unknown=[column.header for column in self.unknown], map=self.map_arguments, value=self.value_arguments,
            findings=[finding.to_document() for finding in self.findings],
        )  # fmt: skip
        if self.duplicates is not None:
            document["duplicates"] = document_of(self.duplicates, "match groups rows by_rule examples")
        return document


def inspect_file(context: BulkContext, request: InspectRequest) -> InspectReport:
    """Inspect the requested file. Raises UsageError for an unreadable file and NotFoundError for an unknown object."""
    check_choice("--mode", request.mode, tuple(Mode))
    check_places(None, request.file)
    attributes = resolve_target(context, request.object).attributes if request.object is not None else None
    with temporary_input(store_of(context), request.file, context.stdin) as source:
        report = inspect(open_source(source.path, request.source(), name=request.file), attributes, mode=Mode(request.mode))
        _propose_references(context, report.columns, attributes or ())
        if request.duplicates or request.match:
            again = open_source(source.path, request.source(), name=request.file)
            report.duplicates = count_duplicates(again, report.columns, request.match)
        return report


def _propose_references(context: BulkContext, columns: Sequence[ColumnReport], attributes: Sequence[Attribute]) -> None:
    """Set the `--ref` of columns that fill references with other texts than ids."""
    references = {attribute.slug: attribute for attribute in attributes if attribute.type == AttributeType.REFERENCE}
    for column in columns:
        if column.target not in references or not column.samples or any(is_uuid(text.strip()) for text in column.samples):
            continue
        key, object_id = "OBJECT.KEY", references[column.target].target_object_id
        if object_id is not None:
            parent = context.directory.object(object_id)
            types = {attribute.slug: attribute.type for attribute in context.directory.attributes(parent)}
            email = next((slug for slug, kind in types.items() if kind == AttributeType.EMAIL == column.guessed_type), None)
            has_domains = "domain" in types and all("." in text and " " not in text for text in column.samples)
            key = f"{parent.slug}.{email or ('domain' if has_domains else 'name' if 'name' in types else 'KEY')}"
        column.reference = f"{column.target}={key}"
        column.note = column.note or f"no ids: --ref {column.reference} finds the records"


def inspect(source: Source, attributes: Sequence[Attribute] | None = None, *, mode: Mode = Mode.CREATE) -> InspectReport:
    """Read the whole file once in constant memory. Without `attributes`, no mapping is proposed. Raises UsageError and RejectedError."""
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
    if column.attribute is not None and column.attribute.type == AttributeType.SELECT:
        report.values = _near_options(column.attribute, tally.texts)
    return report


def _overlap(target: str, other: str) -> bool:
    """Whether two targets are equal, or one is a part of the other."""
    return target == other or target.startswith(f"{other}.") or other.startswith(f"{target}.")


def _near_options(attribute: Attribute, texts: Iterable[str]) -> dict[str, str]:
    read, near = select_reader(attribute.options), {}
    for text in texts:
        try:
            read(text)
        except RejectedError:
            if (option := nearest(text, attribute.options)) is not None:
                near[text] = option
    return near


def _note_shared_targets(columns: Sequence[ColumnReport]) -> None:
    """Note columns that share a name or a target, because an import refuses them."""
    owners: dict[str, ColumnReport] = {}
    for column in columns:
        for key in {f"name {column.header}", f"target {column.target or column.index}"} if column.header else set():
            owner = owners.setdefault(key, column)
            if owner is not column:
                column.note = f"collides with column {owner.index + 1} ({owner.header})"


class _Tally:
    """Collects the statistics of one column. A type remains possible until a cell does not fit it."""

    def __init__(self, header: str, index: int) -> None:
        self.report = ColumnReport(header, index)
        self._possible = list(TESTS)
        self._seen: set[int] = set()
        self.texts: dict[str, None] = {}
        """The first different texts."""

    def add(self, text: str) -> None:
        report = self.report
        report.filled += 1
        report.longest = max(report.longest, len(text))
        if self._possible:
            self._possible = [kind for kind in self._possible if _fits(kind, text)]
        if len(report.samples) < SHOWN_SAMPLES and (shown := shorten(text)) not in report.samples:
            report.samples.append(shown)
        if len(self.texts) < MOST_TEXTS and len(text) <= SHOWN_VALUE_LENGTH:
            self.texts[text] = None
        if len(self._seen) < MAX_DISTINCT:
            self._seen.add(hash(text))
        elif report.distinct_exact and hash(text) not in self._seen:
            report.distinct_exact = False

    def finish(self) -> ColumnReport:
        report = self.report
        report.distinct = len(self._seen)
        if report.filled and self._possible:
            report.guessed_type = self._possible[0]
        elif report.filled and report.distinct_exact and report.distinct <= 20 and report.filled >= 5 * report.distinct:
            report.guessed_type = "select"
        return report


def _fits(kind: str, text: str) -> bool:
    try:
        return bool(TESTS[kind](text))
    except RejectedError:
        return False
