"""Pages of the reports: list, what one asks, running it, its runs. Changing one and its results have modules of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from crmctl.service.console.conditions_form import in_words
from crmctl.service.console.pages import ConsolePage, Pages, Redirect, Visit
from crmctl.service.console.report_results import columns_measured, columns_of
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
        values = {"section": "reports", "report": report, "asks": _asks(tx, report)}
        return ConsolePage("report.html", values | {"runs": runs[:RUNS_PER_PAGE], "page": page, "has_older": len(runs) > RUNS_PER_PAGE})

    @pages.post("/reports/{reportId:uuid}/run", needs=MemberRole.MEMBER, in_transaction=False)
    def start_run(visit: Visit) -> Redirect:
        run = run_report(visit.context, visit.id("reportId"))
        return Redirect(f"/reports/{visit.id('reportId')}/runs/{run['id']}")


def _asks(tx: Tx, report: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """In the words of the form."""
    asked, known = report["definition"], report["object"]

    def titles(names: Sequence[str]) -> list[str]:
        return [str(column["title"]) for column in columns_of(tx, report, names)]

    asks = [("Object", [known["pluralName"] if known else "deleted"])]
    if asked.get("filters"):
        slugs = [each["attributeSlug"] for each in asked["filters"]]
        asks.append(("Which records", in_words(asked["filters"], dict(zip(slugs, titles(slugs), strict=True)))))
    if asked.get("groupBy"):
        asks.append(("Groups by", titles([asked["groupBy"]])))
    if asked.get("groupBy") or asked.get("measures"):
        asks.append(("Figures", titles(columns_measured(asked.get("measures", [])) or ["count"])))
    else:
        asks.append(("Columns", titles(asked.get("columns") or []) or ["every attribute"]))
    if sort := asked.get("sort"):
        asks.append(("Order", [f"{titles([sort['field']])[0]}, {'descending' if sort.get('order') == 'desc' else 'ascending'}"]))
    return [*asks, ("At most", [f"{asked['limit']:,} results"])] if asked.get("limit") else asks
