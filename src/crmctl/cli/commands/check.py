"""`crmctl check`: data checks from files, on the mirror."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from crmctl.cli.app import CommandApp
from crmctl.cli.options import PingOption
from crmctl.cli.runtime import Runtime
from crmctl.errors import ExitCode, UsageError
from crmctl.models.ids import suggestion

app = CommandApp()


@app.command(
    "check",
    examples=[
        "crmctl check",
        "crmctl check checks --select emails-are-unique --no-sync",
        "crmctl check --report junit=checks.xml --report github=-",
        "crmctl check --suggest > checks/people.yaml",
    ],
)
def check_data(
    runtime: Runtime,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the check files (*.yaml).")] = Path("checks"),
    select: Annotated[list[str] | None, typer.Option("--select", metavar="NAME", help="Only this check; repeatable.")] = None,
    no_sync: Annotated[bool, typer.Option("--no-sync", help="Use the mirror as it is.")] = False,
    reports: Annotated[
        list[str] | None,
        typer.Option("--report", metavar="KIND=FILE", help="Also write junit, markdown or github; - is stdout."),
    ] = None,
    suggest: Annotated[bool, typer.Option("--suggest", help="Propose checks from the schema and the data.")] = False,
    ping: PingOption = None,
) -> int:
    """Check the data of the service by rules in files.

    A check names an object and one of not_empty, unique, matches, in, references, fresh, filter (records that must not exist), or is sql
    that must return no row. It may have severity (error, warn), owner, message and max (failures allowed). crmctl syncs the mirror first,
    keeps the trend of 30 runs, and writes failing records to a CSV for bulk update --ids. Exit 11 if an error-level check fails.
    """
    from crmctl.cli.bulk_output import RuntimeContext
    from crmctl.output.views import CHECKS
    from crmctl.plan.check_reports import CheckHistory, outcome_document, read_targets, trend_text, write_reports
    from crmctl.plan.checks import open_mirror, read_checks, run_checks, suggest_checks
    from crmctl.values.yaml_text import dumps

    runtime.start_ping(ping)
    context = RuntimeContext(runtime, logs_bodies=False)
    if suggest:
        with open_mirror(context, sync=not no_sync) as copy:
            runtime.streams.write_out(dumps({"checks": suggest_checks(copy)}))
        return ExitCode.OK
    targets, checks = read_targets(reports or []), read_checks(folder)
    names = [check.name for check in checks]
    if unknown := next((name for name in select or () if name not in names), None):
        raise UsageError(f"there is no check {unknown!r}", hint=suggestion(unknown, names, f"checks: {', '.join(names)}"))
    runtime.emitter.check_fields(CHECKS)
    chosen = [check for check in checks if not select or check.name in select]
    with open_mirror(context, sync=not no_sync) as copy:
        outcomes = run_checks(copy, context, chosen, runtime.settings.timeout.value)
    history = CheckHistory(context, folder)
    trends, files = history.add(outcomes), history.write_failures(outcomes)
    write_reports(targets, outcomes, runtime.streams.write_out)
    if not any(file == "-" for _, file in targets):
        rows = [outcome_document(outcome, trends[outcome.check.name], files.get(outcome.check.object or "")) for outcome in outcomes]
        if runtime.output_format == "table":
            rows = [row | {"trend": trend_text(row["trend"])} for row in rows]
        runtime.emitter.emit_items(rows, CHECKS)
    for slug, file in files.items():
        runtime.messages.note(f"failing records of {slug}: {file}; crmctl bulk update {slug} --ids {file} --set ...")
    return ExitCode.DIFFERENT if any(outcome.status == "failed" for outcome in outcomes) else ExitCode.OK
