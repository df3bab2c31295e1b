"""`crmctl check`: data checks from files, on the mirror."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

from crmctl.cli.app import CommandApp
from crmctl.cli.options import PingOption, argument, flag, option
from crmctl.cli.runtime import Runtime
from crmctl.errors import ExitCode, UsageError
from crmctl.models.ids import check_choice, suggestion

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
    folder: Annotated[Path, argument("DIR", "Folder of the check files (*.yaml).")] = Path("checks"),
    select: Annotated[list[str] | None, option("--select", "NAME", "Only this check; repeatable.")] = None,
    no_sync: Annotated[bool, flag("--no-sync", "Use the mirror as it is.")] = False,
    reports: Annotated[list[str] | None, option("--report", "KIND=FILE", "Also write junit, markdown or github; - is stdout.")] = None,
    suggest: Annotated[bool, flag("--suggest", "Propose checks from the schema and the data.")] = False,
    ping: PingOption = None,
) -> int:
    """Check the data of the service by rules in files.

    A check names an object and one of not_empty, unique, matches, in, references, fresh, filter (records that must not exist), or is sql
    that must return no row. It may have severity (error, warn), owner, message and max (failures allowed). crmctl syncs the mirror first,
    keeps the trend of 30 runs, and writes failing records to a CSV for bulk update --ids. --timeout limits each query. Exit 11
    if an error-level check fails.
    """
    from crmctl.files.whole_files import whole_file
    from crmctl.output.views import CHECKS
    from crmctl.plan.checks import keep_outcomes, open_mirror, read_checks, run_checks, suggest_checks, trend_text
    from crmctl.plan.ci_reports import CiReport
    from crmctl.values.yaml_text import dumps

    runtime.start_ping(ping)
    context = runtime.without_bodies()
    if suggest:
        if select or reports:
            raise UsageError("--suggest runs no checks", hint="leave out --select and --report")
        runtime.check_plain("--suggest", "yaml")
        with open_mirror(context, sync=not no_sync) as copy:
            runtime.streams.write_out(dumps({"checks": suggest_checks(copy, context)}))
        return ExitCode.OK
    targets, checks = [_read_target(text) for text in reports or ()], read_checks(folder)
    names = [check.name for check in checks]
    if unknown := next((name for name in select or () if name not in names), None):
        raise UsageError(f"there is no check {unknown!r}", hint=suggestion(unknown, names, f"checks: {', '.join(names)}"))
    runtime.emitter.check_fields(CHECKS)
    chosen = [check for check in checks if not select or check.name in select]
    with open_mirror(context, sync=not no_sync) as copy:
        outcomes = run_checks(copy, context, chosen, runtime.settings.timeout.value)
    keep_outcomes(context, folder, outcomes)
    for form, file in targets:
        with CiReport(form) as report:
            for outcome in outcomes:
                report.add(outcome.to_case())
            write = runtime.streams.write_out if file == "-" else report.enter_context(whole_file(Path(file))).write
            report.write(write, "Data checks")
    if not any(file == "-" for _, file in targets):
        rows = [outcome.to_document() for outcome in outcomes]
        if runtime.output_format == "table":
            rows = [row | {"trend": trend_text(row["trend"])} for row in rows]
        runtime.emitter.emit_items(rows, CHECKS)
    for slug, path in {outcome.check.object: outcome.file for outcome in outcomes if outcome.file is not None}.items():
        runtime.messages.note(f"failing records of {slug}: {path}; crmctl bulk update {slug} --ids {shlex.quote(str(path))} --set ...")
    return ExitCode.DIFFERENT if any(outcome.status == "failed" for outcome in outcomes) else ExitCode.OK


def _read_target(text: str) -> tuple[str, str]:
    """Return form and file of `KIND=FILE`. Raises UsageError, also for a file that cannot be written."""
    from crmctl.cli.targets import named_value
    from crmctl.files.whole_files import check_place
    from crmctl.plan.ci_reports import FORMS

    form, file, _ = named_value("--report", text, "KIND=FILE", "for example --report junit=checks.xml")
    check_choice("--report", form, [*FORMS])
    if file != "-":
        check_place(Path(file))
    return form, file
