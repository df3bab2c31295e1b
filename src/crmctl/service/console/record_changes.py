"""Change, delete or merge the selected records of a list, with a preview, in one transaction. The next page can undo it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from crmctl.models.jsontext import Json
from crmctl.models.numbers import counted
from crmctl.models.resources import AttributeType
from crmctl.service.console.cells import cells_of
from crmctl.service.console.noun_pages import actor_name
from crmctl.service.console.pages import PAGE_SECONDS
from crmctl.service.console.record_form import FormField, submitted
from crmctl.service.console.record_list import (
    csv_of,
    is_changeable,
    label_of,
    labelled,
    list_page,
    matches_of,
    object_of,
    question_of,
)
from crmctl.service.console.record_page import read_form, referring_to, saver_of, stored_form
from crmctl.service.console.visits import ConsolePage, Download, Outcome, Redirect, Visit
from crmctl.service.faults import BadRequest, Conflict, NotFound
from crmctl.service.store import activities, objects, records
from crmctl.service.store.change_log import CREATED, DELETED, differ
from crmctl.service.store.record_history import Candidates, changed_at, deleted_records, read_history, restore_batch
from crmctl.service.store.records import Paging
from crmctl.service.store.tx import Stamp, Tx, micros_of, to_micros, to_wire
from crmctl.values.filters import Condition
from crmctl.values.operators import Operator
from crmctl.values.value_readers import parse_instant

MOST_SELECTED, MOST_SHOWN = 1000, 25
ADD, REMOVE = "add", "remove"


def change_selected(visit: Visit) -> Outcome:
    """Change the selected records, or show the form or the file: these search a whole list, and keep no writer waiting."""
    engine = visit.context.engine
    if visit.text("step") != "apply":
        return engine.read(lambda tx: _ask(tx, visit), within=PAGE_SECONDS)
    carry_out = {"merge": merge_selected, "delete": _delete}.get(visit.text("do"), _change)

    def apply(tx: Tx) -> Outcome:
        crm_object = object_of(tx, visit)
        return carry_out(tx, visit, crm_object, _selected(tx, visit, crm_object))

    return engine.write(apply, within=PAGE_SECONDS, by=visit.actor)


def show_deleted(tx: Tx, visit: Visit) -> ConsolePage:
    crm_object = object_of(tx, visit)
    part = visit.part(lambda limit, offset: deleted_records(tx, crm_object["id"], limit, offset), MOST_SHOWN)
    rows = list(zip(part["rows"], labelled(tx, crm_object, part["rows"]), strict=True))
    return ConsolePage("deleted.html", part | {"object": crm_object, "rows": rows, "actor_name": actor_name})


def undo(tx: Tx, visit: Visit) -> ConsolePage | Redirect:
    """Restore the records as they were before this moment; after a merge also those that referred to merged records."""
    crm_object, stamp, at = object_of(tx, visit), visit.stamp(), visit.text("at")
    failed: dict[str, str] = {}
    left_out: set[str] = set()
    own = _changes(tx, visit, crm_object, at)
    by = None if visit.may_administer else visit.actor
    other_ids = [listed_object["id"] for listed_object in visit.objects if listed_object["id"] != crm_object["id"]]
    others = {object_id: changed_at(tx, object_id, int(at), by) for object_id in other_ids}
    for object_id, changes in ({crm_object["id"]: own} | others).items():
        failed |= dict.fromkeys((record_id for record_id, _, is_newest in changes if not is_newest), "changed again since")
        # Backwards: a merged record gets its unique values back from the survivor.
        restored = [record_id for record_id, _, is_newest in reversed(changes) if is_newest]
        before = Candidates(int(at) - 1, (), frozenset(record_id for record_id, kind, _ in changes if kind == CREATED))
        done = restore_batch(tx, object_id, restored, before, **stamp)
        failed |= done.failed
        left_out |= done.left_out
    unlink_activities(tx, crm_object, [record_id for record_id, kind, _ in own if kind == DELETED], int(at), stamp)
    if not failed and not left_out:
        return Redirect(f"/records/{crm_object['slug']}", "records-restored")
    return changed_page(tx, visit, failed, left_out)


def restore_deleted(tx: Tx, visit: Visit) -> Redirect:
    crm_object, record_id = object_of(tx, visit), visit.text("id")
    change = next(iter(read_history(tx, crm_object["id"], record_id, 1).changes), None)
    if change is None or change["type"] != DELETED:
        raise NotFound("this record is not deleted any more")
    moment = Candidates(micros_of(parse_instant(change["at"])) - 1, (), frozenset())
    done = restore_batch(tx, crm_object["id"], [record_id], moment, **visit.stamp())
    if done.failed:
        raise Conflict(f"the record cannot be restored: {done.failed[record_id]}")
    return Redirect(f"/records/{crm_object['slug']}/{record_id}", "record-restored")


def _selected(tx: Tx, visit: Visit, crm_object: Json) -> list[Json]:
    """Return the ticked records, or all of the list. Raises BadRequest for none and for too many."""
    if visit.text("everything"):
        conditions, wheres = matches_of(tx, visit, question_of(visit.form, crm_object), crm_object)
        selected, total = records.list_records(tx, crm_object["id"], conditions, Paging(limit=MOST_SELECTED), wheres)
    else:
        ids = [text.partition(":")[0] for text in visit.chosen("id")]
        selected, total = records.get_records(tx, crm_object["id"], ids[:MOST_SELECTED]), len(ids)
    if total > MOST_SELECTED:
        problem = f"at most {MOST_SELECTED:,} records can be changed at once, not {total:,}"
        raise BadRequest(f"{problem}; filter them, or use crmctl bulk update", {"field": "id"})
    if not selected:
        raise BadRequest("select at least one record", {"field": "id"})
    return selected


def _ask(tx: Tx, visit: Visit) -> ConsolePage | Download:
    """Return the form of what is to be done, its preview, or the file. Raises BadRequest."""
    crm_object = object_of(tx, visit)
    if visit.text("do") == "csv":
        ids = [] if visit.text("everything") else [record["id"] for record in _selected(tx, visit, crm_object)]
        return csv_of(tx, visit, crm_object, question_of(visit.form, crm_object), ids)
    selected = _selected(tx, visit, crm_object)
    if visit.text("do") == "delete":
        until = to_wire(to_micros(visit.now() + visit.context.settings.kept.history))
        referring = referring_to(tx, visit, crm_object, [record["id"] for record in selected])
        title = f"Delete {counted(len(selected), 'record')}"
        return _page(tx, crm_object, selected, {"title": title, "step": "delete", "referring": referring, "until": until})
    if visit.text("do") == "merge":
        return merge_form(tx, visit, crm_object, selected)
    field, data, problem = _typed_change(tx, visit, crm_object)
    attribute = field.attribute
    values = {
        "title": f"Change {attribute['name']} of {counted(len(selected), 'record')}",
        "attribute": attribute,
        "has_items": attribute["isList"] or attribute["type"] == AttributeType.LIST,
        "field": field,
        "how": visit.text("how"),
    }
    if problem or visit.error or not visit.text("step"):
        return _page(tx, crm_object, selected, values | {"step": "form"} | ({"error": problem} if problem else {}))
    new_values = _wanted(visit, selected, attribute["slug"], data)
    changing = [record for record in selected if record["id"] in new_values]
    after = [{"data": {attribute["slug"]: new_values[record["id"]]}} for record in changing[:MOST_SHOWN]]
    cells = [cells_of(tx, [attribute], rows, visit) for rows in (changing[:MOST_SHOWN], after)]
    more = {"step": "preview", "changing": len(changing), "cells": list(zip(*cells, strict=True))}
    return _page(tx, crm_object, changing, values | more)


def ask_again(tx: Tx, visit: Visit) -> Outcome:
    """Return the refused form, or the list if the selection itself was refused."""
    return _ask(tx, visit) if visit.text("step") else list_page(tx, replace(visit, queries=visit.form))


def _delete(tx: Tx, visit: Visit, crm_object: Json, selected: Sequence[Json]) -> Redirect:
    fresh, stamp = _fresh(tx, visit, crm_object, selected), visit.stamp()
    records.bulk_delete(tx, crm_object["id"], [record["id"] for record in fresh], **stamp)
    return _after_change(crm_object, stamp["now"], "records-changed" if len(fresh) == len(selected) else "records-skipped")


def _fresh(tx: Tx, visit: Visit, crm_object: Json, selected: Sequence[Json]) -> list[Json]:
    """Return the records that are as the page showed them that sent this form. Raises Conflict if there are none."""
    fresh = [record for record in selected if f"{record['id']}:{records.version_of(record)}" in visit.chosen("id")]
    if selected and not fresh:
        raise _saved_meanwhile(tx, crm_object, selected[0])
    return fresh


def _saved_meanwhile(tx: Tx, crm_object: Json, record: Json) -> Conflict:
    return Conflict(
        f"{saver_of(tx, crm_object, record)} saved {label_of(tx, crm_object, record)}; check the values and send the form again"
    )


def _after_change(crm_object: Json, now: float, notice: str) -> Redirect:
    """Go on to the page that can undo a change of this moment."""
    return Redirect(f"/records/{crm_object['slug']}/changed?at={to_micros(now)}", notice)


def _typed_change(tx: Tx, visit: Visit, crm_object: Json) -> tuple[FormField, Json, str | None]:
    """Return the field of the chosen attribute as typed, its data, and a problem. Raises BadRequest for one that cannot be chosen."""
    slug = visit.text("attribute")
    chosen = [attribute for attribute in crm_object["attributes"] if attribute["slug"] == slug and is_changeable(attribute)]
    if not chosen:
        raise BadRequest("choose the attribute to change", {"field": "attribute"})
    data, [field], problem = read_form(tx, submitted(stored_form(tx, visit, chosen, {}), visit.form))
    return field, data, problem


def _wanted(visit: Visit, selected: Sequence[Json], slug: str, data: Json) -> Json:
    """Return the new values by record, of those that the change gives another value."""
    new_values = {record["id"]: _new_value(record["data"].get(slug), data.get(slug), visit.text("how")) for record in selected}
    return {record["id"]: new_values[record["id"]] for record in selected if new_values[record["id"]] != record["data"].get(slug)}


def _change(tx: Tx, visit: Visit, crm_object: Json, selected: Sequence[Json]) -> Redirect:
    """Write the change of the preview, except in records that changed since. Raises BadRequest if one record refuses its value."""
    field, data, problem = _typed_change(tx, visit, crm_object)
    if problem:
        raise BadRequest(problem)
    new_values = _wanted(visit, selected, field.slug, data)
    if not new_values:
        raise BadRequest("every selected record already has this value")
    fresh, stamp = _fresh(tx, visit, crm_object, [record for record in selected if record["id"] in new_values]), visit.stamp()
    items = [{"id": record["id"], "data": {field.slug: new_values[record["id"]]}} for record in fresh]
    if failed := records.bulk_write(tx, crm_object["id"], "upsert", items, **stamp)["failed"]:
        raise BadRequest(f"nothing was changed: {label_of(tx, crm_object, fresh[failed[0]['index']])}: {failed[0]['error']}")
    return _after_change(crm_object, stamp["now"], "records-changed" if len(fresh) == len(new_values) else "records-skipped")


def _new_value(old: Any, new: Any, how: str) -> Any:
    """Return a record's value after the change; for lists `how` may add or remove items."""
    if how not in (ADD, REMOVE) or not isinstance(new, list):
        return old if how in (ADD, REMOVE) else new
    before = old if isinstance(old, list) else []
    items = [*before, *(item for item in new if item not in before)] if how == ADD else [item for item in before if item not in new]
    return items or None


def _page(tx: Tx, crm_object: Json, selected: Sequence[Json], values: Mapping[str, Any]) -> ConsolePage:
    shown: Json = {
        "object": crm_object,
        "seen": [f"{record['id']}:{records.version_of(record)}" for record in selected],
        "labels": labelled(tx, crm_object, selected[:MOST_SHOWN]),
    }
    return ConsolePage("selected.html", {**shown, **values})


def _changes(tx: Tx, visit: Visit, crm_object: Json, at: str) -> list[tuple[str, str, bool]]:
    """Return the records the visitor changed at this moment; of administrators all. Raises NotFound."""
    is_moment = at.isascii() and at.isdigit() and len(at) < 18
    changes = changed_at(tx, crm_object["id"], int(at), None if visit.may_administer else visit.actor) if is_moment else []
    if not changes:
        raise NotFound("no changes of yours at that moment are known")
    return changes


def changed_page(tx: Tx, visit: Visit, kept: Mapping[str, str] | None = None, left_out: Collection[str] = ()) -> ConsolePage:
    """Return the page of a change; after an undo with `kept`, the reason for each record left alone, and the attributes `left_out`."""
    crm_object, at = object_of(tx, visit), visit.text("at") or visit.query.get("at", "")
    changes = _changes(tx, visit, crm_object, at)
    labels = records.labels_of(tx, crm_object["id"], [*(change[0] for change in changes[:MOST_SHOWN]), *(kept or ())])
    kinds = {kind for _, kind, _ in changes}
    values = {
        "object": crm_object,
        "at": at,
        "moment": to_wire(int(at)),
        "count": len(changes),
        "done": {CREATED: "created", DELETED: "deleted"}.get(kinds.pop() if len(kinds) == 1 else "", "changed"),
        "failed": visit.number("failed", 0),
        "file": visit.query.get("file", ""),
        "rows": [(record_id, labels.get(record_id, "")) for record_id, _, _ in changes[:MOST_SHOWN]],
        "kept": [(record_id, labels.get(record_id, f"…{record_id[-8:]}"), why) for record_id, why in (kept or {}).items()],
        "is_undone": kept is not None,
        "left_out": sorted(left_out),
    }
    return ConsolePage("changed.html", values)


MOST_MERGED, MOST_MOVED = 5, 1000
ALL = "all"


def merge_selected(tx: Tx, visit: Visit, crm_object: Json, selected: Sequence[Json]) -> Redirect:
    """Merge the records as the form says. Raises Conflict if someone saved one of them meanwhile, and BadRequest."""
    fresh = _fresh(tx, visit, crm_object, selected)
    for record in selected:
        if record not in fresh:
            raise _saved_meanwhile(tx, crm_object, record)
    by_id: dict[str, Json] = {record["id"]: record for record in selected}
    stamp = visit.stamp()
    survivor = by_id.get(visit.text("survivor"), selected[0])
    losers = [record_id for record_id in by_id if record_id != survivor["id"]]
    data = {
        attribute["slug"]: value
        for attribute in crm_object["attributes"]
        for value in [_chosen(visit.text(f"from:{attribute['slug']}"), attribute["slug"], survivor, by_id)]
        if differ(value, survivor["data"].get(attribute["slug"]))
    }
    try:
        # The survivor can take a unique value only after its record is gone.
        records.bulk_delete(tx, crm_object["id"], losers, **stamp)
        if data:
            records.update_record(tx, crm_object["id"], survivor["id"], data, **stamp)
        _move_references(tx, visit, crm_object, dict.fromkeys(losers, str(survivor["id"])), stamp)
        _link_activities(tx, crm_object, losers, survivor["id"], stamp)
    except (BadRequest, Conflict) as error:
        raise BadRequest(f"nothing was merged: {error.message}") from error
    return _after_change(crm_object, stamp["now"], "records-merged")


def _chosen(choice: str, slug: str, survivor: Json, by_id: Mapping[str, Json]) -> Any:
    """Return the value of the chosen record, or the items of all records."""
    if choice == ALL:
        lists = [record["data"].get(slug) for record in (survivor, *by_id.values())]
        return _joined([item for items in lists if isinstance(items, list) for item in items]) or None
    return by_id.get(choice, survivor)["data"].get(slug)


def _joined(items: Sequence[Any]) -> list[Any]:
    return [item for place, item in enumerate(items) if item not in items[:place]]


def _move_references(tx: Tx, visit: Visit, crm_object: Json, survivors: Mapping[str, str], stamp: Stamp) -> None:
    """Let records that refer to a merged record refer to its survivor. Raises BadRequest for too many, or for one that refuses."""
    changes: dict[str, dict[str, Json]] = {}
    active = {listed_object["id"] for listed_object in visit.objects}
    for attribute in objects.referring_attributes(tx, crm_object["id"]):
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
        if failed := records.bulk_write(tx, owner, "upsert", items, **stamp)["failed"]:
            raise BadRequest(f"a linked record cannot be changed: {failed[0]['error']}")


def _link_activities(tx: Tx, crm_object: Json, losers: Sequence[str], survivor: str, stamp: Stamp) -> None:
    """Link the activities of merged records to the survivor. Their old links stay, so that `unlink_activities` finds them."""
    link = {"objectId": crm_object["id"], "recordId": survivor}
    for loser in losers:
        linked = activities.list_activities(tx, loser, crm_object["id"], MOST_MOVED + 1)
        if len(linked) > MOST_MOVED:
            raise BadRequest(f"more than {MOST_MOVED:,} activities move, which is too many for a page; use crmctl bulk dedupe")
        for activity in linked:
            if link not in activity["linkedRecords"]:
                activities.update_activity(tx, activity["id"], {"linkedRecords": [*activity["linkedRecords"], link]}, **stamp)


def unlink_activities(tx: Tx, crm_object: Json, deleted: Sequence[str], at: int, stamp: Stamp) -> None:
    """Undo `_link_activities` of a merge at this moment, except for activities that someone changed since."""
    for loser in deleted:
        for activity in activities.list_activities(tx, loser, crm_object["id"], MOST_MOVED):
            *kept, survivor = activity["linkedRecords"]
            if activity["updatedAt"] == to_wire(at) and survivor["recordId"] not in deleted:
                activities.update_activity(tx, activity["id"], {"linkedRecords": kept}, **stamp)


def merge_form(tx: Tx, visit: Visit, crm_object: Json, selected: Sequence[Json]) -> ConsolePage:
    """Return the records side by side. Raises BadRequest for one record and for too many."""
    if not 1 < len(selected) <= MOST_MERGED:
        raise BadRequest(f"select 2 to {MOST_MERGED} records to merge", {"field": "id"})
    attributes_shown = crm_object["attributes"]
    records_cells = list(zip(*cells_of(tx, attributes_shown, selected, visit), strict=True))
    ids = [record["id"] for record in selected]
    oldest = min(selected, key=lambda record: str(record["createdAt"]))["id"]
    survivor = visit.text("survivor") if visit.text("survivor") in ids else oldest
    rows = []
    for attribute, cells in zip(attributes_shown, records_cells, strict=True):
        slug = attribute["slug"]
        values = {record["id"]: record["data"].get(slug) for record in selected}
        if any(differ(value, values[survivor]) for value in values.values()):
            filled = [record_id for record_id in (survivor, *ids) if values[record_id] not in (None, "", [])]
            is_list = attribute["isList"] or attribute["type"] == AttributeType.LIST
            chosen = visit.text(f"from:{slug}") or (ALL if is_list else filled[0])
            rows.append((attribute, list(zip(ids, cells, strict=True)), chosen, is_list))
    activity_count = sum(
        len(activities.list_activities(tx, record_id, crm_object["id"], MOST_MOVED)) for record_id in ids if record_id != survivor
    )
    values = {
        "object": crm_object,
        "seen": [f"{record['id']}:{records.version_of(record)}" for record in selected],
        "labels": labelled(tx, crm_object, selected),
        "created": {record["id"]: record["createdAt"] for record in selected},
        "survivor": survivor,
        "rows": rows,
        "activities": activity_count,
    }
    return ConsolePage("merge.html", values)
