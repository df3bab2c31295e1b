"""The plan of an import: how its input is read, mapped, merged and guarded."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, field, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crmctl.errors import CrmctlError, RejectedError, UsageError, reason
from crmctl.files.cell_values import ValueOptions, merger_of
from crmctl.files.column_names import Names, parse_pairs
from crmctl.files.mapping import Mapping as ColumnMapping
from crmctl.files.mapping import MappingOptions, Mode, build_mapping
from crmctl.files.rows import Source, SourceOptions
from crmctl.files.sources import open_source
from crmctl.files.validation import Entry, Payload, encoded_payloads, payloads
from crmctl.frozen import frozen
from crmctl.models.findings import Finding
from crmctl.models.resources import Attribute, AttributeType
from crmctl.values.attribute_types import COMPOSITE_TYPES
from crmctl.values.composites import Merger, learn_form
from crmctl.write.journal import WHOLE, Journal

if TYPE_CHECKING:
    from crmctl.match.references import Reference, ReferenceMap
    from crmctl.plan.feed import KeptValues


NO_RECORD = "no_record"
"""Code of a row skipped because there is no record to update."""

NO_ID = "the row has no id, so there is nothing to update"


class RowAction(StrEnum):
    CREATE = "create"
    UPDATE = "update"
    UNCHANGED = "unchanged"
    SKIP = "skip"
    REJECT = "reject"


def before_image(sent: Mapping[str, Any], current: Mapping[str, Any], later: Collection[str] = ()) -> dict[str, Any]:
    """Return the current values of the attributes that `sent` changes or that are written `later`; None for an empty attribute."""
    changed = {slug: current.get(slug) for slug, value in sent.items() if current.get(slug) != value}
    return changed | {slug: current.get(slug) for slug in later if slug not in sent}


Target = Callable[[Payload], str | None]
"""The id of the record that a row updates."""


def finding_of_merge(error: RejectedError) -> Finding:
    slug, _, _ = error.message.partition(" ")
    return Finding(error.code, error.message, hint=error.hint).on(slug.rstrip(":"), "")


@frozen
class FeedPlan:
    """The user's choices: the name of the feed and which value wins (`--on-conflict`)."""

    name: str
    on_conflict: str = "keep"


@frozen
class ImportPlan:
    """How crmctl reads, maps and types the input, and whether one invalid row stops the job.

    `references` are attributes whose records the file names by key. `missing_references` says how to treat a key without a record:
    `error`, `null` or `create`. `feed` says which value wins when other clients change the records of a feed.
    """

    source: SourceOptions = field(default_factory=SourceOptions)
    mapping: MappingOptions = field(default_factory=MappingOptions)
    values: ValueOptions = field(default_factory=ValueOptions)
    stop_on_error: bool = True
    references: tuple[Reference, ...] = ()
    missing_references: str = "error"
    feed: FeedPlan | None = None

    def frozen(self, attributes: Sequence[Attribute]) -> ImportPlan:
        """Return a plan that can be stored: the map file is inlined, and sample records are reduced to their form."""
        pairs = tuple(f"{column}={target}" for column, target in self.mapping.declared().items())
        forms = {
            attribute.slug: learn_form(attribute, self.values.samples) for attribute in attributes if attribute.type in COMPOSITE_TYPES
        }
        objects = {slug: dict.fromkeys(form.keys, "") for slug, form in forms.items() if form.keys}
        plain = {slug: "plain" for slug, form in forms.items() if form.plain}
        return replace(
            self,
            mapping=replace(self.mapping, map_pairs=pairs, map_file=None),
            values=replace(self.values, samples=tuple(sample for sample in (objects, plain) if sample)),
        )

    def to_document(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> ImportPlan:
        references: tuple[Reference, ...] = ()
        if document["references"]:
            from crmctl.match.references import Reference

            references = tuple(Reference.from_document(reference) for reference in document["references"])
        mapping, values, feed = (_in_tuples(document[name] or {}) for name in ("mapping", "values", "feed"))
        return cls(
            SourceOptions(**document["source"]),
            MappingOptions(**{**mapping, "mode": Mode(mapping["mode"])}),
            ValueOptions(**values),
            document["stop_on_error"],
            references,
            document["missing_references"],
            FeedPlan(**feed) if feed else None,
        )


def _in_tuples(document: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in document.items()}


@frozen
class PlannedInput:
    """An open input and its mapping. It can be read repeatedly."""

    source: Source
    mapping: ColumnMapping
    attributes: Sequence[Attribute]
    values: ValueOptions
    plan: ImportPlan = field(default_factory=ImportPlan)
    references: ReferenceMap | None = None
    merged: Journal | None = None
    """Holds the complete values of rows that give only parts, if the input may have such rows."""
    kept: KeptValues | None = None

    @property
    def may_merge(self) -> bool:
        mapping = self.mapping
        if mapping.options.mode is Mode.CREATE:
            return False
        if any(column.changes_items for column in mapping.columns):
            return True
        filled = [column.attribute for column in mapping.columns if column.attribute is not None]
        fillable = filled if self.source.header_complete else self.attributes
        return bool(mapping.constant_parts) or any(
            attribute.type in COMPOSITE_TYPES or (attribute.holds_items and not self.source.header_complete) for attribute in fillable
        )

    @property
    def shown_attributes(self) -> Sequence[Attribute]:
        """The attributes with the types that records show: references hold ids even if the file names keys."""
        slugs = {reference.slug for reference in self.plan.references}
        return [
            attribute.with_changes(type=AttributeType.REFERENCE) if attribute.slug in slugs else attribute for attribute in self.attributes
        ]

    @cached_property
    def merger(self) -> Merger:
        return merger_of(self.attributes, self.values)

    def of_job(self, journal: Journal) -> PlannedInput:
        return replace(self, merged=journal) if self.may_merge else self

    def close(self) -> None:
        """Close the reference map and the kept values of a feed. Files in a job's folder stay."""
        for resource in (self.references, self.kept):
            if resource is not None:
                resource.close()

    def to_send(self) -> Iterator[Payload | Entry]:
        """Return the rows for an import, already encoded if the import does not need their values."""
        if self.references is None and self.merged is None and not self.mapping.options.keys:
            return encoded_payloads(self.source, self.mapping, self.attributes, self.values)
        return self.payloads()

    def payloads(self, *, in_full: bool = False) -> Iterator[Payload]:
        """Return the rows as sent. With `in_full`, include the kept values that a feed leaves out."""
        rows = payloads(self.source, self.mapping, self.attributes, self.values)
        rows = rows if self.references is None else self.references.translate(rows)
        rows = rows if self.kept is None or in_full else self.kept.translate(rows)
        return rows if self.merged is None else map(self._completed, rows)

    def _completed(self, row: Payload) -> Payload:
        values = self.merged.recall(row.ordinal, WHOLE) if row.parts and self.merged is not None else None
        return row if values is None else row._replace(data=row.data | values)


def open_input(plan: ImportPlan, path: Path, name: str, attributes: Sequence[Attribute]) -> PlannedInput:
    """Open the file and build its mapping. References stay as written in the file until the input gets a reference map."""
    source, options = open_source(path, plan.source, name=name), plan.mapping
    if plan.references:
        from crmctl.match.references import columns_of, stand_ins

        attributes = stand_ins(attributes, plan.references)
        named = {
            column: reference.slug
            for reference in plan.references
            for column, key in columns_of(source.header, reference.slug)
            if key == reference.key and column not in parse_pairs(options.map_pairs)
        }
        options = replace(options, map_pairs=(*options.map_pairs, *(f"{column}={slug}" for column, slug in named.items())))
    try:
        mapping = build_mapping(source.header, Names(attributes, plan.values.samples), options, header_complete=source.header_complete)
        if source.header_complete:
            slugs = [column.attribute.slug for column in mapping.columns if column.attribute is not None]
            plan.values.check_columns([*source.header, *slugs])
        if plan.feed is not None and (changed := [column.label for column in mapping.columns if column.changes_items]):
            raise UsageError(f"a feed compares whole lists, and {changed[0]!r} changes items of one", hint="give the whole list")
    except CrmctlError as error:
        if source.dialect.format.is_delimited and (error.details is None or isinstance(error.details, dict)):
            error.details = {"line": source.dialect.header_line, **(error.details or {})}
        raise
    return PlannedInput(source, mapping, attributes, plan.values, plan)


def file_digest(path: Path, name: str) -> tuple[str, int]:
    """Return the SHA-256 and size of a file. Raises UsageError if it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest(), file.tell()
    except OSError as error:
        raise UsageError(f"cannot read {name}: {reason(error)}", code="unreadable_file") from error


@frozen
class Guard:
    """The user's limit of change: `expect` is the exact number of rows to write, `most` the maximum, or a share with `percent`."""

    expect: int | None = None
    most: float | None = None
    percent: bool = False

    @classmethod
    def parse(cls, expect: int | None, max_changes: str | None) -> Guard:
        """Parse `--expect N` and `--max-changes N|P%`. Raises UsageError."""
        if max_changes is None:
            return cls(expect)
        match = re.fullmatch(r"(\d+(?:\.\d+)?)(%?)", max_changes.strip())
        if match is None or (not match[2] and "." in match[1]):
            raise UsageError(f"--max-changes: neither a number of rows nor a percentage: {max_changes}")
        return cls(expect, float(match[1]), match[2] == "%")

    def check(self, changes: int, rows: int) -> None:
        """Raise RejectedError if writing `changes` of `rows` rows breaks the limit."""
        if (problem := self.problem(changes, rows)) is not None:
            raise unexpected_changes(problem, changes)

    def problem(self, changes: int, rows: int) -> str | None:
        """Return how the limit is broken."""
        most = None if self.most is None else self.most * rows / 100 if self.percent else self.most
        if self.expect is not None and changes != self.expect:
            limit = f"--expect says {self.expect:,}"
        elif most is not None and changes > most:
            limit = f"--max-changes allows {f'{self.most:g}%' if self.percent else f'{self.most:,.0f}'}"
        else:
            return None
        return f"{changes:,} of {rows:,} rows would be written, {limit}; nothing was sent"


def unexpected_changes(problem: str, changes: int) -> RejectedError:
    """Return the error for a job that would write more or other rows than expected."""
    hint = "--dry-run shows what would be done"
    return RejectedError(problem, hint=hint, code="unexpected_changes", details={"changes": changes})
