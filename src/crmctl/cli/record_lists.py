"""Show lists, searches, counts and histories of records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any

from crmctl.cli.list_window import ORDERS, Window, show_found, window
from crmctl.cli.record_queries import check_references, shown_context
from crmctl.cli.targets import find_record, known_attributes, on_object, record_columns, value_text
from crmctl.config.output_formats import OUTPUT_FORMATS
from crmctl.errors import DeniedError, NotFoundError, RejectedError, UsageError
from crmctl.frozen import frozen
from crmctl.models.ids import check_choice, reference_ids
from crmctl.models.jsontext import Json

if TYPE_CHECKING:
    from crmctl.cli.runtime import Runtime
    from crmctl.client.answers import Page
    from crmctl.client.query.clauses import FilterReader
    from crmctl.client.query.groups import Measures
    from crmctl.client.query.record_filter import ListOrder, QueryContext, RecordFilter
    from crmctl.client.query.record_query import RecordQuery
    from crmctl.client.query.related_records import FieldLookups
    from crmctl.models.resources import Attribute, HistoryEntry, Record
    from crmctl.output.views import View


MOST_FOR_NAMES = 10
"""Most requests for names of references in a table; with more it shows ids."""


class RecordDisplay:
    """Shows one object's records. Create it before the first request: it refuses unknown fields.

    JSON stays unchanged unless --fields names a field of another record.
    """

    def __init__(
        self, runtime: Runtime, object_name: str, context: Callable[[], QueryContext] | None = None, *, only: Sequence[str] = ()
    ) -> None:
        """`context` returns the context for reading other records."""
        self._runtime = runtime
        self._object = object_name
        self._names = [*only] or runtime.emitter.fields or []
        dotted = any("." in name for name in self._names)
        is_table = runtime.output_format == "table" and not runtime.flags.get("query")
        self._attributes = (known_attributes(runtime, object_name) or []) if dotted or is_table else []
        self._given_context = context
        self._is_one_page = False
        self._lookups: FieldLookups | None = None
        if dotted:
            from crmctl.client.query.related_records import FieldLookups

            self._lookups = FieldLookups(self._context, self._attributes, self._names)
        self._labels = [_Labels(self._context, attribute) for attribute in self._labelled()] if is_table else []

    @cached_property
    def _context(self) -> QueryContext:
        return self._given_context() if self._given_context else shown_context(self._runtime)

    @property
    def _through(self) -> Sequence[str]:
        """References whose records --fields reads."""
        return self._lookups.slugs if self._lookups else ()

    def names_of(self, slug: str, ids: Sequence[str]) -> dict[str, str]:
        """Return the names of the records that a reference points to, by id."""
        return next((labels.names(ids) for labels in self._labels if labels.slug == slug), {})

    def expect(self, count: int) -> None:
        """Set the number of records to show, which decides the cheapest look-ups, and whether one page decides the columns."""
        from crmctl.models.resources import PAGE_LIMIT

        self._is_one_page = count <= PAGE_LIMIT
        if self._lookups:
            self._lookups.expect(count)
        for labels in self._labels:
            labels.related.expect(count)

    def wires(self, items: Sequence[Any]) -> list[Mapping[str, Any]]:
        """Return records with their looked-up fields; a page alone needs no names for columns without room on the terminal."""
        wires: list[Mapping[str, Any]] = [item if isinstance(item, Mapping) else item.wire for item in items]
        if self._lookups:
            wires = self._lookups.expand(wires)
        room = None
        if self._is_one_page and self._labels and wires:
            from crmctl.output.table import columns_with_room

            room = columns_with_room([*wires], self.view(wires[0]), self._runtime.emitter.rendering())
        for labels in self._labels:
            if room is None or labels.slug in room:
                wires = labels.put(wires)
        return wires

    def view(self, sample: Mapping[str, Any] | None) -> View:
        view = record_columns(self._runtime, self._object, dict(sample) if sample is not None else None)
        named = {labels.slug for labels in self._labels}
        kinds = {("data", slug) for slug in named}
        columns = tuple(replace(column, kind="reference") if column.path in kinds else column for column in view.columns)
        fields = dict(view.fields)
        if OUTPUT_FORMATS[self._runtime.output_format].has_columns:  # the reference itself stays an id
            through = self._through
            fields |= {name: ("data", *name.split(".")) for name in self._names if name.partition(".")[0] in through and "." in name}
            fields |= {slug: ("data", slug, "id") for slug in through}
        return replace(view, columns=columns, fields=fields)

    def finish(self) -> None:
        """Note which names were left out."""
        left_out = {labels.slug: labels.related.left_out for labels in self._labels if labels.related.left_out}
        for slug, requests in left_out.items():
            self._runtime.messages.note(f"{slug} by id: names take {requests:,} more requests; --fields {slug}.name asks for them")

    def emit(self, wire: Mapping[str, Any]) -> None:
        [shown] = self.wires([wire])
        self._runtime.emitter.emit_item(shown, self.view(shown))
        self.finish()

    def _labelled(self) -> list[Attribute]:
        from crmctl.models.resources import AttributeType

        names_asked = set(self._names)
        through = set(self._through)
        return [
            attribute
            for attribute in self._attributes
            if attribute.type == AttributeType.REFERENCE
            and attribute.target_object_id is not None
            and attribute.slug not in through
            and (not names_asked or attribute.slug in names_asked)
        ]


class _Labels:
    """Names of the records that one reference points to."""

    def __init__(self, context: QueryContext, attribute: Attribute) -> None:
        from crmctl.client.query.related_records import RelatedRecords

        self.slug = attribute.slug
        self._context = context
        self._target = attribute.target_object_id or ""
        self.related = RelatedRecords(context, self._target, attribute.slug, most=MOST_FOR_NAMES)

    def names(self, ids: Sequence[str]) -> dict[str, str]:
        """Return names by id, as far as the key may read them."""
        from crmctl.client.directory import known_attributes
        from crmctl.client.query.related_records import label_of

        ids = [record_id.lower() for record_id in ids]
        try:
            self.related.read(ids)
            attributes = known_attributes(self._context.directory, self._target, self._context.tell) or []
        except DeniedError:
            return {}
        return {record_id: label_of(record, attributes) for record_id in ids if (record := self.related[record_id]) is not None}

    def put(self, wires: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        from crmctl.output.value_text import NamedReference

        ids = list(dict.fromkeys(record_id for wire in wires for record_id in reference_ids((wire.get("data") or {}).get(self.slug))))
        names = self.names(ids) if ids else {}
        shown: list[Mapping[str, Any]] = []
        for wire in wires:
            data = dict(wire.get("data") or {})
            references = [NamedReference(record_id, names.get(record_id, record_id)) for record_id in reference_ids(data.get(self.slug))]
            if references:
                data[self.slug] = references if isinstance(data[self.slug], list) else references[0]
            shown.append({**wire, "data": data})
        return shown


def value_texts(runtime: Runtime, object_name: str, data: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Return the values of records, by slug, as tables show them; references by name."""
    attributes = known_attributes(runtime, object_name) or []
    display = RecordDisplay(runtime, object_name, only=list(dict.fromkeys(slug for values in data for slug in values)) or [""])
    return [
        {slug: value_text(runtime, value, slug, attributes) for slug, value in wire["data"].items()}
        for wire in display.wires([{"data": dict(values)} for values in data])
    ]


MANY = 300
"""A table of more records shows progress."""


@frozen
class Asked:
    """The records, order and search that the user asked for."""

    object: str
    filters: Sequence[str] | None = None
    sort: str | None = None
    order: str | None = None
    text: str | None = None
    search: bool = False
    strict: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether one list of the service answers it, without a query."""
        from crmctl.client.directory import SORTS

        return not self.filters and self.text is None and (self.sort is None or self.sort in SORTS)


def list_window(runtime: Runtime, object_name: str, *, limit: int | None, every: bool, offset: int, **conditions: Any) -> None:
    """Show a part of the records. Raises UsageError for invalid options and for a high cost without agreement."""
    asked, part, doubts = Asked(object_name, **conditions), window(limit, every, offset), list[str]()
    check_choice("--order", asked.order, ORDERS)
    agreed, query = part.limit is None, None
    if asked.is_plain:
        display = RecordDisplay(runtime, asked.object, lambda: shown_context(runtime, agreed=agreed))
        pages = _plain_pages(runtime, asked, part, doubts)
    else:
        reader, query = _query(runtime, asked, agreed=agreed)
        display = RecordDisplay(runtime, asked.object, lambda: reader.context)
        pages = query.pages(part.limit, part.offset, doubts.append)
    first = next(pages)
    if query is not None and not first.items and not part.offset:
        check_references(reader.context, asked.object, query.wanted)
    rest = len(first.items) if first.total is None else first.total - part.offset
    count = rest if part.limit is None else min(rest, part.limit)
    display.expect(count)
    if count > MANY and runtime.output_format == "table":
        pages = _with_progress(runtime, pages, count, len(first.items))
    show_found(runtime, part, chain([first], pages), doubts, display.view, display.wires)
    display.finish()
    if query is not None:
        _remark(runtime, query)


def _plain_pages(runtime: Runtime, asked: Asked, part: Window, doubts: list[str]) -> Iterator[Page[Record]]:
    from crmctl.client.answers import iterate
    from crmctl.client.directory import SORTS

    def fetch(limit: int, offset: int) -> Page[Record]:
        call = runtime.crm.search_records if asked.search else runtime.crm.list_records
        return on_object(runtime, asked.object, lambda target: call(target, sort=sort, order=asked.order, limit=limit, offset=offset))

    sort = SORTS[asked.sort] if asked.sort else None
    return iterate(fetch, limit=part.limit, offset=part.offset, on_doubt=doubts.append)


def _with_progress(runtime: Runtime, pages: Iterator[Page[Record]], count: int, done: int) -> Iterator[Page[Record]]:
    """Show progress while pages arrive: a table appears only when complete."""
    from crmctl.models.resources import PAGE_LIMIT

    with runtime.progress as progress:
        progress.start("reading", count, PAGE_LIMIT)
        progress.advance(done)
        for page in pages:
            progress.advance(len(page.items))
            yield page


def list_sample(runtime: Runtime, asked: Asked, count: int, seed: int | None) -> None:
    """Show random records. Raises like list_window."""
    from crmctl.client.query.groups import sample

    reader, query = _query(runtime, asked, agreed=False)
    display = RecordDisplay(runtime, asked.object, lambda: reader.context)
    records = sample(query, count, seed)
    display.expect(len(records))
    runtime.emitter.emit_items(display.wires(records), display.view(records[0].wire if records else None))
    display.finish()
    _remark(runtime, query)


def show_count(runtime: Runtime, asked: Asked) -> None:
    if runtime.output_format == "ids" and not runtime.flags.get("query"):
        raise UsageError("a count has no ids", hint="-o json, or -q count")
    reader, query = _query(runtime, asked, agreed=False)
    count = query.count()
    if not count:
        check_references(reader.context, asked.object, query.wanted)
    _remark(runtime, query)
    runtime.emitter.emit_result({"count": count}, text=str(count))


def show_groups(runtime: Runtime, asked: Asked, measures: Measures, *, limit: int | None, chart: bool) -> None:
    """Show counts and measures by group. Raises UsageError for an attribute that cannot be grouped or measured."""
    from crmctl.client.query.groups import RecordGroups
    from crmctl.output.views import generic_view

    if chart:
        runtime.check_plain("--chart", "table")
    if runtime.output_format == "ids":
        raise UsageError("groups have no ids", hint="-o json or -o csv")
    reader, query = _query(runtime, replace(asked, sort=None), agreed=False)
    groups = RecordGroups(reader.context, asked.object, query.wanted, measures, dict(reader.attributes or {}))
    every = groups.rows(asked.sort)
    rows = every[:limit]
    output = OUTPUT_FORMATS[runtime.output_format]
    if chart or (output.has_columns and not runtime.flags.get("query")):
        rows = [_by_currency(row) for row in rows] if chart or output.delimiter else [_measured_text(row, groups.codes) for row in rows]
        if not output.delimiter:
            rows = _named(runtime, asked.object, measures.by, rows)
    if chart:
        from crmctl.output.chart import draw_chart

        runtime.streams.write_out(draw_chart(rows, runtime.streams))
    elif not measures.by:
        runtime.emitter.emit_result(rows[0])
    else:
        view = generic_view(rows, "records")
        columns = (replace(column, kind="text" if column.header in measures.by else "number") for column in view.columns)
        runtime.emitter.emit_items(rows, replace(view, columns=tuple(columns)))
    if len(rows) < len(every):
        runtime.messages.note(f"showing {len(rows):,} of {len(every):,} groups; --limit shows more")


def _by_currency(row: Json) -> Json:
    """Return a row with a column for each currency of a measure."""
    flat: Json = {}
    for name, value in row.items():
        if isinstance(value, list):
            flat |= {f"{name}_{amount['currency'] or 'none'}": amount["value"] for amount in value}
        else:
            flat[name] = value
    return flat


def _measured_text(row: Json, codes: Mapping[str, Sequence[str]]) -> Json:
    """Return a row with its measures as text: with currency, thousands separators and two decimals."""
    texts = dict(row)
    for name, value in row.items():
        measure, _, slug = name.partition("_")
        if slug not in codes or value is None or measure not in ("sum", "avg", "min", "max"):
            continue
        amounts = value if isinstance(value, list) else [{"currency": next(iter(codes[slug]), ""), "value": value}]
        texts[name] = ", ".join(_amount_text(amount["value"], amount["currency"] or "", measure) for amount in amounts)
    return texts


def _amount_text(amount: Any, code: str, measure: str) -> str:
    from decimal import Decimal

    from crmctl.output.value_text import NO_CENTS

    usual = 0 if code in NO_CENTS or not code else 2
    number = round(Decimal(amount), 2) if measure == "avg" else Decimal(amount)
    places = max(usual, -int(number.normalize().as_tuple().exponent))
    return f"{number:,.{places}f} {code}".strip()


def _named(runtime: Runtime, object_name: str, by: Sequence[str], rows: list[Json]) -> list[Json]:
    """Replace ids by names, and missing values by a word."""
    display = RecordDisplay(runtime, object_name, only=[name for name in by if "." not in name and ":" not in name] or [""])
    for name in by:
        names = display.names_of(name, list({row[name] for row in rows if isinstance(row[name], str)}))
        rows = [{**row, name: "(none)" if row[name] is None else names.get(str(row[name]).lower(), row[name])} for row in rows]
    return rows


def _query(runtime: Runtime, asked: Asked, *, agreed: bool) -> tuple[FilterReader, RecordQuery]:
    from crmctl.client.query.clauses import FilterReader, list_order, text_search
    from crmctl.client.query.record_query import RecordQuery

    def related(sort: str, direction: str | None, attribute: Attribute) -> ListOrder:
        from crmctl.client.query.related_records import related_order

        return related_order(reader.context, sort, direction, attribute)

    reader = FilterReader(shown_context(runtime, strict=asked.strict, agreed=agreed), asked.object)
    order = list_order(asked.sort, asked.order, lambda: reader.attributes, related)
    record_filter: RecordFilter = reader.read(asked.filters or ())
    if asked.text is not None:
        record_filter = record_filter & text_search(reader, asked.text)
    query = RecordQuery(reader.context, asked.object, record_filter, order)
    query.has_body = query.has_body or asked.search
    return reader, query


def _remark(runtime: Runtime, query: RecordQuery) -> None:
    for remark in query.wanted.remarks():
        runtime.messages.warn(remark)


FIELDS = ("at", "by", "change", "attribute", "old", "new")
TABLE_FIELDS = ("at", "attribute", "old", "new", "change", "by")
"""The last columns are left out first."""


def show_changes(runtime: Runtime, object_name: str, record_name: str, part: Window) -> None:
    """Show the changes of a record. Raises RejectedError if the service keeps no history."""
    from crmctl.client.answers import iterate
    from crmctl.output.views import generic_view

    record_id = find_record(runtime, object_name, record_name).id

    def fetch(limit: int, offset: int) -> Page[HistoryEntry]:
        return on_object(runtime, object_name, lambda target: runtime.crm.record_history(target, record_id, limit=limit, offset=offset))

    total, shown, rows = None, 0, list[Json]()
    try:
        for page in iterate(fetch, limit=part.limit, offset=part.offset):
            total, shown = page.total, shown + len(page.items)
            rows += (line for entry in page.items for line in _lines(entry))
    except NotFoundError:
        # If the record exists, the service keeps no history.
        on_object(runtime, object_name, lambda target: runtime.crm.get_record(target, record_id))
        raise RejectedError("this service keeps no history of its records", code="not_supported") from None
    if runtime.output_format == "table" and not runtime.flags.get("query"):
        values = [{row["attribute"]: row[when]} if row["attribute"] else {} for row in rows for when in ("old", "new")]
        texts = [next(iter(shown.values()), "") for shown in value_texts(runtime, object_name, values)]
        shown_rows = (row | {"old": old, "new": new} for row, old, new in zip(rows, texts[::2], texts[1::2], strict=True))
        rows = [{name: row[name] for name in TABLE_FIELDS} for row in shown_rows]
    runtime.emitter.emit_items(rows, generic_view(rows or [dict.fromkeys(FIELDS)], "changes"))
    if total is not None and part.offset + shown < total:
        runtime.messages.note(f"showing {shown:,} of {total:,} changes; use --limit or --all")


def _lines(entry: HistoryEntry) -> Iterator[Json]:
    """Yield a line per changed value; one for a change without values."""
    author = entry.by or {}
    about = {"at": entry.at, "by": author.get("name") or author.get("type") or "service", "change": entry.type.rpartition(".")[2]}
    for change in entry.changes or [{}]:
        yield about | {"attribute": change.get("attributeSlug"), "old": change.get("old"), "new": change.get("new")}
