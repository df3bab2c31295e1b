"""`crmctl bulk`: import, export and delete many records. Gathers options; the work is done by crmctl.bulk."""
# ruff: noqa: ARG001 - the options of an import are read as a whole, by name

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from crmctl.cli import bulk_options as given
from crmctl.cli.bulk_imports import apply_saved, import_file
from crmctl.cli.framework import CommandApp
from crmctl.cli.options import CurrencyOption, FilterOption, ObjectArgument, SetOption
from crmctl.errors import UsageError

app = CommandApp("Import, export and delete many records safely.")


@app.command(
    "import",
    help="Import records from a file, all checked before any is sent, none written twice.",
    writes=True,
    examples=[
        "crmctl bulk import people people.csv",
        "crmctl bulk import people people.csv --dry-run",
        "crmctl bulk import people people.csv --dry-run --report github",
        "crmctl bulk import people people.csv --key email",
        "crmctl bulk import people people.csv --key email --ref company=companies.domain",
        "crmctl bulk import people people.csv --ref company=companies.name --on-missing-ref create",
        "crmctl bulk import people people.csv --key email --feed erp --on-conflict keep,status=take",
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
    feed: given.FeedOption = None,
    on_conflict: given.ConflictOption = None,
    mirror: given.MirrorOption = "auto",
    references: given.ReferenceOption = None,
    on_missing_ref: given.MissingReferenceOption = "error",
    expect: given.ExpectOption = None,
    max_changes: given.MaxChangesOption = None,
    plan_file: given.PlanOption = None,
    report: given.ReportOption = None,
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
    import_file(ctx.obj, _given(ctx) | {"object": object_name})


def _given(ctx: typer.Context) -> dict[str, Any]:
    """The options of a command by name, and the common one that says how cells are read."""
    return {**ctx.params, "excel_safe": bool(ctx.obj.flags.get("excel_safe"))}


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
    mirror: given.MirrorOption = "auto",
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
    from crmctl.bulk.usecases.apply_plan import ApplyRequest

    apply_saved(ctx.obj, ApplyRequest.taken(_given(ctx)))


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
    """Go on with a job that was interrupted.

    Rows that were written stay written once: those in doubt are read back first. A finished job only shows its summary again.
    """
    from crmctl.bulk.usecases.resume import ResumeRequest
    from crmctl.cli.bulk_resume import resume_job

    resume_job(ctx.obj, ResumeRequest.taken(_given(ctx)))


JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="The job, or the end of its name.")]


@app.command("jobs", writes=None, examples=["crmctl bulk jobs", "crmctl bulk jobs -q '[?resumable].job'"])
def show_jobs(
    ctx: typer.Context,
    job: Annotated[str | None, typer.Argument(metavar="JOB", help="Show only this one.")] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Delete its journal and result files; asks first.")] = False,
) -> None:
    """List the bulk jobs of this machine, the newest first."""
    from crmctl.cli.bulk_jobs import show_jobs

    show_jobs(ctx.obj, job, remove=remove)


@app.command("repair", writes=True, examples=["crmctl bulk repair $(crmctl bulk jobs -q '[0].job' -o ids)"])
def repair_job(
    ctx: typer.Context,
    job: JobArgument,
    delete_duplicates: Annotated[
        bool, typer.Option("--delete-duplicates", help="Delete what is there a second time and nobody has changed since; asks first.")
    ] = False,
    clear_marker: Annotated[bool, typer.Option("--clear-marker", help="Empty the import marker of every record; asks first.")] = False,
) -> None:
    """Look once more at rows that were in doubt, and name those that are there twice.

    A request that was given up as absent may still be carried out by the service much later; this finds it.
    """
    from crmctl.bulk.usecases.repair import RepairRequest
    from crmctl.cli.bulk_jobs import repair_job

    repair_job(ctx.obj, RepairRequest(job, delete_duplicates, clear_marker, ctx.obj.dry_run))


@app.command("undo", writes=True, examples=["crmctl bulk undo $(crmctl bulk jobs -q '[0].job' -o ids) --dry-run"])
def undo_job(ctx: typer.Context, job: JobArgument) -> None:
    """Take back what a job did; shows what it will do and asks.

    Records that it created are deleted. Records that it changed get back what they held before, where that was kept: by --key it is, by id
    with bulk import --before-images yes. Records that it deleted or merged are created again, with new ids, and what named them names
    them again. A record that somebody has changed since stays as it is and is reported. Interrupted, it can be given again: what is undone
    stays undone.
    """
    from crmctl.cli.bulk_jobs import undo_job

    undo_job(ctx.obj, job)


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
    from crmctl.bulk.usecases.export import ExportRequest
    from crmctl.cli.bulk_exports import export_records

    path = Path(file) if file is not None and file != "-" else None
    request = ExportRequest(
        object=object_name, path=path, format=format, excel_safe=bool(ctx.obj.flags.get("excel_safe")), prune=prune,
        since_last=since_last, lookback=lookback, resume=resume,
    )  # fmt: skip
    export_records(ctx.obj, request, filters)


@app.command(
    "update",
    writes=True,
    examples=[
        "crmctl bulk update people --filter 'status=new' --set status=contacted --dry-run",
        "crmctl bulk update people --ids ids.txt --set address.city=Rome --max-changes 100 --dry-run",
    ],
)
def update_records(
    ctx: typer.Context,
    object_name: ObjectArgument,
    ids: given.IdsOption = None,
    filters: FilterOption = None,
    set_values: SetOption = None,
    expect: given.ExpectOption = None,
    max_changes: given.MaxChangesOption = None,
    on_error: given.OnErrorOption = "stop",
    max_failures: given.MaxFailuresOption = None,
    failed: given.FailedOption = None,
    default_region: given.RegionOption = None,
    currency: CurrencyOption = None,
    concurrency: given.ConcurrencyOption = 2,
) -> None:
    """Give many records the same values; shows some changes and asks.

    Records are read first: those that hold the values already are left alone, and of a value only the named parts change. crmctl bulk
    undo takes the job back, crmctl bulk resume goes on with one that was interrupted.
    """
    from crmctl.cli.bulk_changes import update_records

    update_records(ctx.obj, _given(ctx), ids, filters)


@app.command(
    "delete",
    writes=True,
    examples=[
        "crmctl bulk delete people --ids ids.txt --dry-run",
        "crmctl bulk delete people --filter 'email endsWith @example.org' --dry-run",
    ],
)
def delete_records(
    ctx: typer.Context,
    object_name: ObjectArgument,
    ids: given.IdsOption = None,
    filters: FilterOption = None,
    expect: given.ExpectOption = None,
    backup: Annotated[
        str | None, typer.Option("--backup", metavar="FILE", help="Where the copy of the records goes; else into the job's folder.")
    ] = None,
    no_backup: Annotated[bool, typer.Option("--no-backup", help="Keep no copy: what is deleted cannot be had back.")] = False,
    concurrency: given.ConcurrencyOption = 2,
) -> None:
    """Delete many records, given by id or by conditions; names some and asks.

    All are read, and a copy of them is on disk, before the first one is deleted. crmctl bulk undo creates them again with new ids, crmctl
    bulk resume goes on with a deletion that was interrupted.
    """
    from crmctl.cli.bulk_changes import delete_records

    if (ids is None) == (not filters):
        raise UsageError("say which records: either --ids or --filter", hint="crmctl bulk delete --help")
    if backup is not None and no_backup:
        raise UsageError("--backup and --no-backup exclude each other", hint="leave one of them out")
    delete_records(ctx.obj, _given(ctx), ids, filters)


@app.command(
    "dedupe",
    examples=[
        "crmctl bulk dedupe people --match email --plan duplicates.jsonl",
        "crmctl bulk dedupe people --match email --match 'name~0.92,company' --keep most-complete --review",
    ],
)
def dedupe_records(
    ctx: typer.Context,
    object_name: ObjectArgument,
    match: Annotated[
        list[str] | None,
        typer.Option("--match", metavar="EXPR", help="What makes two records one: attributes equal, or with ~0.92 alike."),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            "--keep", metavar="RULE", help="Who stays: oldest, newest, most-complete, most-activities; whose values: phone=newest."
        ),
    ] = None,
    plan: Annotated[str | None, typer.Option("--plan", metavar="FILE", help="Write what to merge here, for crmctl bulk apply.")] = None,
    most: Annotated[int, typer.Option("--max-group", metavar="N", min=2, help="Groups of more records are left out.")] = 10,
    review: Annotated[bool, typer.Option("--review", help="Show the groups, the least certain first.")] = False,
    max_age: Annotated[
        float, typer.Option("--max-age", metavar="SECONDS", min=0, help="A mirror that is older is brought up to date first.")
    ] = 3600.0,
) -> None:
    """Find records that are one and the same, and propose how to merge them.

    Several --match are alternatives; crmctl help matching says how values are compared. The plan is a file to read and to edit: one group
    a line, with the record that stays, those that go, and whose value of every attribute is kept.
    """
    from crmctl.bulk.usecases.dedupe import DedupeRequest
    from crmctl.cli.bulk_merges import dedupe_records

    path = Path(plan) if plan is not None else None
    dedupe_records(ctx.obj, DedupeRequest(object_name, tuple(match or ()), tuple(keep or ()), path, most, review, max_age))


@app.command("inspect", examples=["crmctl bulk inspect people.csv --object people", "crmctl bulk inspect contacts.csv --duplicates"])
def inspect_file(
    ctx: typer.Context,
    file: given.FileArgument,
    object_name: Annotated[
        str | None, typer.Option("--object", metavar="OBJECT", help="Also propose which attributes the columns fill.")
    ] = None,
    mode: given.ModeOption = "create",
    duplicates: Annotated[bool, typer.Option("--duplicates", help="Also count rows that are one and the same.")] = False,
    match: Annotated[
        list[str] | None, typer.Option("--match", metavar="EXPR", help="What makes two rows one, as in bulk dedupe; implies --duplicates.")
    ] = None,
    format: given.FormatOption = None,
    encoding: given.EncodingOption = None,
    delimiter: given.DelimiterOption = None,
    quote: given.QuoteOption = None,
    sheet: given.SheetOption = None,
    pad_short: given.PadOption = False,
) -> None:
    """Show how a file is read, what its columns hold, and what they would fill.

    With --duplicates its rows are compared: by every column of e-mail addresses or phone numbers, else by all columns together.
    """
    from crmctl.bulk.usecases.inspect_file import InspectRequest
    from crmctl.cli.bulk_transfers import inspect_input

    inspect_input(ctx.obj, InspectRequest.taken(_given(ctx), object=object_name))
