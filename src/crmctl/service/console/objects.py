"""Pages of the objects: what attributes each has, and which of them are active."""

from __future__ import annotations

from crmctl.service.console.pages import ConsolePage, Pages, Redirect, Visit
from crmctl.service.store import attributes, objects
from crmctl.service.store.tx import Tx


def add_pages(pages: Pages) -> None:
    """All pages of the objects."""

    @pages.get("/objects")
    def list_objects(tx: Tx, _visit: Visit) -> ConsolePage:
        return ConsolePage("objects.html", {"section": "objects", "objects": objects.list_objects(tx)})

    @pages.get("/objects/{objectId:uuid}")
    def show_object(tx: Tx, visit: Visit) -> ConsolePage:
        known = objects.get_object(tx, visit.id("objectId"))
        found = attributes.list_attributes(tx, known["id"], include_inactive=True)
        return ConsolePage("object.html", {"section": "objects", "object": known, "attributes": found})

    @pages.post("/objects/{objectId:uuid}/attributes/{attributeId:uuid}/active")
    def set_active(tx: Tx, visit: Visit) -> Redirect:
        is_active = visit.text("active") == "true"
        attributes.set_active(tx, visit.id("objectId"), visit.id("attributeId"), is_active, now=visit.now())
        return Redirect(f"/objects/{visit.id('objectId')}", "attribute-active" if is_active else "attribute-inactive")
