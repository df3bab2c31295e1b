"""Settings of the organisation, colours of options, and saved views: rows of `service_value` that only the console uses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.service.faults import BadRequest, NotFound
from crmctl.service.store import logs
from crmctl.service.store.keys import put_value, values_below
from crmctl.service.store.record_tables import require_name
from crmctl.service.store.tx import Tx, required

_SETTINGS, _COLOURS = "settings", "colours."


def get_settings(tx: Tx) -> Json:
    """Return `{name, timeZone, currency}`; without a default currency that is empty."""
    sql = "SELECT name, (SELECT value FROM service_value WHERE name = ?) FROM organisation"
    name, stored = required(tx.one(sql, (_SETTINGS,)))
    return {"name": name, "timeZone": "UTC", "currency": ""} | (jsontext.loads(stored) if stored else {})


def change_settings(tx: Tx, new: Mapping[str, str], *, now: float) -> None:
    """Store the settings. Raises BadRequest."""
    name, zone, currency = require_name(new["name"], "name"), new["timeZone"] or "UTC", new["currency"].upper()
    if zone_of(zone) is None:
        raise BadRequest(f"the time zone must be a name such as Europe/Berlin, not {zone!r}", {"field": "timeZone"})
    if not re.fullmatch("([A-Z]{3})?", currency):
        raise BadRequest("the currency is a code of three letters, such as EUR", {"field": "currency"})
    changed = logs.differences(get_settings(tx), {"name": name, "timeZone": zone, "currency": currency})
    tx.execute("UPDATE organisation SET name = ?", (name,))
    put_value(tx, _SETTINGS, jsontext.dumps({"timeZone": zone, "currency": currency}))
    logs.note(tx, "settings.updated", "settings", {"name": name} | changed, now=now)


def zone_of(name: str) -> tzinfo | None:
    """Return the time zone of this name, None if there is none."""
    try:
        return ZoneInfo(name) if re.fullmatch(r"[A-Za-z0-9_+/-]{1,60}", name) else None
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return None


def option_colours(tx: Tx) -> dict[str, Json]:
    """Return the chosen colours by option, by the id of the attribute."""
    return {attribute: jsontext.loads(colours) for attribute, colours in values_below(tx, _COLOURS).items()}


def set_option_colours(tx: Tx, attribute_id: str, colours: Mapping[str, str]) -> None:
    put_value(tx, f"{_COLOURS}{attribute_id}", jsontext.dumps(dict(colours)))


MOST_VIEWS, LONGEST_QUERY = 50, 4000
"""Of one person on one object, and characters of one question."""


def list_views(tx: Tx, object_id: str, owner: str) -> list[Json]:
    """Return the owner's views and the shared ones as `{id, name, query, owner, isShared}`, by name."""
    views = [view for view in _views(tx, object_id) if view["isShared"] or view["owner"] == owner]
    return sorted(views, key=lambda view: str(view["name"]).casefold())


def save_view(tx: Tx, object_id: str, view_id: str, view: Json) -> None:
    """Save a view; one of the same owner and name is replaced. Raises BadRequest for an empty name and for too many or long views."""
    require_name(view["name"], "name")
    own = [other for other in _views(tx, object_id) if other["owner"] == view["owner"]]
    replaced = [other for other in own if other["name"] == view["name"]]
    for other in replaced:
        delete_view(tx, object_id, other["id"])
    if len(own) - len(replaced) >= MOST_VIEWS or len(view["query"]) > LONGEST_QUERY:
        raise BadRequest(f"at most {MOST_VIEWS} views of {LONGEST_QUERY:,} characters can be saved", {"field": "name"})
    put_value(tx, _key(object_id, view_id), jsontext.dumps(view))


def get_view(tx: Tx, object_id: str, view_id: str) -> Json:
    view = next((view for view in _views(tx, object_id) if view["id"] == view_id), None)
    if view is None:
        raise NotFound(f"there is no view with the id {view_id}")
    return view


def delete_view(tx: Tx, object_id: str, view_id: str) -> None:
    tx.execute("DELETE FROM service_value WHERE name = ?", (_key(object_id, view_id),))


def _views(tx: Tx, object_id: str) -> list[Json]:
    return [{"id": view_id, **jsontext.loads(view)} for view_id, view in values_below(tx, _key(object_id, "")).items()]


def _key(object_id: str, view_id: str) -> str:
    return f"view.{object_id}.{view_id}"
