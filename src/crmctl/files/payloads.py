"""Build the payload of one record from one row."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from collections.abc import Mapping as MappingOf
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from crmctl.errors import RejectedError, UsageError
from crmctl.files.cell_values import (
    DOUBTFUL_STARTS,
    KEEPS_TEXT,
    CommaWatch,
    DateWatch,
    NumberWatch,
    ValueOptions,
    doubt_about,
    finding_of,
    is_blank,
    merger_of,
    phone_doubt,
    text_reader,
    value_reader,
)
from crmctl.files.mapping import MappedColumn, Mapping, Mode, Role
from crmctl.files.rows import Row
from crmctl.files.spills import Spill
from crmctl.models import jsontext
from crmctl.models.findings import Finding
from crmctl.models.ids import is_uuid
from crmctl.models.jsontext import Json
from crmctl.models.numbers import check_numbers
from crmctl.models.resources import Attribute, AttributeType
from crmctl.values.attribute_types import Trait, types_with
from crmctl.values.composites import SEPARATOR, Form, is_bare_amount, part_name, part_value
from crmctl.values.equality import as_written
from crmctl.values.folded_text import fold
from crmctl.values.typed_text import PLAIN_DATE, PLAIN_EMAIL, Reader, read_email, split_list

SCALARS = types_with(Trait.SCALAR)
MEMO_CELLS, MEMO_LENGTH = 4096, 40
"""Texts of a column that are cached with their values, and their greatest length: columns repeat themselves."""

DIFFERENT_CELLS = 256
"""Texts of a column above which matching them together is faster than caching more."""


class Built(NamedTuple):
    """The record built from a row.

    It consists of the wire data, the id (upsert), the findings, the number of attributes cleared by blank cells, and the parts of values
    that the row gives only in part. The data has such values as in a new record.
    """

    data: Json
    id: str | None
    findings: list[Finding]
    clears: int
    parts: dict[str, Json] = {}  # noqa: RUF012 - never changed


class Cell(NamedTuple):
    """The way one column is read.

    `read_text` reads a cell, `read` any JSON value. `after_good(text, value)` and `after_bad(text, code)` see every text and may add a
    finding. `is_odd(text)`: `after_good` may add one. `memo` caches values of texts that need no check. `clears`: a blank cell clears the
    attribute.
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
    memo: Json
    is_odd: Callable[[str], object] | None
    clears: bool
    splits_amounts: bool = False
    """Whether an amount without a currency is only part of the value."""


class RowBuilder:
    """Builds the records of one file. Raises UsageError if two columns fill the same part, RejectedError for a bad date format."""

    def __init__(self, mapping: Mapping, attributes: Sequence[Attribute], options: ValueOptions) -> None:
        self._mapping = mapping
        self.unique = [attribute.slug for attribute in attributes if attribute.is_unique and attribute.is_active is not False]
        self._options = options
        self.constants, self.constant_parts = mapping.constants, mapping.constant_parts
        self._merger = merger_of(attributes, options)
        self._forms = self._merger.forms
        self._may_update = mapping.options.mode is not Mode.CREATE
        self._may_create = mapping.options.mode is not Mode.UPDATE
        self._whole_constants = {slug: value for slug, value in mapping.constants.items() if slug not in mapping.constant_parts}
        self.required = [attribute for attribute in attributes if attribute.is_required and attribute.is_active is not False]
        self.blanks = frozenset({"", *options.null_strings, *options.clear_tokens})
        self._cells_of: dict[str, Cell] = {}
        self.id_column = next((column for column in mapping.columns if column.role is Role.RECORD_ID), None)
        self.cells = [self._cell(column) for column in mapping.columns if column.role is Role.ATTRIBUTE]
        self._loop = [(cell, cell.place, cell.slug, cell.memo) for cell in self.cells]
        self._headers = {cell.slug: cell.column.label for cell in self.cells}
        wholes = {cell.slug for cell in self.cells if cell.part is None}
        self._divided = wholes & {cell.slug for cell in self.cells if cell.part is not None}
        """Attributes with a column for the whole value and others for parts."""
        targets = [(cell.slug, cell.part) for cell in self.cells]
        for target in targets:
            if targets.count(target) > 1:
                raise UsageError(
                    f"two columns fill {target[0]}.{target[1]}", hint="leave one out: --map 'COLUMN='", code="duplicate_target"
                )

    @property
    def clears_blanks(self) -> bool:
        """Whether a cell may clear an attribute."""
        return bool(self._options.clear_tokens) or any(cell.clears for cell in self.cells)

    @property
    def date_watches(self) -> dict[str, DateWatch]:
        """Watches of date columns, by column label."""
        return {cell.column.label: cell.dates for cell in self.cells if cell.dates is not None}

    def build(self, row: Row) -> Built:
        """Return the record of one row. If the row has an error, its data must not be used."""
        if row.problem is not None:
            return Built({}, None, [row.problem], 0)
        work = _Work(dict(self._whole_constants), {slug: dict(parts) for slug, parts in self.constant_parts.items()})
        record_id = None
        if row.value is None:
            data, blanks, cells = work.data, self.blanks, row.cells
            for cell, place, slug, memo in self._loop:  # the hot loop of an import
                text = cells[place]
                if text in memo:
                    data[slug] = memo[text]
                elif text in blanks:
                    self._blank(work, cell, text)
                else:
                    self._read_value(work, cell, text, cell.read_text)
            self._refuse_both(work)
            if self.id_column is not None:
                record_id = self._record_id(work, row.cells[self.id_column.index or 0], self.id_column.label)
        else:
            record_id = self._from_object(work, row.value)
        is_update = self._may_update and (record_id is not None or bool(self._mapping.options.keys) or not self._may_create)
        for slug, parts in work.parts.items():
            self._make_new(work, slug, parts, is_update=is_update)
        self._check_required(work, is_update=is_update)
        if len(work.data) <= len(self._mapping.constants) and not work.findings and record_id is None:
            work.findings.append(Finding("empty_row", "every cell is empty, so there is nothing to write", hint="delete the row"))
        findings = [finding.at(row.ordinal, row.first_line, row.last_line) for finding in work.findings] if work.findings else work.findings
        return Built(work.data, record_id, findings, work.clears, work.parts if is_update else {})

    def _refuse_both(self, work: _Work) -> None:
        """Add a finding for an attribute that a row fills as a whole and by its parts."""
        for slug in self._divided & work.parts.keys() & work.data.keys():
            if (value := work.data.pop(slug)) is not None:
                hint = "leave either the whole value or its parts empty"
                finding = Finding("duplicate_target", f"other columns fill parts of {slug}", hint=hint)
                work.findings.append(finding.on(self._headers.get(slug, slug), value))

    def _make_new(self, work: _Work, slug: str, parts: Json, *, is_update: bool) -> None:
        """Set the value that the parts make in a new record. For an update, the record may still supply missing parts."""
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
        if column.changes_items:
            part = column.part
        elif column.part is not None:
            part, read = self._part_reader(attribute, column.part, form)
            read_text = read
        if replaced := self._options.replaced(column.header, slug):
            separator = rules.list_separator if attribute.is_list or attribute.holds_items else None
            read_text, read = _replacing(replaced, read if separator else read_text, separator), _replacing(replaced, read, separator)
        after_good: Callable[[str, Any], Finding | None] | None = None
        after_bad: Callable[[str, str], Finding | None] | None = None
        is_odd: Callable[[str], object] | None = None
        dates = None
        if attribute.holds_items and rules.list_separator == SEPARATOR:
            commas = CommaWatch()
            after_good, is_odd = commas.see_good, commas.is_news
        elif attribute.type in KEEPS_TEXT:
            after_good, is_odd = doubt_about, doubt_about
        elif attribute.type == AttributeType.PHONE_NUMBER and part is None and not attribute.is_list:
            after_good = is_odd = phone_doubt(rules.region)
        elif attribute.type in (AttributeType.NUMBER, AttributeType.CURRENCY) and not rules.decimal_comma:
            numbers = NumberWatch()
            after_good, after_bad, is_odd = numbers.see_good, numbers.see_bad, numbers.is_news
        elif attribute.type == AttributeType.DATE and not attribute.is_list:
            dates = DateWatch()
            after_good, after_bad = (None, dates.see_bad) if rules.date_format is None else (dates.see_good, None)
        memorable = part is None and attribute.type in SCALARS and not attribute.is_list and (dates is None or after_good is None)
        place = column.index or 0
        has_currency = any(other.attribute is attribute and other.part is not None for other in self._mapping.columns)
        is_money = part is None and attribute.type == AttributeType.CURRENCY and not attribute.is_list
        # an amount alone is incomplete if its record may have a currency or will get one
        asks_currency = self._may_update or self._options.currency is not None or (bool(form.keys) and not form.plain)
        splits = is_money and (has_currency or asks_currency)
        memorable = memorable and not splits
        return Cell(
            column, place, attribute, slug, part, read_text, read, after_good, after_bad, dates, memorable, {}, is_odd, clears, splits
        )

    @staticmethod
    def _part_reader(attribute: Attribute, part: str, form: Form) -> tuple[str, Callable[[Any], Any]]:
        name = part_name(attribute, part, form)

        def read(value: Any) -> Any:
            if isinstance(value, str):
                return part_value(attribute, name, value)
            check_numbers(value)
            return value

        return name, read

    def _read_value(self, work: _Work, cell: Cell, value: Any, read: Callable[[Any], Any]) -> None:
        """Read a value into the record, or add a finding."""
        try:
            wire = read(value)
        except RejectedError as error:
            self._refuse(work, cell, value, error)
            return
        if isinstance(value, str):
            if cell.after_good is not None and (doubt := cell.after_good(value, wire)) is not None:
                work.findings.append(doubt.on(cell.column.label, value))
            elif cell.is_memorable and len(cell.memo) < MEMO_CELLS and len(value) <= MEMO_LENGTH:
                cell.memo[value] = wire
        self._keep(work, cell, wire)

    @staticmethod
    def _keep(work: _Work, cell: Cell, wire: Any) -> None:
        if cell.part is not None:
            work.parts.setdefault(cell.slug, {})[cell.part] = wire
        elif cell.splits_amounts and is_bare_amount(cell.attribute, wire):
            work.parts.setdefault(cell.slug, {})["amount"] = wire
        else:
            work.data[cell.slug] = wire

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

    def _from_object(self, work: _Work, value: Json) -> str | None:
        """Read a JSON record; keys may differ from record to record."""
        record_id = None
        for key, item in value.items():
            try:
                column = self._mapping.column_of(key)
            except UsageError as error:
                work.findings.append(Finding(error.code, error.message, hint=error.hint).on(key, item))
                continue
            if column.role is Role.RECORD_ID:
                record_id = self._record_id(work, item, key)
            elif column.role is Role.UNKNOWN and not self._mapping.options.ignore_unknown:
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
            cell = self._cells_of[key] = next((cell for cell in self.cells if cell.column is column), None) or self._cell(column)
            self._headers.setdefault(cell.slug, key)
        target = cell.slug if cell.part is None else f"{cell.slug}.{cell.part}"
        rival = work.filled.get(target) or work.filled.get(cell.slug) or (cell.part is None and cell.slug in work.parts and key)
        if rival or cell.slug in self._mapping.constants:
            other = "--set" if cell.slug in self._mapping.constants else f"the key {rival!r}"
            work.findings.append(Finding("duplicate_target", f"{other} fills {cell.slug} already").on(key, item))
            return
        work.filled[target] = key
        if item is None or (isinstance(item, str) and item in self.blanks):
            self._blank(work, cell, item)
        else:
            self._read_value(work, cell, item, cell.read)

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


def _replacing(replaced: MappingOf[str, str], read: Callable[[Any], Any], separator: str | None) -> Callable[[Any], Any]:
    """Return a reader that replaces texts first. With a `separator`, it replaces items of lists, too."""

    def read_replaced(value: Any) -> Any:
        if isinstance(value, str) and separator is not None and value.strip() not in replaced:
            value = split_list(value, separator)
        if isinstance(value, list):
            return read([replaced.get(item.strip(), item) if isinstance(item, str) else item for item in value])
        return read(replaced.get(value.strip(), value) if isinstance(value, str) else value)

    return read_replaced


@dataclass(slots=True)
class _Work:
    """The state of one row while it is built."""

    data: Json
    parts: dict[str, Json]
    findings: list[Finding] = field(default_factory=list)
    refused: set[str] = field(default_factory=set)
    clears: int = 0
    filled: dict[str, str] = field(default_factory=dict)


NOTHING: tuple[Any, ...] = (None, "", [], {})
"""Values that count as missing in a required attribute."""


class _Remarkable(Exception):
    """Raised for text that may need a finding."""


def _same_on_the_wire(cell: Cell) -> str | None:
    """Return a pattern that matches most texts of a column sent unchanged: no JSON escapes, no finding."""
    if cell.read_text is str:
        return UNDOUBTED_TEXT
    if cell.read_text is read_email:
        return PLAIN_EMAIL.pattern
    if cell.attribute.type == AttributeType.DATE and not cell.attribute.is_list and cell.after_good is None:
        return PLAIN_DATE
    return None


UNDOUBTED_TEXT = rf"""(?![{re.escape("".join(DOUBTFUL_STARTS))}])[^"\\\x00-\x1f]+"""


class _Column(dict[str, str]):
    """Maps each text of a column to its member of the data, `,"slug":value`, and blanks to ""."""

    __slots__ = ("_are_same", "_blanks", "_is_odd", "_is_required", "_is_same", "_member", "_read")

    def __init__(self, cell: Cell, blanks: frozenset[str], *, is_required: bool) -> None:
        super().__init__({} if is_required else dict.fromkeys(blanks, ""))
        same = _same_on_the_wire(cell)
        self._is_same = re.compile(same).fullmatch if same else None
        self._are_same = re.compile(f"(?:(?:{same})\n)*+").fullmatch if same else None
        self._blanks = blanks
        self._read = cell.read_text
        self._is_odd = cell.is_odd
        self._is_required = is_required
        self._member = f",{jsontext.dumps(cell.slug)}:"

    def __missing__(self, text: str) -> str:
        if text in self._blanks:
            raise _Remarkable  # the builder handles blanks in a required attribute
        if self._is_same is not None and self._is_same(text):
            member = f'{self._member}"{text}"'
        else:
            value = self._read(text)
            if (self._is_odd is not None and self._is_odd(text)) or (self._is_required and value in NOTHING):
                raise _Remarkable
            member = self._member + (jsontext.quote(value) if type(value) is str else jsontext.dumps(value))
        if len(text) <= MEMO_LENGTH and len(self) < MEMO_CELLS:
            self[text] = member
        return member

    def members(self, texts: Sequence[str]) -> list[str]:
        """Return the members of several texts. Those of a column with many different ones are matched together."""
        if self._are_same is not None and len(self) >= DIFFERENT_CELLS:
            blanks = self._blanks.intersection(texts)
            filled = [text for text in texts if text not in blanks] if blanks else texts
            lines = "\n".join(filled) + "\n"
            if lines.count("\n") == len(filled) and self._are_same(lines) and not (blanks and self._is_required):
                opening = f'{self._member}"'
                return [f'{opening}{text}"' if text not in blanks else "" for text in texts]
        return [*map(self.__getitem__, texts)]


class _Ignored:
    """A column that fills no attribute."""

    def members(self, texts: Sequence[str]) -> list[str]:
        return [""] * len(texts)


class RowEncoder:
    """Encodes the rows of one delimited file."""

    def __init__(self, builder: RowBuilder, width: int) -> None:
        """Prepare the columns. `width` is their number. The builder must pass `can_encode`."""
        required = {attribute.slug for attribute in builder.required}
        self._columns: list[_Column | _Ignored] = [_Ignored() for _ in range(width)]
        for cell in builder.cells:
            self._columns[cell.place] = _Column(cell, builder.blanks, is_required=cell.slug in required)
        self._places = {cell.slug: (cell.place, cell.read_text) for cell in builder.cells}
        self._constants = builder.constants
        self._opening = f'{{"data":{jsontext.dumps(builder.constants)[:-1]}'

    def encode(self, rows: Sequence[list[str]]) -> list[bytes | None]:
        """Return the records of the cells of rows as JSON, equal to the builder's. None for a row that needs the builder."""
        try:
            columns = zip(*rows, strict=True)
            members = [column.members(texts) for column, texts in zip(self._columns, columns, strict=True)]
        except (_Remarkable, RejectedError, ValueError):
            middle = len(rows) // 2
            return [*self.encode(rows[:middle]), *self.encode(rows[middle:])] if middle else [None]
        texts = [*map("".join, zip(*members, strict=True))]
        parts = texts if self._constants else [text[1:] for text in texts]  # the first member follows no comma
        between = "}}\n" + self._opening  # JSON holds no raw line feed
        records = f"{self._opening}{between.join(parts)}}}}}".encode().split(b"\n")
        return [*records] if all(texts) else [record if text else None for record, text in zip(records, texts, strict=True)]

    def values(self, cells: list[str], slugs: Sequence[str]) -> Json:
        """Return values of an encoded row by slug."""
        values = {slug: self._constants[slug] for slug in slugs if slug in self._constants}
        for slug in slugs:
            if slug in self._places:
                place, read = self._places[slug]
                if any(self._columns[place].members([cells[place]])):
                    values[slug] = read(cells[place])
        return values


def can_encode(builder: RowBuilder) -> bool:
    """Whether every cell alone gives its value: no parts of values, ids, clearing, or attributes set twice."""
    slugs = {cell.slug for cell in builder.cells}
    constants = builder.constants
    return (
        builder.id_column is None
        and not builder.clears_blanks
        and not builder.constant_parts
        and not any(cell.part is not None or cell.splits_amounts for cell in builder.cells)
        and slugs.isdisjoint(constants)
        and all(attribute.slug in slugs or constants.get(attribute.slug) not in NOTHING for attribute in builder.required)
    )


class Seen(Spill):
    """Values by slot (an attribute's slug, or the record id), with the first line of each."""

    TABLES = "CREATE TABLE seen (key BLOB PRIMARY KEY, line INTEGER) WITHOUT ROWID"
    CACHE_KIB = 16_000

    def first_line(self, slot: str, value: Any, line: int) -> int | None:
        """Return the first line with this value; None for a new value, which is stored.

        Ignores case, composition and outer blanks of text, and spellings of numbers.
        """
        written = as_written(value)
        text = fold(written.strip()) if isinstance(written, str) else jsontext.dumps(written)
        key = hashlib.blake2b(f"{slot}\0{text}".encode(), digest_size=16).digest()
        inserted = self._db.execute("INSERT INTO seen VALUES (?, ?) ON CONFLICT DO NOTHING", (key, line)).rowcount
        if inserted == 1:
            return None
        row: tuple[int] = self._db.execute("SELECT line FROM seen WHERE key = ?", (key,)).fetchone()
        return row[0]
