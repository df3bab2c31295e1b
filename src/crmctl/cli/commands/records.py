"""`crmctl records`: the records of an object, one at a time or page by page. Many at once belong to `bulk`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Annotated

import typer

from crmctl.cli.framework import CommandApp
from crmctl.cli.list_window import ORDERS, Window, one_of, show_found, window
from crmctl.cli.named_records import find_record, read_record
from crmctl.cli.options import (
    AllOption,
    CurrencyOption,
    DataOption,
    FilterOption,
    LimitOption,
    ObjectArgument,
    OffsetOption,
    OrderOption,
    RecordArgument,
    SetOption,
    SortOption,
    StrictOption,
)
from crmctl.cli.record_fields import check_given, read_fields
from crmctl.cli.record_queries import check_references, query_context, read_filter
from crmctl.cli.targets import check_columns, on_object, record_columns

if TYPE_CHECKING:
    from crmctl.cli.runtime import Runtime
    from crmctl.client.shapes import Page
    from crmctl.models.records import Record

app = CommandApp("List, search, count, read and change the records of an object.")

NEWEST = "$(crmctl records list people --limit 1 -o ids)"


@app.command(
    "list",
    examples=[
        "crmctl records list people",
        "crmctl records list people --filter 'email endsWith @acme.com' --fields name,email",
        "crmctl records list people --filter 'address.city=Rome' --filter 'created_at<2y' --all -o csv",
        "crmctl records list people --filter 'status in new,contacted' --sort score --order desc --limit 10",
    ],
)
def list_records(
    ctx: typer.Context,
    object_name: ObjectArgument,
    filters: FilterOption = None,
    limit: LimitOption = None,
    every: AllOption = False,
    offset: OffsetOption = 0,
    sort: SortOption = None,
    order: OrderOption = None,
    strict: StrictOption = False,
) -> None:
    """List records, newest first unless sorted otherwise.

    Shows 50 unless --limit or --all asks for more; how conditions are written: crmctl help filters.
    """
    _list(ctx.obj, object_name, Asked(filters, sort, order, strict=strict), window(limit, every, offset))


@app.command(
    "search",
    examples=[
        "crmctl records search people Hopper",
        "crmctl records search people --filter 'name~ada'",
        "crmctl records search deals --filter 'stage=won' --filter 'amount>1000' --all",
    ],
)
def search_records(
    ctx: typer.Context,
    object_name: ObjectArgument,
    text: Annotated[str | None, typer.Argument(metavar="TEXT", help="Looked for in all text attributes.")] = None,
    filters: FilterOption = None,
    limit: LimitOption = None,
    every: AllOption = False,
    offset: OffsetOption = 0,
    sort: SortOption = None,
    order: OrderOption = None,
    strict: StrictOption = False,
) -> None:
    """Find records that have a text anywhere, or search with a body instead of a query.

    Same flags and same result as `records list`; a text takes one request for each text attribute.
    """
    _list(ctx.obj, object_name, Asked(filters, sort, order, text, search=True, strict=strict), window(limit, every, offset))


@dataclass(frozen=True)
class Asked:
    """Which records, in which order, and how they are asked for."""

    filters: list[str] | None
    sort: str | None
    order: str | None
    text: str | None = None
    search: bool = False
    strict: bool = False


def _list(runtime: Runtime, object_name: str, asked: Asked, part: Window) -> None:
    from crmctl.client.queries.clauses import FilterReader, text_search
    from crmctl.client.queries.record_query import RecordQuery
    from crmctl.client.queries.sort_keys import list_order

    one_of("--order", asked.order, ORDERS)
    context = query_context(runtime, strict=asked.strict, agreed=part.limit is None)
    reader = FilterReader(context, object_name)
    order = list_order(asked.sort, asked.order, lambda: reader.attributes)
    wanted = reader.read(asked.filters or ())
    if asked.text is not None:
        wanted = wanted & text_search(reader, asked.text)
    query = RecordQuery(context, object_name, wanted, order)
    query.has_body = query.has_body or asked.search

    def find(on_shift: Callable[[], None]) -> Iterator[Page[Record]]:
        pages = query.pages(part.limit, part.offset, on_shift)
        first = next(pages)
        if not first.items and not part.offset:
            check_references(context, object_name, wanted)
        return chain([first], pages)

    show_found(runtime, find, part, lambda sample: record_columns(runtime, object_name, sample))
    for remark in query.wanted.remarks():
        runtime.messages.warn(remark)


@app.command("count", examples=["crmctl records count people", "crmctl records count deals --filter 'stage=won' -o json"])
def count_records(ctx: typer.Context, object_name: ObjectArgument, filters: FilterOption = None, strict: StrictOption = False) -> None:
    """Count records."""
    from crmctl.client.queries.record_query import RecordQuery

    runtime: Runtime = ctx.obj
    context = query_context(runtime, strict=strict)
    wanted = read_filter(runtime, object_name, filters, strict=strict)
    query = RecordQuery(context, object_name, wanted)
    count = query.count()
    if not count:
        check_references(context, object_name, wanted)
    for remark in query.wanted.remarks():
        runtime.messages.warn(remark)
    runtime.emitter.emit_result({"count": count}, text=str(count))


@app.command("get", examples=["crmctl records get people email=grace@acme.com", f"crmctl records get people {NEWEST} -q data.email"])
def get_record(ctx: typer.Context, object_name: ObjectArgument, record_name: RecordArgument) -> None:
    """Show one record, named by its id or by a value that it alone has."""
    runtime: Runtime = ctx.obj
    record = read_record(runtime, object_name, record_name)
    runtime.emitter.emit_item(record.wire, record_columns(runtime, object_name, record.wire))


@app.command("history", examples=[f"crmctl records history people {NEWEST}", f"crmctl records history people {NEWEST} -o jsonl"])
def show_history(
    ctx: typer.Context,
    object_name: ObjectArgument,
    record_name: RecordArgument,
    limit: LimitOption = None,
    every: AllOption = False,
    offset: OffsetOption = 0,
) -> None:
    """Show how a record changed, newest first.

    When, by whom, and each value before and after. A deleted record's history too, by its id, as long as the service keeps it. Services
    other than crmctl's own have none.
    """
    from crmctl.cli.record_changes import show_changes

    show_changes(ctx.obj, object_name, record_name, window(limit, every, offset))


@app.command(
    "create",
    writes=True,
    examples=[
        "crmctl records create people --set email=ada@acme.com --set name.first=Ada --set name.last=Lovelace",
        """crmctl records create people --data '{"email": "grace@acme.com"}' --dry-run""",
        """echo '{"email": "alan@acme.com"}' | crmctl records create people --data -""",
    ],
)
def create_record(
    ctx: typer.Context,
    object_name: ObjectArgument,
    assignments: SetOption = None,
    data: DataOption = None,
    currency: CurrencyOption = None,
) -> None:
    """Create one record.

    Values of --set are typed by the attribute; --set wins over --data.
    """
    runtime: Runtime = ctx.obj
    fields = read_fields(runtime, object_name, assignments, data, currency=currency)
    check_columns(runtime, object_name)
    record = on_object(runtime, object_name, lambda target: runtime.crm.create_record(target, fields))
    runtime.emitter.emit_item(record.wire, record_columns(runtime, object_name, record.wire))


@app.command(
    "update",
    writes=True,
    examples=[
        "crmctl records update people email=grace@acme.com --set email=ada@example.com",
        f"crmctl records update people {NEWEST} --set phone= --dry-run",
        f"crmctl records update people {NEWEST} --set address.city=Rome",
    ],
)
def update_record(
    ctx: typer.Context,
    object_name: ObjectArgument,
    record_name: RecordArgument,
    assignments: SetOption = None,
    data: DataOption = None,
    currency: CurrencyOption = None,
) -> None:
    """Change fields of one record; the others stay as they are.

    So do the other parts of a value: --set address.city=Rome reads the record first and leaves its street alone.
    """
    runtime: Runtime = ctx.obj
    check_given(assignments, data)
    check_columns(runtime, object_name)
    named = find_record(runtime, object_name, record_name)
    fields = read_fields(runtime, object_name, assignments, data, currency=currency, record=named)
    record = on_object(runtime, object_name, lambda target: runtime.crm.update_record(target, named.id, fields))
    runtime.emitter.emit_item(record.wire, record_columns(runtime, object_name, record.wire))


@app.command(
    "edit",
    writes=True,
    examples=["crmctl records edit people email=grace@acme.com", f"crmctl records edit people {NEWEST} --dry-run"],
)
def edit_record(ctx: typer.Context, object_name: ObjectArgument, record_name: RecordArgument) -> None:
    """Change one record in your editor, as YAML; only what you change is sent.

    The editor is VISUAL, else EDITOR. Nothing is sent when somebody else changed the record meanwhile.
    """
    from crmctl.cli.record_edit import edit_record

    check_columns(ctx.obj, object_name)
    edit_record(ctx.obj, object_name, record_name)


@app.command("delete", writes=True, examples=["crmctl records delete people email=grace@acme.com --dry-run"])
def delete_record(ctx: typer.Context, object_name: ObjectArgument, record_name: RecordArgument) -> None:
    """Delete one record; asks first."""
    runtime: Runtime = ctx.obj
    named = find_record(runtime, object_name, record_name)
    text = named.text(record_name)
    runtime.confirm(f"Delete record {text} from {object_name}")
    on_object(runtime, object_name, lambda target: runtime.crm.delete_record(target, named.id))
    runtime.done({"deleted": 1}, f"deleted record {text}")
