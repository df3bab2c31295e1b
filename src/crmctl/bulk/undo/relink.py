"""Activities that point at records which were deleted and created again: their links are found by the old ids and set to the new ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from crmctl.bulk.read.linked_activities import ActivityPages, all_activities, swap_links
from crmctl.bulk.undo.recreate import Recreated
from crmctl.errors import DeniedError, NotFoundError, RejectedError
from crmctl.models.activities import Activity
from crmctl.models.records import PAGE_LIMIT


class ActivityService(ActivityPages, Protocol):
    """The calls of the client about activities."""

    def update_activity(self, activity_id: str, fields: Mapping[str, Any]) -> Activity: ...


def reading_price(service: ActivityPages) -> int:
    """How many requests it takes to read all activities; one, where there may be any, to find that out."""
    try:
        page = service.list_activities(limit=1)
    except DeniedError:
        return 0
    return max(1, -(-(page.total or len(page.items)) // PAGE_LIMIT))


def link_activities(service: ActivityService, new: Mapping[str, str], done: Recreated) -> None:
    """Set the links and participants that name an old id; all activities are read, as no filter finds participants. Can be repeated.
    Raises what the calls raise, but for refusals, which are counted, and a key that may not do it, which is noted."""
    if not new:
        return
    try:
        named = {one.id: links for page in all_activities(service) for one in page if (links := swap_links(one.wire, new))}
        for activity_id, links in named.items():
            try:
                service.update_activity(activity_id, links)
                done.activities += 1
            except (RejectedError, NotFoundError):
                done.unlinked += 1
    except DeniedError as error:
        if error.status != 403:
            raise
        done.notes.append(f"links of activities stay as they are: {error.message}")
