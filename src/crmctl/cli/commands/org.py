"""`crmctl org`: an organization as a folder of text files. The work is done by crmctl.org."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from crmctl.cli.app import CommandApp
from crmctl.cli.options import PingOption, argument, flag, option
from crmctl.cli.runtime import Runtime
from crmctl.errors import ExitCode, RejectedError
from crmctl.models.ids import check_choice
from crmctl.models.numbers import counted

if TYPE_CHECKING:
    from crmctl.models.jsontext import Json
    from crmctl.org.apply import ApplyPlan
    from crmctl.org.folder import OrgFolder

app = CommandApp("Keep an organization as a folder of text files: compare it, apply it, restore it.")

FolderArgument = Annotated[str, argument("DIR", "The folder.")]
MatchOption = Annotated[
    list[str] | None, option("--match", "OBJECT=ATTR", "Match records with other ids by this attribute, not by the one in org.toml.")
]


@app.command(
    "pull",
    examples=[
        "crmctl org pull crm",
        "crmctl org pull crm --objects people,companies --with members",
        "crmctl org pull test-data --where 'deals:stage=won' --sample people=500 --mask",
    ],
)
def pull_org(
    runtime: Runtime,
    folder: FolderArgument,
    objects: Annotated[str | None, option("--objects", "A,B", "Only these objects; by default those of org.toml.")] = None,
    parts: Annotated[
        str | None, option("--with", "A,B", "Of activities, members, reports, workflows, webhooks, files; '' for none.")
    ] = None,
    where: Annotated[list[str] | None, option("--where", "OBJECT:CONDITION", "Only records that match, and those they refer to.")] = None,
    sample: Annotated[list[str] | None, option("--sample", "OBJECT=N", "Only N records, and those they refer to; repeatable.")] = None,
    max_records: Annotated[int | None, option("--max-records", "N", "Refuse more records than N.", min=0)] = None,
    mask: Annotated[bool, flag("--mask", "Replace personal values by invented ones.")] = False,
    mask_key: Annotated[str | None, option("--mask-key", "FILE", "A secret that repeats the same replacements.")] = None,
    ping: PingOption = None,
) -> None:
    """Write the organization into a folder.

    Syncs the mirror and reads only from it. Replaces the folder as a whole; without a change, no byte changes. Shows what the folder
    contains and cannot contain. --mask leaves selects, numbers, dates, references and what org.toml names under keep; exit 11 if the folder
    still contains a masked value.
    """
    from crmctl.org.mask import read_key
    from crmctl.org.pull import pull

    runtime.start_ping(ping)
    report = pull(
        runtime.without_bodies(), Path(folder), objects=_names(objects), parts=None if parts is None else _names(parts),
        where=where or [], sample=sample or [], max_records=max_records, mask_key=read_key(mask_key) if mask or mask_key else None,
    )  # fmt: skip
    if runtime.output_format == "table":
        runtime.emitter.emit_rows(report["coverage"], "coverage")
        for reference, count in report["added"].items():
            runtime.messages.note(f"{reference} added {counted(count, 'record')}")
        runtime.messages.note(f"{'written' if report['changed'] else 'unchanged'}: {folder}; {counted(report['requests'], 'request')}")
    else:
        runtime.emitter.emit_result(report)


@app.command("verify", local=True, examples=["crmctl org verify crm", "crmctl org verify crm --drill || echo 'cannot be restored'"])
def verify_org(
    runtime: Runtime,
    folder: FolderArgument,
    drill: Annotated[bool, flag("--drill", "Also restore the folder to a throw-away service, and compare.")] = False,
    ping: PingOption = None,
) -> int:
    """Check checksums, JSON, schema, references and counts of a folder.

    Exit 11 if something is wrong. --drill applies the folder to a throw-away service, pulls it again and compares every line.
    """
    from crmctl.org.compare import verify

    runtime.start_ping(ping)
    try:
        opened = verify(Path(folder))
        problems = _drill(runtime, opened) if drill else []
    except RejectedError as error:
        if not error.details:
            raise
        problems = error.details
    runtime.emitter.emit_rows(problems, "problems")
    if problems:
        runtime.messages.warn(f"{folder} is damaged: {counted(len(problems), 'problem')}")
        return ExitCode.DIFFERENT
    records = sum(opened.manifest.records.values())
    outcome = "was restored and is the same" if drill else "is complete"
    runtime.messages.note(f"{folder} {outcome}: {counted(records, 'record')}, as of {opened.manifest.as_of}")
    return ExitCode.OK


def _drill(runtime: Runtime, folder: OrgFolder) -> list[Json]:
    """Restore a folder to a throw-away service and return the differences. Raises CrmctlError if a command fails."""
    import tempfile

    from crmctl.cli.commands.demo import Stage
    from crmctl.models import jsontext
    from crmctl.org.compare import drill_differences
    from crmctl.org.folder import OrgFolder

    with tempfile.TemporaryDirectory(prefix="crmctl-drill-") as place:
        stage = Stage(Path(place), runtime.streams, "stderr", runtime.environ)
        with stage.background("serve", "--data", "service", "--port", "0", "--dev", "--rate-limit", "0") as service:
            ready = jsontext.loads(service.stdout.readline() if service.stdout else "")
            stage.settings = {"CRMCTL_BASE_URL": ready["baseUrl"], "CRMCTL_API_KEY": ready["apiKey"]}
            stage.ask("org", "apply", str(folder.path.resolve()), "--edited", "--map", "ids.json", codes=(ExitCode.OK, ExitCode.PARTIAL))
            stage.ask("org", "pull", "restored", "--objects", ",".join(folder.objects), "--with", ",".join(folder.parts))
        ids = Path(place, "ids.json")
        return drill_differences(folder, OrgFolder(Path(place, "restored")), jsontext.loads(ids.read_bytes()) if ids.exists() else {})


def _names(text: str | None) -> list[str]:
    return [name.strip() for name in (text or "").split(",") if name.strip()]


@app.command(
    "diff",
    examples=[
        "crmctl org diff crm",
        "crmctl org diff crm@HEAD~1 crm --report markdown",
        "crmctl org diff crm --exit-code || echo different",
    ],
)
def diff_org(
    runtime: Runtime,
    folder: FolderArgument,
    other: Annotated[str | None, argument("DIR2", "Compare with this folder, not with the service.")] = None,
    exit_code: Annotated[bool, flag("--exit-code", "Exit with 11 when there are differences.")] = False,
    report: Annotated[str | None, option("--report", "FORMAT", "A report to read: markdown or json.")] = None,
    match: MatchOption = None,
) -> int:
    """Show what separates the service from a folder, or two folders.

    DIR@REV is a commit of a folder under git. Values are shown as before and after: what the service has, then what the folder has; of two
    folders, the first and the second.
    """
    from contextlib import ExitStack

    from crmctl.org.compare import change_row, folders_compared, opened, report_text, service_compared
    from crmctl.org.jobs import applied_records

    check_choice("--report", report, ("markdown", "json"))
    with ExitStack() as stack:
        first = stack.enter_context(opened(folder))
        if other is None:
            context = runtime.without_bodies()
            comparing = service_compared(context, first, match or [], applied_records(context).ids, edited=True)
        else:
            comparing = folders_compared(first, stack.enter_context(opened(other)), match or [])
        compared = stack.enter_context(comparing)
        rows, schema = list(compared.changes()), compared.schema
    if report == "markdown":
        runtime.streams.write_out(report_text(rows, schema, f"{folder} and {other or 'the service'}") + "\n")
    elif report == "json":
        runtime.emitter.emit_result({"schema": [change.wire() for change in schema], "changes": rows})
    else:
        in_schema = [change_row("schema", change.place, "", {str(change.action): [None, change.summary]}) for change in schema]
        runtime.emitter.emit_rows(in_schema + rows, "differences", first=("change", "object", "id", "values"))
    number = len(schema) + len(rows)
    runtime.messages.note(counted(number, "difference") if number else "no differences")
    return ExitCode.DIFFERENT if number and exit_code else ExitCode.OK


@app.command(
    "apply",
    writes=True,
    examples=["crmctl org apply crm --dry-run", "crmctl org apply crm", "crmctl org apply crm --prune --max-changes 100"],
)
def apply_org(
    runtime: Runtime,
    folder: FolderArgument,
    prune: Annotated[bool, flag("--prune", "Also delete records of the folder's objects that the folder lacks.")] = False,
    max_changes: Annotated[int | None, option("--max-changes", "N", "Refuse more changes than N.", min=0)] = None,
    match: MatchOption = None,
    map_file: Annotated[str | None, option("--map", "FILE", "Keep the pairs of ids in this file too.")] = None,
    new: Annotated[
        bool, flag("--new", "Create records although nothing matches them with existing ones, or a lost request may have made them.")
    ] = False,
    edited: Annotated[bool, flag("--edited", "Accept files that have changed since the pull.")] = False,
    settle: Annotated[float, option("--settle", "SECONDS", "How long a request with a lost answer is watched.", min=0)] = 120.0,
) -> None:
    """Make a service hold what a folder holds, as one job.

    Shows the plan first: schema, records in the order of their references, activities. Clears no value, and deletes nothing without
    --prune. Run it again to continue an interrupted apply. crmctl bulk undo JOB undoes it.
    """
    from crmctl.cli.bulk_output import show
    from crmctl.org.apply import apply

    def approve(plan: ApplyPlan) -> None:
        for line in _plan_lines(plan):
            runtime.messages.note(line)
        if plan.deletions:
            runtime.confirm(f"Delete {counted(plan.deletions, 'record')} that {folder} does not hold")

    try:
        result = apply(
            runtime.without_bodies(), Path(folder), approve, matches=match or [],
            map_file=Path(map_file) if map_file else None, max_changes=max_changes, settle=settle, dry_run=runtime.dry_run,
            prune=prune, new=new, edited=edited, is_protected=bool(runtime.settings.protected.value),
        )  # fmt: skip
    finally:
        runtime.directory.forget()
    if runtime.dry_run:
        text = f"{folder}: {counted(result.changes, 'change')}; nothing was sent"
    elif result.job is None:
        text = f"nothing to do: the service holds all of {folder}"
    else:
        text = f"job {result.job}: applied {folder}; crmctl bulk undo {result.job} undoes it"
    show(runtime, result.to_document(), text)
    result.raise_for_error()


def _plan_lines(plan: ApplyPlan) -> Iterator[str]:
    for change in plan.schema:
        yield f"{change.action} {change.place}: {change.summary}"
    for name, part in (*plan.records.items(), *plan.others.items()):
        if counts := [f"{count:,} to {word}" for word, count in part.items() if count and word != "unchanged"]:
            yield f"{name}: {', '.join(counts)}, {part['unchanged']:,} unchanged"
    if plan.coverage:
        yield f"not in the folder: {', '.join(str(row.get('content')) for row in plan.coverage)}"
