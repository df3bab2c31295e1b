"""`crmctl bulk`: options of the commands that import, export, change and delete many records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from crmctl.cli.app import CommandApp
from crmctl.cli.options import (
    FileArgument,
    FilterOption,
    ObjectArgument,
    SetOption,
    StrictOption,
    argument,
    flag,
    option,
    takes,
)
from crmctl.cli.runtime import Runtime
from crmctl.errors import UsageError

app = CommandApp("Import, export and delete many records safely.")


@app.command(
    "import",
    help="Import records from a file. crmctl checks all rows first and writes none twice.",
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
@takes(
    "mode keys on_duplicate_key feed on_conflict mirror references on_missing_ref expect max_changes plan_file report "
    "map_pairs map_file value_map set_values ignore_unknown on_error max_failures failed again blank null_strings "
    "clear_tokens list_separator decimal_comma decimal_marks date_formats default_region currency format encoding "
    "delimiter sheet concurrency settle capture_ids lock_wait ping"
)
def import_records(runtime: Runtime, object_name: ObjectArgument, file: FileArgument, **options: Any) -> None:
    from crmctl.cli.bulk_changes import import_file

    runtime.start_ping(options["ping"])
    import_file(runtime, {**options, "object": object_name, "file": file, "excel_safe": runtime.excel_safe})


@app.command("apply", writes=True, examples=["crmctl bulk apply people.plan --dry-run", "crmctl bulk apply people.plan"])
@takes("expect max_changes max_failures failed again mirror concurrency settle capture_ids lock_wait")
def apply_plan(
    runtime: Runtime,
    file: Annotated[str, argument("FILE", "A plan made with --plan.")],
    input: Annotated[str | None, option("--input", "FILE", "The import file, if it was moved.")] = None,
    **options: Any,
) -> None:
    """Do exactly what a plan says, or nothing.

    crmctl refuses the plan if the service, the file, its mapping, an attribute or a record of the plan has changed, and says which. With
    --dry-run it only checks and shows the plan.
    """
    from crmctl.cli.bulk_changes import apply_saved
    from crmctl.plan.import_records import ApplyRequest

    apply_saved(runtime, ApplyRequest.taken(options, file=file, input=input))


@app.command("resume", writes=True, examples=["crmctl bulk resume $(crmctl bulk jobs -q '[0].job' -o ids)"])
@takes("failed max_failures concurrency settle capture_ids lock_wait")
def resume_job(
    runtime: Runtime,
    job: Annotated[str | None, argument("JOB", "The job, or the end of its name; by default the only resumable one.")] = None,
    last: Annotated[bool, flag("--last", "Resume the newest resumable job.")] = False,
    allow_older: Annotated[bool, flag("--allow-older", "Even if a newer job by the same key has finished.")] = False,
    **options: Any,
) -> None:
    """Continue an interrupted job.

    crmctl first looks for rows in doubt, so that none is written twice. For a finished job it only shows the summary.
    """
    from crmctl.cli.bulk_jobs import resume_job
    from crmctl.plan.resume import ResumeRequest

    resume_job(runtime, ResumeRequest.taken(options, job=job, last=last, allow_older=allow_older))


JobArgument = Annotated[str, argument("JOB", "The job, the end of its name, or last for the newest.")]


@app.command("jobs", writes=None, examples=["crmctl bulk jobs", "crmctl bulk jobs -q '[?resumable].job'"])
def show_jobs(
    runtime: Runtime,
    job: Annotated[str | None, argument("JOB", "Show only this job: its name, the end of its name, or last.")] = None,
    remove: Annotated[bool, flag("--remove", "Delete its journal and result files; asks first.")] = False,
) -> None:
    """List the bulk jobs of this machine, newest first."""
    from crmctl.cli.bulk_jobs import show_jobs

    show_jobs(runtime, job, remove=remove)


@app.command("repair", writes=True, examples=["crmctl bulk repair $(crmctl bulk jobs -q '[0].job' -o ids)"])
def repair_job(
    runtime: Runtime,
    job: JobArgument,
    delete_duplicates: Annotated[bool, flag("--delete-duplicates", "Delete unchanged duplicates; asks first.")] = False,
) -> None:
    """Look again for rows that were in doubt, and name duplicates.

    A service may carry out a request long after crmctl gave it up; this command finds its effects.
    """
    from crmctl.cli.bulk_jobs import repair_job
    from crmctl.plan.resume import RepairRequest

    repair_job(runtime, RepairRequest(job, delete_duplicates, runtime.dry_run))


@app.command("undo", writes=True, examples=["crmctl bulk undo $(crmctl bulk jobs -q '[0].job' -o ids) --dry-run"])
def undo_job(
    runtime: Runtime,
    job: JobArgument,
    include_changed: Annotated[bool, flag("--include-changed", "Also undo records that changed since; their changes are lost.")] = False,
) -> None:
    """Undo a job; shows the steps and asks first.

    crmctl deletes the records that the job created, restores the values it changed, and creates the records it deleted or merged again,
    with new ids and restored references. It cannot restore values that bulk import changed by id. It skips and reports records that
    changed since. Repeat the command to continue an interrupted undo.
    """
    from crmctl.cli.bulk_jobs import undo_job

    undo_job(runtime, job, include_changed=include_changed)


@app.command(
    "export",
    examples=[
        "crmctl bulk export people -O people-export.csv --yes",
        "crmctl bulk export people --filter 'email endsWith @acme.com' > acme.jsonl",
        "crmctl bulk export people -O changes.jsonl --since-last --yes",
    ],
)
def export_records(
    runtime: Runtime,
    object_name: ObjectArgument,
    file: Annotated[str | None, option("--out -O", "FILE", "Write to a file; .gz compresses.")] = None,
    format: Annotated[
        str | None, option("--format", "jsonl|csv|tsv|json|parquet|xlsx", "By default from the file's name; stdout: jsonl.")
    ] = None,
    filters: FilterOption = None,
    strict: StrictOption = False,
    prune: Annotated[bool, flag("--prune-deleted", "Read twice and leave out records deleted meanwhile.")] = False,
    since_last: Annotated[bool, flag("--since-last", "Only changes since the last run; at first all.")] = False,
    restart: Annotated[bool, flag("--restart", "Start over instead of continuing an interrupted export of the last 24 hours.")] = False,
) -> None:
    """Export all or matching records of an object, each once.

    Others may write meanwhile: every record that exists from start to end is exported. crmctl writes the file when the export is
    complete, and a manifest beside it. To continue an interrupted export, repeat the command. --yes replaces an existing file.
    """
    from crmctl.cli.bulk_jobs import export_records
    from crmctl.plan.export import ExportRequest

    path = Path(file) if file is not None and file != "-" else None
    request = ExportRequest(
        object=object_name, path=path, format=format, excel_safe=runtime.excel_safe, shape=runtime.shape, prune=prune,
        since_last=since_last, restart=restart,
    )  # fmt: skip
    export_records(runtime, request, filters, strict=strict)


@app.command(
    "update",
    writes=True,
    examples=[
        "crmctl bulk update people --filter 'status=new' --set status=contacted --dry-run",
        "crmctl bulk update people --ids ids.txt --set address.city=Rome --max-changes 100 --dry-run",
    ],
)
@takes("ids filters strict expect max_changes on_error max_failures failed default_region currency concurrency")
def update_records(
    runtime: Runtime,
    object_name: ObjectArgument,
    set_values: SetOption = None,
    **options: Any,
) -> None:
    """Set the same values in many records; shows some changes and asks.

    crmctl reads the records first. It skips those that already match and changes only the named parts of a value. crmctl bulk undo
    reverts the job, crmctl bulk resume continues an interrupted one.
    """
    from crmctl.cli.bulk_changes import update_records

    update_records(runtime, object_name, {**options, "set_values": set_values})


@app.command(
    "delete",
    writes=True,
    examples=[
        "crmctl bulk delete people --ids ids.txt --dry-run",
        "crmctl bulk delete people --filter 'email endsWith @example.org' --dry-run",
    ],
)
@takes("ids filters strict expect concurrency")
def delete_records(
    runtime: Runtime,
    object_name: ObjectArgument,
    backup: Annotated[str | None, option("--backup", "FILE", "File for a copy of the records; by default in the job's folder.")] = None,
    no_backup: Annotated[bool, flag("--no-backup", "Keep no copy; the deletion cannot be undone.")] = False,
    **options: Any,
) -> None:
    """Delete many records by id or by conditions; names some and asks.

    crmctl reads all records and saves a copy before it deletes the first one. crmctl bulk undo creates them again with new ids, crmctl
    bulk resume continues an interrupted deletion.
    """
    from crmctl.cli.bulk_changes import delete_records

    if (options["ids"] is None) == (not options["filters"]):
        raise UsageError("say which records: either --ids or --filter", hint="crmctl bulk delete --help")
    if backup is not None and no_backup:
        raise UsageError("--backup and --no-backup exclude each other", hint="leave one of them out")
    delete_records(runtime, object_name, backup or not no_backup, options)


@app.command(
    "dedupe",
    examples=[
        "crmctl bulk dedupe people --match email --plan duplicates.jsonl",
        "crmctl bulk dedupe people --match email --match 'name~0.92,company' --keep most-complete --review",
    ],
)
def dedupe_records(
    runtime: Runtime,
    object_name: ObjectArgument,
    match: Annotated[list[str] | None, option("--match", "EXPR", "Attributes that must be equal, or similar (~0.92).")] = None,
    keep: Annotated[
        list[str] | None,
        option("--keep", "RULE", "Surviving record: oldest, newest, most-complete, most-activities; values: phone=newest."),
    ] = None,
    plan: Annotated[str | None, option("--plan", "FILE", "Write the merge plan here, for crmctl bulk apply.")] = None,
    most: Annotated[int, option("--max-group", "N", "Leave out groups of more records.", min=2)] = 10,
    review: Annotated[bool, flag("--review", "Show the groups, least certain first.")] = False,
    max_age: Annotated[float, option("--max-age", "SECONDS", "Update an older mirror first.", min=0)] = 3600.0,
) -> None:
    """Find duplicate records and propose how to merge them.

    Several --match are alternatives; crmctl help matching explains them. You can edit the plan: each line is one group, with the surviving
    record, the merged records and the source of every value.
    """
    from crmctl.cli.bulk_output import dedupe_records
    from crmctl.plan.merge_records import DedupeRequest

    path = Path(plan) if plan is not None else None
    dedupe_records(runtime, DedupeRequest(object_name, tuple(match or ()), tuple(keep or ()), path, most, review, max_age))


@app.command("inspect", examples=["crmctl bulk inspect people.csv --object people", "crmctl bulk inspect contacts.csv --duplicates"])
@takes("format encoding delimiter sheet")
def inspect_file(
    runtime: Runtime,
    file: FileArgument,
    object_name: Annotated[str | None, option("--object", "OBJECT", "Also propose attributes for the columns.")] = None,
    mode: Annotated[str, option("--mode", "create|upsert", "Create records, or also update those whose id a column holds.")] = "create",
    duplicates: Annotated[bool, flag("--duplicates", "Also count duplicate rows.")] = False,
    match: Annotated[list[str] | None, option("--match", "EXPR", "Rule for duplicates, as in bulk dedupe; implies --duplicates.")] = None,
    **options: Any,
) -> None:
    """Show how crmctl reads a file, its columns and their attributes.

    --duplicates compares rows by every column of e-mail addresses or phone numbers, or by all columns if there is none.
    """
    from crmctl.cli.bulk_jobs import inspect_input
    from crmctl.plan.inspect_file import InspectRequest

    values = {**options, "file": file, "mode": mode, "duplicates": duplicates, "match": match, "excel_safe": runtime.excel_safe}
    inspect_input(runtime, InspectRequest.taken(values, object=object_name))
