"""One row to the data of one record: reads its cells by the mapping, joins the parts of composites, checks what is required.

A row is built from itself alone, except that column watches remember what they saw. Duplicates and counting are validation's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from crmctl.bulk.findings import Finding
from crmctl.bulk.rows.cell_values import (
    KEEPS_TEXT,
    ValueOptions,
    doubt_about,
    finding_of,
    is_blank,
    merger_of,
    text_reader,
    value_reader,
)
from crmctl.bulk.rows.format_inference import DateWatch, NumberWatch
from crmctl.bulk.rows.mapping import MappedColumn, Mapping, Mode, Role
from crmctl.bulk.rows.phones import phone_doubt
from crmctl.bulk.sources.rows import Row
from crmctl.errors import RejectedError, UsageError
from crmctl.models.assignments import part_value
from crmctl.models.attribute_types import Trait, types_with
from crmctl.models.attributes import Attribute, AttributeType
from crmctl.models.composites import Form, is_bare_amount, part_name
from crmctl.models.ids import is_uuid
from crmctl.models.numbers import check_numbers
from crmctl.models.typed_text import Reader

SCALARS = types_with(Trait.SCALAR)
MEMO_CELLS, MEMO_LENGTH = 4096, 40
"""How many texts of a column are remembered with their values, and how long they may be: columns repeat themselves, memory stays flat."""


class Built(NamedTuple):
    """The record of a row: wire data, id (upsert), findings, how many attributes are cleared by blank cells, and what it says of values
    that it does not give whole; its data has these as a new record would."""

    data: dict[str, Any]
    id: str | None
    findings: list[Finding]
    clears: int
    parts: dict[str, dict[str, Any]] = {}  # noqa: RUF012 - never changed


class Cell(NamedTuple):
    """How one column is read: `read_text` a cell, `read` any JSON value. `after_good(text, value)` and `after_bad(text, code)` see every
    text and may add a finding; `is_odd(text)` tells whether `after_good` may add one. Where a value can be shared and not every text has to
    be seen, `memo` has some texts and their values. `clears` tells whether a blank cell empties the attribute.
    """

    column: MappedColumn
    place: int
    attribute: Attribute
    slug: str
    part: str | None
    read_text: Reader
    read: Callable[[Any], Any]
    after_good: Callable[[str, Any], Finding | None] | None
    after_bad: Callable[[str, str], Finding | None] | None
    dates: DateWatch | None
    is_memorable: bool
    memo: dict[str, Any]
    is_odd: Callable[[str], object] | None
    clears: bool
    splits_amounts: bool = False
    """Whether an amount without a currency is only a part of the value."""


class RowBuilder:
    """Builds the rows of one file. Raises UsageError for two columns that fill the same part, RejectedError for a bad date format."""

    def __init__(self, mapping: Mapping, attributes: Sequence[Attribute], options: ValueOptions) -> None:
        self._mapping = mapping
        self.unique = [attribute.slug for attribute in attributes if attribute.is_unique and attribute.is_active is not False]
        self._options = options
        self.constants, self.constant_parts = mapping.constants, mapping.constant_parts
        self._merger = merger_of(attributes, options)
        self._forms = self._merger.forms
        self._may_update = mapping.mode is not Mode.CREATE
        self._may_create = mapping.mode is not Mode.UPDATE
        self._whole_constants = {slug: value for slug, value in mapping.constants.items() if slug not in mapping.constant_parts}
        self.required = [attribute for attribute in attributes if attribute.is_required and attribute.is_active is not False]
        self.blanks = frozenset({"", *options.null_strings, *options.clear_tokens})
        self._cells_of: dict[str, Cell] = {}
        self.id_column = next((column for column in mapping.columns if column.role is Role.RECORD_ID), None)
        self.cells = [self._cell(column) for column in mapping.columns if column.role is Role.ATTRIBUTE]
        self._loop = [(cell, cell.place, cell.slug, cell.memo) for cell in self.cells]
        self._headers = {cell.slug: cell.column.label for cell in self.cells}
        targets = [(cell.slug, cell.part) for cell in self.cells]
        for target in targets:
            if targets.count(target) > 1:
                raise UsageError(
                    f"two columns fill {target[0]}.{target[1]}", hint="leave one out: --map 'COLUMN='", code="duplicate_target"
                )

    @property
    def clears_blanks(self) -> bool:
        """Whether a cell may empty an attribute."""
        return bool(self._options.clear_tokens) or any(cell.clears for cell in self.cells)

    @property
    def date_watches(self) -> dict[str, DateWatch]:
        """By column label, the watches of date columns."""
        return {cell.column.label: cell.dates for cell in self.cells if cell.dates is not None}

    def build(self, row: Row) -> Built:
        """The record of one row. A row with an error has findings that say so; its data is then not to be used."""
        if row.problem is not None:
            return Built({}, None, [row.problem], 0)
        work = _Work(dict(self._whole_constants), {slug: dict(parts) for slug, parts in self.constant_parts.items()})
        record_id = None
        if row.value is None:
            self._from_cells(work, row.cells)
            if self.id_column is not None:
                record_id = self._record_id(work, row.cells[self.id_column.index or 0], self.id_column.label)
        else:
            record_id = self._from_object(work, row.value)
        is_update = self._may_update and (record_id is not None or bool(self._mapping.keys) or not self._may_create)
        for slug, parts in work.parts.items():
            self._make_new(work, slug, parts, is_update=is_update)
        self._check_required(work, is_update=is_update)
        if len(work.data) <= len(self._mapping.constants) and not work.findings and record_id is None:
            work.findings.append(Finding("empty_row", "every cell is empty, so there is nothing to write", hint="delete the row"))
        findings = [finding.at(row.ordinal, row.first_line, row.last_line) for finding in work.findings] if work.findings else work.findings
        return Built(work.data, record_id, findings, work.clears, work.parts if is_update else {})

    def _make_new(self, work: _Work, slug: str, parts: dict[str, Any], *, is_update: bool) -> None:
        """The value that parts make in a new record. An update may still find there what is missing."""
        try:
            value = self._merger.merge(slug, parts, None)
        except RejectedError as error:
            value = next(iter(parts.values()))
            if not is_update:
                work.refused.add(slug)
                work.findings.append(finding_of(error).on(self._headers.get(slug, slug), value))
        work.data[slug] = value
        work.clears += value is None

    def _cell(self, column: MappedColumn) -> Cell:
        attribute = column.attribute
        if attribute is None:
            raise ValueError(f"the column {column.label} fills no attribute")
        slug, form = attribute.slug, self._forms[attribute.slug]
        rules, clears = self._options.rules_for(column.header, slug), self._options.clears(column.header, slug)
        read = value_reader(attribute, rules, form)
        read_text: Reader = read if attribute.is_list else text_reader(attribute, rules, form)
        part = None
        if column.part is not None:
            part, read = self._part_reader(attribute, column.part, form)
            read_text = read
        after_good: Callable[[str, Any], Finding | None] | None = None
        after_bad: Callable[[str, str], Finding | None] | None = None
        is_odd: Callable[[str], object] | None = None
        dates = None
        if attribute.type in KEEPS_TEXT:
            after_good, is_odd = doubt_about, doubt_about
        elif attribute.type == AttributeType.PHONE_NUMBER and part is None and not attribute.is_list:
            after_good = is_odd = phone_doubt(rules.region)
        elif attribute.type in (AttributeType.NUMBER, AttributeType.CURRENCY) and not rules.decimal_comma:
            numbers = NumberWatch()
            after_good, after_bad, is_odd = numbers.see_good, numbers.see_bad, numbers.is_news
        elif attribute.type == AttributeType.DATE and not attribute.is_list:
            dates = DateWatch()
            after_good, after_bad = (None, dates.see_bad) if rules.date_format is None else (dates.see_good, None)
            is_odd = _never
        memorable = part is None and attribute.type in SCALARS and not attribute.is_list and (dates is None or after_good is None)
        place = column.index or 0
        splits = part is None and attribute.type == AttributeType.CURRENCY and not attribute.is_list and self._asks_currency(form)
        memorable = memorable and not splits
        return Cell(
            column, place, attribute, slug, part, read_text, read, after_good, after_bad, dates, memorable, {}, is_odd, clears, splits
        )

    def _asks_currency(self, form: Form) -> bool:
        """Whether an amount alone is not all of the value: its record may have a currency, or it is to get one."""
        return self._may_update or self._options.currency is not None or (bool(form.keys) and not form.plain)

    @staticmethod
    def _part_reader(attribute: Attribute, part: str, form: Form) -> tuple[str, Callable[[Any], Any]]:
        name = part_name(attribute, part, form)

        def read(value: Any) -> Any:
            if isinstance(value, str):
                return part_value(attribute, name, value)
            check_numbers(value)
            return value

        return name, read

    def _from_cells(self, work: _Work, cells: list[str]) -> None:
        """Read the cells of a delimited row: the loop that an import spends its time in."""
        data, blanks = work.data, self.blanks
        for cell, place, slug, memo in self._loop:
            text = cells[place]
            if text in memo:
                data[slug] = memo[text]
            elif text in blanks:
                self._blank(work, cell, text)
            else:
                self._read_cell(work, cell, text)

    def _read_cell(self, work: _Work, cell: Cell, text: str) -> None:
        try:
            wire = cell.read_text(text)
        except RejectedError as error:
            self._refuse(work, cell, text, error)
            return
        if cell.after_good is not None and (doubt := cell.after_good(text, wire)) is not None:
            work.findings.append(doubt.on(cell.column.label, text))
        elif cell.is_memorable and len(cell.memo) < MEMO_CELLS and len(text) <= MEMO_LENGTH:
            cell.memo[text] = wire
        self._keep(work, cell, wire)

    @staticmethod
    def _keep(work: _Work, cell: Cell, wire: Any) -> None:
        if cell.part is not None:
            work.parts.setdefault(cell.slug, {})[cell.part] = wire
        elif cell.splits_amounts and is_bare_amount(cell.attribute, wire):
            work.parts[cell.slug] = {"amount": wire}
        else:
            work.data[cell.slug] = wire

    def _fill(self, work: _Work, cell: Cell, value: Any) -> None:
        """Read one JSON value into the record, or note what is wrong with it."""
        is_text = isinstance(value, str)
        if value is None or (is_text and value in self.blanks):
            self._blank(work, cell, value)
            return
        try:
            wire = cell.read(value)
        except RejectedError as error:
            self._refuse(work, cell, value, error)
            return
        if is_text and cell.after_good is not None and (doubt := cell.after_good(value, wire)) is not None:
            work.findings.append(doubt.on(cell.column.label, value))
        self._keep(work, cell, wire)

    def _blank(self, work: _Work, cell: Cell, value: Any) -> None:
        if not cell.clears and value not in self._options.clear_tokens:
            return
        if cell.part is None:
            work.data[cell.slug] = None
            work.clears += 1
        else:
            work.parts.setdefault(cell.slug, {})[cell.part] = None

    def _refuse(self, work: _Work, cell: Cell, value: Any, error: RejectedError) -> None:
        if is_blank(value, cell.attribute, self._options):
            self._blank(work, cell, value)
            return
        label = cell.column.label
        work.refused.add(cell.slug)
        work.findings.append(finding_of(error).on(label, value))
        if isinstance(value, str) and cell.after_bad is not None and (more := cell.after_bad(value, error.code)) is not None:
            work.findings.append(more.on(label, value))

    def _from_object(self, work: _Work, value: dict[str, Any]) -> str | None:
        """Read a JSON record; its keys may differ from record to record."""
        record_id = None
        for key, item in value.items():
            try:
                column = self._mapping.column_of(key)
            except UsageError as error:
                work.findings.append(Finding(error.code, error.message, hint=error.hint).on(key, item))
                continue
            if column.role is Role.RECORD_ID:
                record_id = self._record_id(work, item, key)
            elif column.role is Role.UNKNOWN and not self._mapping.ignore_unknown:
                near = self._mapping.names.nearest(key)
                parts = self._mapping.names.parts_of(key)
                hint = f"--map '{key}=' leaves it out, --ignore-unknown all such keys"
                if parts or near:
                    hint = f"its parts: {', '.join(parts)}" if parts else f"nearest: {', '.join(near)}"
                work.findings.append(Finding("unknown_column", f"there is no attribute for the key {key!r}", hint=hint).on(key, item))
            elif column.role is Role.ATTRIBUTE:
                self._fill_key(work, column, key, item)
        return record_id

    def _fill_key(self, work: _Work, column: MappedColumn, key: str, item: Any) -> None:
        cell = self._cells_of.get(key)
        if cell is None:
            cell = self._cells_of[key] = next((known for known in self.cells if known.column is column), None) or self._cell(column)
            self._headers.setdefault(cell.slug, key)
        target = cell.slug if cell.part is None else f"{cell.slug}.{cell.part}"
        rival = work.filled.get(target) or work.filled.get(cell.slug) or (cell.part is None and cell.slug in work.parts and key)
        if rival or cell.slug in self._mapping.constants:
            other = "--set" if cell.slug in self._mapping.constants else f"the key {rival!r}"
            work.findings.append(Finding("duplicate_target", f"{other} fills {cell.slug} already").on(key, item))
            return
        work.filled[target] = key
        self._fill(work, cell, item)

    def _record_id(self, work: _Work, value: Any, label: str) -> str | None:
        if value is None or (isinstance(value, str) and (value in self.blanks or value.isspace())):
            return None
        if isinstance(value, str) and is_uuid(value.strip()):
            return value.strip()
        work.findings.append(Finding("invalid_id", "not a record id (UUID)", hint="leave it blank to create the record").on(label, value))
        return None

    def _check_required(self, work: _Work, *, is_update: bool) -> None:
        for attribute in self.required:
            slug = attribute.slug
            if slug in work.refused or (is_update and slug not in work.data):
                continue
            if work.data.get(slug) in (None, "", [], {}):
                label = self._headers.get(slug, slug)
                work.findings.append(
                    Finding("required_missing", f"{slug} is required", hint=f"fill the cell, or give --set {slug}=VALUE").on(label, "")
                )


def _never(_text: str) -> bool:
    return False


class _Work:
    """What has been gathered of one row."""

    __slots__ = ("clears", "data", "filled", "findings", "parts", "refused")

    def __init__(self, data: dict[str, Any], parts: dict[str, dict[str, Any]]) -> None:
        self.data = data
        self.parts = parts
        self.findings: list[Finding] = []
        self.refused: set[str] = set()
        self.clears = 0
        self.filled: dict[str, str] = {}
