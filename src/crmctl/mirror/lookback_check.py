"""Whether anything became visible late among the changes before the last sync: few pages stand for all, where they are many.

Nothing is hidden as long as every page that is looked at holds the known records at the very offsets at which they must stand: one record
that came, or moved, shifts all behind it.
"""

from __future__ import annotations

from crmctl.bulk.read.counted_reads import CountedReads
from crmctl.bulk.read.sorted_lists import Listing, PassStatistics, Slice, SliceReader, Unsorted
from crmctl.errors import RejectedError
from crmctl.mirror.columns import wire_text
from crmctl.mirror.object_table import ObjectTable

EVERY_PAGE = 5
"""So many pages are all read."""


def stands_still(lister: CountedReads, object_id: str, table: ObjectTable, since: int, before: int | None) -> bool:
    """Whether the list holds exactly the known records that were changed from `since` on and before `before`, where they must stand."""
    if before is None:
        return True
    start, stop = table.count_changed_after(before - 1), table.count_changed_after(since - 1)
    if start >= stop:
        return True
    reader = SliceReader(lister, Listing(object_id, field="updated_at", descending=True), PassStatistics())
    try:
        page = reader.fetch(max(0, start - 1))
        step = max(1, len(page.rows) - 1)  # pages may hold fewer records than were asked for
        for offset in places(start, stop, step)[1:]:
            if not _fits(page, table):
                return False
            page = reader.fetch(max(0, offset - 1))
        if page.end <= stop and not page.is_last:
            page = reader.fetch(stop - 1)  # what follows must be older
        return _fits(page, table) and all(-key < since for place, key in enumerate(page.keys, page.offset) if place >= stop)
    except (Unsorted, RejectedError):
        return False


def places(start: int, stop: int, step: int) -> list[int]:
    """Where to look: at every page of few, else at both ends and evenly between, at a few more for many."""
    pages = -(-(stop - start) // step)
    if pages <= EVERY_PAGE:
        return [start + number * step for number in range(pages)]
    looks = min(pages, EVERY_PAGE + (pages // 8).bit_length())
    last = max(start, stop - step)
    return [start + (last - start) * number // (looks - 1) for number in range(looks)]


def _fits(page: Slice, table: ObjectTable) -> bool:
    for row in page.rows:
        known = table.known(row.id)
        if known is None or known.wire != wire_text(row.wire):
            return False
    edges = [place for place in range(1, len(page.keys)) if page.keys[place - 1] < page.keys[place]]
    return all(table.count_changed_after(-page.keys[place]) == page.offset + place for place in (*edges[:1], *edges[-1:]))
