"""The actions that change the service's own data. Each is a plain function inside the transaction that also notes it as done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from crmctl.service.faults import BadRequest, NotFound
from crmctl.service.store import activities, objects, records
from crmctl.service.store.tx import Tx

Fields = dict[str, Any]
Perform = Callable[[Tx, Fields, Fields, dict[str, Any]], Fields]
"""`(tx, action with its templates filled in, the run's scope, {ids, now})` gives what later templates can name as a step's result."""


def update_record(tx: Tx, action: Fields, scope: Fields, stamp: dict[str, Any]) -> Fields:
    """`{objectId, recordId}`."""
    about = scope.get("record") or {}
    object_id = _object_id(tx, action["object"]) if "object" in action else about.get("objectId")
    record_id = action["recordId"] if "recordId" in action else about.get("id")
    if not isinstance(object_id, str) or not isinstance(record_id, str):
        raise BadRequest('there is no record to update; a manual run names one with the data {"recordId": "..."}')
    updated = records.update_record(tx, object_id, record_id, action["data"], **stamp)
    return {"objectId": updated["objectId"], "recordId": updated["id"]}


def create_record(tx: Tx, action: Fields, _: Fields, stamp: dict[str, Any]) -> Fields:
    """`{objectId, recordId}`."""
    created = records.create_record(tx, _object_id(tx, action["object"]), action["data"], **stamp)
    return {"objectId": created["objectId"], "recordId": created["id"]}


def create_activity(tx: Tx, action: Fields, scope: Fields, stamp: dict[str, Any]) -> Fields:
    """`{activityId}`. Linked to the run's record if that still exists."""
    fields: Fields = {
        name: action[name] for name in ("title", "summary", "activityDate", "linkedRecords", "participants") if name in action
    }
    fields.setdefault("linkedRecords", _own_link(tx, scope.get("record") or {}))
    return {"activityId": activities.create_activity(tx, fields, created_by=None, **stamp)["id"]}


PERFORM: dict[str, Perform] = {"updateRecord": update_record, "createRecord": create_record, "createActivity": create_activity}


def _object_id(tx: Tx, slug: str) -> str:
    found = objects.find_object_by_slug(tx, slug)
    if found is None:
        raise BadRequest(f"there is no object with the slug {slug!r}")
    return str(found["id"])


def _own_link(tx: Tx, record: Fields) -> list[Fields]:
    try:
        found = records.get_record(tx, record.get("objectId") or "", record.get("id") or "")
    except NotFound:
        return []
    return [{"objectId": found["objectId"], "recordId": found["id"]}]
