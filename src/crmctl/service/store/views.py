"""Saved views: names for the questions of a list, private or shared, as rows of `service_value`."""

from __future__ import annotations

from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.service.faults import BadRequest, NotFound
from crmctl.service.store.record_tables import require_name
from crmctl.service.store.tx import Tx

_PREFIX = "view."
MOST_VIEWS = 50
"""Of one person, on one object."""


def list_views(tx: Tx, object_id: str, owner: str) -> list[Json]:
    """Return the owner's views and the shared ones as `{id, name, query, owner, isShared}`, by name."""
    views = [view for view in _views(tx) if view["objectId"] == object_id and (view["isShared"] or view["owner"] == owner)]
    return sorted(views, key=lambda view: str(view["name"]).casefold())


def save_view(tx: Tx, view_id: str, view: Json) -> None:
    """Save a view; one of the same owner and name is replaced. Raises BadRequest for an empty name and for too many views."""
    require_name(view["name"], "name")
    own = [each for each in _views(tx) if (each["objectId"], each["owner"]) == (view["objectId"], view["owner"])]
    for each in own:
        if each["name"] == view["name"]:
            delete_view(tx, each["id"])
    if len(own) >= MOST_VIEWS:
        raise BadRequest(f"at most {MOST_VIEWS} views can be saved; delete one first", {"field": "name"})
    tx.execute("INSERT INTO service_value (name, value) VALUES (?, ?)", (_PREFIX + view_id, jsontext.dumps(view)))


def get_view(tx: Tx, view_id: str) -> Json:
    view = next((view for view in _views(tx) if view["id"] == view_id), None)
    if view is None:
        raise NotFound(f"there is no view with the id {view_id}")
    return view


def delete_view(tx: Tx, view_id: str) -> None:
    tx.execute("DELETE FROM service_value WHERE name = ?", (_PREFIX + view_id,))


def _views(tx: Tx) -> list[Json]:
    rows = tx.all("SELECT name, value FROM service_value WHERE name >= ? AND name < ?", (_PREFIX, "view/"))
    return [{"id": name.removeprefix(_PREFIX), **jsontext.loads(value)} for name, value in rows]
