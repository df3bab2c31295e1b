"""Which records were deleted, found with few requests: the mirror knows at which offset each record would stand; deletions shift it.

The list by creation, oldest first, is bisected on the shift. Records of one creation time have no order to rely on: only whole groups of
them count. What is found missing inside a page is certainly gone; that nothing else is, the count says afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass

from crmctl.bulk.read.counted_reads import CountedReads
from crmctl.bulk.read.sorted_lists import Listing, PassStatistics, Slice, SliceReader, Unsorted
from crmctl.errors import RejectedError
from crmctl.mirror.changes import CannotProve
from crmctl.mirror.object_table import ObjectTable
from crmctl.models.records import PAGE_LIMIT

_END = 1 << 62
"""A moment after all others."""

SHORT = 8
DENSE = 0.6
"""Deletions a page from which a bracket of at most SHORT pages is read as a whole."""


class ListMoved(Exception):
    """The total has changed: others write at this moment."""


@dataclass(frozen=True)
class Bracket:
    """Records created from `first` on, before `end`; in the list they stand from offset `start` on, before `stop`."""

    first: int
    end: int
    start: int
    stop: int


class DeletionSearch:
    """Finds the deletions of one object and takes them out of its table, inside the caller's transaction. It looks at offset `first` first;
    `first` afterwards: the page there."""

    def __init__(self, lister: CountedReads, object_id: str, table: ObjectTable, total: int, first: int) -> None:
        self.first: Slice | None = None
        self._first_offset = first
        self._reader = SliceReader(lister, Listing(object_id), PassStatistics())
        self._table = table
        self._total = total
        self._page = PAGE_LIMIT
        self.found: list[str] = []

    def run(self) -> None:
        """Find them all. Raises ListMoved; CannotProve where the list contradicts itself; what requests raise."""
        try:
            whole = Bracket(-_END, _END, 0, self._total)
            brackets = self._look_first(whole) if self._total > SHORT * self._page else [whole]
            while brackets:
                brackets += self._narrow(brackets.pop())
        except Unsorted:
            raise CannotProve("the service does not sort by creation time") from None
        except RejectedError as error:
            raise CannotProve(f"the records cannot be listed by creation: {error.message}") from error

    def _narrow(self, bracket: Bracket) -> list[Bracket]:
        """What is left to look at once one page, or all, of the bracket was read."""
        expected, present = self._table.count_between(bracket.first, bracket.end), bracket.stop - bracket.start
        missing = expected - present
        if missing == 0:
            return []
        if missing < 0:
            raise CannotProve("more records stand in the list than the mirror knows")
        if present == 0:
            self._drop(self._table.created_between(bracket.first, bracket.end))
            return []
        if reads_whole(missing, present, self._page):
            self._read_whole(bracket)
            return []
        return self._split(bracket)

    def _look_first(self, whole: Bracket) -> list[Bracket]:
        """A page that is to be compared anyhow says as much as another one."""
        self.first = self._fetch(self._first_offset if self._first_offset < self._total else 0)
        return self._split(whole, self.first)

    def _split(self, bracket: Bracket, page: Slice | None = None) -> list[Bracket]:
        """Read the page in the middle: what is whole in it is settled."""
        page = page or self._fetch(bracket.start + (bracket.stop - bracket.start - self._page) // 2)
        edges = [place for place in range(1, len(page.keys)) if page.keys[place - 1] < page.keys[place]]
        if not edges:
            return self._around(bracket, page)
        low = 0 if page.offset == bracket.start else edges[0]
        high = len(page.keys) if page.end == bracket.stop else edges[-1]
        first = page.keys[low] if low else bracket.first
        end = page.keys[high] if high < len(page.keys) else bracket.end
        if not bracket.first <= first <= end <= bracket.end:
            raise CannotProve("records do not stand where their creation time puts them")
        self._settle(first, end, {row.id for row in page.rows[low:high]})
        return [
            Bracket(bracket.first, first, bracket.start, page.offset + low),
            Bracket(end, bracket.end, page.offset + high, bracket.stop),
        ]

    def _around(self, bracket: Bracket, page: Slice) -> list[Bracket]:
        """A page of one group only: where the group begins and ends is looked for, and the group is read where something is missing."""
        key = page.keys[0]
        start = self._offset_of(key, bracket.start, page.offset)
        stop = self._offset_of(key + 1, page.end, bracket.stop)
        group = Bracket(key, key + 1, start, stop)
        if self._table.count_between(key, key + 1) != stop - start:
            self._read_whole(group)
        return [Bracket(bracket.first, key, bracket.start, start), Bracket(key + 1, bracket.end, stop, bracket.stop)]

    def _offset_of(self, key: int, low: int, high: int) -> int:
        """The offset of the first record created at `key` or later; it is between these."""
        while low < high:
            page = self._fetch(max(low, (low + high - self._page) // 2))
            place = next((place for place, each in enumerate(page.keys) if each >= key), None)
            if place is None:
                low = page.end
            elif place > 0 or page.offset == low:
                return page.offset + place
            else:
                high = page.offset
        return low

    def _read_whole(self, bracket: Bracket) -> None:
        """Every page of the bracket."""
        present: set[str] = set()
        offset = bracket.start
        while offset < bracket.stop:
            page = self._fetch(offset)
            inside = [row.id for place, row in enumerate(page.rows) if page.offset + place < bracket.stop]
            present.update(inside)
            offset = page.end
        if len(present) != bracket.stop - bracket.start:
            raise CannotProve("records of one creation time come in another order every time")
        self._settle(bracket.first, bracket.end, present)

    def _settle(self, first: int, end: int, present: set[str]) -> None:
        expected = self._table.created_between(first, end)
        if present - expected:
            raise CannotProve("a record stands in the list that is not among the changes")
        self._drop(expected - present)

    def _drop(self, gone: set[str]) -> None:
        self._table.delete(gone)
        self.found += sorted(gone)

    def _fetch(self, offset: int) -> Slice:
        page = self._reader.fetch(max(0, offset))
        if page.total != self._total:
            raise ListMoved
        if not page.rows:
            raise CannotProve("the list ends before its total")
        if not page.is_last:
            self._page = len(page.rows)
        return page


def reads_whole(missing: int, present: int, page: int) -> bool:
    """Whether to read every page of a bracket: where it is one, or so short and so full of gaps that halving it saves nothing.

    A longer one is halved whatever is missing: each page that is read settles itself, and a block of deletions shows at once.
    """
    pages = -(-present // page)
    return pages == 1 or (pages <= SHORT and missing >= DENSE * pages)
