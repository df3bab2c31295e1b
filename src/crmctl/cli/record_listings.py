"""`records list`, `search` and `count`: what was asked becomes a query, and its answer is shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from crmctl.cli.list_window import ORDERS, SeenPages, Window, one_of, show_found
from crmctl.cli.record_display import RecordDisplay
from crmctl.cli.record_queries import check_references, shown_context
from crmctl.cli.targets import on_object
from crmctl.errors import UsageError

if TYPE_CHECKING:
    from crmctl.cli.runtime import Runtime
    from crmctl.client.queries.clauses import FilterReader
    from crmctl.client.queries.record_filter import RecordFilter
    from crmctl.client.queries.record_query import RecordQuery
    from crmctl.client.shapes import Page
    from crmctl.models.records import Record
    from crmctl.output.views import View

MANY_PAGES = 3
"""A table of more pages than these shows how far the reading is."""


@dataclass(frozen=True)
class Asked:
    """Which records, in which order, and how they are asked for."""

    object: str
    filters: Sequence[str] | None = None
    sort: str | None = None
    order: str | None = None
    text: str | None = None
    search: bool = False
    strict: bool = False

    @property
    def is_plain(self) -> bool:
        """One list of the service is the answer: it takes no query, and nothing that queries stand on."""
        from crmctl.client.record_lists import SORTS

        return not self.filters and self.text is None and (self.sort is None or self.sort in SORTS)


def list_window(runtime: Runtime, asked: Asked, part: Window) -> None:
    """Show a part of the records. Raises UsageError for what cannot be asked, and for a high price that nobody agreed to."""
    one_of("--order", asked.order, ORDERS)
    seen, agreed = SeenPages(part), part.limit is None
    if asked.is_plain:
        display = RecordDisplay(runtime, asked.object, lambda: shown_context(runtime, agreed=agreed))
        _show_pages(runtime, seen, _plain_pages(runtime, asked, seen), display)
        return
    reader, query = _query(runtime, asked, agreed=agreed)
    display = RecordDisplay(runtime, asked.object, lambda: reader.context)
    pages = query.pages(part.limit, part.offset, seen.shift)
    first = next(pages)
    if not first.items and not part.offset:
        check_references(reader.context, asked.object, query.wanted)
    _show_pages(runtime, seen, chain([first], pages), display)
    _remark(runtime, query)


def _plain_pages(runtime: Runtime, asked: Asked, seen: SeenPages) -> Iterator[Page[Record]]:
    from crmctl.client.paging import iterate
    from crmctl.client.record_lists import SORTS

    def fetch(limit: int, offset: int) -> Page[Record]:
        call = runtime.crm.search_records if asked.search else runtime.crm.list_records
        return on_object(runtime, asked.object, lambda target: call(target, sort=sort, order=asked.order, limit=limit, offset=offset))

    sort = SORTS[asked.sort] if asked.sort else None
    return iterate(fetch, limit=seen.part.limit, offset=seen.part.offset, on_shift=seen.shift)


def _show_pages(runtime: Runtime, seen: SeenPages, pages: Iterator[Page[Record]], display: RecordDisplay) -> None:
    first, part = next(pages), seen.part
    left = len(first.items) if first.total is None else first.total - part.offset
    from crmctl.models.records import PAGE_LIMIT

    wanted = left if part.limit is None else min(left, part.limit)
    display.expect(wanted)
    if wanted > MANY_PAGES * PAGE_LIMIT and runtime.output_format == "table":
        pages = _with_progress(runtime, pages, wanted, len(first.items))
    show_found(runtime, seen, chain([first], pages), display.view, display.wires)
    display.finish()


def _with_progress(runtime: Runtime, pages: Iterator[Page[Record]], wanted: int, done: int) -> Iterator[Page[Record]]:
    """A table is shown when all of it is there: until then how far it is."""
    with runtime.progress as progress:
        progress.start("reading", wanted)
        progress.advance(done)
        for page in pages:
            progress.advance(len(page.items))
            yield page


def list_sample(runtime: Runtime, asked: Asked, count: int, seed: int | None) -> None:
    """Show some records at random. Raises like list_window."""
    from crmctl.client.queries.record_sample import sample

    if count < 1:
        raise UsageError(f"--sample must be 1 or more, not {count}")
    reader, query = _query(runtime, asked, agreed=False)
    display = RecordDisplay(runtime, asked.object, lambda: reader.context)
    records = sample(query, count, seed)
    display.expect(len(records))
    runtime.emitter.emit_items(display.wires(records), display.view(records[0].wire if records else None))
    display.finish()
    _remark(runtime, query)


def show_count(runtime: Runtime, asked: Asked) -> None:
    """How many there are."""
    reader, query = _query(runtime, asked, agreed=False)
    count = query.count()
    if not count:
        check_references(reader.context, asked.object, query.wanted)
    _remark(runtime, query)
    runtime.emitter.emit_result({"count": count}, text=str(count))


def show_groups(runtime: Runtime, asked: Asked, by: str | None, sums: Sequence[str], averages: Sequence[str]) -> None:
    """How many there are of each value, and sums. Raises UsageError for an attribute that cannot be counted by, or added up."""
    from crmctl.client.queries.record_groups import Measures, RecordGroups
    from crmctl.output.views import generic_view

    reader, query = _query(runtime, asked, agreed=False)
    groups = RecordGroups(reader.context, asked.object, query.wanted, Measures(by, sums, averages), dict(reader.attributes or {}))
    rows = groups.rows()
    if by is None:
        runtime.emitter.emit_result(rows[0])
        return
    view = _right_aligned(generic_view(rows, "records"), rows)
    if runtime.output_format == "table" and not runtime.flags.get("query"):
        rows = [{name: _measured_text(name, value, groups.codes) for name, value in row.items()} for row in rows]
        rows = _named(runtime, asked.object, by, rows)
    runtime.emitter.emit_items(rows, view)


def _measured_text(name: str, value: Any, codes: Mapping[str, Sequence[str]]) -> Any:
    """In a table money with its currency, thousands apart, averages to the hundredth; what is no sum or average as it is."""
    kind, _, slug = name.partition("_")
    if kind not in ("sum", "avg") or slug not in codes or value is None:
        return value
    amounts = value if isinstance(value, dict) else {next(iter(codes[slug]), ""): value}
    return ", ".join(_amount_text(round(one, 2) if kind == "avg" else one, code) for code, one in amounts.items() if one is not None)


def _amount_text(amount: Any, code: str) -> str:
    from decimal import Decimal

    places = max(2 if code else 0, -int(Decimal(amount).as_tuple().exponent))
    return f"{amount:,.{places}f} {code}".strip()


def _right_aligned(view: View, rows: Sequence[dict[str, Any]]) -> View:
    from dataclasses import replace

    numeric = {name for row in rows for name in row if name == "count" or name.startswith(("sum_", "avg_"))}
    columns = [replace(column, kind="number") if column.header in numeric else replace(column, kind="reference") for column in view.columns]
    return replace(view, columns=tuple(columns))


def _named(runtime: Runtime, object_name: str, by: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The names of what a reference names, and a word for those without a value."""
    names = RecordDisplay(runtime, object_name, only=(by,)).names_of(by, [row[by] for row in rows if isinstance(row[by], str)])
    return [{**row, by: "(none)" if row[by] is None else names.get(str(row[by]).lower(), row[by])} for row in rows]


def _query(runtime: Runtime, asked: Asked, *, agreed: bool) -> tuple[FilterReader, RecordQuery]:
    from crmctl.client.queries.clauses import FilterReader, text_search
    from crmctl.client.queries.record_query import RecordQuery
    from crmctl.client.queries.sort_keys import list_order

    reader = FilterReader(shown_context(runtime, strict=asked.strict, agreed=agreed), asked.object)
    order = list_order(asked.sort, asked.order, lambda: reader.attributes)
    wanted: RecordFilter = reader.read(asked.filters or ())
    if asked.text is not None:
        wanted = wanted & text_search(reader, asked.text)
    query = RecordQuery(reader.context, asked.object, wanted, order)
    query.has_body = query.has_body or asked.search
    return reader, query


def _remark(runtime: Runtime, query: RecordQuery) -> None:
    for remark in query.wanted.remarks():
        runtime.messages.warn(remark)
