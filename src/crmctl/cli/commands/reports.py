"""`crmctl reports`: run them, see their runs and the results of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from crmctl.cli.framework import CommandApp
from crmctl.cli.list_window import show_pages, window
from crmctl.cli.named_resources import ReportArgument, list_reports, report_id
from crmctl.cli.options import AllOption, LimitOption, OffsetOption
from crmctl.errors import UsageError

if TYPE_CHECKING:
    from crmctl.cli.runtime import Runtime

app = CommandApp("Run reports and see their results.")

NAME = "'Deals by stage'"


@app.command("list", examples=["crmctl reports list", "crmctl reports list -q '[].name'"])
def list_all(ctx: typer.Context) -> None:
    """List reports."""
    from crmctl.output.views import REPORTS

    runtime: Runtime = ctx.obj
    runtime.emitter.emit_items(list_reports(runtime), REPORTS)


@app.command("get", examples=[f"crmctl reports get {NAME}", f"crmctl reports get {NAME} -q lastRunAt"])
def get_report(ctx: typer.Context, report: ReportArgument) -> None:
    """Show one report."""
    from crmctl.output.views import REPORTS

    runtime: Runtime = ctx.obj
    runtime.emitter.emit_item(runtime.crm.get_report(report_id(runtime, report)).wire, REPORTS)


@app.command("run", writes=True, examples=[f"crmctl reports run {NAME}", f"crmctl reports run {NAME} -q id -o ids"])
def run_report(ctx: typer.Context, report: ReportArgument) -> None:
    """Run a report and show the run; its results are stored.

    `crmctl reports results` shows them.
    """
    from crmctl.output.views import REPORT_RUNS

    runtime: Runtime = ctx.obj
    runtime.emitter.check_fields(REPORT_RUNS)
    runtime.emitter.emit_item(runtime.crm.run_report(report_id(runtime, report)).wire, REPORT_RUNS)


@app.command("runs", examples=[f"crmctl reports runs {NAME}", f"crmctl reports runs {NAME} --all -o csv"])
def list_runs(
    ctx: typer.Context, report: ReportArgument, limit: LimitOption = None, every: AllOption = False, offset: OffsetOption = 0
) -> None:
    """List the runs of a report.

    Shows 50 unless --limit or --all asks for more.
    """
    from crmctl.output.views import REPORT_RUNS

    runtime: Runtime = ctx.obj
    part = window(limit, every, offset)
    identity = report_id(runtime, report)
    show_pages(
        runtime, lambda limit, offset: runtime.crm.list_report_runs(identity, limit=limit, offset=offset), part, lambda _: REPORT_RUNS
    )


@app.command(
    "results",
    examples=[
        f"crmctl reports results {NAME}",
        f"crmctl reports results {NAME} --chart",
        f"crmctl reports results {NAME} $(crmctl reports runs {NAME} --limit 1 -o ids) -o csv",
    ],
)
def show_results(
    ctx: typer.Context,
    report: ReportArgument,
    run: Annotated[str | None, typer.Argument(metavar="RUN", help="Id of the run; the newest one unless given.")] = None,
    chart: Annotated[bool, typer.Option("--chart", help="Draw grouped numbers as bars.")] = False,
) -> None:
    """Show the results of a run, the newest unless one is named.

    json and yaml print them exactly as the service sent them; table, csv, tsv, jsonl and ids print rows, whatever their shape is.
    """
    from crmctl.output.results import results_of

    runtime: Runtime = ctx.obj
    if chart:
        _check_chart(runtime)
    identity = report_id(runtime, report)
    found = runtime.crm.get_report_run(identity, run if run is not None else _newest(runtime, identity, report))
    if found.status is not None and found.status != "completed":
        runtime.messages.warn(f"the status of run {found.id} is {found.status}")
    _emit(runtime, results_of(found.wire), chart=chart)


def _check_chart(runtime: Runtime) -> None:
    flags = runtime.flags
    if flags.get("json") or flags.get("output") not in (None, "table") or flags.get("query") or flags.get("fields"):
        raise UsageError("--chart draws for a person: it goes with no other format, --query or --fields", hint="leave one of them out")


def _newest(runtime: Runtime, identity: str, report: str) -> str:
    from crmctl.client.runs import newest_report_run
    from crmctl.errors import NotFoundError

    newest = newest_report_run(runtime.crm, identity)
    if newest is None:
        raise NotFoundError(f"the report {report!r} has no runs", hint=f"crmctl reports run {report!r}", code="no_runs")
    return newest.id


def _emit(runtime: Runtime, results: Any, *, chart: bool) -> None:
    from crmctl.output.results import rows_of

    emitter = runtime.emitter
    if chart:
        from crmctl.output.chart import draw_chart

        runtime.streams.write_out(draw_chart(rows_of(results), runtime.streams))
    elif runtime.output_format in ("json", "yaml") and emitter.fields is None and results is not None:
        emitter.emit_result(results)
    else:
        emitter.emit_items(rows_of(results))
