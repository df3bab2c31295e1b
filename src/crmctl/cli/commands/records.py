"""`crmctl records`: list, count, read and change records; `bulk` changes many at once."""

from __future__ import annotations

from typing import Annotated, Any

from crmctl.cli.app import CommandApp
from crmctl.cli.options import (
    CurrencyOption,
    DataOption,
    FilterOption,
    ObjectArgument,
    RecordArgument,
    SetOption,
    StrictOption,
    argument,
    flag,
    option,
    takes,
)
from crmctl.cli.runtime import Runtime
from crmctl.errors import UsageError

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
@takes("filters limit every offset sort order strict sample seed")
def list_records(runtime: Runtime, object_name: ObjectArgument, **options: Any) -> None:
    """List records, newest first by default.

    Shows 50 unless --limit or --all asks for more. crmctl help filters explains conditions.
    """
    from crmctl.cli.record_lists import Asked, list_sample, list_window

    sample, seed = options.pop("sample"), options.pop("seed")
    if sample is None:
        list_window(runtime, object_name, **options)
        return
    if options["limit"] is not None or any(options[name] for name in ("every", "offset", "sort", "order")):
        raise UsageError("--sample takes no --limit, --all, --offset, --sort or --order", hint=f"--sample {sample} shows {sample}")
    list_sample(runtime, Asked(object_name, options["filters"], strict=options["strict"]), sample, seed)


@app.command(
    "search",
    examples=[
        "crmctl records search people Hopper",
        "crmctl records search people --filter 'name~ada'",
        "crmctl records search deals --filter 'stage=won' --filter 'amount>1000' --all",
    ],
)
@takes("filters limit every offset sort order strict")
def search_records(
    runtime: Runtime,
    object_name: ObjectArgument,
    text: Annotated[str | None, argument("TEXT", "Text to find in any text attribute.")] = None,
    **options: Any,
) -> None:
    """Find records by text, or with the search request of the service.

    Options and results are those of crmctl records list. A text takes one request per text attribute.
    """
    from crmctl.cli.record_lists import list_window

    list_window(runtime, object_name, text=text, search=True, **options)


@app.command(
    "count",
    examples=[
        "crmctl records count people",
        "crmctl records count deals --filter 'stage=won' -o json",
        "crmctl records count deals --by stage --sum amount --avg amount",
        "crmctl records count people --by company.name --by status --limit 10",
        "crmctl records count people --by created_at:month --sort created_at:month --chart",
    ],
)
def count_records(
    runtime: Runtime,
    object_name: ObjectArgument,
    filters: FilterOption = None,
    by: Annotated[
        list[str] | None, option("--by", "ATTR", "Count by value: status, address.city, company.name, created_at:month; repeatable.")
    ] = None,
    sums: Annotated[list[str] | None, option("--sum", "ATTR", "Sum this attribute; repeatable.")] = None,
    averages: Annotated[list[str] | None, option("--avg", "ATTR", "Average this attribute; repeatable.")] = None,
    least: Annotated[list[str] | None, option("--min", "ATTR", "Lowest value; repeatable.")] = None,
    most: Annotated[list[str] | None, option("--max", "ATTR", "Highest value; repeatable.")] = None,
    sort: Annotated[str | None, option("--sort", "count|-count|BY", "Order of the groups; the largest first by default.")] = None,
    limit: Annotated[int | None, option("--limit", "N", "Show the first N groups.", min=1)] = None,
    chart: Annotated[bool, flag("--chart", "Draw the numbers as bars.")] = False,
    strict: StrictOption = False,
) -> None:
    """Count records, in total or by value, and measure their numbers.

    A date takes a unit: day, week, month, quarter or year, in local time. A record with a list of values counts for each value. Measures
    ignore records without a number and never add up currencies. Queries that need more than 50 requests use the mirror if there is one;
    the output shows its age. --yes reads the service instead.
    """
    from crmctl.cli.record_lists import Asked, show_count, show_groups

    options = {"sum": sums, "avg": averages, "min": least, "max": most}
    of = [(measure, slug) for measure, slugs in options.items() for slug in slugs or ()]
    if not by and not of:
        if sort is not None or limit is not None or chart:
            raise UsageError("--sort, --limit and --chart need --by", hint=f"crmctl records count {object_name} --by ATTR")
        show_count(runtime, Asked(object_name, filters, strict=strict))
        return
    from crmctl.client.query.groups import Measures

    measures = Measures(list(dict.fromkeys(by or ())), list(dict.fromkeys(of)))
    show_groups(runtime, Asked(object_name, filters, sort, strict=strict), measures, limit=limit, chart=chart)


@app.command("get", examples=["crmctl records get people email=grace@acme.com", f"crmctl records get people {NEWEST} -q data.email"])
def get_record(
    runtime: Runtime,
    object_name: ObjectArgument,
    record_name: RecordArgument,
    web: Annotated[bool, flag("--web", "Open the record in the console, and print the address.")] = False,
) -> None:
    """Show one record, by its id or by a value that only it has.

    --web needs crmctl's own service.
    """
    from crmctl.cli.record_lists import RecordDisplay
    from crmctl.cli.targets import read_record

    if web:
        _open_page(runtime, object_name, record_name)
        return
    display = RecordDisplay(runtime, object_name)
    display.emit(read_record(runtime, object_name, record_name).wire)


def _open_page(runtime: Runtime, object_name: str, record_name: str) -> None:
    """Print the address of a record's page in the console, and open it. Raises RejectedError if the service has no console."""
    from crmctl.cli.targets import read_record
    from crmctl.client.crm import not_offered

    record = read_record(runtime, object_name, record_name)
    offered = runtime.crm.extensions()
    if offered is None or not offered.console_url:
        raise not_offered("the extension GET /extensions, which gives the address of its console")
    slug = runtime.directory.object(runtime.shown_ids.whole(object_name)).slug
    url = f"{offered.console_url}/records/{slug}/{record.id}"
    runtime.emitter.emit_result({"url": url}, text=url)
    runtime.browse(url)


@app.command("history", examples=[f"crmctl records history people {NEWEST}", f"crmctl records history people {NEWEST} -o jsonl"])
@takes("limit every offset")
def show_history(runtime: Runtime, object_name: ObjectArgument, record_name: RecordArgument, **part: Any) -> None:
    """Show a record's changes, newest first.

    Each line shows when and by whom a value changed, before and after. Deleted records, by id, are included while the service keeps them.
    Only crmctl's own service has a history.
    """
    from crmctl.cli.list_window import window
    from crmctl.cli.record_lists import show_changes

    show_changes(runtime, object_name, record_name, window(**part))


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
    runtime: Runtime,
    object_name: ObjectArgument,
    assignments: SetOption = None,
    data: DataOption = None,
    currency: CurrencyOption = None,
) -> None:
    """Create one record.

    --set reads values by the type of the attribute and overrides --data.
    """
    from crmctl.cli.fields import read_fields
    from crmctl.cli.record_lists import RecordDisplay
    from crmctl.cli.targets import check_columns, on_object

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
    runtime: Runtime,
    object_name: ObjectArgument,
    record_name: RecordArgument,
    assignments: SetOption = None,
    data: DataOption = None,
    currency: CurrencyOption = None,
) -> None:
    """Change some fields of one record.

    --set address.city=Rome reads the record first and keeps its street.
    """
    from crmctl.cli.fields import check_given, read_fields
    from crmctl.cli.record_lists import RecordDisplay
    from crmctl.cli.targets import check_columns, find_record, on_record

    check_given(assignments, data)
    check_columns(runtime, object_name)
    named = find_record(runtime, object_name, record_name)
    fields = read_fields(runtime, object_name, assignments, data, currency=currency, record=named)
    record = on_record(runtime, object_name, named, lambda target: runtime.crm.update_record(target, named.id, fields))
    RecordDisplay(runtime, object_name).emit(record.wire)


@app.command(
    "edit",
    writes=True,
    examples=["crmctl records edit people email=grace@acme.com", f"crmctl records edit people {NEWEST} --dry-run"],
)
def edit_record(runtime: Runtime, object_name: ObjectArgument, record_name: RecordArgument) -> None:
    """Edit one record as YAML in your editor; crmctl sends only your changes.

    The editor is VISUAL, else EDITOR. crmctl sends nothing if another client changed the record meanwhile. bulk undo reverts the edit.
    """
    from crmctl.cli.record_jobs import edit_record
    from crmctl.cli.targets import check_columns

    check_columns(runtime, object_name)
    edit_record(runtime, object_name, record_name)


@app.command(
    "merge",
    writes=True,
    examples=[
        "crmctl records merge people email=grace@acme.com email=grace@navy.mil --dry-run",
        "crmctl records merge people email=grace@acme.com score=2 --keep score=2 --set name.first=Grace --dry-run",
    ],
)
def merge_records(
    runtime: Runtime,
    object_name: ObjectArgument,
    first: RecordArgument,
    second: RecordArgument,
    keep: Annotated[str | None, option("--keep", "ID|ATTR=VALUE", "The record that stays; by default the older.")] = None,
    assignments: SetOption = None,
) -> None:
    """Merge two records into one; shows both and asks.

    The older one stays, unless --keep names the other. It keeps its values, takes those it lacks, and unites lists; --set sets others.
    References and activities move to it. bulk undo reverts the merge.
    """
    from crmctl.cli.record_jobs import merge_records

    merge_records(runtime, object_name, (first, second), keep, assignments)


@app.command("delete", writes=True, examples=["crmctl records delete people email=grace@acme.com --dry-run"])
def delete_record(runtime: Runtime, object_name: ObjectArgument, record_name: RecordArgument) -> None:
    """Delete one record; asks first."""
    from crmctl.cli.targets import find_record, on_record, target_text

    runtime.emitter.check_result({"deleted": 1})
    named = find_record(runtime, object_name, record_name)
    text = target_text(runtime, object_name, named, record_name)
    runtime.confirm(f"Delete record {text} from {object_name}")
    on_record(runtime, object_name, named, lambda target: runtime.crm.delete_record(target, named.id))
    runtime.done({"deleted": 1}, f"deleted record {text}")
