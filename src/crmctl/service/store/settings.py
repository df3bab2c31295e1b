"""Settings of the organisation, and the colours of options: rows of `service_value` that only the console uses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.service.faults import BadRequest
from crmctl.service.store import logs
from crmctl.service.store.keys import put_value
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
    rows = tx.all("SELECT name, value FROM service_value WHERE name >= ? AND name < ?", (_COLOURS, f"{_COLOURS}~"))
    return {name.removeprefix(_COLOURS): jsontext.loads(value) for name, value in rows}


def set_option_colours(tx: Tx, attribute_id: str, colours: Mapping[str, str]) -> None:
    put_value(tx, f"{_COLOURS}{attribute_id}", jsontext.dumps(dict(colours)))
