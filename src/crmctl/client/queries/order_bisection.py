"""Where a span of time lies in a list sorted by it, found with few pages: for services that have no filter for it."""

from __future__ import annotations

from collections.abc import Callable

from crmctl.client.queries.list_reader import Fetch
from crmctl.client.queries.record_filter import Bound, micros_at
from crmctl.client.shapes import Page
from crmctl.models.records import PAGE_LIMIT, Record


class SortedList:
    """A list in ascending order of the time `bound` is about; its pages are kept, so that none is asked for twice."""

    def __init__(self, fetch: Fetch, bound: Bound) -> None:
        self._fetch = fetch
        self._bound = bound
        self._pages: dict[int, Page[Record]] = {}

    @property
    def total(self) -> int | None:
        return self._page(0).total

    def span(self) -> tuple[int, int] | None:
        """From which place on, and before which, the records lie within the bound; None where the list does not say how long it is."""
        if self.total is None:
            return None
        start = self._first(lambda at: not self._bound.is_before(at)) if self._bound.least is not None else 0
        stop = self._first(self._bound.is_after) if self._bound.below is not None else self.total
        return start, max(start, stop)

    def _first(self, holds: Callable[[int], bool]) -> int:
        """The first place at which `holds`, which then holds for all that follow."""
        low, high = 0, -(-(self.total or 0) // PAGE_LIMIT)
        while low < high:
            middle = (low + high) // 2
            times = self._times(middle)
            if times and holds(times[-1]):
                high = middle
            else:
                low = middle + 1
        times = self._times(low)
        return low * PAGE_LIMIT + next((place for place, at in enumerate(times) if holds(at)), len(times))

    def _times(self, number: int) -> list[int]:
        total = self.total or 0
        if number * PAGE_LIMIT >= total:
            return []
        return [micros_at(record, self._bound.name) or 0 for record in self._page(number).items]

    def _page(self, number: int) -> Page[Record]:
        if number not in self._pages:
            self._pages[number] = self._fetch(PAGE_LIMIT, number * PAGE_LIMIT)
        return self._pages[number]
