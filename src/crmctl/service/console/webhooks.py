"""Reading and changing endpoints, and the pages of deliveries and replays."""

from __future__ import annotations

from crmctl.models.jsontext import Json
from crmctl.models.resources import EVENT_TYPES
from crmctl.service.background import target_guard
from crmctl.service.console.cells import ListCell
from crmctl.service.console.noun_pages import BoxChoice, NounQuery
from crmctl.service.console.pages import PAGE_SECONDS
from crmctl.service.console.visits import ConsolePage, Outcome, Redirect, Visit, moment
from crmctl.service.faults import BadRequest, NotFound
from crmctl.service.store import webhooks
from crmctl.service.store.tx import Tx, micros_of
from crmctl.values.value_readers import Invalid, parse_instant

PER_PAGE = 25
STATES = (webhooks.PENDING, webhooks.SUCCEEDED, webhooks.FAILED)
SOON_SECONDS = 20.0
"""A try due within this time is worth waiting for: the page then looks again by itself."""


def show_delivery(tx: Tx, visit: Visit) -> ConsolePage:
    endpoint, delivery = _known_delivery(tx, visit)
    due = delivery["nextTryAt"]
    is_due = due is not None and micros_of(parse_instant(due)) / 1_000_000 <= visit.now() + SOON_SECONDS
    is_under_way = is_due and (endpoint["enabled"] or delivery["eventType"] == webhooks.TEST_EVENT)
    values = {"endpoint": endpoint, "delivery": delivery, "under_way": is_under_way}
    return ConsolePage("delivery.html", values, refresh=1 if is_under_way else None)


def replay(tx: Tx, visit: Visit) -> Redirect:
    endpoint, delivery = _known_delivery(tx, visit)
    again, is_new = webhooks.replay(tx, delivery["id"], **visit.stamp())
    return Redirect(f"/webhooks/{endpoint['id']}/deliveries/{again}", "replayed" if is_new else "tried-now")


def replay_range(visit: Visit) -> ConsolePage | Redirect:
    """Replay the deliveries of a range, or count them, which keeps no writer waiting."""
    engine, endpoint_id = visit.context.engine, visit.id("id")
    since, until = _instant(visit, "since", 0.0), _instant(visit, "until", visit.now())
    if since >= until:
        raise BadRequest("the range ends before it begins", {"field": "until"})
    only_failed = visit.text("which") != "all"
    if visit.text("count"):

        def count_them(tx: Tx) -> ConsolePage:
            return range_form(tx, visit, webhooks.count_range(tx, endpoint_id, since, until, only_failed=only_failed))

        return engine.read(count_them, within=PAGE_SECONDS)

    def carry_out(tx: Tx) -> int:
        return webhooks.replay_range(tx, endpoint_id, since, until, only_failed=only_failed, **visit.stamp())

    count = engine.write(carry_out, within=PAGE_SECONDS, by=visit.actor)
    return Redirect(f"/webhooks/{endpoint_id}", "replayed-range" if count else "replayed-none")


def _known_delivery(tx: Tx, visit: Visit) -> tuple[Json, Json]:
    endpoint = webhooks.get_endpoint(tx, visit.id("id"))
    delivery = webhooks.get_delivery(tx, visit.id("deliveryId"))
    if delivery["endpointId"] != endpoint["id"]:
        raise NotFound(f"there is no delivery with the id {delivery['id']}")
    return endpoint, delivery


def range_form(tx: Tx, visit: Visit, counted: int | None = None) -> ConsolePage:
    endpoint = webhooks.get_endpoint(tx, visit.id("id"))
    fields = {name: visit.text(name) for name in ("since", "until", "which")}
    values = {"endpoint": endpoint, "fields": fields, "counted": counted}
    return ConsolePage("replay.html", values)


def _instant(visit: Visit, name: str, default: float) -> float:
    """Return the Unix seconds of a time typed in UTC, the default for an empty field. Raises BadRequest."""
    text = visit.text(name)
    if not text:
        return default
    try:
        return micros_of(parse_instant(text)) / 1_000_000
    except Invalid as error:
        raise BadRequest(f"{text!r} is not a time such as 2027-01-31T09:30", {"field": name}) from error


TYPES = BoxChoice(
    everything="all",
    only="some",
    box="type",
    one="event type",
    all="all event types",
    groups={"": list(EVENT_TYPES.items())},
    labels=(("All event types", "Including those of later versions."), ("Only these", "")),
)


def list_page(tx: Tx, _visit: Visit, _asked: NounQuery) -> list[Json]:
    return [
        endpoint | {"counts": webhooks.count_deliveries(tx, endpoint["id"]), "recent": webhooks.recent_attempts(tx, endpoint["id"])}
        for endpoint in webhooks.list_endpoints(tx)
    ]


def state_cell(endpoint: Json) -> ListCell:
    if not endpoint["enabled"]:
        return ListCell(badge="disabled")
    if endpoint["health"] != "failing":
        return ListCell(badge=endpoint["health"])
    since = f"since {moment(endpoint['failingSince'])}" if endpoint["succeededAt"] else "never succeeded"
    return ListCell(badge="failing", note=f"{since}: {endpoint['problem']}")


def attempts_cell(endpoint: Json) -> ListCell:
    recent = endpoint["recent"]
    if not recent["tries"]:
        return ListCell()
    median = f", median {recent['median']}" if recent["median"] else ""
    return ListCell(recent["rate"], note=f"of {recent['tries']:,} {'try' if recent['tries'] == 1 else 'tries'}{median}")


def create(tx: Tx, visit: Visit) -> Outcome:
    fields = _fields(visit)
    stamp = visit.stamp()
    endpoint = webhooks.create_endpoint(tx, url=fields["url"], description=fields["description"], event_types=fields["eventTypes"], **stamp)
    return Redirect(f"/webhooks/{endpoint['id']}", "endpoint-added")


def change(tx: Tx, visit: Visit, endpoint: Json) -> Outcome:
    webhooks.update_endpoint(tx, endpoint["id"], _fields(visit), now=visit.now())
    return Redirect(f"/webhooks/{endpoint['id']}", "saved")


def _fields(visit: Visit) -> Json:
    """Return the values of the form; None as event types means all. Raises BadRequest for an address that must not be called."""
    url = visit.text("url")
    target_guard(visit.context).check_url(url)
    return {"url": url, "description": visit.text("description"), "eventTypes": TYPES.read(visit, "types")}


def switch(tx: Tx, visit: Visit, endpoint: Json, is_on: bool) -> None:
    webhooks.update_endpoint(tx, endpoint["id"], {"enabled": is_on}, now=visit.now())


def show_secret(tx: Tx, _visit: Visit, endpoint: Json) -> Json:
    return {"secret": webhooks.reveal_secret(tx, endpoint["id"])}


def send_test(tx: Tx, visit: Visit, endpoint: Json) -> Outcome:
    delivery = webhooks.send_test(tx, endpoint["id"], **visit.stamp())
    return Redirect(f"/webhooks/{endpoint['id']}/deliveries/{delivery}", "test-sent")


def page_values(tx: Tx, visit: Visit, endpoint: Json) -> Json:
    endpoint_id, state = endpoint["id"], visit.query.get("state") if visit.query.get("state") in STATES else None
    part = visit.part(lambda limit, offset: webhooks.list_deliveries(tx, endpoint_id, state, limit, offset), PER_PAGE)
    part |= {"counts": webhooks.count_deliveries(tx, endpoint_id), "state": state, "states": STATES}
    return part | {"recent": webhooks.recent_attempts(tx, endpoint_id), "secret": None, "type_count": len(EVENT_TYPES)}
