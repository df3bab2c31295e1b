"""Map columns to attributes before the first row is read. Refuses unknown and ambiguous columns."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping as MappingOf
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from crmctl.errors import UsageError
from crmctl.files.column_names import RECORD_FIELDS, RECORD_ID, MatchedBy, Names, parse_pairs, read_map_file
from crmctl.frozen import frozen
from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.models.resources import Attribute
from crmctl.values.composites import LIST_SIGNS, Parts, fold, parse_assignments, without_bare_amounts

RESULT_COLUMNS = frozenset({"_row", "_line", "_status", "_id", "_error"})
"""Columns added by result files, which users can correct and import again."""
SHOWN_COLUMNS = 20
"""Most unknown columns that an error describes."""


class Mode(StrEnum):
    """The way rows are written. `update` is like `upsert`, but skips rows without a record. `delete`: rows are ids of records."""

    CREATE = "create"
    UPSERT = "upsert"
    UPDATE = "update"
    DELETE = "delete"


class Role(StrEnum):
    ATTRIBUTE = "attribute"
    RECORD_ID = "id"
    IGNORED = "ignored"
    UNKNOWN = "unknown"


@frozen
class MappingOptions:
    """Options about columns.

    `map_pairs` are `COLUMN=SLUG` (`#3=SLUG` means the third column), `set_values` are `slug=value`. `keys` are the attributes that identify
    records. `on_duplicate_key` is the treatment of rows that share a key.
    """

    mode: Mode = Mode.CREATE
    map_pairs: tuple[str, ...] = ()
    map_file: Path | None = None
    set_values: tuple[str, ...] = ()
    ignore_unknown: bool = False
    keys: tuple[str, ...] = ()
    on_duplicate_key: str = "error"

    @property
    def column_mode(self) -> Mode:
        """The mode in which columns are mapped: with a key, ids in the file are ignored."""
        return Mode.CREATE if self.keys else self.mode

    def declared(self) -> dict[str, str]:
        """Return the targets of the map file and of `--map`, which wins. Raises UsageError."""
        targets = read_map_file(self.map_file)[0] if self.map_file else {}
        return targets | parse_pairs(self.map_pairs)


@frozen
class MappedColumn:
    """One column and its target. `index` is its position from 0, None for a key found only in later JSON records."""

    header: str
    index: int | None
    role: Role
    attribute: Attribute | None = None
    part: str | None = None
    by: str | None = None
    note: str | None = None

    @property
    def target(self) -> str | None:
        """`slug`, `slug.part` or `id`; None for a skipped column."""
        if self.role is Role.RECORD_ID:
            return RECORD_ID
        if self.attribute is None:
            return None
        if self.changes_items:
            return self.attribute.slug + next(sign for sign, part in LIST_SIGNS.items() if part == self.part)
        return self.attribute.slug if self.part is None else f"{self.attribute.slug}.{self.part}"

    @property
    def changes_items(self) -> bool:
        """Whether the column adds items to a list or removes some: `tags+`, `tags-`."""
        return self.attribute is not None and self.part is not None and self.attribute.holds_items

    @property
    def label(self) -> str:
        """The column's name in messages."""
        return self.header or f"#{(self.index or 0) + 1}"


@dataclass
class Mapping:
    """The final mapping.

    `constants` are the typed values of `--set` in a new record, `constant_parts` the parts among them. `notes` explain which columns are
    skipped. `digest` is stable.
    """

    options: MappingOptions
    columns: list[MappedColumn]
    constants: Json
    notes: list[str]
    digest: str
    names: Names = field(repr=False)
    declared: MappingOf[str, str] = field(repr=False)
    constant_parts: MappingOf[str, Parts]
    _by_key: dict[str, MappedColumn] = field(repr=False)

    @property
    def written(self) -> list[str]:
        """Slugs of the attributes that columns and constants write."""
        return list(dict.fromkeys([*(column.attribute.slug for column in self.columns if column.attribute is not None), *self.constants]))

    def column_of(self, key: str) -> MappedColumn:
        """Return the column of a JSON key; keys in later records follow the same rules.

        Raises UsageError if a key matches several attributes.
        """
        if key not in self._by_key:
            self._by_key[key] = _column((key, None), self.declared.get(key), self.names, self.options.column_mode)
        return self._by_key[key]

    def to_document(self) -> list[Json]:
        return [
            {"column": column.label, "target": column.target, "role": str(column.role), "by": column.by, "note": column.note}
            for column in self.columns
        ]


def build_mapping(
    header: Sequence[str], attributes: Sequence[Attribute] | Names, options: MappingOptions, *, header_complete: bool = True
) -> Mapping:
    """Choose the target of every column of `header`.

    Raises UsageError (exit 2) for duplicate, unknown, unnamed or ambiguous columns, two columns with one target, a `--map` of a missing
    column, and an upsert without a column of ids. Raises RejectedError (exit 9) for a `--set` value of the wrong type.
    """
    names = attributes if isinstance(attributes, Names) else Names(attributes)
    mode, declared = options.column_mode, options.declared()
    by_position, absent = _positions(header, declared)
    if absent and header_complete:
        raise UsageError(
            f"--map: the file has no column {absent[0]!r}", hint=f"its columns are: {', '.join(header)}", code="unknown_column"
        )
    late = {name: declared[name] for name in absent}
    for name, target in late.items():
        _column((name, None), target, names, mode)
    _refuse_duplicates(header, by_position)
    columns = [_column((name, index), by_position.get(index), names, mode) for index, name in enumerate(header)]
    if options.ignore_unknown:
        note = "no attribute of this name"
        columns = [replace(column, role=Role.IGNORED, note=note) if column.role is Role.UNKNOWN else column for column in columns]
    _refuse_unknown(columns, names)
    assigned = parse_assignments(options.set_values, names.attributes, form_of=names.form)
    constants, constant_parts = assigned.fields, without_bare_amounts(assigned, names.attributes).parts
    _refuse_shared_targets(columns, constants)
    if header or header_complete:  # otherwise the first records are all unreadable, and each gets its own finding
        _require_content(columns, constants, names, mode)
    if header_complete:
        filled = {column.attribute.slug for column in columns if column.attribute is not None} | {*constants}
        if slug := next((slug for slug in options.keys if slug not in filled), None):
            raise UsageError(f"--key: no column fills {slug}", hint=f"--map 'COLUMN={slug}'", code="missing_key_column")
    notes = [f"column {column.label} is left out: {column.note}" for column in columns if column.role is Role.IGNORED and column.note]
    notes += [f"--map: the first records have no key {name!r}" for name in absent]
    targets = [[column.header, column.role, column.target] for column in columns]
    facts = [str(options.mode), targets, constants, options.ignore_unknown, late]
    digest = _digest([*facts, options.keys, options.on_duplicate_key] if options.keys else facts)
    by_key = {column.header: column for column in columns}
    return Mapping(options, columns, constants, notes, digest, names, late, constant_parts, by_key)


def schema_digest(attributes: Sequence[Attribute]) -> str:
    """Return a stable fingerprint of the attributes as far as they matter for an import."""
    facts = [
        [
            definition.slug,
            definition.type,
            bool(definition.is_list),
            bool(definition.is_required),
            bool(definition.is_unique),
            definition.config,
        ]
        for definition in sorted(attributes, key=lambda attribute: attribute.slug)
    ]
    return _digest(facts)


def resolve_column(header: str, index: int | None, names: Names, mode: Mode) -> MappedColumn:
    """Return the meaning of a column by its name alone. Raises UsageError if the name matches several attributes.

    A slug as it is written comes first, then a field of every record, then an attribute whose name is only similar.
    """
    if header.startswith("_") and header not in names.slugs:
        note = None if header in RESULT_COLUMNS else "names that begin with _ belong to result files"
        return MappedColumn(header, index, Role.IGNORED, by="result column", note=note)
    folded, is_field = fold(header), header in RECORD_FIELDS and header not in names.slugs
    if mode is not Mode.CREATE and folded == RECORD_ID and (header == RECORD_ID or header not in names.slugs):
        return MappedColumn(header, index, Role.RECORD_ID, by="record field")
    if header.strip() and not is_field and (match := names.find(header)) is not None:
        return MappedColumn(header, index, Role.ATTRIBUTE, match.attribute, match.part, str(match.by))
    if folded in map(fold, RECORD_FIELDS):
        note = "creating always makes new ids" if folded == RECORD_ID else "the service sets it"
        return MappedColumn(header, index, Role.IGNORED, by="record field", note=note)
    return MappedColumn(header, index, Role.UNKNOWN)


def _column(place: tuple[str, int | None], target: str | None, names: Names, mode: Mode) -> MappedColumn:
    """Return a column with its declared target, if it has one."""
    if target is None:
        return resolve_column(*place, names, mode)
    if not target:
        return MappedColumn(*place, Role.IGNORED, by="--map", note="as --map says")
    match = names.find(target)
    if match is not None and (match.by is MatchedBy.SLUG or fold(target) != RECORD_ID):
        return MappedColumn(*place, Role.ATTRIBUTE, match.attribute, match.part, "--map")
    if target == RECORD_ID:
        if mode is Mode.CREATE:
            raise UsageError("creating always makes new ids, so no column can be mapped to id", hint="--mode upsert updates records by id")
        return MappedColumn(*place, Role.RECORD_ID, by="--map")
    raise UsageError(f"--map: there is no attribute {target}", hint=_suggestion(target, names), code="unknown_attribute")


def _positions(header: Sequence[str], declared: MappingOf[str, str]) -> tuple[dict[int, str], list[str]]:
    """Return declared targets by position, and declared names missing from the header.

    A name is `#N`, an exact name, or the only name equal to one ignoring case, spaces, underscores and hyphens.
    """
    targets: dict[int, str] = {}
    absent: list[str] = []
    for name, target in declared.items():
        if name.startswith("#") and name[1:].isdigit() and name not in header:
            places = [int(name[1:]) - 1] if 0 < int(name[1:]) <= len(header) else []
        else:
            places = [index for index, column in enumerate(header) if column == name] or [
                index for index, column in enumerate(header) if fold(column) == fold(name)
            ]
        if len(places) > 1:
            raise UsageError(
                f"--map: several columns are called {name!r}",
                hint=f"name it by position: --map '#{places[0] + 1}={target}'",
                code="ambiguous_column",
            )
        if not places:
            absent.append(name)
            continue
        if places[0] in targets:
            raise UsageError(f"--map names the column {header[places[0]]!r} twice")
        targets[places[0]] = target
    return targets, absent


def _refuse_duplicates(header: Sequence[str], by_position: MappingOf[int, str]) -> None:
    """Refuse several columns with one name, unless all but one are mapped by position."""
    open_names = Counter(name for index, name in enumerate(header) if name.strip() and index not in by_position)
    repeated = [name for name, count in open_names.items() if count > 1]
    if repeated:
        where = "; ".join(
            f"{name!r} (columns {', '.join(str(index + 1) for index, other in enumerate(header) if other == name)})" for name in repeated
        )
        raise UsageError(
            f"duplicate columns: {where}", hint="rename them, or tell them apart by position: --map '#2=SLUG'", code="duplicate_column"
        )


def _refuse_unknown(columns: Sequence[MappedColumn], names: Names) -> None:
    unknown = [column for column in columns if column.role is Role.UNKNOWN]
    if not unknown:
        return
    described = []
    for column in unknown[:SHOWN_COLUMNS]:
        near = names.nearest(column.header) if column.header.strip() else []
        parts = names.parts_of(column.header)
        near = near if not parts else []
        described.append(
            f"{column.label!r}" + (f" (its parts: {', '.join(parts)})" if parts else f" (nearest: {', '.join(near)})" if near else "")
        )
    if len(unknown) > SHOWN_COLUMNS:
        described.append(f"and {len(unknown) - SHOWN_COLUMNS} more")
    first = unknown[0].label
    raise UsageError(
        f"unknown column{'s' if len(unknown) > 1 else ''}: {', '.join(described)}",
        hint=f"--map '{first}=SLUG' fills an attribute, --map '{first}=' leaves the column out, --ignore-unknown all such columns; "
        f"the attributes are: {', '.join(names.slugs)}",
        code="unknown_column",
        details={"columns": [column.label for column in unknown]},
    )


def _refuse_shared_targets(columns: Sequence[MappedColumn], constants: MappingOf[str, Any]) -> None:
    """Refuse two columns for one target, and a column together with a constant.

    A whole value and its parts may have a column each, as exports do: a row fills one or the other.
    """
    owners: dict[tuple[str, str | None], MappedColumn] = {}
    for column in sorted(columns, key=lambda column: column.part is not None):
        if column.target is None:
            continue
        slug = RECORD_ID if column.attribute is None else column.attribute.slug
        target = slug, column.part and fold(column.part)
        rival = owners.get(target) or (owners.get((slug, None)) if column.changes_items else None)
        if rival is not None:
            raise UsageError(
                f"two columns fill {slug}: {rival.label!r} and {column.label!r}",
                hint=f"leave one out: --map '{column.label}='",
                code="duplicate_target",
            )
        if column.attribute is not None and slug in constants:
            raise UsageError(
                f"both --set and the column {column.label!r} fill {slug}",
                hint=f"leave the column out: --map '{column.label}='",
                code="duplicate_target",
            )
        owners[target] = column


def _require_content(columns: Sequence[MappedColumn], constants: MappingOf[str, Any], names: Names, mode: Mode) -> None:
    if mode is not Mode.CREATE and not any(column.role is Role.RECORD_ID for column in columns):
        raise UsageError(
            f"an {mode} needs a column that holds record ids",
            hint="name it id, or give --map 'COLUMN=id'; --key finds records by what they hold",
            code="missing_id_column",
        )
    if mode is not Mode.DELETE and not constants and not any(column.role is Role.ATTRIBUTE for column in columns):
        raise UsageError("no column matches an attribute", hint=f"the attributes are: {', '.join(names.slugs)}", code="unknown_column")


def _suggestion(target: str, names: Names) -> str:
    if parts := names.parts_of(target):
        return f"the parts are: {', '.join(parts)}"
    near = names.nearest(target)
    meant = f"did you mean {' or '.join(near)}? " if near else ""
    return f"{meant}the attributes are: {', '.join(names.slugs)}"


def _digest(facts: Any) -> str:
    return hashlib.sha256(jsontext.dumps(facts, sort_keys=True).encode()).hexdigest()
