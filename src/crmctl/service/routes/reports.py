"""Reports and their stored runs (specification 4.6)."""

from __future__ import annotations

from typing import Any, Literal

from crmctl.service.context import Context
from crmctl.service.http import schemas
from crmctl.service.http.answers import present
from crmctl.service.http.endpoints import Call, Endpoints
from crmctl.service.http.parameters import page_parameters
from crmctl.service.reports.report_run import run_report
from crmctl.service.store import reports
from crmctl.service.store.tx import Tx

ONE = "/reports/{reportId:uuid}"
READ, RUN = "reports:read", "reports:run"


class Report(schemas.Shape):
    id: schemas.Id
    name: str
    description: str
    last_run_at: schemas.Timestamp = schemas.sometimes()
    created_at: schemas.Timestamp
    creator: schemas.Person


class ReportWithDefinition(Report):
    object: schemas.NamedObject = schemas.sometimes()
    definition: dict[str, Any]


class ReportList(schemas.Shape):
    reports: list[Report]


class ReportRun(schemas.Shape):
    """`error` is there when the run failed."""

    id: schemas.Id
    status: Literal["completed", "failed"]
    result_count: int
    started_at: schemas.Timestamp
    completed_at: schemas.Timestamp
    error: str = schemas.sometimes()


class StartedReportRun(schemas.Shape):
    run: ReportRun


class ReportRunList(schemas.Shape):
    runs: list[ReportRun]


class ReportRunWithResults(ReportRun):
    """`truncated`: there were more results than the limit of the report."""

    truncated: bool
    columns: list[str]
    results: list[dict[str, Any]]


def router(context: Context) -> Endpoints:
    """The five endpoints of reports."""
    api = Endpoints(context, "reports")

    @api.add("GET", "/reports", answers=ReportList, scope=READ)
    def list_reports(tx: Tx, _: Call) -> Any:
        """List reports, oldest first."""
        return {"reports": [present(report, "lastRunAt") for report in reports.list_reports(tx)]}

    @api.add("GET", ONE, answers=ReportWithDefinition, scope=READ)
    def get_report(tx: Tx, call: Call) -> Any:
        """Get a report with what it asks."""
        return present(reports.get_report(tx, call.id("reportId")), "lastRunAt", "object")

    @api.add("POST", ONE + "/run", answers=StartedReportRun, scope=RUN, status=201, in_transaction=False, is_long=True)
    def start_report_run(call: Call) -> Any:
        """Run a report and store its results."""
        return {"run": run_report(call.context, call.id("reportId"), within=call.within)}

    @api.add("GET", ONE + "/runs", answers=ReportRunList, scope=READ, query=page_parameters(20))
    def list_report_runs(tx: Tx, call: Call) -> Any:
        """List the runs of a report, newest first."""
        return {"runs": reports.list_runs(tx, call.id("reportId"), call.query["limit"], call.query["offset"])}

    @api.add("GET", ONE + "/runs/{runId:uuid}", answers=ReportRunWithResults, scope=READ)
    def get_report_run(tx: Tx, call: Call) -> Any:
        """Get a run of a report with its results."""
        return reports.get_run(tx, call.id("reportId"), call.id("runId"))

    return api
