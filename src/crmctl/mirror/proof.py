"""Prove that an object of the mirror equals the service's: changes, deletions, spot checks."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field

from crmctl.clock import Clock
from crmctl.errors import NotFoundError, RejectedError
from crmctl.frozen import frozen
from crmctl.mirror.mirror_tables import ObjectTable, Written, begin_list, note_listed, unlisted
from crmctl.models import jsontext
from crmctl.models.resources import PAGE_LIMIT, Record
from crmctl.read.export_passes import LOOKBACK, ROUNDS, UNEVEN, GatherMark
from crmctl.read.records import CountedReads
from crmctl.read.stable_pages import AnchoredPass, Listing, NoProgress, PassStatistics, Slice, SliceReader, Unsorted
from crmctl.values.moments import MICROS, micros_of, micros_of_date

_NEVER = -(1 << 62)
_UNORDERED = "records of one time of change come in another order every time"

OVERLAP = 100
"""Known records that must stand in the list unchanged before reading stops."""

FEW = 20
"""Vanished records that are read one by one."""


class CannotProve(Exception):
    """The lists contradict the mirror. `reason` says why everything is read again.

    `is_lasting`: the service will always answer so. `contradicts`: even a full read a moment ago disagrees.
    """

    def __init__(self, reason: str, *, is_lasting: bool = False, contradicts: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_lasting = is_lasting
        self.contradicts = contradicts


@dataclass
class ChangesRead:
    """Changes read from the service.

    `mark`: where the next sync starts. `total`: the record count at that moment. `overlap`: known records that stood in place. `is_whole`:
    the whole list was read; else everything changed at `lowest` or later.
    """

    mark: GatherMark
    newest: int | None
    total: int | None
    overlap: int = 0
    is_whole: bool = False
    lowest: int | None = None
    written: Written = field(default_factory=Written)


@dataclass
class _PassResult:
    began: tuple[int, int]
    newest: int | None
    total: int | None
    news: int = 0
    overlap: int = 0
    requests: int = 0
    walks: int = 0
    lowest: int | None = None


class ChangeReader:
    """Read the changes of one object into its table, inside the caller's transaction.

    `sorts`: the service is known to sort by time of change; otherwise a record missing from part of the list may stand elsewhere.
    `shows_order`: the list was not in order of creation, which proves that.
    """

    def __init__(self, lister: CountedReads, object_id: str, table: ObjectTable, db: sqlite3.Connection, clock: Clock) -> None:
        self._lister = lister
        self._object_id = object_id
        self._table = table
        self._db = db
        self._clock = clock
        self.shows_order = self.sorts = False

    def read(self, mark: GatherMark, newest: int | None, *, whole: bool = False) -> ChangesRead:
        """Read the changes since the last read began, when `newest` was the newest change.

        With `whole`, read the whole look-back before it too. Raises CannotProve, and what requests raise.
        """
        begin_list(self._db)
        written = Written()
        first = latest = self._pass(mark, written, mark.since if whole else _latest_known(mark.as_of, newest), overlaps=True)
        rounds = 1
        while latest.requests > 1 and (latest.news if latest is not first else not self._lacks_some(first)):
            if rounds == ROUNDS:
                raise CannotProve("others kept changing records")
            end = _latest_known(latest.began[0], latest.newest)
            latest = self._pass(GatherMark(end, *latest.began), written, end, overlaps=False)
            rounds += 1
        if first.walks and rounds > 2:
            # Other clients' writes move groups of older records, which then only seem complete.
            raise CannotProve(_UNORDERED)
        is_whole = first.lowest is None and not first.walks
        if is_whole or (self.sorts and not first.walks):
            self._drop_unseen(first, latest, written)
        # Without a count, deletions after the first pass are unknown.
        following = next_mark((first if latest.total is None else latest).began, latest.newest)
        return ChangesRead(following, latest.newest, latest.total, first.overlap, is_whole, first.lowest, written)

    def seen_at_once(self, page: Sequence[Record]) -> ChangesRead:
        """Return the result of reading this page, which is the whole list."""
        begun = self._begin(list(page))
        return ChangesRead(next_mark(begun.began, begun.newest), begun.newest, begun.total, is_whole=True)

    def _pass(self, mark: GatherMark, written: Written, end: int, *, overlaps: bool) -> _PassResult:
        """Read the list once, newest change first, until older than `end`; with `overlaps`, also until known records stood in place.

        If a clock went back, read further, as the mark says.
        """
        listing = Listing(self._object_id, field="updated_at", descending=True)
        statistics, before = PassStatistics(), self._lister.requests
        reading = AnchoredPass(self._lister, listing, statistics)
        result: _PassResult | None = None
        horizon = mark.since
        try:
            for page in reading.pages():
                if result is None:
                    result = self._begin(page)
                    horizon = mark.horizon(*result.began)
                    end = end if horizon == mark.since else horizon
                self._take(page, horizon if overlaps else None, result, written)
                reading.read_back_to(end if not overlaps or result.overlap >= OVERLAP else _NEVER)
        except Unsorted:
            raise CannotProve("the service does not sort by time of change", is_lasting=True) from None
        except (NoProgress, RejectedError) as error:
            raise CannotProve(f"the changes cannot be listed: {error.message}") from error
        if statistics.unstable:
            raise CannotProve(_UNORDERED)
        if result is None:
            result = self._begin([])
        result.requests, result.walks = self._lister.requests - before, statistics.walks
        if reading.is_beyond:
            result.lowest = min(end, end if reading.position.key is None else -reading.position.key)
        return result

    def _lacks_some(self, first: _PassResult) -> bool:
        """Whether the service counts fewer records than the table although none of the part just read is gone.

        The search for deletions then reads the changes again.
        """
        counted = first.total
        if counted is None or first.walks or counted != self._lister.total or counted >= self._table.count():
            return False
        return not unlisted(self._db, self._table.name, first.lowest)

    def _begin(self, page: list[Record]) -> _PassResult:
        here = int(self._clock.now() * MICROS)
        date = micros_of_date(self._lister.date)
        return _PassResult((here if date is None else date, here), micros_of(page[0].updated_at) if page else None, self._lister.total)

    def _take(self, page: list[Record], horizon: int | None, result: _PassResult, written: Written) -> None:
        created = [micros_of(record.created_at) or 0 for record in page]
        self.shows_order = self.shows_order or created not in (sorted(created), sorted(created, reverse=True))
        news = []
        for record in page:
            is_first = note_listed(self._db, record.id)
            changed, stored = micros_of(record.updated_at) or 0, self._table.known(record.id)
            if stored is not None and stored.wire == jsontext.dumps(record.wire):
                result.overlap += is_first  # repeated records may be changes read a moment ago
                continue
            if stored is not None and changed < stored.updated:
                raise CannotProve("a record has gone back in time, as after a backup was put back", contradicts=True)
            if horizon is not None and changed < horizon:
                kind = "unknown" if stored is None else "another"
                raise CannotProve(f"a record changed long ago is {kind}, as after a backup was put back", contradicts=True)
            news.append(record)
        done = self._table.write(news)
        result.news += len(news)
        written.created += done.created
        written.updated += done.updated

    def _drop_unseen(self, first: _PassResult, latest: _PassResult, written: Written) -> None:
        """Delete records that should stand in the part of the list that was read, and do not."""
        unseen = unlisted(self._db, self._table.name, first.lowest)
        if not unseen:
            return
        if latest.total is not None and len(unseen) > self._table.count() - latest.total:
            raise CannotProve("the list of changes lacks records that are counted, as after a backup was put back", contradicts=True)
        self._check_gone(unseen)
        self._table.delete(unseen)
        written.deleted_ids += unseen

    def _check_gone(self, unseen: list[str]) -> None:
        """Raise CannotProve for a missing record that still exists: its older content may have been restored further down.

        Records changed since their creation are read one by one, others if they are few.
        """
        stored = [row for row in map(self._table.known, unseen) if row is not None]
        ids = [row.id for row in stored if row.created != row.updated or len(stored) <= FEW]
        if len(ids) > most_asked_for(self._table.count()):
            raise CannotProve(f"{len(ids):,} records that were changed are not among the changes")
        for record_id in ids:
            try:
                self._lister.get_record(self._object_id, record_id)
            except NotFoundError:
                continue
            raise CannotProve("a record is not among the changes and is there, as after a backup was put back", contradicts=True)


def _latest_known(as_of: int, newest: int | None) -> int:
    """Return the moment after which a change must have a later time, unless a clock goes back or the change becomes visible late."""
    return as_of - UNEVEN if newest is None or newest > as_of + UNEVEN else newest


def most_asked_for(records: int) -> int:
    """Return how many records are read one by one before a full read is cheaper."""
    return max(PAGE_LIMIT, records // PAGE_LIMIT)


def next_mark(began: tuple[int, int], newest: int | None) -> GatherMark:
    """Return where the next read looks for changes: the look-back before this one or before its newest change.

    `began` is by the service's clock and by this machine's.
    """
    now = began[0]
    return GatherMark((now if newest is None else min(now, newest)) - int(LOOKBACK * MICROS), *began)


_END = 1 << 62
"""A moment after all others."""

SHORT = 8
DENSE = 0.6
"""Deletions per page from which a range of at most SHORT pages is read whole: halving it would save nothing."""


class ListMoved(Exception):
    """The total has changed because other clients write."""


@frozen
class CreationRange:
    """A creation range: the records created from `first` until before `end`, at offsets `start` until before `stop`."""

    first: int
    end: int
    start: int
    stop: int


class DeletionSearch:
    """Find the deletions of one object and remove them from its table, inside the caller's transaction.

    The search starts at offset `first`; afterwards `first` is the page there.
    """

    def __init__(self, lister: CountedReads, object_id: str, table: ObjectTable, total: int, first: int) -> None:
        self.first: Slice | None = None
        self._first_offset = first
        self._reader = SliceReader(lister, Listing(object_id), PassStatistics())
        self._table = table
        self._total = total
        self._page = PAGE_LIMIT
        self.found: list[str] = []

    def run(self) -> None:
        """Find all deletions. Raises ListMoved, CannotProve if the list contradicts itself, and what requests raise."""
        try:
            everything = CreationRange(-_END, _END, 0, self._total)
            ranges = [everything]
            if self._total > SHORT * self._page:
                # The page that is due for comparison anyway.
                self.first = self._fetch(self._first_offset if self._first_offset < self._total else 0)
                ranges = self._split(everything, self.first)
            while ranges:
                ranges += self._read_part(ranges.pop())
        except Unsorted:
            raise CannotProve("the service does not sort by creation time") from None
        except RejectedError as error:
            raise CannotProve(f"the records cannot be listed by creation: {error.message}") from error

    def _read_part(self, range_: CreationRange) -> list[CreationRange]:
        """Read a page or all of a range; return the ranges that remain."""
        expected, present = self._table.count_between(range_.first, range_.end), range_.stop - range_.start
        missing = expected - present
        if missing == 0:
            return []
        if missing < 0:
            raise CannotProve("more records stand in the list than the mirror knows")
        if present == 0:
            self._drop(self._table.created_between(range_.first, range_.end))
            return []
        pages = -(-present // self._page)
        # A longer range is always halved: each page settles itself, and a block of deletions shows at once.
        if pages == 1 or (pages <= SHORT and missing >= DENSE * pages):
            self._read_whole(range_)
            return []
        return self._split(range_)

    def _split(self, range_: CreationRange, page: Slice | None = None) -> list[CreationRange]:
        """Read the middle page and settle the groups that it holds whole."""
        page = page or self._fetch(range_.start + (range_.stop - range_.start - self._page) // 2)
        edges = [place for place in range(1, len(page.keys)) if page.keys[place - 1] < page.keys[place]]
        if not edges:
            return self._around(range_, page)
        low = 0 if page.offset == range_.start else edges[0]
        high = len(page.keys) if page.end == range_.stop else edges[-1]
        first = page.keys[low] if low else range_.first
        end = page.keys[high] if high < len(page.keys) else range_.end
        if not range_.first <= first <= end <= range_.end:
            raise CannotProve("records do not stand where their creation time puts them")
        self._settle(first, end, {row.id for row in page.rows[low:high]})
        return [
            CreationRange(range_.first, first, range_.start, page.offset + low),
            CreationRange(end, range_.end, page.offset + high, range_.stop),
        ]

    def _around(self, range_: CreationRange, page: Slice) -> list[CreationRange]:
        """Split around a page that holds part of one group; read the group if records are missing."""
        key = page.keys[0]
        start = self._offset_of(key, range_.start, page.offset)
        stop = self._offset_of(key + 1, page.end, range_.stop)
        group = CreationRange(key, key + 1, start, stop)
        if self._table.count_between(key, key + 1) != stop - start:
            self._read_whole(group)
        return [CreationRange(range_.first, key, range_.start, start), CreationRange(key + 1, range_.end, stop, range_.stop)]

    def _offset_of(self, key: int, low: int, high: int) -> int:
        """Return the offset between `low` and `high` of the first record created at `key` or later."""
        while low < high:
            page = self._fetch(max(low, (low + high - self._page) // 2))
            place = next((place for place, page_key in enumerate(page.keys) if page_key >= key), None)
            if place is None:
                low = page.end
            elif place > 0 or page.offset == low:
                return page.offset + place
            else:
                high = page.offset
        return low

    def _read_whole(self, range_: CreationRange) -> None:
        present: set[str] = set()
        offset = range_.start
        while offset < range_.stop:
            page = self._fetch(offset)
            inside = [row.id for place, row in enumerate(page.rows) if page.offset + place < range_.stop]
            present.update(inside)
            offset = page.end
        if len(present) != range_.stop - range_.start:
            raise CannotProve("records of one creation time come in another order every time")
        self._settle(range_.first, range_.end, present)

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


EVERY_PAGE = 5
"""Up to this many pages are all read."""


def stands_still(lister: CountedReads, object_id: str, table: ObjectTable, since: int, before: int | None) -> bool:
    """Whether the list holds exactly the known records changed from `since` until before `before`, in their places."""
    if before is None:
        return True
    start, stop = table.count_changed_after(before - 1), table.count_changed_after(since - 1)
    if start >= stop:
        return True
    reader = SliceReader(lister, Listing(object_id, field="updated_at", descending=True), PassStatistics())
    try:
        page = reader.fetch(max(0, start - 1))
        step = max(1, len(page.rows) - 1)  # pages may be shorter than requested
        for offset in places(start, stop, step)[1:]:
            if not _fits(page, table):
                return False
            page = reader.fetch(max(0, offset - 1))
        if page.end <= stop and not page.is_last:
            page = reader.fetch(stop - 1)  # the following records must be older
        return _fits(page, table) and all(-key < since for place, key in enumerate(page.keys, page.offset) if place >= stop)
    except (Unsorted, RejectedError):
        return False


def places(start: int, stop: int, step: int) -> list[int]:
    """Return the offsets to read: every page of a few, else both ends and evenly spread pages between."""
    pages = -(-(stop - start) // step)
    if pages <= EVERY_PAGE:
        return [start + number * step for number in range(pages)]
    looks = min(pages, EVERY_PAGE + (pages // 8).bit_length())
    last = max(start, stop - step)
    return [start + (last - start) * number // (looks - 1) for number in range(looks)]


def _fits(page: Slice, table: ObjectTable) -> bool:
    for row in page.rows:
        stored = table.known(row.id)
        if stored is None or stored.wire != jsontext.dumps(row.wire):
            return False
    edges = [place for place in range(1, len(page.keys)) if page.keys[place - 1] < page.keys[place]]
    return all(table.count_changed_after(-page.keys[place]) == page.offset + place for place in (*edges[:1], *edges[-1:]))


def compare_page(lister: CountedReads, object_id: str, table: ObjectTable, offset: int, read: ChangesRead) -> int:
    """Compare the page at `offset`; return where the next one begins.

    Raises CannotProve if a record differs although its time of change does not, or is unknown although it is old; raises what requests
    raise.
    """
    if read.is_whole or not table.count():
        return 0
    try:
        page = SliceReader(lister, Listing(object_id), PassStatistics()).fetch(offset if offset < table.count() else 0)
    except (Unsorted, RejectedError):
        return 0
    return compare(page, table, read)


def compare(page: Slice, table: ObjectTable, read: ChangesRead) -> int:
    """Compare a page that was read just after these changes."""
    for record in page.rows:
        stored, changed = table.known(record.id), micros_of(record.updated_at) or 0
        if stored is None:
            if changed < read.mark.since:
                raise CannotProve("a record is there whose creation was never seen")
        elif stored.wire != jsontext.dumps(record.wire):
            if changed <= stored.updated:
                raise CannotProve("a record has changed without its time of change")
            if changed < read.mark.as_of - UNEVEN:
                raise CannotProve("a record has changed and was not listed among the changes")
    return 0 if page.is_last else page.end
