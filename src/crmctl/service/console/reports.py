"""Pages of the reports: list, what one asks, running it, its runs. Changing one and its results have modules of their own."""

from __future__ import annotations

from crmctl.models import jsontext
from crmctl.service.console.pages import ConsolePage, Pages, Redirect, Visit
from crmctl.service.reports.report_run import run_report
from crmctl.service.roles import MemberRole
from crmctl.service.store import reports
from crmctl.service.store.tx import Tx

RUNS_PER_PAGE = 25


def add_pages(pages: Pages) -> None:
    """All pages of the reports."""

    @pages.get("/reports")
    def list_reports(tx: Tx, _visit: Visit) -> ConsolePage:
        return ConsolePage("reports.html", {"section": "reports", "reports": reports.list_reports(tx), "last": reports.last_runs(tx)})

    @pages.get("/reports/{reportId:uuid}")
    def show_report(tx: Tx, visit: Visit) -> ConsolePage:
        report = reports.get_report(tx, visit.id("reportId"))
        page = visit.number("page", 1)
        runs = reports.list_runs(tx, report["id"], RUNS_PER_PAGE + 1, (page - 1) * RUNS_PER_PAGE)
        values = {"section": "reports", "report": report, "asks": jsontext.dumps(report["definition"])}
        return ConsolePage("report.html", values | {"runs": runs[:RUNS_PER_PAGE], "page": page, "has_older": len(runs) > RUNS_PER_PAGE})

    @pages.post("/reports/{reportId:uuid}/run", needs=MemberRole.MEMBER, in_transaction=False)
    def start_run(visit: Visit) -> Redirect:
        run = run_report(visit.context, visit.id("reportId"))
        return Redirect(f"/reports/{visit.id('reportId')}/runs/{run['id']}")
