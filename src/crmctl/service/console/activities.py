"""Reading and changing activities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from crmctl.models.jsontext import Json
from crmctl.service.console.cells import ListCell
from crmctl.service.console.noun_pages import NounQuery
from crmctl.service.console.visits import Outcome, Redirect, Visit, creator_name
from crmctl.service.faults import NotFound
from crmctl.service.store import activities, records
from crmctl.service.store.tx import Tx

Links = list[tuple[str, str]]
"""Path and label of linked records."""


def list_page(tx: Tx, visit: Visit, asked: NounQuery) -> list[Json]:
    shown = activities.list_activities(tx, limit=asked.limit, offset=asked.offset)
    links = _links(tx, visit, shown)
    return [activity | {"links": links[activity["id"]]} for activity in shown]


def create(tx: Tx, visit: Visit) -> Outcome:
    return Redirect(f"/activities/{add(tx, visit, _linked(tx, visit))['id']}", "activity-added")


def add(tx: Tx, visit: Visit, links: Sequence[Mapping[str, str]]) -> Json:
    """Create the activity of the form with these links."""
    fields = _typed(visit) | {"linkedRecords": links}
    return activities.create_activity(tx, fields, created_by=visit.session.member_id, **visit.stamp())


def change(tx: Tx, visit: Visit, activity: Json) -> Outcome:
    typed = _typed(visit)
    if typed["activityDate"] is None or activity["activityDate"].startswith(typed["activityDate"]):
        del typed["activityDate"]  # the field shows minutes, the stored time may have seconds
    activities.update_activity(tx, activity["id"], typed, **visit.stamp())
    return Redirect(f"/activities/{activity['id']}", "activity-saved")


def delete(tx: Tx, visit: Visit, activity: Json) -> None:
    activities.delete_activity(tx, activity["id"], **visit.stamp())


def facts(tx: Tx, visit: Visit, activity: Json) -> list[tuple[str, ListCell]]:
    links = _links(tx, visit, [activity])[activity["id"]]
    shown = [("Time", ListCell(activity["activityDate"], "moment")), ("By", ListCell(creator_name(activity["createdBy"])))]
    shown += [("Linked to", ListCell("", links=links))] if links else []
    return shown if visit.may_write else [*shown, ("Summary", ListCell(activity["summary"], "lines"))]


def _typed(visit: Visit) -> Json:
    return {"title": visit.text("title"), "summary": visit.text("summary"), "activityDate": visit.text("date") or None}


def _linked(tx: Tx, visit: Visit) -> list[dict[str, str]]:
    """Return the link to the record that the form names. Raises BadRequest unless exactly one record has the name, and NotFound."""
    name = visit.text("record")
    if not name:
        return []
    crm_object = next((crm_object for crm_object in visit.objects if crm_object["slug"] == visit.text("object")), None)
    if crm_object is None:
        raise NotFound("there is no such object")
    return [{"objectId": crm_object["id"], "recordId": records.id_called(tx, crm_object["id"], name)}]


def _links(tx: Tx, visit: Visit, shown: Sequence[Json]) -> dict[str, Links]:
    slugs = visit.slugs
    pairs = [(str(activity["id"]), link) for activity in shown for link in activity["linkedRecords"]]
    ids: dict[str, set[str]] = {}
    for _, link in pairs:
        ids.setdefault(link["objectId"], set()).add(link["recordId"])
    labels = {object_id: records.labels_of(tx, object_id, record_ids) for object_id, record_ids in ids.items() if object_id in slugs}
    links: dict[str, Links] = {str(activity["id"]): [] for activity in shown}
    for activity_id, link in pairs:
        if label := labels.get(link["objectId"], {}).get(link["recordId"]):
            links[activity_id].append((f"/records/{slugs[link['objectId']]}/{link['recordId']}", label))
    return links
