"""Everything besides the input that decides what an import sends, in a form that is kept with the job and gives the same payloads again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crmctl.bulk.match.references import Reference, columns_of, stand_ins
from crmctl.bulk.rows.batches import Entry
from crmctl.bulk.rows.cell_values import ValueOptions, merger_of
from crmctl.bulk.rows.column_names import Names
from crmctl.bulk.rows.map_file import parse_pairs, read_map_file
from crmctl.bulk.rows.mapping import Mapping as ColumnMapping
from crmctl.bulk.rows.mapping import MappingOptions, Mode, build_mapping
from crmctl.bulk.rows.validation import Payload, encoded_payloads, payloads
from crmctl.bulk.run.feed import FeedPlan, KeptValues
from crmctl.bulk.run.part_merges import MergedRows
from crmctl.bulk.sources.bytestream import BUFFER_SIZE
from crmctl.bulk.sources.open_source import open_source
from crmctl.bulk.sources.rows import Source, SourceOptions
from crmctl.errors import CrmctlError, UsageError, reason
from crmctl.models.attributes import Attribute, AttributeType
from crmctl.models.composites import COMPOSITE_TYPES, Merger, learn_form

if TYPE_CHECKING:
    from crmctl.bulk.match.reference_resolution import ReferenceMap


@dataclass(frozen=True)
class ImportPlan:
    """How the input is read, mapped and typed, and whether one invalid row stops everything.

    `references` are attributes given by a key of the record they point to; `missing_references` says what one is that means no record:
    `error`, `null`, or `create`. `feed`: whose value counts where others change the records of a feed.
    """

    source: SourceOptions = field(default_factory=SourceOptions)
    mapping: MappingOptions = field(default_factory=MappingOptions)
    values: ValueOptions = field(default_factory=ValueOptions)
    stop_on_error: bool = True
    references: tuple[Reference, ...] = ()
    missing_references: str = "error"
    feed: FeedPlan | None = None

    def frozen(self, attributes: Sequence[Attribute]) -> ImportPlan:
        """The plan without anything that may change or need not be kept: no map file, and of sample records only their form."""
        declared = {**(read_map_file(self.mapping.map_file) if self.mapping.map_file else {}), **parse_pairs(self.mapping.map_pairs)}
        pairs = tuple(f"{column}={target}" for column, target in declared.items())
        forms = {one.slug: learn_form(one, self.values.samples) for one in attributes if one.type in COMPOSITE_TYPES}
        objects = {slug: dict.fromkeys(form.keys, "") for slug, form in forms.items() if form.keys}
        plain = {slug: "plain" for slug, form in forms.items() if form.plain}
        return replace(
            self,
            mapping=replace(self.mapping, map_pairs=pairs, map_file=None),
            values=replace(self.values, samples=tuple(sample for sample in (objects, plain) if sample)),
        )

    def to_document(self) -> dict[str, Any]:
        """JSON values; of a frozen plan only."""
        values = self.values
        return {
            "source": vars(self.source),
            "mapping": {
                "mode": str(self.mapping.mode),
                "map_pairs": list(self.mapping.map_pairs),
                "set_values": list(self.mapping.set_values),
                "ignore_unknown": self.mapping.ignore_unknown,
                "keys": list(self.mapping.keys),
                "on_duplicate_key": self.mapping.on_duplicate_key,
            },
            "values": {
                "blank": dict(values.blank),
                "null_strings": list(values.null_strings),
                "clear_tokens": list(values.clear_tokens),
                "list_separator": values.list_separator,
                "decimal_marks": dict(values.decimal_marks),
                "date_formats": dict(values.date_formats),
                "default_region": values.default_region,
                "samples": list(values.samples),
                "currency": values.currency,
            },
            "stop_on_error": self.stop_on_error,
            "references": [reference.to_document() for reference in self.references],
            "missing_references": self.missing_references,
            "feed": self.feed.to_document() if self.feed is not None else None,
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> ImportPlan:
        mapping, values = document["mapping"], document["values"]
        return cls(
            SourceOptions(**document["source"]),
            MappingOptions(
                Mode(mapping["mode"]),
                tuple(mapping["map_pairs"]),
                None,
                tuple(mapping["set_values"]),
                mapping["ignore_unknown"],
                tuple(mapping["keys"]),
                mapping["on_duplicate_key"],
            ),
            ValueOptions(
                **{
                    **values,
                    "null_strings": tuple(values["null_strings"]),
                    "clear_tokens": tuple(values["clear_tokens"]),
                    "samples": tuple(values["samples"]),
                }
            ),
            document["stop_on_error"],
            tuple(Reference.from_document(reference) for reference in document["references"]),
            document["missing_references"],
            FeedPlan.from_document(document.get("feed")),
        )


@dataclass(frozen=True)
class PlannedInput:
    """An opened input with its mapping decided; can be read any number of times."""

    source: Source
    mapping: ColumnMapping
    attributes: Sequence[Attribute]
    values: ValueOptions
    plan: ImportPlan = field(default_factory=ImportPlan)
    references: ReferenceMap | None = None
    merged: MergedRows | None = None
    kept: KeptValues | None = None

    @property
    def may_merge(self) -> bool:
        """Whether rows may change parts of values that are there."""
        mapping = self.mapping
        if mapping.mode is Mode.CREATE:
            return False
        filled = [column.attribute for column in mapping.columns if column.attribute is not None]
        fillable = filled if self.source.header_complete else self.attributes
        return bool(mapping.constant_parts) or any(one.type in COMPOSITE_TYPES for one in fillable)

    @property
    def shown_attributes(self) -> Sequence[Attribute]:
        """The attributes as records show them: references by id, whatever the file gives them by."""
        given = {reference.slug for reference in self.plan.references}
        kind = {"type": AttributeType.REFERENCE}
        return [each.model_copy(update=kind) if each.slug in given else each for each in self.attributes]

    @cached_property
    def merger(self) -> Merger:
        """How parts of values are merged into those that are there."""
        return merger_of(self.attributes, self.values)

    def close(self) -> None:
        """Close what was looked up for the rows; in a job's folder it stays."""
        for one in (self.references, self.merged, self.kept):
            if one is not None:
                one.close()

    def to_send(self) -> Iterator[Payload | Entry]:
        """The rows for an import; those of which it needs to see nothing come encoded."""
        if self.references is None and self.merged is None and not self.mapping.keys:
            return encoded_payloads(self.source, self.mapping, self.attributes, self.values)
        return self.payloads()

    def payloads(self, *, in_full: bool = False) -> Iterator[Payload]:
        """The rows as they are sent; `in_full`: with the values that are left out because people's count."""
        rows = payloads(self.source, self.mapping, self.attributes, self.values)
        rows = rows if self.references is None else self.references.translate(rows)
        rows = rows if self.kept is None or in_full else self.kept.translate(rows)
        return rows if self.merged is None else self.merged.translate(rows)


def open_input(plan: ImportPlan, path: Path, name: str, attributes: Sequence[Attribute]) -> PlannedInput:
    """Open the file and decide its mapping. Raises what `open_source` and `build_mapping` raise.

    References are what the file says until the input has a map of them.
    """
    attributes = stand_ins(attributes, plan.references)
    source = open_source(path, plan.source, name=name)
    named = {
        column: reference.slug
        for reference in plan.references
        for column, key in columns_of(source.header, reference.slug)
        if key == reference.key and column not in parse_pairs(plan.mapping.map_pairs)
    }
    pairs = (*plan.mapping.map_pairs, *(f"{column}={slug}" for column, slug in named.items()))
    options = replace(plan.mapping, map_pairs=pairs)
    try:
        mapping = build_mapping(source.header, Names(attributes, plan.values.samples), options, header_complete=source.header_complete)
        if source.header_complete:
            slugs = [column.attribute.slug for column in mapping.columns if column.attribute is not None]
            plan.values.check_columns([*source.header, *slugs])
    except CrmctlError as error:
        if error.details is None or isinstance(error.details, dict):
            error.details = {"line": source.dialect.header_line, **(error.details or {})}
        raise
    return PlannedInput(source, mapping, attributes, plan.values, plan)


def file_digest(path: Path, name: str) -> tuple[str, int]:
    """SHA-256 and size of a file as stored. Raises UsageError when it cannot be read."""
    digest, size = hashlib.sha256(), 0
    try:
        with path.open("rb") as file:
            while block := file.read(BUFFER_SIZE):
                digest.update(block)
                size += len(block)
    except OSError as error:
        raise UsageError(f"cannot read {name}: {reason(error)}", code="unreadable_file") from error
    return digest.hexdigest(), size
