"""Change the options of a select, and the records that hold a renamed one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.models.resources import BULK_LIMIT
from crmctl.service.faults import BadRequest
from crmctl.service.store import attributes, records
from crmctl.service.store.record_tables import load_schema
from crmctl.service.store.records import Paging
from crmctl.service.store.settings import option_colours, set_option_colours
from crmctl.service.store.tx import Stamp, Tx, update
from crmctl.values.filters import Condition
from crmctl.values.operators import Operator

MOST_RENAMED = 10_000
"""Records that get the new name of an option."""

ADD, RENAME, RETIRE = "add", "rename", "retire"


def options_of(attribute: Json) -> list[str]:
    return list((attribute["config"] or {}).get("options", ()))


def edit_options(tx: Tx, object_id: str, attribute_id: str, edits: Mapping[str, Any], **stamp: Unpack[Stamp]) -> Json:
    """Add, rename and retire options; new ones come last. Records keep retired values. Raises NotFound, BadRequest."""
    attribute = attributes.get_attribute(tx, object_id, attribute_id)
    slug, options = attribute["slug"], options_of(attribute)
    added, renamed, retired = edits.get(ADD, []), edits.get(RENAME, {}), edits.get(RETIRE, [])
    if not options:
        raise BadRequest(f"{slug} is not a select: only selects have options")
    for field, names in ((RENAME, renamed), (RETIRE, retired)):
        if unknown := [name for name in names if name not in options]:
            raise BadRequest(f"{unknown[0]!r} is no option of {slug} ({', '.join(options)})", {"field": field, "valid": options})
    if twice := [name for name in retired if name in renamed]:
        raise BadRequest(f"{twice[0]!r} cannot be renamed and retired at once", {"field": RETIRE})
    new = [renamed.get(option, option) for option in options if option not in retired] + added
    if taken := [name for place, name in enumerate(new) if name in new[:place]]:
        raise BadRequest(f"{slug} has the option {taken[0]!r} already", {"field": ADD if taken[0] in added else RENAME})
    colours = option_colours(tx).get(attribute["id"], {})
    set_option_colours(tx, attribute["id"], {renamed.get(name, name): colour for name, colour in colours.items() if name not in retired})
    return change_options(tx, attribute, new, {was: name for was, name in renamed.items() if was != name}, **stamp)


def change_options(tx: Tx, attribute: Json, options: Sequence[str], renamed: Mapping[str, str], **stamp: Unpack[Stamp]) -> Json:
    """Replace the options, and give the records that hold a renamed one its new name. Raises BadRequest, also for too many records."""
    object_id = attribute["objectId"]
    # Before the records are read: a record written meanwhile would keep the old name.
    load_schema(tx, object_id, tx.dialect.own_object)
    items = _renamed_records(tx, attribute, renamed)
    changed = attributes.set_options(tx, object_id, attribute["id"], options, now=stamp["now"])
    held = {name for item in items for value in item["data"].values() for name in (value if isinstance(value, list) else [value])}
    # A record may hold retired options beside a renamed one; it keeps them.
    _allow(tx, changed, [*options, *sorted(held.difference(options))])
    for start in range(0, len(items), BULK_LIMIT):
        if failed := records.bulk_write(tx, object_id, records.UPSERT, items[start : start + BULK_LIMIT], **stamp)["failed"]:
            raise BadRequest(f"a record cannot be changed: {failed[0]['error']}", {"field": "options"})
    _allow(tx, changed, options)
    return changed


def _allow(tx: Tx, attribute: Json, options: Sequence[str]) -> None:
    update(tx, "attribute", {"config": jsontext.dumps({"options": list(options)})}, "id = ?", attribute["id"])


def _renamed_records(tx: Tx, attribute: Json, renamed: Mapping[str, str]) -> list[Json]:
    """Return the changes that give records with a renamed option its new name. Raises BadRequest for too many records."""
    slug, items = attribute["slug"], dict[str, Json]()
    for was in renamed:
        rows, total = records.list_records(tx, attribute["objectId"], [Condition(slug, Operator.EQUALS, was)], Paging(limit=MOST_RENAMED))
        if total > MOST_RENAMED:
            problem = f"{total:,} records have the option {was!r}, which is too many to rename at once"
            raise BadRequest(f"{problem}; add a new option and use crmctl bulk update", {"field": "options"})
        for row in rows:
            value = row["data"][slug]
            new = [renamed.get(name, name) for name in value] if isinstance(value, list) else renamed[value]
            items[row["id"]] = {"id": row["id"], "data": {slug: new}}
    return list(items.values())
