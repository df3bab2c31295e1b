"""Merge selected records into one: choose each value side by side. Linked records and activities move to the record that stays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from crmctl.models.jsontext import Json
from crmctl.models.resources import BULK_LIMIT, AttributeType
from crmctl.service.console.cells import cells_of
from crmctl.service.console.record_list import after_change, is_as_seen, labels_of_records
from crmctl.service.console.record_page import saver_of
from crmctl.service.console.visits import ConsolePage, Redirect, Visit
from crmctl.service.faults import BadRequest, Conflict
from crmctl.service.store import activities, attributes, records
from crmctl.service.store.change_log import differ
from crmctl.service.store.records import Paging
from crmctl.service.store.tx import Stamp, Tx, to_wire
from crmctl.values.filters import Condition
from crmctl.values.operators import Operator

MOST_MERGED, MOST_MOVED = 5, 1000
ALL = "all"


def merge_selected(tx: Tx, visit: Visit, known: Json, selected: Sequence[Json]) -> Redirect:
    """Merge the records as the form says. Raises Conflict if someone saved one of them meanwhile, and BadRequest."""
    for record in selected:
        if not is_as_seen(visit, record):
            [label] = labels_of_records(tx, known, [record])
            raise Conflict(f"{saver_of(tx, known, record)} saved {label}; check the values and merge again")
    by_id: dict[str, Json] = {record["id"]: record for record in selected}
    stamp = visit.stamp()
    survivor = by_id.get(visit.text("survivor"), selected[0])
    losers = [record_id for record_id in by_id if record_id != survivor["id"]]
    data = {
        attribute["slug"]: value
        for attribute in attributes.list_attributes(tx, known["id"])
        for value in [_chosen(visit.text(f"from:{attribute['slug']}"), attribute["slug"], survivor, by_id)]
        if differ(value, survivor["data"].get(attribute["slug"]))
    }
    try:
        # The survivor can take a unique value only after its record is gone.
        records.bulk_delete(tx, known["id"], losers, **stamp)
        if data:
            records.update_record(tx, known["id"], survivor["id"], data, **stamp)
        _move_references(tx, visit, known, dict.fromkeys(losers, str(survivor["id"])), stamp)
        _link_activities(tx, known, losers, survivor["id"], stamp)
    except (BadRequest, Conflict) as error:
        raise BadRequest(f"nothing was merged: {error.message}") from error
    return after_change(known, stamp["now"], "records-merged")


def _chosen(choice: str, slug: str, survivor: Json, by_id: Mapping[str, Json]) -> Any:
    """Return the value of the chosen record, or the items of all records."""
    if choice == ALL:
        lists = [record["data"].get(slug) for record in (survivor, *by_id.values())]
        return _joined([item for items in lists if isinstance(items, list) for item in items]) or None
    return by_id.get(choice, survivor)["data"].get(slug)


def _joined(items: Sequence[Any]) -> list[Any]:
    return [item for place, item in enumerate(items) if item not in items[:place]]


def _move_references(tx: Tx, visit: Visit, known: Json, survivors: Mapping[str, str], stamp: Stamp) -> None:
    """Let records that refer to a merged record refer to its survivor. Raises BadRequest for too many, or for one that refuses."""
    changes: dict[str, dict[str, Json]] = {}
    active = {each["id"] for each in visit.objects}
    for attribute in attributes.referring_attributes(tx, known["id"]):
        owner, slug = attribute["objectId"], attribute["slug"]
        for loser in survivors if attribute["isActive"] and owner in active else ():
            rows, total = records.list_records(tx, owner, [Condition(slug, Operator.EQUALS, loser)], Paging(limit=MOST_MOVED))
            if total > MOST_MOVED:
                raise BadRequest(f"{total:,} records refer to one of them, which is too many for a page; use crmctl bulk dedupe")
            for row in rows:
                change = changes.setdefault(owner, {}).setdefault(row["id"], {})
                value = change.get(slug, row["data"].get(slug))
                moved = [survivors.get(str(item), item) for item in value] if isinstance(value, list) else survivors.get(value, value)
                change[slug] = _joined(moved) if isinstance(moved, list) else moved
    for owner, by_id in changes.items():
        items = [{"id": record_id, "data": data} for record_id, data in by_id.items()]
        for start in range(0, len(items), BULK_LIMIT):
            if failed := records.bulk_write(tx, owner, "upsert", items[start : start + BULK_LIMIT], **stamp)["failed"]:
                raise BadRequest(f"a linked record cannot be changed: {failed[0]['error']}")


def _link_activities(tx: Tx, known: Json, losers: Sequence[str], survivor: str, stamp: Stamp) -> None:
    """Link the activities of merged records to the survivor. Their old links stay, so that `unlink_activities` finds them."""
    link = {"objectId": known["id"], "recordId": survivor}
    for loser in losers:
        for activity in activities.list_activities(tx, loser, known["id"], MOST_MOVED):
            if link not in activity["linkedRecords"]:
                activities.update_activity(tx, activity["id"], {"linkedRecords": [*activity["linkedRecords"], link]}, **stamp)


def unlink_activities(tx: Tx, known: Json, deleted: Sequence[str], changed: Sequence[str], at: int, stamp: Stamp) -> None:
    """Undo `_link_activities` of a merge at this moment, except for activities that someone changed since."""
    links = [{"objectId": known["id"], "recordId": survivor} for survivor in changed]
    for loser in deleted if links else ():
        for activity in activities.list_activities(tx, loser, known["id"], MOST_MOVED):
            kept = [link for link in activity["linkedRecords"] if link not in links]
            if activity["updatedAt"] == to_wire(at) and kept != activity["linkedRecords"]:
                activities.update_activity(tx, activity["id"], {"linkedRecords": kept}, **stamp)


def merge_form(tx: Tx, visit: Visit, known: Json, selected: Sequence[Json]) -> ConsolePage:
    """Return the records side by side. Raises BadRequest for one record and for too many."""
    if not 1 < len(selected) <= MOST_MERGED:
        raise BadRequest(f"select 2 to {MOST_MERGED} records to merge", {"field": "id"})
    found = attributes.list_attributes(tx, known["id"])
    records_cells = list(zip(*cells_of(tx, found, selected, visit), strict=True))
    ids = [record["id"] for record in selected]
    oldest = min(selected, key=lambda record: str(record["createdAt"]))["id"]
    survivor = visit.text("survivor") if visit.text("survivor") in ids else oldest
    rows = []
    for attribute, cells in zip(found, records_cells, strict=True):
        slug = attribute["slug"]
        values = {record["id"]: record["data"].get(slug) for record in selected}
        if any(differ(value, values[survivor]) for value in values.values()):
            filled = [record_id for record_id in (survivor, *ids) if values[record_id] not in (None, "", [])]
            is_list = attribute["isList"] or attribute["type"] == AttributeType.LIST
            chosen = visit.text(f"from:{slug}") or (ALL if is_list else filled[0])
            rows.append((attribute, list(zip(ids, cells, strict=True)), chosen, is_list))
    activity_count = sum(
        len(activities.list_activities(tx, record_id, known["id"], MOST_MOVED)) for record_id in ids if record_id != survivor
    )
    values = {
        "object": known,
        "seen": [f"{record['id']}:{records.version_of(record)}" for record in selected],
        "labels": list(zip(ids, labels_of_records(tx, known, selected), strict=True)),
        "created": {record["id"]: record["createdAt"] for record in selected},
        "survivor": survivor,
        "rows": rows,
        "activities": activity_count,
    }
    return ConsolePage("merge.html", values)
