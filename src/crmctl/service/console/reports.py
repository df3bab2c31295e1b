"""Pages of the reports: list, what one asks, run, its runs and their results."""

from __future__ import annotations

from numbers import Number
from typing import Any

from crmctl.models import jsontext
from crmctl.service.console.pages import ConsolePage, Pages, Redirect, Visit
from crmctl.service.reports.report_run import run_report
from crmctl.service.store import reports
from crmctl.service.store.tx import Tx

RUNS_PER_PAGE = 25
ROWS_SHOWN = 500
"""Of a run's results; all of them are one command away."""


def add_pages(pages: Pages) -> None:
    """All pages of the reports."""

    @pages.get("/reports")
    def list_reports(tx: Tx, _visit: Visit) -> ConsolePage:
        return ConsolePage("reports.html", {"section": "reports", "reports": reports.list_reports(tx)})

    @pages.get("/reports/{reportId:uuid}")
    def show_report(tx: Tx, visit: Visit) -> ConsolePage:
        report = reports.get_report(tx, visit.id("reportId"))
        page = visit.number("page", 1)
        runs = reports.list_runs(tx, report["id"], RUNS_PER_PAGE + 1, (page - 1) * RUNS_PER_PAGE)
        values = {"section": "reports", "report": report, "asks": jsontext.dumps(report["definition"])}
        return ConsolePage("report.html", values | {"runs": runs[:RUNS_PER_PAGE], "page": page, "has_older": len(runs) > RUNS_PER_PAGE})

    @pages.post("/reports/{reportId:uuid}/run", in_transaction=False)
    def start_run(visit: Visit) -> Redirect:
        run = run_report(visit.context, visit.id("reportId"))
        return Redirect(f"/reports/{visit.id('reportId')}/runs/{run['id']}")

    @pages.get("/reports/{reportId:uuid}/runs/{runId:uuid}")
    def show_run(tx: Tx, visit: Visit) -> ConsolePage:
        report = reports.get_report(tx, visit.id("reportId"))
        run = reports.get_run(tx, report["id"], visit.id("runId"))
        results = run["results"][:ROWS_SHOWN]
        rows = [[_cell(result.get(column)) for column in run["columns"]] for result in results]
        numeric = [any(_is_number(result.get(column)) for result in results) for column in run["columns"]]
        return ConsolePage("report_run.html", {"section": "reports", "report": report, "run": run, "rows": rows, "numeric": numeric})


def _is_number(value: Any) -> bool:
    return isinstance(value, Number) and not isinstance(value, bool)


def _cell(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else jsontext.dumps(value)
