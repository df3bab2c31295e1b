"""Pages of the webhook endpoints: list, add, change, enable, secret, rotation, test, removal."""

from __future__ import annotations

from typing import Any

from crmctl.models.webhooks import EVENT_TYPES
from crmctl.service.background import target_guard
from crmctl.service.console.choices import BoxChoice
from crmctl.service.console.deliveries import delivery_values
from crmctl.service.console.edits import form_status, form_values, refuse_if_saved_meanwhile
from crmctl.service.console.pages import ConsolePage, Pages, Redirect, Visit
from crmctl.service.faults import BadRequest, Conflict, Fault
from crmctl.service.outbound.guard import ForbiddenTargetError
from crmctl.service.roles import MemberRole
from crmctl.service.settings import DAY
from crmctl.service.store import attempt_counts, deliveries, webhooks
from crmctl.service.store.attempt_counts import DayOfEndpoint
from crmctl.service.store.timestamps import to_micros, to_wire
from crmctl.service.store.tx import Tx

TYPES = BoxChoice("types", "all", "some", "type", "event type", "all event types")


def add_pages(pages: Pages) -> None:
    """All pages of the endpoints."""
    _add_list_and_forms(pages)
    _add_actions(pages)
    _add_confirmations(pages)


def _add_list_and_forms(pages: Pages) -> None:
    @pages.get("/webhooks", needs=MemberRole.ADMIN)
    def list_endpoints(tx: Tx, visit: Visit) -> ConsolePage:
        days = attempt_counts.last_day(tx, now=visit.now())
        found = [
            endpoint
            | {"counts": deliveries.count_deliveries(tx, endpoint["id"])}
            | {"day": days[endpoint["id"]], "is_counting": _is_counting(endpoint, days[endpoint["id"]], visit.now())}
            for endpoint in webhooks.list_endpoints(tx)
        ]
        return ConsolePage("endpoints.html", {"section": "webhooks", "endpoints": found, "type_count": len(EVENT_TYPES)})

    @pages.get("/webhooks/new", needs=MemberRole.ADMIN)
    def new_endpoint(_tx: Tx, visit: Visit) -> ConsolePage:
        return _form(visit, None, {"url": "", "description": "", "eventTypes": []}, "")

    @pages.post("/webhooks")
    def create_endpoint(tx: Tx, visit: Visit) -> ConsolePage | Redirect:
        try:
            fields = _fields(visit)
            made = webhooks.create_endpoint(
                tx, url=fields["url"], description=fields["description"], event_types=fields["eventTypes"], **visit.stamp()
            )
        except BadRequest as error:
            return _returned(visit, None, error)
        return Redirect(f"/webhooks/{made['id']}", "endpoint-added")

    @pages.get("/webhooks/{endpointId:uuid}", needs=MemberRole.ADMIN)
    def show_endpoint(tx: Tx, visit: Visit) -> ConsolePage:
        return _endpoint(tx, visit)

    @pages.get("/webhooks/{endpointId:uuid}/edit", needs=MemberRole.ADMIN)
    def edit_endpoint(tx: Tx, visit: Visit) -> ConsolePage:
        known = webhooks.get_endpoint(tx, visit.id("endpointId"))
        return _form(visit, known, known, TYPES.everything if known["eventTypes"] is None else TYPES.only)

    @pages.post("/webhooks/{endpointId:uuid}/edit")
    def change_endpoint(tx: Tx, visit: Visit) -> ConsolePage | Redirect:
        known = webhooks.get_endpoint(tx, visit.id("endpointId"))
        try:
            refuse_if_saved_meanwhile(visit, _changeable(known))
            webhooks.update_endpoint(tx, known["id"], _fields(visit), now=visit.now())
        except (BadRequest, Conflict) as error:
            return _returned(visit, known, error)
        return Redirect(f"/webhooks/{known['id']}", "saved")


def _add_actions(pages: Pages) -> None:
    @pages.post("/webhooks/{endpointId:uuid}/enabled")
    def set_enabled(tx: Tx, visit: Visit) -> Redirect:
        enabled = visit.text("enabled") == "true"
        webhooks.update_endpoint(tx, visit.id("endpointId"), {"enabled": enabled}, now=visit.now())
        return Redirect(f"/webhooks/{visit.id('endpointId')}", "enabled" if enabled else "disabled")

    @pages.post("/webhooks/{endpointId:uuid}/secret")
    def show_secret(tx: Tx, visit: Visit) -> ConsolePage:
        return _endpoint(tx, visit, secret=webhooks.reveal_secret(tx, visit.id("endpointId")))

    @pages.post("/webhooks/{endpointId:uuid}/rotate")
    def rotate_secret(tx: Tx, visit: Visit) -> Redirect:
        # The new secret is shown on demand only: were it in this answer, reloading it would rotate once more.
        webhooks.rotate_secret(tx, visit.id("endpointId"), now=visit.now())
        return Redirect(f"/webhooks/{visit.id('endpointId')}", "rotated")

    @pages.post("/webhooks/{endpointId:uuid}/test")
    def send_test(tx: Tx, visit: Visit) -> Redirect:
        delivery = deliveries.send_test(tx, visit.id("endpointId"), **visit.stamp())
        return Redirect(f"/webhooks/{visit.id('endpointId')}/deliveries/{delivery}", "test-sent")

    @pages.post("/webhooks/{endpointId:uuid}/delete")
    def delete_endpoint(tx: Tx, visit: Visit) -> Redirect:
        webhooks.delete_endpoint(tx, visit.id("endpointId"))
        return Redirect("/webhooks", "endpoint-deleted")


def _add_confirmations(pages: Pages) -> None:
    @pages.get("/webhooks/{endpointId:uuid}/rotate", needs=MemberRole.ADMIN)
    def confirm_rotate(tx: Tx, visit: Visit) -> ConsolePage:
        text = "A new secret signs from now on. The present one signs along for a day, so that your receiver can change over."
        return _confirmation(_known(tx, visit), "rotate", "Rotate the signing secret", text, "Rotate the secret")

    @pages.get("/webhooks/{endpointId:uuid}/delete", needs=MemberRole.ADMIN)
    def confirm_delete(tx: Tx, visit: Visit) -> ConsolePage:
        text = "Its delivery history goes with it, and what waits to be delivered is not sent. To pause an endpoint, disable it instead."
        return _confirmation(_known(tx, visit), "delete", "Delete this endpoint", text, "Delete the endpoint")


def _known(tx: Tx, visit: Visit) -> dict[str, Any]:
    return webhooks.get_endpoint(tx, visit.id("endpointId"))


def _confirmation(endpoint: dict[str, Any], action: str, title: str, text: str, button: str) -> ConsolePage:
    path = f"/webhooks/{endpoint['id']}"
    values = {
        "section": "webhooks",
        "title": title,
        "about": endpoint["url"],
        "text": text,
        "action": f"{path}/{action}",
        "button": button,
        "back": path,
    }
    return ConsolePage("confirm.html", values)


def _is_counting(endpoint: dict[str, Any], day: DayOfEndpoint, now: float) -> bool:
    """Whether it was tried within the day and nothing is counted yet: tries are counted every few seconds."""
    since = to_wire(to_micros(now - DAY))
    return not day.tries and any((endpoint[name] or "") > since for name in ("failingSince", "succeededAt"))


def _endpoint(tx: Tx, visit: Visit, secret: str | None = None) -> ConsolePage:
    endpoint = webhooks.get_endpoint(tx, visit.id("endpointId"))
    day = attempt_counts.last_day(tx, now=visit.now(), endpoint_id=endpoint["id"])[endpoint["id"]]
    values = {"section": "webhooks", "endpoint": endpoint, "day": day, "secret": secret, "type_count": len(EVENT_TYPES), "error": None}
    values["is_counting"] = _is_counting(endpoint, day, visit.now())
    return ConsolePage("endpoint.html", values | delivery_values(tx, visit, endpoint["id"]))


def _form(visit: Visit, known: dict[str, Any] | None, fields: dict[str, Any], types: str, error: Fault | None = None) -> ConsolePage:
    """`types` is the answer to TYPES that is shown as chosen; none for a new endpoint."""
    values = {
        "section": "webhooks",
        "known": known,
        "fields": fields,
        "types": types,
        "event_types": EVENT_TYPES,
        "development": visit.context.settings.development,
    }
    return ConsolePage("endpoint_form.html", values | form_values(known and _changeable(known), error), form_status(error))


def _returned(visit: Visit, known: dict[str, Any] | None, error: Fault) -> ConsolePage:
    """The form once more, as it was filled in."""
    fields = {"url": visit.text("url"), "description": visit.text("description"), "eventTypes": visit.chosen("type")}
    return _form(visit, known, fields, TYPES.shown(visit), error)


def _changeable(known: dict[str, Any]) -> dict[str, Any]:
    return {name: known[name] for name in ("url", "description", "eventTypes")}


def _fields(visit: Visit) -> dict[str, Any]:
    """What the form says, with an address that may be called; None for event types is all of them. Raises BadRequest."""
    url = visit.text("url")
    try:
        target_guard(visit.context).check_url(url)
    except ForbiddenTargetError as error:
        raise BadRequest(str(error), {"field": "url"}) from error
    return {"url": url, "description": visit.text("description"), "eventTypes": TYPES.read(visit)}
