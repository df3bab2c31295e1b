"""Activities that point at records which were deleted and created again: their links are found by the old ids and set to the new ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from crmctl.bulk.undo.recreate import Recreated
from crmctl.client.paging import iterate
from crmctl.client.shapes import Page
from crmctl.errors import DeniedError, NotFoundError, RejectedError
from crmctl.models.activities import Activity

FEW = 10
"""For so few records each is asked for by itself; else all activities of the object are read."""


class ActivityService(Protocol):
    """The calls of the client about activities."""

    def list_activities(
        self, *, record_id: str | None = None, object_id: str | None = None, limit: int = 50, offset: int = 0
    ) -> Page[Activity]: ...

    def update_activity(self, activity_id: str, fields: Mapping[str, Any]) -> Activity: ...


def link_activities(service: ActivityService, object_id: str, new: Mapping[str, str], done: Recreated) -> None:
    """Set the links and participants that name an old id. Can be repeated; raises what the calls raise, but for refusals, which are
    counted, and a key that may not do it, which is noted."""
    if not new:
        return
    try:
        for activity in list(_linked(service, object_id, new)):
            try:
                service.update_activity(activity.id, _fields(activity, new))
                done.activities += 1
            except (RejectedError, NotFoundError):
                done.unlinked += 1
    except DeniedError as error:
        if error.status != 403:
            raise
        done.notes.append(f"links of activities stay as they are: {error.message}")


def _linked(service: ActivityService, object_id: str, new: Mapping[str, str]) -> Iterator[Activity]:
    seen: set[str] = set()
    given: list[dict[str, str]] = [{"record_id": old} for old in new] if len(new) <= FEW else [{"object_id": object_id}]
    for which in given:
        for page in iterate(lambda limit, offset, which=which: service.list_activities(**which, limit=limit, offset=offset)):  # type: ignore[misc]
            for activity in page.items:
                if activity.id not in seen and _fields(activity, new):
                    seen.add(activity.id)
                    yield activity


def _fields(activity: Activity, new: Mapping[str, str]) -> dict[str, Any]:
    """What has to be written; nothing for an activity that names none of the old ids."""
    fields: dict[str, Any] = {}
    for name, key in (("linkedRecords", "recordId"), ("participants", "id")):
        told = activity.wire.get(name)
        if isinstance(told, list) and any(isinstance(one, dict) and str(one.get(key)).lower() in new for one in told):
            fields[name] = [{**one, key: new.get(str(one.get(key)).lower(), one.get(key))} for one in told]
    return fields
