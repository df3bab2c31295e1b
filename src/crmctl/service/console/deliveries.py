"""Pages of the delivery history: the deliveries of an endpoint, each with its attempts, and replaying them."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from crmctl.service.console.pages import ConsolePage, Pages, Redirect, Visit
from crmctl.service.faults import BadRequest, NotFound
from crmctl.service.roles import MemberRole
from crmctl.service.store import deliveries, webhooks
from crmctl.service.store.timestamps import micros_of
from crmctl.service.store.tx import Tx
from crmctl.service.values.dates import parse_instant
from crmctl.service.values.text import Invalid

PER_PAGE = 25
STATES = (deliveries.PENDING, deliveries.SUCCEEDED, deliveries.FAILED)
SOON_SECONDS = 20.0
"""A try due within this time is worth waiting for: the page then looks again by itself."""


def add_pages(pages: Pages) -> None:
    """One delivery, and the ways to replay."""

    @pages.get("/webhooks/{endpointId:uuid}/deliveries/{deliveryId:uuid}", needs=MemberRole.ADMIN)
    def show_delivery(tx: Tx, visit: Visit) -> ConsolePage:
        endpoint, delivery = _known(tx, visit)
        is_under_way = _is_due_soon(delivery, visit.now()) and (endpoint["enabled"] or delivery["eventType"] == deliveries.TEST_EVENT)
        values = {"section": "webhooks", "endpoint": endpoint, "delivery": delivery, "under_way": is_under_way}
        return ConsolePage("delivery.html", values, refresh=1 if is_under_way else None)

    @pages.post("/webhooks/{endpointId:uuid}/deliveries/{deliveryId:uuid}/replay")
    def replay(tx: Tx, visit: Visit) -> Redirect:
        endpoint, delivery = _known(tx, visit)
        again, is_new = deliveries.replay(tx, delivery["id"], **visit.stamp())
        return Redirect(f"/webhooks/{endpoint['id']}/deliveries/{again}", "replayed" if is_new else "tried-now")

    @pages.get("/webhooks/{endpointId:uuid}/replay", needs=MemberRole.ADMIN)
    def choose_range(tx: Tx, visit: Visit) -> ConsolePage:
        return _range_form(tx, visit)

    @pages.post("/webhooks/{endpointId:uuid}/replay")
    def replay_range(tx: Tx, visit: Visit) -> ConsolePage | Redirect:
        try:
            since, until = _instant(visit, "since", 0.0), _instant(visit, "until", visit.now())
            if since >= until:
                raise BadRequest("the range ends before it begins", {"field": "until"})
        except BadRequest as error:
            return _range_form(tx, visit, error.message)
        only_failed = visit.text("which") != "all"
        if visit.text("count"):
            counted = deliveries.count_range(tx, visit.id("endpointId"), since, until, only_failed=only_failed)
            return _range_form(tx, visit, counted=counted)
        count = deliveries.replay_range(tx, visit.id("endpointId"), since, until, only_failed=only_failed, **visit.stamp())
        return Redirect(f"/webhooks/{visit.id('endpointId')}", "replayed-range" if count else "replayed-none")


def delivery_values(tx: Tx, visit: Visit, endpoint_id: str) -> dict[str, Any]:
    """One page of an endpoint's deliveries, as the query asks: `state` and `page`."""
    state = visit.query.get("state") if visit.query.get("state") in STATES else None
    page = visit.number("page", 1)
    found = deliveries.list_deliveries(tx, endpoint_id, state, PER_PAGE + 1, (page - 1) * PER_PAGE)
    if page > 1 and not found:
        page, found = 1, deliveries.list_deliveries(tx, endpoint_id, state, PER_PAGE + 1)
    shown = {"deliveries": found[:PER_PAGE], "page": page, "has_older": len(found) > PER_PAGE}
    return shown | {"counts": deliveries.count_deliveries(tx, endpoint_id), "state": state, "states": STATES}


def _known(tx: Tx, visit: Visit) -> tuple[dict[str, Any], dict[str, Any]]:
    endpoint = webhooks.get_endpoint(tx, visit.id("endpointId"))
    delivery = deliveries.get_delivery(tx, visit.id("deliveryId"))
    if delivery["endpointId"] != endpoint["id"]:
        raise NotFound(f"there is no delivery with the id {delivery['id']}")
    return endpoint, delivery


def _is_due_soon(delivery: dict[str, Any], now: float) -> bool:
    due = delivery["nextTryAt"]
    return due is not None and micros_of(parse_instant(due)) / 1_000_000 <= now + SOON_SECONDS


def _range_form(tx: Tx, visit: Visit, error: str | None = None, counted: int | None = None) -> ConsolePage:
    endpoint = webhooks.get_endpoint(tx, visit.id("endpointId"))
    fields = {name: visit.text(name) for name in ("since", "until", "which")}
    values = {"section": "webhooks", "endpoint": endpoint, "fields": fields, "error": error, "counted": counted}
    return ConsolePage("replay.html", values, HTTPStatus.BAD_REQUEST if error else HTTPStatus.OK)


def _instant(visit: Visit, name: str, default: float) -> float:
    """Unix seconds of a time in UTC as browsers and people write it; the default where it was left empty. Raises BadRequest."""
    text = visit.text(name)
    if not text:
        return default
    try:
        return micros_of(parse_instant(text)) / 1_000_000
    except Invalid as error:
        raise BadRequest(f"{text!r} is not a time such as 2027-01-31T09:30", {"field": name}) from error
