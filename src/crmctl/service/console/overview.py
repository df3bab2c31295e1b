"""The console's first page, and where the portal begins."""

from __future__ import annotations

from crmctl.service.console.pages import ConsolePage, Pages, Redirect, Visit
from crmctl.service.store import deliveries, keys, organisation, sessions, webhooks
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
        }
        return ConsolePage("overview.html", values)


def add_portal_entrance(pages: Pages) -> None:
    """The portal begins with its endpoints."""

    @pages.get("")
    def entrance(_tx: Tx, _visit: Visit) -> Redirect:
        return Redirect("/webhooks")
