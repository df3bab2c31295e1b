"""One list of the service, read page by page and in its order, the first page ahead; and several of them as one, each record once."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain

from crmctl.client.paging import iterate
from crmctl.client.queries.record_filter import ListOrder, micros_at
from crmctl.client.shapes import Page
from crmctl.models.records import PAGE_LIMIT, Record

Fetch = Callable[[int, int], Page[Record]]
"""A page of a list by limit and offset."""


class ListReader:
    """`stop`: how many records are wanted at most, from `start` on; None for all."""

    def __init__(self, fetch: Fetch, *, start: int = 0, stop: int | None = None, on_shift: Callable[[], None] = lambda: None) -> None:
        self._pages = iterate(fetch, limit=stop, offset=start, on_shift=on_shift)
        self._stop = stop
        first = next(self._pages)
        self.first: list[Record] = first.items
        self.total = first.total

    @property
    def requests_left(self) -> int:
        """How many more it takes to read all that is wanted; of a list that does not say how long it is, at least one."""
        if self.total is None:
            return 1 if self.first else 0
        wanted = self.total if self._stop is None else min(self.total, self._stop)
        return max(0, -(-(wanted - len(self.first)) // PAGE_LIMIT))

    def __iter__(self) -> Iterator[Record]:
        return chain(self.first, (record for page in self._pages for record in page.items))


def merged(lists: Sequence[Iterable[Record]], order: ListOrder) -> Iterator[Record]:
    """The records of sorted lists in their common order, each once: of equal times those of the first list first."""
    if len(lists) == 1:
        return iter(lists[0])
    name = order.sort or "created_at"
    sign = -1 if order.is_descending else 1
    return _each_once(heapq.merge(*lists, key=lambda record: sign * (micros_at(record, name) or 0)))


def _each_once(records: Iterable[Record]) -> Iterator[Record]:
    seen: set[str] = set()
    for record in records:
        if record.id not in seen:
            seen.add(record.id)
            yield record
