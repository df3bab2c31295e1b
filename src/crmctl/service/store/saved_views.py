"""Saved views: names for the questions of a list, private or shared, as rows of `service_value`."""

from __future__ import annotations

from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.service.faults import BadRequest, NotFound
from crmctl.service.store.record_tables import require_name
from crmctl.service.store.tx import Tx

MOST_VIEWS, LONGEST_QUERY = 50, 4000
"""Of one person on one object, and characters of one question."""


def list_views(tx: Tx, object_id: str, owner: str) -> list[Json]:
    """Return the owner's views and the shared ones as `{id, name, query, owner, isShared}`, by name."""
    views = [view for view in _views(tx, object_id) if view["isShared"] or view["owner"] == owner]
    return sorted(views, key=lambda view: str(view["name"]).casefold())


def save_view(tx: Tx, object_id: str, view_id: str, view: Json) -> None:
    """Save a view; one of the same owner and name is replaced. Raises BadRequest for an empty name and for too many or long views."""
    require_name(view["name"], "name")
    own = [each for each in _views(tx, object_id) if each["owner"] == view["owner"]]
    for each in own:
        if each["name"] == view["name"]:
            delete_view(tx, object_id, each["id"])
    if len(own) >= MOST_VIEWS or len(view["query"]) > LONGEST_QUERY:
        raise BadRequest(f"at most {MOST_VIEWS} views of {LONGEST_QUERY:,} characters can be saved", {"field": "name"})
    tx.execute("INSERT INTO service_value (name, value) VALUES (?, ?)", (_key(object_id, view_id), jsontext.dumps(view)))


def get_view(tx: Tx, object_id: str, view_id: str) -> Json:
    view = next((view for view in _views(tx, object_id) if view["id"] == view_id), None)
    if view is None:
        raise NotFound(f"there is no view with the id {view_id}")
    return view


def delete_view(tx: Tx, object_id: str, view_id: str) -> None:
    tx.execute("DELETE FROM service_value WHERE name = ?", (_key(object_id, view_id),))


def _views(tx: Tx, object_id: str) -> list[Json]:
    start = _key(object_id, "")
    rows = tx.all("SELECT name, value FROM service_value WHERE name >= ? AND name < ?", (start, f"{start}~"))
    return [{"id": name.removeprefix(start), **jsontext.loads(value)} for name, value in rows]


def _key(object_id: str, view_id: str) -> str:
    return f"view.{object_id}.{view_id}"
