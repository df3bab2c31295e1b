"""Records as they are shown: fields of others that references lead to, and in tables the other's name instead of its id."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from crmctl.cli.record_queries import shown_context
from crmctl.cli.targets import known_attributes, record_columns

if TYPE_CHECKING:
    from crmctl.cli.runtime import Runtime
    from crmctl.client.queries.field_lookups import FieldLookups
    from crmctl.client.queries.query_context import QueryContext
    from crmctl.models.attributes import Attribute
    from crmctl.output.views import View

MOST_FOR_NAMES = 10
"""Requests that a table may take for names nobody asked for; ids stay where it would take more."""


class RecordDisplay:
    """How one object's records are shown by one run. Built before the first request about them: it refuses unknown fields.

    JSON stays as the service sent it, unless a field of another record is asked for by name.
    """

    def __init__(
        self, runtime: Runtime, object_name: str, context: Callable[[], QueryContext] | None = None, *, only: Sequence[str] = ()
    ) -> None:
        """`context` is asked where other records are read."""
        self._runtime = runtime
        self._object = object_name
        self._names = [*only] or runtime.emitter.fields or []
        dotted = any("." in name for name in self._names)
        is_table = runtime.output_format == "table" and not runtime.flags.get("query")
        self._attributes = (known_attributes(runtime, object_name) or []) if dotted or is_table else []
        self._given_context = context
        self._lookups = self._field_lookups() if dotted else None
        self._labels = [_Labels(self._context, attribute) for attribute in self._labelled()] if is_table else []

    @cached_property
    def _context(self) -> QueryContext:
        return self._given_context() if self._given_context else shown_context(self._runtime)

    def _field_lookups(self) -> FieldLookups:
        from crmctl.client.queries.field_lookups import FieldLookups

        return FieldLookups(self._context, self._attributes, self._names)

    @property
    def _through(self) -> Sequence[str]:
        """The references that are asked through."""
        return self._lookups.slugs if self._lookups else ()

    def names_of(self, slug: str, ids: Sequence[str]) -> dict[str, str]:
        """What the records are called that a reference names."""
        return next((labels.names(ids) for labels in self._labels if labels.slug == slug), {})

    def expect(self, count: int) -> None:
        """How many records will be shown: what look-ups are cheapest depends on it."""
        if self._lookups:
            self._lookups.expect(count)
        for labels in self._labels:
            labels.related.expect(count)

    def wires(self, items: Sequence[Any]) -> list[Mapping[str, Any]]:
        """Records as they go to the emitter."""
        wires: list[Mapping[str, Any]] = [item if isinstance(item, Mapping) else item.wire for item in items]
        if self._lookups:
            wires = self._lookups.expand(wires)
        for labels in self._labels:
            wires = labels.put(wires)
        return wires

    def view(self, sample: Mapping[str, Any] | None) -> View:
        """The columns."""
        view = record_columns(self._runtime, self._object, dict(sample) if sample is not None else None)
        named = {labels.slug for labels in self._labels}
        kinds = {("data", slug) for slug in named}
        columns = tuple(replace(column, kind="reference") if column.path in kinds else column for column in view.columns)
        fields = dict(view.fields)
        if self._runtime.output_format in ("csv", "tsv", "table"):  # there the reference itself stays an id beside what is asked of it
            through = self._through
            fields |= {name: ("data", *name.split(".")) for name in self._names if name.partition(".")[0] in through and "." in name}
            fields |= {slug: ("data", slug, "id") for slug in through}
        return replace(view, columns=columns, fields=fields)

    def finish(self) -> None:
        """Say which names were left out."""
        left = {labels.slug: labels.related.left_out for labels in self._labels if labels.related.left_out}
        for slug, requests in left.items():
            self._runtime.messages.note(f"{slug} by id: names take {requests:,} more requests; --fields {slug}.name asks for them")

    def emit(self, wire: Mapping[str, Any]) -> None:
        """One record."""
        [shown] = self.wires([wire])
        self._runtime.emitter.emit_item(shown, self.view(shown))
        self.finish()

    def _labelled(self) -> list[Attribute]:
        from crmctl.models.attributes import AttributeType

        asked = set(self._names)
        through = set(self._through)
        return [
            attribute
            for attribute in self._attributes
            if attribute.type == AttributeType.REFERENCE
            and attribute.target_object_id is not None
            and attribute.slug not in through
            and (not asked or attribute.slug in asked)
        ]


class _Labels:
    """The names of what one reference names."""

    def __init__(self, context: QueryContext, attribute: Attribute) -> None:
        from crmctl.client.queries.related_records import RelatedRecords

        self.slug = attribute.slug
        self._context = context
        self._target = attribute.target_object_id or ""
        self.related = RelatedRecords(context, self._target, attribute.slug, most=MOST_FOR_NAMES)

    def names(self, ids: Sequence[str]) -> dict[str, str]:
        """By id, as far as they may be read."""
        from crmctl.client.queries.field_lookups import label_of
        from crmctl.client.record_lists import known_attributes
        from crmctl.errors import DeniedError

        ids = [one.lower() for one in ids]
        try:
            self.related.read(ids)
            attributes = known_attributes(self._context.directory, self._target, self._context.tell) or []
        except DeniedError:
            return {}
        return {one: label_of(record, attributes) for one in ids if (record := self.related[one]) is not None}

    def put(self, wires: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        from crmctl.client.queries.related import reference_ids
        from crmctl.output.value_text import NamedReference

        ids = list(dict.fromkeys(one for wire in wires for one in reference_ids((wire.get("data") or {}).get(self.slug))))
        names = self.names(ids) if ids else {}
        shown: list[Mapping[str, Any]] = []
        for wire in wires:
            data = dict(wire.get("data") or {})
            references = [NamedReference(one, names.get(one, one)) for one in reference_ids(data.get(self.slug))]
            if references:
                data[self.slug] = references if isinstance(data[self.slug], list) else references[0]
            shown.append({**wire, "data": data})
        return shown
