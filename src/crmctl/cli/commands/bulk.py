"""`crmctl bulk`: import, export and delete many records. Gathers options; the work is done by crmctl.bulk."""
# ruff: noqa: ARG001 - the options of an import are read as a whole, by name

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crmctl.cli import bulk_options as given
from crmctl.cli.framework import CommandApp
from crmctl.cli.list_window import one_of
from crmctl.cli.options import CurrencyOption, FilterOption, ObjectArgument
from crmctl.errors import UsageError

if TYPE_CHECKING:
    from crmctl.cli.runtime import Runtime

app = CommandApp("Import, export and delete many records safely.")


@app.command(
    "import",
    writes=True,
    examples=[
        "crmctl bulk import people people.csv",
        "crmctl bulk import people people.csv --dry-run",
        "crmctl bulk import people people.csv --key email",
        "crmctl bulk import people people.csv --key email --ref company=companies.domain",
        "crmctl bulk import people people.csv --ref company=companies.name --on-missing-ref create",
        "crmctl bulk import people people.csv --key email --expect 2 --dry-run",
        "crmctl bulk import people people.csv --key email --dry-run --plan people.plan",
        "crmctl bulk import people contacts.csv --map 'Work Email=email' --on-error continue",
        "crmctl bulk import people people.csv --default-region GB --null-string NULL --blank 'Job title=clear'",
        "crmctl records list people -o csv --fields id,score | crmctl bulk import people - --mode upsert --set status=contacted",
    ],
)
def import_records(
    ctx: typer.Context,
    object_name: ObjectArgument,
    file: given.FileArgument,
    mode: given.ImportModeOption = None,
    keys: given.KeyOption = None,
    on_duplicate_key: given.DuplicateKeyOption = "error",
    references: given.ReferenceOption = None,
    on_missing_ref: given.MissingReferenceOption = "error",
    expect: given.ExpectOption = None,
    max_changes: given.MaxChangesOption = None,
    plan_file: given.PlanOption = None,
    map_pairs: given.MapOption = None,
    map_file: given.MapFileOption = None,
    set_values: given.ConstantOption = None,
    ignore_unknown: given.IgnoreOption = False,
    on_error: given.OnErrorOption = "stop",
    max_failures: given.MaxFailuresOption = None,
    failed: given.FailedOption = None,
    again: given.AgainOption = False,
    blank: given.BlankOption = None,
    null_strings: given.NullOption = None,
    clear_tokens: given.ClearOption = None,
    list_separator: given.SeparatorOption = ";",
    decimal_comma: given.CommaOption = False,
    decimal_marks: given.MarkOption = None,
    date_formats: given.DateOption = None,
    default_region: given.RegionOption = None,
    currency: CurrencyOption = None,
    pad_short: given.PadOption = False,
    format: given.FormatOption = None,
    encoding: given.EncodingOption = None,
    delimiter: given.DelimiterOption = None,
    quote: given.QuoteOption = None,
    sheet: given.SheetOption = None,
    concurrency: given.ConcurrencyOption = 2,
    marker: given.MarkerOption = None,
    before_images: given.BeforeOption = "auto",
    settle: given.SettleOption = 120.0,
    assume_applied: given.AssumeAppliedOption = False,
    assume_lost: given.AssumeLostOption = False,
    capture_ids: given.CaptureOption = False,
    lock_wait: given.LockWaitOption = 3600.0,
) -> None:
    """Import records from a file, 100 per request.

    All rows are checked before anything is sent. No row is written twice; crmctl bulk resume goes on with a job that was interrupted.
    """
    _import(ctx.obj, object_name, file, ctx.params)


def _import(runtime: Runtime, object_name: str, file: str, given: dict[str, Any]) -> None:
    from crmctl.cli.bulk_request import read_request
    from crmctl.cli.bulk_runs import import_file

    _check_places(runtime, file, failed=given["failed"])
    import_file(runtime, object_name, file, read_request({**given, "excel_safe": runtime.flags.get("excel_safe")}))


def _check_places(runtime: Runtime, *files: str | None, failed: str | None = None) -> None:
    """Notice before the first request what cannot be read, and where nothing can be written. Raises UsageError, ConfigError."""
    from crmctl.bulk.atomic_file import check_place
    from crmctl.bulk.journal.jobs import JobStore
    from crmctl.bulk.sources.given_input import is_stream

    regular = [Path(file) for file in files if file is not None and not is_stream(file)]
    if failed is not None:
        check_place(Path(failed), regular[0] if regular else None)
    if not runtime.dry_run:
        JobStore(runtime.paths.state, runtime.clock).prepare()


@app.command("apply", writes=True, examples=["crmctl bulk apply people.plan --dry-run", "crmctl bulk apply people.plan"])
def apply_plan(
    ctx: typer.Context,
    file: Annotated[str, typer.Argument(metavar="FILE", help="A plan that bulk import --plan has made.")],
    input: Annotated[str | None, typer.Option("--input", metavar="FILE", help="Where the file to import is, when it was moved.")] = None,
    expect: given.ExpectOption = None,
    max_changes: given.MaxChangesOption = None,
    max_failures: given.MaxFailuresOption = None,
    failed: given.FailedOption = None,
    again: given.AgainOption = False,
    concurrency: given.ConcurrencyOption = 2,
    settle: given.SettleOption = 120.0,
    assume_applied: given.AssumeAppliedOption = False,
    assume_lost: given.AssumeLostOption = False,
    capture_ids: given.CaptureOption = False,
    lock_wait: given.LockWaitOption = 3600.0,
) -> None:
    """Do exactly what a plan says, or nothing.

    Refused when the service, the file, its mapping, the attributes, or a record that the plan touches or decided on is not what it was;
    the message says which. With --dry-run it is checked and shown.
    """
    from crmctl.bulk.run.guards import Guard
    from crmctl.bulk.send.context import DeliveryOptions
    from crmctl.cli.bulk_plans import ApplyRequest, apply_plan
    from crmctl.cli.bulk_request import assumption

    assume = assumption(assume_applied, assume_lost)
    delivery = DeliveryOptions(concurrency=concurrency, max_failures=max_failures, settle=settle, assume=assume, capture_ids=capture_ids)
    guard, source, copy = Guard.parse(expect, max_changes), Path(input) if input else None, Path(failed) if failed else None
    _check_places(ctx.obj, file, input, failed=failed)
    apply_plan(ctx.obj, file, ApplyRequest(delivery, guard, source, copy, again, lock_wait))


@app.command("resume", writes=True, examples=["crmctl bulk resume $(crmctl bulk jobs -q '[0].job' -o ids)"])
def resume_job(
    ctx: typer.Context,
    job: Annotated[str | None, typer.Argument(metavar="JOB", help="The job; the only resumable one when left out.")] = None,
    last: Annotated[bool, typer.Option("--last", help="The newest job that can be resumed.")] = False,
    failed: given.FailedOption = None,
    max_failures: given.MaxFailuresOption = None,
    concurrency: given.ConcurrencyOption = 2,
    settle: given.SettleOption = 120.0,
    assume_applied: given.AssumeAppliedOption = False,
    assume_lost: given.AssumeLostOption = False,
    capture_ids: given.CaptureOption = False,
    lock_wait: given.LockWaitOption = 3600.0,
) -> None:
    """Go on with an import that was interrupted.

    Rows that were written stay written once: those in doubt are read back first. A finished job only shows its summary again.
    """
    from crmctl.bulk.journal.jobs import JobStore
    from crmctl.bulk.run.job_run import finished_result
    from crmctl.bulk.send.context import DeliveryOptions
    from crmctl.bulk.usecases.resume import check_service, choose_job, reopen
    from crmctl.cli.bulk_request import assumption
    from crmctl.cli.bulk_runs import check_shown, resolve_target, resume_preview, run_job, show_result, takes_turns

    runtime: Runtime = ctx.obj
    _check_places(runtime, failed=failed)
    store = JobStore(runtime.paths.state, runtime.clock)
    chosen = choose_job(store, job, last=last)
    if runtime.dry_run:
        resume_preview(runtime, chosen)
    elif (finished := finished_result(store, chosen)) is not None:
        show_result(runtime, finished, chosen.header.input)
    else:
        check_shown(runtime)
        origin = runtime.settings.require_origin()
        check_service(chosen.header, origin)
        _, attributes = resolve_target(runtime, chosen.header.object_id)
        ready = reopen(store, chosen, origin, attributes)
        assume = assumption(assume_applied, assume_lost)
        delivery = DeliveryOptions(
            concurrency=concurrency, max_failures=max_failures, settle=settle, assume=assume, capture_ids=capture_ids
        )
        with takes_turns(runtime, ready.journal.header, lock_wait):
            run_job(runtime, ready, delivery, failed_copy=Path(failed) if failed else None)


JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="The job, or the end of its name.")]


@app.command("jobs", writes=None, examples=["crmctl bulk jobs", "crmctl bulk jobs -q '[?resumable].job'"])
def show_jobs(
    ctx: typer.Context,
    job: Annotated[str | None, typer.Argument(metavar="JOB", help="Show only this one.")] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Delete its journal and result files; asks first.")] = False,
) -> None:
    """List the import jobs of this machine, the newest first."""
    from crmctl.cli.bulk_jobs import show_jobs

    show_jobs(ctx.obj, job, remove=remove)


@app.command("repair", writes=True, examples=["crmctl bulk repair $(crmctl bulk jobs -q '[0].job' -o ids)"])
def repair_job(
    ctx: typer.Context,
    job: JobArgument,
    delete_duplicates: Annotated[
        bool, typer.Option("--delete-duplicates", help="Delete what is there a second time, keeping the older one; asks first.")
    ] = False,
    clear_marker: Annotated[bool, typer.Option("--clear-marker", help="Empty the import marker of every record; asks first.")] = False,
) -> None:
    """Look once more at rows that were in doubt, and name those that are there twice.

    A request that was given up as absent may still be carried out by the service much later; this finds it.
    """
    from crmctl.cli.bulk_jobs import repair

    repair(ctx.obj, job, delete_duplicates=delete_duplicates, clear_marker=clear_marker)


@app.command("undo", writes=True, examples=["crmctl bulk undo $(crmctl bulk jobs -q '[0].job' -o ids) --dry-run"])
def undo_job(ctx: typer.Context, job: JobArgument) -> None:
    """Take back what an import did; shows what it will do and asks.

    Records that it created are deleted. Records that it changed get back what they held before, where that was kept: by --key it is, by id
    with bulk import --before-images yes. A record that somebody has changed since stays as it is and is reported. Interrupted, it can be
    given again: what is undone stays undone.
    """
    from crmctl.cli.bulk_jobs import undo

    undo(ctx.obj, job)


@app.command(
    "export",
    examples=[
        "crmctl bulk export people -O people-export.csv --yes",
        "crmctl bulk export people --filter 'email endsWith @acme.com' > acme.jsonl",
        "crmctl bulk export people -O changes.jsonl --since-last --yes",
    ],
)
def export_records(
    ctx: typer.Context,
    object_name: ObjectArgument,
    file: Annotated[str | None, typer.Option("--out", "-O", metavar="FILE", help="Write here instead of stdout; .gz compresses.")] = None,
    format: Annotated[
        str | None, typer.Option("--format", metavar="jsonl|csv|tsv|json|parquet|xlsx", help="Else by the file's name, on stdout jsonl.")
    ] = None,
    filters: FilterOption = None,
    prune: Annotated[bool, typer.Option("--prune-deleted", help="Read twice, and leave out what was deleted meanwhile.")] = False,
    since_last: Annotated[bool, typer.Option("--since-last", help="Only what changed since the last run; at first all.")] = False,
    lookback: Annotated[float, typer.Option("--lookback", metavar="SECONDS", min=0, help="How late a change may become visible.")] = 900.0,
    resume: Annotated[
        bool | None,
        typer.Option("--resume/--restart", help="Go on with an interrupted export, or begin anew; else one of the last 24 hours goes on."),
    ] = None,
) -> None:
    """Export all records of an object, or those that match, each once.

    Others may write meanwhile: every record that exists from beginning to end is there; what is deleted meanwhile may be. A file appears
    whole or not at all, with a manifest beside it; an existing one is replaced only with --yes. An interrupted export goes on when the
    same command is given again.
    """
    from crmctl.cli.bulk_exports import export

    path = Path(file) if file is not None and file != "-" else None
    export(ctx.obj, object_name, path, format, filters, prune=prune, since_last=since_last, lookback=lookback, resume=resume)


@app.command(
    "delete",
    writes=True,
    examples=[
        "crmctl bulk delete people --ids ids.txt --yes",
        "crmctl bulk delete people --filter 'email endsWith @example.org' --dry-run",
    ],
)
def delete_records(
    ctx: typer.Context,
    object_name: ObjectArgument,
    ids: Annotated[
        str | None, typer.Option("--ids", metavar="FILE|-", help="Record ids, one a line, or a table with an id column.")
    ] = None,
    filters: FilterOption = None,
) -> None:
    """Delete many records, given by id or by conditions; asks first.

    All ids are known before the first one is deleted; requests delete 100 at a time.
    """
    from crmctl.cli.bulk_transfers import delete

    if (ids is None) == (not filters):
        raise UsageError("say which records: either --ids or --filter", hint="crmctl bulk delete --help")
    delete(ctx.obj, object_name, ids, filters)


@app.command("inspect", examples=["crmctl bulk inspect people.csv --object people", "crmctl bulk inspect contacts.csv -o json"])
def inspect_file(
    ctx: typer.Context,
    file: given.FileArgument,
    object_name: Annotated[
        str | None, typer.Option("--object", metavar="OBJECT", help="Also propose which attributes the columns fill.")
    ] = None,
    mode: given.ModeOption = "create",
    format: given.FormatOption = None,
    encoding: given.EncodingOption = None,
    delimiter: given.DelimiterOption = None,
    quote: given.QuoteOption = None,
    sheet: given.SheetOption = None,
    pad_short: given.PadOption = False,
) -> None:
    """Show how a file is read, what its columns hold, and what they would fill."""
    from crmctl.bulk.sources.rows import SourceOptions
    from crmctl.cli.bulk_transfers import inspect_input

    one_of("--mode", mode, ("create", "upsert"))
    _check_places(ctx.obj, file)
    excel_safe = bool(ctx.obj.flags.get("excel_safe"))
    options = SourceOptions(format, encoding, delimiter, quote, sheet, pad_short=pad_short, excel_safe=excel_safe)
    inspect_input(ctx.obj, file, object_name, mode, options)
