"""Reading and changing objects and attributes."""

from __future__ import annotations

from collections.abc import Sequence

from crmctl.models.jsontext import Json
from crmctl.models.numbers import counted
from crmctl.models.resources import AttributeType
from crmctl.service.console.cells import COLOURS, ListCell, colours_of
from crmctl.service.console.noun_pages import NounQuery
from crmctl.service.console.visits import Outcome, Redirect, Visit
from crmctl.service.faults import BadRequest, Conflict, Forbidden, Held
from crmctl.service.store import objects, records
from crmctl.service.store.objects import MAX_OPTIONS, STANDARD, NewAttribute, NewObject, change_options, options_of
from crmctl.service.store.preferences import option_colours, set_option_colours
from crmctl.service.store.records import Paging
from crmctl.service.store.tx import Tx
from crmctl.values.filters import Condition
from crmctl.values.operators import Operator

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
    AttributeType.SELECT: "List of options",
    AttributeType.LIST: "List of texts",
    AttributeType.REFERENCE: "Link to a record",
}
RULES = {
    "required": ("A value is required", ""),
    "unique": ("No two records have the same value", ""),
    "list": ("Several values", ""),
}
IRREVERSIBLE = "This cannot be undone; to hide it and keep the values, deactivate it instead."


def list_page(tx: Tx, _visit: Visit, _asked: NounQuery) -> list[Json]:
    return [
        crm_object | {"total": records.count_records(tx, crm_object["id"])}
        for crm_object in objects.list_objects(tx, include_inactive=True)
    ]


def is_standard(crm_object: Json) -> bool:
    return bool(crm_object["type"] == STANDARD)


def target_options(visit: Visit) -> dict[str, tuple[str, str]]:
    return {"": ("–", "")} | {crm_object["id"]: (crm_object["pluralName"], "") for crm_object in visit.objects}


def page_values(tx: Tx, visit: Visit, crm_object: Json) -> Json:
    standard = is_standard(crm_object)
    total = records.count_records(tx, crm_object["id"])
    return {"total": total, "is_standard": standard, "may_edit": visit.may_administer and not standard}


def create(tx: Tx, visit: Visit) -> Outcome:
    singular, slug = visit.text("singular") or None, visit.text("slug") or None
    new = NewObject(visit.text("plural"), singular, visit.text("description"), slug)
    return Redirect(f"/objects/{objects.create_object(tx, new, **visit.stamp())['id']}", "object-created")


def change(tx: Tx, visit: Visit, crm_object: Json) -> Outcome:
    changes = {"pluralName": visit.text("plural"), "description": visit.text("description")}
    objects.update_object(tx, crm_object["id"], changes, now=visit.now())
    return Redirect(f"/objects/{crm_object['id']}", "saved")


def switch(tx: Tx, visit: Visit, crm_object: Json, is_on: bool) -> None:
    objects.update_object(tx, crm_object["id"], {"isActive": is_on}, now=visit.now())


def switch_attribute(tx: Tx, visit: Visit, attribute: Json, is_on: bool) -> None:
    objects.update_attribute(tx, visit.id("objectId"), attribute["id"], {"isActive": is_on}, now=visit.now())


def deletion_text(tx: Tx, crm_object: Json) -> str:
    if is_standard(crm_object):
        raise Forbidden(f"{crm_object['pluralName']} is a standard object and cannot be deleted")
    total, fields = records.count_records(tx, crm_object["id"]), len(crm_object["attributes"])
    if not total and not fields:
        return f"It has neither records nor attributes. {IRREVERSIBLE}"
    return f"This also deletes {counted(total, 'record')} and {counted(fields, 'attribute')}, without an event for each. {IRREVERSIBLE}"


def described_attributes(tx: Tx, object_id: str) -> list[Json]:
    """Return the attributes of an object, each with its type and rules in words as `kind`."""
    names = {crm_object["id"]: crm_object["pluralName"] for crm_object in objects.list_objects(tx, include_inactive=True)}
    return [attribute | {"kind": _kind(attribute, names)} for attribute in objects.list_attributes(tx, object_id, include_inactive=True)]


def _kind(attribute: Json, names: dict[str, str]) -> str:
    target = (attribute["config"] or {}).get("allowed_object_id")
    rules = (("isRequired", "required"), ("isUnique", "unique"), ("isList", "several values"))
    words = [TYPES[attribute["type"]] + (f": {names.get(target, 'deleted')}" if target else "")]
    return ", ".join(words + [word for flag, word in rules if attribute[flag]])


def attribute_facts(tx: Tx, visit: Visit, attribute: Json) -> list[tuple[str, ListCell]]:
    [described] = [listed for listed in described_attributes(tx, visit.id("objectId")) if listed["id"] == attribute["id"]]
    facts = [("Slug", ListCell(attribute["slug"], "code")), ("Type", ListCell(described["kind"]))]
    options = options_of(attribute)
    return [*facts, ("Options", ListCell(", ".join(options), "lines"))] if options and not visit.may_administer else facts


def trail(tx: Tx, visit: Visit) -> Sequence[tuple[str, str]]:
    crm_object = objects.get_object(tx, visit.id("objectId"))
    return [("/objects", "Objects"), (f"/objects/{crm_object['id']}", crm_object["pluralName"])]


def create_attribute(tx: Tx, visit: Visit) -> Outcome:
    flags, kind, slug = set(visit.chosen("flag")), visit.text("type"), visit.text("slug") or None
    config: Json | None = None
    if kind == AttributeType.SELECT:
        config = {"options": [line.strip() for line in visit.raw("options").splitlines() if line.strip()]}
    elif kind == AttributeType.REFERENCE:
        if not visit.text("target"):
            raise BadRequest("choose the linked records; that cannot be changed later", {"field": "target"})
        config = {"allowed_object_id": visit.text("target")}
    new = NewAttribute(visit.text("name"), kind, slug, "required" in flags, "unique" in flags, "list" in flags, config)
    try:
        objects.create_attribute(tx, visit.id("objectId"), new, **visit.stamp())
    except Held as error:
        raise Conflict(error.message) from error
    return Redirect(f"/objects/{visit.id('objectId')}", "attribute-created")


def option_values(tx: Tx, visit: Visit, stored: Json, is_sent: bool) -> Json:
    """Return the options with their texts, places and colours in the form."""
    old = stored.get("options", [])
    columns = [visit.chosen(name) for name in ("option", "place", "colour")]
    if not is_sent:
        chosen = option_colours(tx).get(str(visit.path.get("id")), {})
        columns = [old, [str(place) for place in range(1, len(old) + 1)], list(colours_of(old, chosen).values())]
    return {"options": list(zip(old, *columns, strict=False)), "new_options": visit.raw("options"), "colours": COLOURS}


def change_attribute(tx: Tx, visit: Visit, attribute: Json) -> Outcome:
    object_id, old = visit.id("objectId"), options_of(attribute)
    objects.update_attribute(tx, object_id, attribute["id"], {"name": visit.text("name")}, now=visit.now())
    if old and visit.chosen("option"):
        texts = [text.strip() for text in visit.chosen("option")]
        places = [int(text) if text.isdecimal() else MAX_OPTIONS for text in visit.chosen("place")]
        colours = visit.chosen("colour")
        if not len(texts) == len(places) == len(colours) == len(old) or not set(colours) <= set(COLOURS):
            raise BadRequest("someone changed the options meanwhile; open the page again", {"field": "options"})
        kept = [text for _, text in sorted(zip(places, texts, strict=True), key=lambda pair: pair[0]) if text]
        added = [line.strip() for line in visit.raw("options").splitlines() if line.strip()]
        renamed = {was: text for was, text in zip(old, texts, strict=True) if text not in ("", was)}
        change_options(tx, attribute, [*kept, *added], renamed, **visit.stamp())
        set_option_colours(tx, attribute["id"], {text: colour for text, colour in zip(texts, colours, strict=True) if text})
    return Redirect(f"/objects/{visit.id('objectId')}", "saved")


def attribute_deletion_text(tx: Tx, attribute: Json) -> str:
    text = f"Its values are removed from every record, without an event. {IRREVERSIBLE}"
    if not attribute["isActive"]:
        return text
    part = records.Search(tx, attribute["objectId"], [Condition(attribute["slug"], Operator.IS_NOT_EMPTY)]).part(Paging(limit=0))
    some = f"More than {part.total:,}" if part.is_more else f"{part.total:,}"
    among = counted(part.everything, "record")
    among = among if part.is_whole or part.is_more else f"the newest {part.looked:,} of {among}"
    return f"{some} of {among} {'has' if part.total == 1 else 'have'} a value. {text}"
