"""All activities, and which records they name: as links, and as the people who took part. The list has no order to rely on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from crmctl.client.paging import iterate
from crmctl.client.shapes import Page
from crmctl.models import jsontext
from crmctl.models.activities import Activity

PASSES = 3
"""So often the list is read again when others change it meanwhile."""

LINKS = ("linkedRecords", "participants")

PERSON = "person"


class ActivityPages(Protocol):
    """The list call of the client."""

    def list_activities(
        self, *, record_id: str | None = None, object_id: str | None = None, limit: int = 50, offset: int = 0
    ) -> Page[Activity]: ...


@dataclass
class _Shift:
    """Whether the list moved while it was read."""

    seen: bool = False

    def __call__(self) -> None:
        self.seen = True


def all_activities(lister: ActivityPages) -> Iterator[list[Activity]]:
    """Every activity, in pages; again, from the beginning, when the list was changed while it was read: the same one may come twice."""
    for _ in range(PASSES):
        shift = _Shift()
        pages = iterate(lambda limit, offset: lister.list_activities(limit=limit, offset=offset), on_shift=shift)
        yield from (page.items for page in pages)
        if not shift.seen:
            return


def named_records(activity: Activity) -> set[str]:
    """The ids, in lower case, of all records that an activity names."""
    return set(_ids(activity.wire))


def _ids(wire: dict[str, Any]) -> Iterator[str]:
    for link in wire.get("linkedRecords") or ():
        if isinstance(link, dict) and isinstance(link.get("recordId"), str):
            yield link["recordId"].lower()
    for participant in wire.get("participants") or ():
        if isinstance(participant, dict) and participant.get("type") == PERSON and isinstance(participant.get("id"), str):
            yield participant["id"].lower()


def swap_links(activity: Mapping[str, Any], away: Mapping[str, str]) -> dict[str, Any]:
    """The lists of an activity's links that name other records when the ids of `away` are replaced."""
    change = {}
    for name in LINKS:
        there = activity.get(name) or []
        moved = _each_once([_swapped(link, away) for link in there])
        if moved != _each_once(there):
            change[name] = moved
    return change


def _swapped(link: Any, away: Mapping[str, str]) -> Any:
    if not isinstance(link, Mapping):
        return link
    key = "recordId" if "recordId" in link else "id" if link.get("type") == PERSON else None
    there = link.get(key) if key else None
    return {**link, str(key): away[there.lower()]} if isinstance(there, str) and there.lower() in away else link


def _each_once(links: Sequence[Any]) -> list[Any]:
    return list({jsontext.dumps(link, sort_keys=True): link for link in links}.values())


def count_links(lister: ActivityPages) -> Counter[str]:
    """How many activities name each record, by its id in lower case."""
    seen: set[str] = set()
    links: Counter[str] = Counter()
    for page in all_activities(lister):
        for activity in page:
            if activity.id not in seen:
                seen.add(activity.id)
                links.update(named_records(activity))
    return links
