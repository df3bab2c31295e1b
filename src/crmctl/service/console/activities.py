"""Pages of the activities: the list, adding one, changing and deleting one. A record's own are on its page, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from crmctl.service.console.edits import form_status, form_values, refuse_if_saved_meanwhile
from crmctl.service.console.pages import ConsolePage, Pages, Redirect, Visit
from crmctl.service.faults import BadRequest, Conflict, Fault, NotFound
from crmctl.service.roles import MemberRole
from crmctl.service.store import activities, record_labels
from crmctl.service.store.tx import Tx

PER_PAGE = 25

PATH = "/activities/{activityId:uuid}"


def add_pages(pages: Pages) -> None:
    """All pages of the activities."""
    _add_list_and_create(pages)
    _add_changes(pages)


def _add_list_and_create(pages: Pages) -> None:
    @pages.get("/activities")
    def list_activities(tx: Tx, visit: Visit) -> ConsolePage:
        page = visit.number("page", 1)
        found = activities.list_activities(tx, limit=PER_PAGE + 1, offset=(page - 1) * PER_PAGE)
        shown = found[:PER_PAGE]
        links = _links(tx, visit, shown)
        values = {"section": "activities", "activities": shown, "links": links, "page": page, "has_older": len(found) > PER_PAGE}
        return ConsolePage("activities.html", values)

    @pages.get("/activities/new", needs=MemberRole.MEMBER)
    def new_activity(_tx: Tx, visit: Visit) -> ConsolePage:
        return _form(visit, None, {})

    @pages.post("/activities", needs=MemberRole.MEMBER)
    def create_activity(tx: Tx, visit: Visit) -> ConsolePage | Redirect:
        try:
            fields = _typed(visit) | {"linkedRecords": _linked(tx, visit)}
            made = activities.create_activity(tx, fields, created_by=visit.session.member_id, **visit.stamp())
        except BadRequest as error:
            return _form(visit, None, {}, error)
        return Redirect(f"/activities/{made['id']}", "activity-added")


def _add_changes(pages: Pages) -> None:
    @pages.get(PATH)
    def show_activity(tx: Tx, visit: Visit) -> ConsolePage:
        known = activities.get_activity(tx, visit.id("activityId"))
        return _form(visit, known, _links(tx, visit, [known]))

    @pages.post(PATH, needs=MemberRole.MEMBER)
    def change_activity(tx: Tx, visit: Visit) -> ConsolePage | Redirect:
        known = activities.get_activity(tx, visit.id("activityId"))
        typed = _typed(visit)
        if typed["activityDate"] is None or known["activityDate"].startswith(typed["activityDate"]):
            del typed["activityDate"]  # the field shows minutes, the time may have seconds
        try:
            refuse_if_saved_meanwhile(visit, _changeable(known))
            activities.update_activity(tx, known["id"], typed, **visit.stamp())
        except (BadRequest, Conflict) as error:
            return _form(visit, known, _links(tx, visit, [known]), error)
        return Redirect(f"/activities/{known['id']}", "activity-saved")

    @pages.get(PATH + "/delete", needs=MemberRole.MEMBER)
    def confirm_delete(tx: Tx, visit: Visit) -> ConsolePage:
        known = activities.get_activity(tx, visit.id("activityId"))
        values = {
            "section": "activities",
            "title": "Delete this activity",
            "about": known["title"],
            "text": "It disappears from every record it is linked to.",
            "action": f"/activities/{known['id']}/delete",
            "button": "Delete the activity",
            "back": f"/activities/{known['id']}",
        }
        return ConsolePage("confirm.html", values)

    @pages.post(PATH + "/delete", needs=MemberRole.MEMBER)
    def delete_activity(tx: Tx, visit: Visit) -> Redirect:
        activities.delete_activity(tx, visit.id("activityId"), **visit.stamp())
        return Redirect("/activities", "activity-deleted")


def _typed(visit: Visit) -> dict[str, Any]:
    return {"title": visit.text("title"), "summary": visit.text("summary"), "activityDate": visit.text("date") or None}


def _linked(tx: Tx, visit: Visit) -> list[dict[str, str]]:
    """The record that the form names. Raises BadRequest when it is none, or not one alone."""
    name = visit.text("record")
    if not name:
        return []
    known = next((each for each in visit.objects if each["slug"] == visit.text("object")), None)
    if known is None:
        raise NotFound("there is no such object")
    found = record_labels.find_by_label(tx, known["id"], name)
    exact = [each for each in found if each["label"].casefold() == name.casefold()] or found
    if len(exact) != 1:
        problem = "no record has this name" if not exact else "several records have this name: add the activity on the record's page"
        raise BadRequest(problem, {"field": "record"})
    return [{"objectId": known["id"], "recordId": exact[0]["id"]}]


def _links(tx: Tx, visit: Visit, shown: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[str, str]]]:
    """By activity: (path, label) of the records it is linked to that are still there."""
    slugs = {each["id"]: each["slug"] for each in visit.objects}
    wanted: dict[str, set[str]] = {}
    for link in (link for activity in shown for link in activity["linkedRecords"]):
        wanted.setdefault(link["objectId"], set()).add(link["recordId"])
    labels = {object_id: record_labels.labels_of(tx, object_id, ids) for object_id, ids in wanted.items() if object_id in slugs}
    return {
        activity["id"]: [
            (f"/records/{slugs[link['objectId']]}/{link['recordId']}", label)
            for link in activity["linkedRecords"]
            if (label := labels.get(link["objectId"], {}).get(link["recordId"]))
        ]
        for activity in shown
    }


def _changeable(known: Mapping[str, Any]) -> dict[str, Any]:
    return {"title": known["title"], "summary": known["summary"], "when": known["activityDate"]}


def _form(
    visit: Visit, known: Mapping[str, Any] | None, links: Mapping[str, list[tuple[str, str]]], error: Fault | None = None
) -> ConsolePage:
    stored = {"title": known["title"], "summary": known["summary"], "date": known["activityDate"][:16]} if known and not error else {}
    values = {
        "section": "activities",
        "known": known,
        "links": links.get(known["id"], []) if known else [],
        "fields": {name: stored.get(name, visit.text(name)) for name in ("title", "summary", "date", "object", "record")},
    }
    return ConsolePage("activity.html", values | form_values(known and _changeable(known), error), form_status(error))
