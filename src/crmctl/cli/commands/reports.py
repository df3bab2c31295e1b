"""`crmctl reports`: run reports and show their results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from crmctl.cli.options import argument, flag
from crmctl.cli.runtime import Runtime
from crmctl.cli.verbs import NOUNS, find_item, noun_app
from crmctl.config.output_formats import OUTPUT_FORMATS
from crmctl.errors import NotFoundError, ServiceError

if TYPE_CHECKING:
    from crmctl.models.resources import ReportRun

NOUN = NOUNS["reports"]
app = noun_app("reports")

NAME = NOUN.example
ReportArgument = Annotated[str, argument("REPORT", "Id or exact name of the report.")]


@app.command("run", writes=True, examples=[f"crmctl reports run {NAME}", f"crmctl reports run {NAME} -q id -o ids"])
def run_report(runtime: Runtime, report: ReportArgument) -> None:
    """Run a report and show the run.

    The service keeps the results; crmctl reports results shows them. The exit code is 7 if the run failed.
    """
    from crmctl.client.runs import outcome_of

    runtime.emitter.check_fields(NOUN.runs_view)
    identity = find_item(runtime, NOUN, report).id
    report_run = runtime.crm.run_report(identity)
    is_failed = outcome_of(report_run) is False
    if not is_failed:
        _warn_unless_completed(runtime, report_run)
    runtime.emitter.emit_item(report_run.wire, NOUN.runs_view)
    if is_failed:
        reason = f": {report_run.error}" if report_run.error else ""
        hint = f"crmctl reports runs {identity}"
        raise ServiceError(f"run {report_run.id} ended as {report_run.status}{reason}", code="run_failed", hint=hint)


@app.command(
    "results",
    examples=[
        f"crmctl reports results {NAME}",
        f"crmctl reports results {NAME} --chart",
        f"crmctl reports results {NAME} $(crmctl reports runs {NAME} --limit 1 -o ids) -o csv",
    ],
)
def show_results(
    runtime: Runtime,
    report: ReportArgument,
    run: Annotated[str | None, argument("RUN", "Id of the run; by default the newest.")] = None,
    chart: Annotated[bool, flag("--chart", "Draw grouped numbers as bars.")] = False,
) -> None:
    """Show the results of a run, by default the newest.

    json and yaml print exactly what the service sent; the other formats print rows.
    """
    from crmctl.client.runs import newest_report_run
    from crmctl.output.chart import draw_chart, results_of, rows_of

    if chart:
        runtime.check_plain("--chart", "table")
    identity = find_item(runtime, NOUN, report).id
    if run is None:
        newest = newest_report_run(runtime.crm, identity)
        if newest is None:
            raise NotFoundError(f"the report {report!r} has no runs", hint=f"crmctl reports run {report!r}", code="no_runs")
        run = newest.id
    report_run = runtime.crm.get_report_run(identity, runtime.shown_ids.whole(run))
    _warn_unless_completed(runtime, report_run)
    results = results_of(report_run.wire)
    if chart:
        runtime.streams.write_out(draw_chart(rows_of(results), runtime.streams))
    elif OUTPUT_FORMATS[runtime.output_format].is_document and runtime.emitter.fields is None and results is not None:
        runtime.emitter.emit_result(results)
    else:
        runtime.emitter.emit_items(rows_of(results))


@app.command("init", examples=["crmctl reports init > reports.yaml"])
def print_example(runtime: Runtime) -> None:
    """Print a file of example reports in YAML.

    crmctl help report-files explains it, crmctl service load loads it into crmctl's own service. Sends no request.
    """
    from crmctl.cli.help_topics import REPORT_FILE

    runtime.check_plain("reports init", "yaml")
    runtime.streams.write_out(REPORT_FILE)


def _warn_unless_completed(runtime: Runtime, run: ReportRun) -> None:
    from crmctl.client.runs import outcome_of

    if run.status is not None and not outcome_of(run):
        reason = f": {run.error}" if run.error else ""
        runtime.messages.warn(f"the status of run {run.id} is {run.status}{reason}")
