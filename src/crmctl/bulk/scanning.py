"""Reading every record of an object through offset pages while others write: pages overlap, and each must join what was read before it.

Records come sorted by creation, oldest first, so that new ones appear at the end. A page whose first record is already known leaves no gap
before it; when records were deleted meanwhile the first one is unknown, and the reader steps back until it finds one it knows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from crmctl.bulk.seen import SeenIds
from crmctl.client.shapes import Page
from crmctl.errors import ServiceError
from crmctl.models.filters import Condition
from crmctl.models.records import PAGE_LIMIT, Record


class Lister(Protocol):
    """The list call of the client."""

    def list_records(
        self,
        object_id: str,
        *,
        filters: Sequence[Condition] = (),
        sort: str | None = None,
        order: str | None = None,
        limit: int = 50,
        offset: int = 0,
    ) -> Page[Record]: ...


@dataclass
class ScanStatistics:
    """What a scan took: `repeated` counts records that came more than once, `steps_back` how often deletions moved the reader back."""

    requests: int = 0
    repeated: int = 0
    steps_back: int = 0
    total: int | None = None


def scan(
    lister: Lister, object_id: str, conditions: Sequence[Condition], seen: SeenIds, statistics: ScanStatistics
) -> Iterator[list[Record]]:
    """Every matching record that exists from beginning to end of the scan, once, in pages; ids go to `seen`.

    Raises ServiceError `no_progress` when the service does not heed `offset`.
    """
    offset, covered, step = 0, 0, 1
    ties = _Ties()
    while True:
        page = lister.list_records(object_id, filters=conditions, sort="created_at", order="asc", limit=PAGE_LIMIT, offset=offset)
        statistics.requests += 1
        statistics.total = page.total
        rows = page.items
        if offset > 0 and (not rows or rows[0].id not in seen):
            offset, step = max(0, offset - step), step * 2
            statistics.steps_back += 1
            continue
        step = 1
        new = [row for row in rows if seen.add(row.id)]
        statistics.repeated += len(rows) - len(new)
        if new:
            yield new
        end = offset + len(rows)
        if not new:
            _check_heeded(len(rows), covered - offset, end, page.total)
            return
        if page.total is not None and end >= page.total and len(rows) < min(PAGE_LIMIT, page.limit):
            return
        covered = end
        offset += ties.safe_advance(rows)


def _check_heeded(length: int, overlap: int, end: int, total: int | None) -> None:
    """A page without news is the end of the list only when it is as short as the overlap, and the service does not speak of more."""
    if length > max(overlap, 1) or (total is not None and total > end):
        raise ServiceError("the service sends the same records again and again: it does not heed `offset`", code="no_progress")


class _Ties:
    """Whether records of one creation time came sorted by id so far: then the order is total, and one record of overlap is enough."""

    def __init__(self) -> None:
        self._ordered = True

    def safe_advance(self, rows: Sequence[Record]) -> int:
        """How far to go on after these rows so that the next page begins with a known record.

        Where ties come in no order, a page may cut through a group whose order changes: the next page then begins before the group. A group
        of more than half a page is not worth that.
        """
        self._ordered = self._ordered and all(one.id < two.id for one, two in pairwise(rows) if one.created_at == two.created_at)
        last = len(rows) - 1
        if self._ordered:
            return last
        start = last
        while start > 0 and rows[start - 1].created_at == rows[last].created_at:
            start -= 1
        return start - 1 if start - 1 > len(rows) // 2 else last
