"""Reading a sorted list through offset pages without a gap while others insert, change and delete: the anchor rule.

A page is a contiguous slice of the list. Once everything up to a mark has been read, a page that begins at or before the mark leaves
nothing unread between the two. Deletions pull unread records to the left of the offset: then the page begins beyond the mark, and the
reader steps back until one does not. A group of one timestamp counts only when it was seen whole, unless its order has proved to hold.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Self

from crmctl.bulk.read.order_evidence import SURE, Sighting, weigh
from crmctl.bulk.read.sorted_lists import Listing, NoProgress, PassStatistics, Slice, SliceReader
from crmctl.bulk.read.tie_groups import GroupWalk
from crmctl.client.record_lists import Lister
from crmctl.errors import RejectedError
from crmctl.models.records import PAGE_LIMIT, Record

REBASE = 2000
"""Offset from which a list is read on through a filter on the creation time, where the service has one."""

WINDOW = 128
"""Most records of a group whose order is remembered."""

DEEPEST = 1 << 32
"""No list of unknown length is looked for deeper than this."""

STALLS = 3
"""Pages in a row that may bring nothing beyond the mark, where no step back explains them, before it is asked why."""

MOST_MOVES = 12
"""How often a page may come again because others keep writing."""


@dataclass
class Position:
    """Where a pass is, to go on from later: everything up to the moment `key` was read.

    `offset` counts from the first record created at `base` or later, else from the beginning. `recent` are the last records of the group
    `recent_key`, in their order; `order` is the evidence in bits that groups keep theirs. `rebases`: no filter on the creation time has
    failed yet.
    """

    offset: int = 0
    key: int | None = None
    recent_key: int | None = None
    recent: list[Sighting] = field(default_factory=list)
    order: float = 0.0
    base: str | None = None
    rebases: bool = True

    @property
    def is_ordered(self) -> bool:
        """Whether records of one moment come in an order that holds."""
        return self.order >= SURE

    def passed(self, key: int, id: str) -> bool:
        """Whether nothing before this record can be unread."""
        if self.key is not None and key <= self.key:
            return True
        return self.is_ordered and key == self.recent_key and any(id == known for known, _ in self.recent)

    def to_document(self) -> dict[str, Any]:
        """JSON values; evidence of minus infinity is null."""
        return {**vars(self), "order": self.order if math.isfinite(self.order) else None}

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> Self:
        recent = [(known, updated) for known, updated in document["recent"]]
        return cls(**{**document, "recent": recent, "order": -math.inf if document["order"] is None else document["order"]})


class AnchoredPass:
    """One reading of a list. While a page of `pages` is in hand, `position` is where to go on after it."""

    def __init__(self, lister: Lister, listing: Listing, statistics: PassStatistics, position: Position | None = None) -> None:
        self.position = position or Position()
        self.is_beyond = False
        self._lister = lister
        self._listing = listing
        self._reader = SliceReader(lister, listing, statistics)
        self._statistics = statistics
        self._total: int | None = None
        self._back = 0
        self._overlap = 1.0
        self._moves = 0

    def pages(self) -> Iterator[list[Record]]:
        """Every page; records repeat where pages overlap. Ends with the list, or beyond `until`, which `is_beyond` then says.

        Raises NoProgress, Unsorted, and what the list call raises.
        """
        at, stalled = self.position, 0
        while True:
            page = self._anchored()
            if not self._learn(page):
                continue
            progress = self._advance(page)
            yield page.rows
            self.is_beyond = bool(page.keys) and self._listing.is_beyond(page.keys[-1])
            if page.is_last or self.is_beyond:
                return
            stalled = 0 if progress else stalled + 1
            if progress:
                self._back = 0
                self._rebase(page)
            elif not at.is_ordered and page.keys[-1] > self._mark and (stalled > 1 or at.order == -math.inf):
                known = bisect_right(page.keys, self._mark)
                if stalled == 1 and self._overlap > 1:
                    # The group may fit a page that overlaps less.
                    self._overlap, at.offset = 1.0, page.offset + max(0, known - 1)
                else:
                    yield from self._walk(page.keys[known])
                    stalled = 0
            elif stalled > STALLS + 2 * self._back // PAGE_LIMIT and self._is_deaf(page):
                raise NoProgress(is_deaf=True)

    def read_back_to(self, until: int) -> None:
        """Change where reading may end, from the page in hand on."""
        self._listing = replace(self._listing, until=until)

    @property
    def _mark(self) -> float:
        return -math.inf if self.position.key is None else self.position.key

    def _anchored(self) -> Slice:
        """The page at the position, or before it where deletions made that necessary."""
        at, step = self.position, 1
        while True:
            page = self._reader.fetch(at.offset, at.base)
            if at.offset == 0 or (page.rows and at.passed(page.keys[0], page.rows[0].id)):
                # Where records keep vanishing, pages that overlap more need fewer steps back.
                self._overlap = self._overlap + 1 if step > 1 else max(1.0, self._overlap * 0.97)
                self._total = page.total
                return page
            if self._total is not None and page.total is not None:
                step = max(step, self._total - page.total)
            self._back += min(step, at.offset)
            at.offset = max(0, at.offset - step)
            step *= 2

    def _learn(self, page: Slice) -> bool:
        """Compare the order of ties with what is remembered. False when an order that was trusted does not hold: all is read again."""
        at, trusted = self.position, self.position.is_ordered
        if at.order > -math.inf and at.recent_key is not None:
            group = slice(bisect_left(page.keys, at.recent_key), bisect_right(page.keys, at.recent_key))
            at.order += weigh(at.recent, _sightings(page.rows[group]))
        if not trusted or at.is_ordered:
            return True
        at.offset, at.key, at.recent_key, at.recent, at.base, self._total = 0, None, None, [], None, None
        return False

    def _advance(self, page: Slice) -> bool:
        """Move the position over what the page completes. Whether that is any more than before."""
        at, keys = self.position, page.keys
        if not keys:
            return False
        progress = at.is_ordered and not at.passed(keys[-1], page.rows[-1].id)
        group = bisect_left(keys, keys[-1])
        whole = len(keys) if page.is_last else group
        if whole and keys[whole - 1] > self._mark:
            at.key, progress = keys[whole - 1], True
        known = len(keys) - 1 if at.is_ordered else bisect_right(keys, self._mark)
        at.offset = page.offset + max(0, known - math.ceil(self._overlap))
        sightings = _sightings(page.rows[group:])
        if at.recent_key == keys[-1]:
            fresh = {known for known, _ in sightings}
            sightings = [old for old in at.recent if old[0] not in fresh] + sightings
        at.recent_key, at.recent = keys[-1], sightings[-WINDOW:]
        return progress

    def _walk(self, key: int) -> Iterator[list[Record]]:
        """Read a group that does not fit a page, and move the mark past it."""
        at = self.position
        if self._listing.descending:
            yield from self._walk_from_the_other_end(key)
            return
        walk = GroupWalk(key, self._anchored, lambda offset: self._reader.fetch(offset, at.base), self._is_deaf)
        complete = yield from walk.pages()
        self._statistics.walks += walk.walks
        self._statistics.unstable += not complete
        at.key, at.offset = key, max(0, walk.end - 1)

    def _walk_from_the_other_end(self, key: int) -> Iterator[list[Record]]:
        """The same where what is new comes before the group: in the list turned round it comes behind, and moves nothing."""
        at, listing = self.position, replace(self._listing, descending=False, until=None)
        reader = SliceReader(self._lister, listing, self._statistics)
        start = _before(reader, -key, self._total)
        turned = AnchoredPass(self._lister, listing, self._statistics, Position(start, -key - 1, rebases=False))
        yield from turned._walk(-key)
        at.key, at.offset = key, at.offset + max(0, turned.position.offset - start - PAGE_LIMIT)

    def _is_deaf(self, page: Slice) -> bool:
        """Whether no offset is heeded. Raises NoProgress where the list has moved instead, and too often."""
        is_deaf = self._reader.is_deaf(page, self.position.base)
        self._moves += not is_deaf
        if self._moves > MOST_MOVES:
            raise NoProgress
        return is_deaf

    def _rebase(self, page: Slice) -> None:
        """Keep offsets small: count them from the creation time of a group that is complete. The first page shows whether that works."""
        at, keys = self.position, page.keys
        if not at.rebases or at.offset < REBASE or self._listing.field != "created_at" or self._listing.descending:
            return
        group = bisect_left(keys, keys[bisect_left(keys, keys[-1]) - 1]) if keys[0] < keys[-1] else 0
        base = page.rows[group].created_at
        if group == 0 or base is None:
            return
        try:
            first = self._reader.fetch(0, base)
            at.rebases = bool(first.keys) and first.keys[0] == keys[group]
        except RejectedError:
            at.rebases = False
        if at.rebases:
            at.base, at.offset, self._total = base, 0, None


def _before(reader: SliceReader, key: int, total: int | None) -> int:
    """An offset at which a page begins with a record before `key`, less than a page before it; else 0. Raises NoProgress where the offset
    is not heeded."""
    low, high = 0, PAGE_LIMIT if total is None else total
    found: Slice | None = None
    while total is None and (page := reader.fetch(high)).keys and page.keys[0] < key and high < DEEPEST:
        low, high, found = high, 2 * high, page
    while high - low > PAGE_LIMIT // 2:
        middle = (low + high) // 2
        page = reader.fetch(middle)
        if page.keys and page.keys[0] < key:
            low, found = middle, page
        else:
            high = middle
    if found is not None and reader.is_deaf(found):
        raise NoProgress(is_deaf=True)
    return low


def _sightings(rows: list[Record]) -> list[Sighting]:
    return [(row.id, row.updated_at) for row in rows]
