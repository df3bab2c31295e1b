"""Read a sorted list through offset pages without gaps while other clients write."""

from __future__ import annotations

import math
import sqlite3
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

from crmctl.client.answers import may_count_page
from crmctl.client.directory import Lister
from crmctl.errors import RejectedError, ServiceError
from crmctl.files.spills import CHUNK_ROWS, Spill, chunks, open_spill
from crmctl.frozen import frozen
from crmctl.models.resources import PAGE_LIMIT, SMALLEST_PAGE, Record
from crmctl.values.filters import Condition
from crmctl.values.moments import micros_of, micros_of_date
from crmctl.values.operators import Operator


class NoProgress(ServiceError):
    """The list cannot be read to its end."""


def ignored_offset() -> NoProgress:
    return NoProgress("the service sends the same records again and again: it does not heed `offset`", code="no_progress")


def cut_off(reason: str = "") -> NoProgress:
    hint = "--filter reads a part that it does list"
    return NoProgress(f"the service does not list all of its records{reason}", code="offset_capped", hint=hint)


class Unsorted(Exception):
    """The page is not in the requested order."""


@dataclass
class PassStatistics:
    """Cost and quality of a read.

    `walks`: reads of groups larger than a page. `unstable`: groups never proven complete. `date`: the service's last Date in microseconds.
    """

    requests: int = 0
    walks: int = 0
    unstable: int = 0
    date: int | None = None


@frozen
class Listing:
    """A list sorted by `created_at` or `updated_at`.

    Reading may end at a record older than `until` (microseconds). Without `by_time`, all records are one group in any order.
    """

    object_id: str
    conditions: Sequence[Condition] = ()
    field: str = "created_at"
    descending: bool = False
    until: int | None = None
    by_time: bool = True

    def key(self, record: Record) -> int | None:
        """Return a key that ascends along the list; None for a record without a readable time."""
        if not self.by_time:
            return 0
        micros = micros_of(record.created_at if self.field == "created_at" else record.updated_at)
        return -micros if micros is not None and self.descending else micros

    def is_beyond(self, key: int) -> bool:
        return self.until is not None and key > -self.until


@frozen
class Slice:
    """A page: its records and keys, its offset, the total, and whether it ends the list."""

    rows: list[Record]
    keys: list[int]
    offset: int
    is_last: bool
    total: int | None

    @property
    def end(self) -> int:
        return self.offset + len(self.rows)

    @property
    def ends_early(self) -> bool:
        """Whether the list has no record here although it should go on."""
        return not self.rows and not self.is_last


class SliceReader:
    """Fetches slices of one listing."""

    def __init__(self, lister: Lister, listing: Listing, statistics: PassStatistics) -> None:
        self._lister = lister
        self._listing = listing
        self._statistics = statistics
        self._size = SMALLEST_PAGE

    def fetch(self, offset: int, base: str | None = None) -> Slice:
        """Fetch the page at `offset`, counted from the first record created at `base` or later. Raises Unsorted."""
        listing = self._listing
        since = [Condition("created_at", Operator.GREATER_THAN_OR_EQUAL, base)] if base is not None else []
        self._statistics.requests += 1
        page = self._lister.list_records(
            listing.object_id,
            filters=[*listing.conditions, *since],
            sort=listing.field,
            order="desc" if listing.descending else "asc",
            limit=PAGE_LIMIT,
            offset=offset,
        )
        self._statistics.date = micros_of_date(page.date)
        rows = page.items
        keys = [key for row in rows if (key := listing.key(row)) is not None]
        if len(keys) < len(rows) or keys != sorted(keys):
            raise Unsorted
        is_last = len(rows) < self._size if page.total is None else offset + len(rows) >= page.total and not may_count_page(page)
        self._size = max(self._size, len(rows))
        if listing.conditions and not offset and len(rows) < SMALLEST_PAGE and not is_last:
            # Some services count all records, not those that match: no list is cut so early.
            is_last = not rows or not self.fetch(len(rows), base).rows
        return Slice(rows, keys, offset, is_last, page.total)

    def is_deaf(self, page: Slice, base: str | None = None) -> bool:
        """Whether the service ignores the offset: the list begins with this page, and the page has not moved meanwhile.

        If other clients write to the list, a page may also repeat, but not at two places at once.
        """
        if not page.offset or not page.rows:
            return False
        ids = [row.id for row in page.rows]
        return all([row.id for row in self.fetch(offset, base).rows] == ids for offset in (0, page.offset))


WALKS = 40
"""Number of walks after which a group counts as unstable."""


class GroupWalk:
    """Walks from the page before a group to the page behind it, repeatedly.

    If a walk ends at offset `e` and the next one finds the start of the group at `s`, the group held at most `e - s` records when the first
    walk ended. New and changed records come at the end of the list, so positions around an old group only shrink. (A list from the newest
    on grows at the beginning; such a group is read from the other end.) Every record read from then on existed at that time. Once that many
    distinct records were read, none is missing. A record read earlier does not count: it may have been deleted, and must not stand for a
    missed one.
    """

    def __init__(self, key: int, start: Callable[[], Slice], following: Callable[[int], Slice], is_deaf: Callable[[Slice], bool]) -> None:
        self.end = 0
        self.walks = 0
        self._key = key
        self._start = start
        self._following = following
        self._is_deaf = is_deaf
        self._pages = 0
        self._open: int | None = None
        self._bounds: dict[int, int] = {}

    def pages(self) -> Generator[list[Record], None, bool]:
        """Yield every page. Return whether the group is proven complete; `end` is the offset behind it."""
        with closing(open_spill("CREATE TABLE seen (id TEXT PRIMARY KEY, page INTEGER NOT NULL) WITHOUT ROWID")) as db:
            while self.walks < WALKS:
                self.walks += 1
                if (yield from self._walk(db)):
                    return True
        return False

    def _walk(self, db: sqlite3.Connection) -> Generator[list[Record], None, bool]:
        page = self._start()
        start = page.offset + bisect_left(page.keys, self._key)
        if self._open is not None:
            self._bounds[self._open] = self.end - start
        while True:
            self._pages += 1
            inside = slice(bisect_left(page.keys, self._key), bisect_right(page.keys, self._key))
            db.executemany("INSERT OR REPLACE INTO seen VALUES (?, ?)", ((row.id, self._pages) for row in page.rows[inside]))
            yield page.rows
            if any(self._count(db, since) >= bound for since, bound in self._bounds.items()):
                return True
            if inside.stop < len(page.keys) or page.is_last:
                self.end, self._open = page.offset + inside.stop, self._pages
                return False
            following = self._following(page.end)
            if following.ends_early:
                raise cut_off()
            if following.rows == page.rows:
                if self._is_deaf(following):
                    raise ignored_offset()
                self._open = None  # other clients have moved the list by a page: this walk proves nothing
                return False
            page = following

    def _count(self, db: sqlite3.Connection, since: int) -> int:
        return int(db.execute("SELECT count(*) FROM seen WHERE page >= ?", (since,)).fetchone()[0])


SURE = 30.0
"""Bits of evidence after which an order is trusted. Chance produces that much once in 2^30 times."""

DISPROVED = -1e18
"""Evidence that no other evidence outweighs."""

Sighting = tuple[str, str | None]
"""An id and its time of change.

A changed record may have moved; the pass over changes reads its new content.
"""


def weigh(earlier: Iterable[Sighting], later: Iterable[Sighting]) -> float:
    """Return the evidence, in bits, that two reads of a group have the same order. DISPROVED if they differ."""
    places = {sighting: place for place, sighting in enumerate(earlier)}
    common = [places[sighting] for sighting in later if sighting in places]
    return math.lgamma(len(common) + 1) / math.log(2) if common == sorted(common) else DISPROVED


REBASE = 2000
"""Offset from which the list is read through a filter on the creation time, if the service supports it."""

WINDOW = 128
"""Most records of a group whose order is kept."""

DEEPEST = 1 << 32
"""Largest supported size of a list of unknown length."""

STALLS = 3
"""Pages in a row without progress, not counting steps back, before crmctl tests the offset."""

MOST_MOVES = 12
"""Most repeats of a page that writes by other clients can explain."""


@dataclass
class Position:
    """The position of a pass: everything up to `key` was read.

    `offset` counts from the first record created at `base` or later, or from the beginning. `recent` has the ids and times of change of the
    last records of the group `recent_key`, in order. `order` is the evidence, in bits, that groups keep their order. `rebases`: no filter
    on the creation time has failed yet.
    """

    offset: int = 0
    key: int | None = None
    recent_key: int | None = None
    recent: dict[str, str | None] = field(default_factory=dict)
    order: float = 0.0
    base: str | None = None
    rebases: bool = True

    @property
    def is_ordered(self) -> bool:
        """Whether ties have a stable order."""
        return self.order >= SURE

    def passed(self, key: int, id: str) -> bool:
        if self.key is not None and key <= self.key:
            return True
        return self.is_ordered and key == self.recent_key and id in self.recent


class AnchoredPass:
    """One pass over a list. While the caller holds a page of `pages`, `position` is the place to resume after it."""

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
        """Yield every page; records repeat where pages overlap.

        Ends with the list, or beyond `until`, which sets `is_beyond`. Raises NoProgress, Unsorted, and the errors of the list call.
        """
        at, stalled, head = self.position, 0, None
        while True:
            page = self._anchored()
            if page.rows and not page.offset:
                head = page.rows[0].id
            elif page.is_last and page.rows and page.rows[0].id == head and self._is_deaf(page):
                raise ignored_offset()  # only the total ends such a list
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
            elif page.keys and not at.is_ordered and page.keys[-1] > self._mark and (stalled > 1 or at.order < 0):
                start = bisect_right(page.keys, self._mark)
                if stalled == 1 and self._overlap > 1:
                    # With less overlap the group may fit on a page.
                    self._overlap, at.offset = 1.0, page.offset + max(0, start - 1)
                else:
                    yield from self._walk(page.keys[start])
                    stalled = 0
            elif stalled > STALLS + 2 * self._back // PAGE_LIMIT and self._is_deaf(page):
                raise ignored_offset()

    def read_back_to(self, until: int) -> None:
        """Set the time at which reading may end, from the next page on."""
        self._listing = replace(self._listing, until=until)

    @property
    def _mark(self) -> float:
        return -math.inf if self.position.key is None else self.position.key

    def _anchored(self) -> Slice:
        """Return the page at the position, or an earlier page if deletions moved the list."""
        at, step = self.position, 1
        while True:
            page = self._reader.fetch(at.offset, at.base)
            if at.offset == 0 or (page.rows and at.passed(page.keys[0], page.rows[0].id)):
                # If records keep disappearing, a larger overlap saves steps back.
                self._overlap = self._overlap + 1 if step > 1 else max(1.0, self._overlap * 0.97)
                self._total = page.total
                return page
            if self._total is not None and page.total is not None:
                step = max(step, self._total - page.total)
            self._back += min(step, at.offset)
            at.offset = max(0, at.offset - step)
            step *= 2

    def _learn(self, page: Slice) -> bool:
        """Compare the order of ties with the order seen before. If a trusted order fails, restart and return False."""
        at, trusted = self.position, self.position.is_ordered
        if at.order >= 0 and at.recent_key is not None:
            group = slice(bisect_left(page.keys, at.recent_key), bisect_right(page.keys, at.recent_key))
            at.order += weigh(at.recent.items(), _sightings(page.rows[group]).items())
        if not trusted or at.is_ordered:
            return True
        at.offset, at.key, at.recent_key, at.recent, at.base, self._total = 0, None, None, {}, None, None
        return False

    def _advance(self, page: Slice) -> bool:
        """Move the position past the groups that the page completes. Return whether it moved."""
        at, keys = self.position, page.keys
        if not keys:
            return False
        progress = at.is_ordered and not at.passed(keys[-1], page.rows[-1].id)
        group = bisect_left(keys, keys[-1])
        end = len(keys) if page.is_last else group
        if end and keys[end - 1] > self._mark:
            at.key, progress = keys[end - 1], True
        start = len(keys) - 1 if at.is_ordered else bisect_right(keys, self._mark)
        at.offset = page.offset + max(0, start - math.ceil(self._overlap))
        sightings = _sightings(page.rows[group:])
        if at.recent_key == keys[-1]:
            sightings = {seen_id: updated for seen_id, updated in at.recent.items() if seen_id not in sightings} | sightings
        at.recent_key, at.recent = keys[-1], dict([*sightings.items()][-WINDOW:])
        return progress

    def _walk(self, key: int) -> Iterator[list[Record]]:
        """Read a group larger than a page, and move the position past it."""
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
        """Read a group in the reversed list, where new records come after the group and move nothing."""
        at, listing = self.position, replace(self._listing, descending=False, until=None)
        reader = SliceReader(self._lister, listing, self._statistics)
        start = _before(reader, -key, self._total)
        turned = AnchoredPass(self._lister, listing, self._statistics, Position(start, -key - 1, rebases=False))
        yield from turned._walk(-key)
        at.key, at.offset = key, at.offset + max(0, turned.position.offset - start - PAGE_LIMIT)

    def _is_deaf(self, page: Slice) -> bool:
        """Whether the service ignores offsets. Raises NoProgress if the list ends before its total or moved too often."""
        base = self.position.base
        if not page.is_last and self._reader.fetch(page.end, base).ends_early:
            raise cut_off()
        is_deaf = self._reader.is_deaf(page, base)
        self._moves += not is_deaf
        if self._moves > MOST_MOVES:
            problem = "the records cannot be read completely: the list changes while it is read"
            raise NoProgress(problem, code="no_progress", hint="others may be writing; try again when they are done", retryable=True)
        return is_deaf

    def _rebase(self, page: Slice) -> None:
        """Count offsets from the creation time of a complete group, which keeps them small, if the service supports that filter."""
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
    """Return an offset whose page begins less than a page before `key`, or 0. Raises NoProgress if the service ignores offsets."""
    low, high = 0, PAGE_LIMIT if total is None else total
    nearest: Slice | None = None
    while total is None and (page := reader.fetch(high)).keys and page.keys[0] < key and high < DEEPEST:
        low, high, nearest = high, 2 * high, page
    while high - low > PAGE_LIMIT // 2:
        middle = (low + high) // 2
        page = reader.fetch(middle)
        if page.keys and page.keys[0] < key:
            low, nearest = middle, page
        else:
            high = middle
    if nearest is not None and reader.is_deaf(nearest):
        raise ignored_offset()
    return low


def _sightings(rows: list[Record]) -> dict[str, str | None]:
    return {row.id: row.updated_at for row in rows}


class SeenIds(Spill):
    """An ordered set of ids."""

    TABLES = "CREATE TABLE seen (no INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE)"

    def __init__(self, ids: Iterable[str] = ()) -> None:
        super().__init__()
        self._count = 0
        for record_id in ids:
            self.add(record_id)

    def __len__(self) -> int:
        return self._count

    def __contains__(self, id: str) -> bool:
        return self._db.execute("SELECT 1 FROM seen WHERE id = ?", (id,)).fetchone() is not None

    def add(self, id: str) -> bool:
        """Add an id; return whether it is new."""
        is_new = self._db.execute("INSERT OR IGNORE INTO seen (id) VALUES (?)", (id,)).rowcount == 1
        self._count += is_new
        return is_new

    def discard(self, id: str) -> None:
        self._count -= self._db.execute("DELETE FROM seen WHERE id = ?", (id,)).rowcount

    def chunks(self, size: int = CHUNK_ROWS) -> Iterator[Sequence[str]]:
        """Return all ids in insertion order, `size` at a time."""
        return chunks((record_id for (record_id,) in self._db.execute("SELECT id FROM seen ORDER BY no")), size)
