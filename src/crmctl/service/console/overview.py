"""The console's first page, and where the portal begins."""

from __future__ import annotations

from typing import Any

from crmctl.service.console.navigation import MOST_OBJECTS
from crmctl.service.console.pages import ConsolePage, Pages, Redirect, Visit
from crmctl.service.store import deliveries, keys, organisation, records, reports, sessions, webhooks, workflow_runs, workflows
from crmctl.service.store.tx import Tx

MOST_FAILING = 10
"""Endpoints that are named on the overview; the list of endpoints has them all."""


def add_pages(pages: Pages) -> None:
    """The overview."""

    @pages.get("")
    def overview(tx: Tx, visit: Visit) -> ConsolePage:
        now = visit.now()
        all_keys = keys.list_keys(tx)
        endpoints = webhooks.list_endpoints(tx)
        enabled = [endpoint for endpoint in endpoints if endpoint["enabled"]]
        failing = [endpoint for endpoint in enabled if endpoint["health"] == "failing"]
        given_up, broken = [endpoint for endpoint in endpoints if endpoint["disabledAt"]], _broken(tx)
        counts = [deliveries.count_deliveries(tx, endpoint["id"]) for endpoint in endpoints]
        values = {
            "section": "overview",
            "organisation": organisation.get_organisation(tx),
            "address": visit.context.settings.address,
            "active_keys": sum(not key.is_expired(now) and key.revoked_at is None for key in all_keys),
            "endpoints": len(endpoints),
            "enabled_endpoints": len(enabled),
            "failing": failing[:MOST_FAILING],
            "failing_endpoints": len(failing),
            "never_succeeded": sum(endpoint["succeededAt"] is None for endpoint in failing),
            "failed": sum(each[deliveries.FAILED] for each in counts),
            "pending": sum(each[deliveries.PENDING] for each in counts),
            "sessions": sessions.count_sessions(tx, now=now),
            "given_up": given_up[:MOST_FAILING],
            "broken": broken[:MOST_FAILING],
            "not_named": max(0, len(given_up) - MOST_FAILING) + max(0, len(broken) - MOST_FAILING),
            "more_objects": max(0, len(visit.objects) - MOST_OBJECTS),
            "totals": [(known, records.count_records(tx, known["id"])) for known in visit.objects[:MOST_OBJECTS]],
        }
        return ConsolePage("overview.html", values)


def _broken(tx: Tx) -> list[dict[str, Any]]:
    """Reports whose last run failed, and enabled workflows whose last one that ended did: `{path, name, kind, at, error}`."""
    found = []
    for workflow in workflows.list_workflows(tx):
        last = workflow_runs.last_ended(tx, workflow["id"]) if workflow["enabled"] else None
        if last and last["status"] == workflow_runs.FAILED:
            found.append({"path": f"/workflows/{workflow['id']}", "kind": "Workflow", "at": last["createdAt"]} | _named(workflow, last))
    runs = reports.last_runs(tx)
    for report in reports.list_reports(tx):
        run = runs.get(report["id"])
        if run and run["status"] == reports.FAILED:
            found.append({"path": f"/reports/{report['id']}", "kind": "Report", "at": run["startedAt"]} | _named(report, run))
    return found


def _named(thing: dict[str, Any], run: dict[str, Any]) -> dict[str, Any]:
    return {"name": thing["name"], "error": run.get("error") or ""}


def add_portal_entrance(pages: Pages) -> None:
    """The portal begins with its endpoints."""

    @pages.get("")
    def entrance(_tx: Tx, _visit: Visit) -> Redirect:
        return Redirect("/webhooks")
