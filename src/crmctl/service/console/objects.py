"""Pages of the schema: objects and their attributes; creating, renaming, activating, and deleting with what that would destroy."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from crmctl.models.attributes import AttributeType
from crmctl.models.filters import Condition, Operator
from crmctl.service.console.edits import form_status, form_values, refuse_if_saved_meanwhile
from crmctl.service.console.pages import ConsolePage, Pages, Redirect, Visit
from crmctl.service.faults import BadRequest, Conflict, Fault, Forbidden
from crmctl.service.roles import MemberRole
from crmctl.service.store import attributes, objects, records
from crmctl.service.store.attribute_removals import StillLeaving
from crmctl.service.store.attributes import NewAttribute
from crmctl.service.store.objects import STANDARD, NewObject
from crmctl.service.store.records import Paging
from crmctl.service.store.tx import Tx

TYPES = {
    AttributeType.TEXT: "Text",
    AttributeType.EMAIL: "Email address",
    AttributeType.NUMBER: "Number",
    AttributeType.PHONE_NUMBER: "Phone number",
    AttributeType.CHECKBOX: "Yes or no",
    AttributeType.NAME: "Name with first and last",
    AttributeType.ADDRESS: "Postal address",
    AttributeType.CURRENCY: "Amount of money",
    AttributeType.DATE: "Date",
    AttributeType.SELECT: "One of some options",
    AttributeType.LIST: "List of texts",
    AttributeType.REFERENCE: "Another record",
}

PATH = "/objects/{objectId:uuid}"
ATTRIBUTE = PATH + "/attributes/{attributeId:uuid}"


def add_pages(pages: Pages) -> None:
    """All pages of the schema."""
    _add_lists(pages)
    _add_object_changes(pages)
    _add_attribute_changes(pages)
    _add_deletions(pages)


def _add_lists(pages: Pages) -> None:
    @pages.get("/objects")
    def list_objects(tx: Tx, _visit: Visit) -> ConsolePage:
        found = [known | {"total": records.count_records(tx, known["id"])} for known in objects.list_objects(tx, include_inactive=True)]
        return ConsolePage("objects.html", {"section": "objects", "objects": found})

    @pages.get(PATH)
    def show_object(tx: Tx, visit: Visit) -> ConsolePage:
        return _object(tx, visit)


def _add_object_changes(pages: Pages) -> None:
    @pages.post("/objects")
    def create_object(tx: Tx, visit: Visit) -> ConsolePage | Redirect:
        fields = {name: visit.text(name) for name in ("plural", "singular", "slug", "description")}
        try:
            new = NewObject(fields["plural"], fields["singular"] or None, fields["description"], fields["slug"] or None)
            made = objects.create_object(tx, new, **visit.stamp())
        except (BadRequest, Conflict) as error:
            values = {"section": "objects", "fields": fields, "error": error.message}
            return ConsolePage("object_new.html", values, HTTPStatus.BAD_REQUEST)
        return Redirect(f"/objects/{made['id']}", "object-created")

    @pages.get("/objects/new", needs=MemberRole.ADMIN)
    def new_object(_tx: Tx, _visit: Visit) -> ConsolePage:
        fields = dict.fromkeys(("plural", "singular", "slug", "description"), "")
        return ConsolePage("object_new.html", {"section": "objects", "fields": fields, "error": None})

    @pages.post(PATH)
    def change_object(tx: Tx, visit: Visit) -> ConsolePage | Redirect:
        try:
            changes = {"pluralName": visit.text("plural"), "description": visit.text("description")}
            refuse_if_saved_meanwhile(visit, _changeable(objects.get_object(tx, visit.id("objectId"))))
            objects.update_object(tx, visit.id("objectId"), changes, now=visit.now())
        except (BadRequest, Conflict) as error:
            return _object(tx, visit, error)
        return Redirect(f"/objects/{visit.id('objectId')}", "saved")

    @pages.post(PATH + "/active")
    def set_object_active(tx: Tx, visit: Visit) -> Redirect:
        is_active = visit.text("active") == "true"
        objects.update_object(tx, visit.id("objectId"), {"isActive": is_active}, now=visit.now())
        return Redirect(f"/objects/{visit.id('objectId')}", "object-active" if is_active else "object-inactive")


def _config(visit: Visit, kind: str) -> dict[str, Any] | None:
    """Raises BadRequest."""
    if kind == AttributeType.SELECT:
        return {"options": [line.strip() for line in visit.raw("options").splitlines() if line.strip()]}
    if kind != AttributeType.REFERENCE:
        return None
    if not visit.text("target"):
        raise BadRequest("choose which records it leads to; that cannot be changed later", {"field": "target"})
    return {"allowed_object_id": visit.text("target")}


def _add_attribute_changes(pages: Pages) -> None:
    @pages.post(PATH + "/attributes")
    def create_attribute(tx: Tx, visit: Visit) -> ConsolePage | Redirect:
        flags, kind = set(visit.chosen("flag")), visit.text("type")
        rules = ("required" in flags, "unique" in flags, "list" in flags)
        try:
            new = NewAttribute(visit.text("name"), kind, visit.text("slug") or None, *rules, _config(visit, kind))
            attributes.create_attribute(tx, visit.id("objectId"), new, **visit.stamp())
        except (BadRequest, Conflict, StillLeaving) as error:
            return _object(tx, visit, error, is_attribute=True)
        return Redirect(f"/objects/{visit.id('objectId')}", "attribute-created")

    @pages.get(ATTRIBUTE)
    def show_attribute(tx: Tx, visit: Visit) -> ConsolePage:
        return _attribute(tx, visit)

    @pages.post(ATTRIBUTE)
    def rename_attribute(tx: Tx, visit: Visit) -> ConsolePage | Redirect:
        known = attributes.get_attribute(tx, visit.id("objectId"), visit.id("attributeId"))
        try:
            refuse_if_saved_meanwhile(visit, {"name": known["name"]})
            attributes.update_attribute(tx, visit.id("objectId"), known["id"], name=visit.text("name"), now=visit.now())
        except (BadRequest, Conflict) as error:
            return _attribute(tx, visit, error)
        return Redirect(f"/objects/{visit.id('objectId')}", "saved")

    @pages.post(ATTRIBUTE + "/active")
    def set_active(tx: Tx, visit: Visit) -> Redirect:
        is_active = visit.text("active") == "true"
        attributes.set_active(tx, visit.id("objectId"), visit.id("attributeId"), is_active, now=visit.now())
        return Redirect(f"/objects/{visit.id('objectId')}", "attribute-active" if is_active else "attribute-inactive")


def _add_deletions(pages: Pages) -> None:
    @pages.get(PATH + "/delete", needs=MemberRole.ADMIN)
    def confirm_delete_object(tx: Tx, visit: Visit) -> ConsolePage:
        known = objects.get_object(tx, visit.id("objectId"))
        if known["type"] == STANDARD:
            raise Forbidden(f"{known['pluralName']} is a standard object: it is there for good")
        total = records.count_records(tx, known["id"])
        text = f"{_counted(total, 'record')} and {_counted(len(known['attributes']), 'attribute')} go with it, without an event for each."
        text = text if total or known["attributes"] else "It has neither records nor attributes."
        return _confirmation(f"/objects/{known['id']}", known["pluralName"], text, "object")

    @pages.post(PATH + "/delete")
    def delete_object(tx: Tx, visit: Visit) -> Redirect:
        objects.delete_object(tx, visit.id("objectId"))
        return Redirect("/objects", "object-deleted")

    @pages.get(ATTRIBUTE + "/delete", needs=MemberRole.ADMIN, is_slow=True)
    def confirm_delete_attribute(tx: Tx, visit: Visit) -> ConsolePage:
        known = attributes.get_attribute(tx, visit.id("objectId"), visit.id("attributeId"))
        text = "Its values are taken out of every record, without an event."
        if known["isActive"]:
            held = records.list_part(tx, visit.id("objectId"), [Condition(known["slug"], Operator.IS_NOT_EMPTY)], Paging(limit=0))
            some = f"More than {held.total:,}" if held.is_more else f"{held.total:,}"
            among = _counted(held.everything, "record")
            among = among if held.is_whole or held.is_more else f"the newest {held.looked:,} of {among}"
            text = f"{some} of {among} {'holds' if held.total == 1 else 'hold'} a value of it. {text}"
        return _confirmation(f"/objects/{visit.id('objectId')}/attributes/{known['id']}", known["name"], text, "attribute")

    @pages.post(ATTRIBUTE + "/delete")
    def delete_attribute(tx: Tx, visit: Visit) -> Redirect:
        attributes.delete_attribute(tx, visit.id("objectId"), visit.id("attributeId"))
        return Redirect(f"/objects/{visit.id('objectId')}", "attribute-deleted")


def _confirmation(path: str, name: str, text: str, thing: str) -> ConsolePage:
    values = {
        "section": "objects",
        "title": f"Delete {name}",
        "text": f"{text} This cannot be undone; to take it out of sight and keep the values, deactivate it instead.",
        "action": f"{path}/delete",
        "button": f"Delete the {thing}",
        "back": path,
    }
    return ConsolePage("confirm.html", values)


def _counted(count: int, thing: str) -> str:
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def _changeable(known: dict[str, Any]) -> dict[str, Any]:
    return {"plural": known["pluralName"], "description": known["description"]}


def _object(tx: Tx, visit: Visit, error: Fault | None = None, *, is_attribute: bool = False) -> ConsolePage:
    known = objects.get_object(tx, visit.id("objectId"))
    own_error = None if is_attribute else error
    values = {
        "section": "objects",
        "object": known,
        "is_standard": known["type"] == STANDARD,
        "attributes": attributes.list_attributes(tx, known["id"], include_inactive=True),
        "names": {each["id"]: each["pluralName"] for each in objects.list_objects(tx, include_inactive=True)},
        "types": TYPES,
        "total": records.count_records(tx, known["id"]),
        "fields": {name: visit.raw(name) for name in ("name", "slug", "type", "options", "target")},
        "flags": visit.chosen("flag"),
        "changed": {name: visit.raw(name) if own_error else text for name, text in _changeable(known).items()},
        "attribute_error": error.message if error and is_attribute else None,
    }
    return ConsolePage("object.html", values | form_values(_changeable(known), own_error), form_status(error))


def _attribute(tx: Tx, visit: Visit, error: Fault | None = None) -> ConsolePage:
    known = attributes.get_attribute(tx, visit.id("objectId"), visit.id("attributeId"))
    target = (known["config"] or {}).get("allowed_object_id")
    values = {
        "section": "objects",
        "object": objects.get_object(tx, visit.id("objectId")),
        "attribute": known,
        "name": visit.raw("name") if error else known["name"],
        "types": TYPES,
        "target": objects.get_object(tx, target)["pluralName"] if target else "",
    }
    return ConsolePage("attribute.html", values | form_values({"name": known["name"]}, error), form_status(error))
