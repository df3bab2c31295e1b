"""`crmctl records`: the records of an object, one at a time or page by page. Many at once belong to `bulk`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from crmctl.cli.framework import CommandApp
from crmctl.cli.list_window import window
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
    SampleOption,
    SeedOption,
    SetOption,
    SortOption,
    StrictOption,
)
from crmctl.cli.record_display import RecordDisplay
from crmctl.cli.record_fields import check_given, read_fields
from crmctl.cli.record_listings import Asked, list_sample, list_window, show_count, show_groups
from crmctl.cli.targets import check_columns, on_object
from crmctl.errors import UsageError

if TYPE_CHECKING:
    from crmctl.cli.runtime import Runtime

app = CommandApp("List, search, count, read and change the records of an object.")

NEWEST = "$(crmctl records list people --limit 1 -o ids)"


@app.command(
    "list",
    examples=[
        "crmctl records list people",
        "crmctl records list people --filter 'email endsWith @acme.com' --fields name,email",
        "crmctl records list people --filter 'address.city=Rome' --filter 'created_at<2y' --all -o csv",
        "crmctl records list people --filter 'status in new,contacted' --sort score --order desc --limit 10",
        "crmctl records list people --fields name,email,company.name --sample 10",
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
    sample: SampleOption = None,
    seed: SeedOption = None,
) -> None:
    """List records, newest first unless sorted otherwise.

    Shows 50 unless --limit or --all asks for more; how conditions are written: crmctl help filters.
    """
    asked = Asked(object_name, filters, sort, order, strict=strict)
    if sample is None:
        list_window(ctx.obj, asked, window(limit, every, offset))
        return
    if every or limit is not None or offset or sort or order:
        raise UsageError("--sample takes no --limit, --all, --offset, --sort or --order", hint=f"--sample {sample} shows {sample}")
    list_sample(ctx.obj, asked, sample, seed)


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
    list_window(ctx.obj, Asked(object_name, filters, sort, order, text, search=True, strict=strict), window(limit, every, offset))


@app.command(
    "count",
    examples=[
        "crmctl records count people",
        "crmctl records count deals --filter 'stage=won' -o json",
        "crmctl records count deals --by stage --sum amount --avg amount",
    ],
)
def count_records(
    ctx: typer.Context,
    object_name: ObjectArgument,
    filters: FilterOption = None,
    by: Annotated[str | None, typer.Option("--by", metavar="ATTR", help="One row for each value of this attribute.")] = None,
    sums: Annotated[list[str] | None, typer.Option("--sum", metavar="ATTR", help="Add it up; may be repeated.")] = None,
    averages: Annotated[list[str] | None, typer.Option("--avg", metavar="ATTR", help="Average it; may be repeated.")] = None,
    strict: StrictOption = False,
) -> None:
    """Count records, all together or by a value; add up amounts.

    A record with a list of values counts for each of them. Sums and averages leave out records without a number. What takes more than 50
    requests comes from the mirror where there is one, and says as of when; --yes reads the service.
    """
    asked = Asked(object_name, filters, strict=strict)
    if by is None and not sums and not averages:
        show_count(ctx.obj, asked)
    else:
        show_groups(ctx.obj, asked, by, sums or [], averages or [])


@app.command("get", examples=["crmctl records get people email=grace@acme.com", f"crmctl records get people {NEWEST} -q data.email"])
def get_record(ctx: typer.Context, object_name: ObjectArgument, record_name: RecordArgument) -> None:
    """Show one record, named by its id or by a value that it alone has."""
    runtime: Runtime = ctx.obj
    display = RecordDisplay(runtime, object_name)
    display.emit(read_record(runtime, object_name, record_name).wire)


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
    RecordDisplay(runtime, object_name).emit(record.wire)


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
    RecordDisplay(runtime, object_name).emit(record.wire)


@app.command(
    "edit",
    writes=True,
    examples=["crmctl records edit people email=grace@acme.com", f"crmctl records edit people {NEWEST} --dry-run"],
)
def edit_record(ctx: typer.Context, object_name: ObjectArgument, record_name: RecordArgument) -> None:
    """Change one record in your editor, as YAML; only what you change is sent.

    The editor is VISUAL, else EDITOR. Nothing is sent when somebody else changed the record meanwhile. It is a
    job: bulk undo puts back what was there.
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
