"""Read records back, newest first, to see whether rows exist."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeVar, Unpack

from crmctl.client.answers import ListQuery, Page, may_count_page
from crmctl.client.directory import Getter
from crmctl.errors import InterruptedByUser, NotFoundError
from crmctl.frozen import frozen
from crmctl.models.jsontext import Json
from crmctl.models.resources import PAGE_LIMIT, SMALLEST_PAGE, Record
from crmctl.values.moments import seconds_of

MOST_PAGES = 300
"""Most requests of one read-back. If it needs more, it stops and cannot prove absence."""


LONG_READ = 20
"""Number of pages above which crmctl announces a read."""

MOST_REPEATS = 3
"""Number of equal pages at growing offsets that show that the service ignores the offset."""

MOST_STALLS = 10
"""Number of restarts and pages without a new record after which a walk leads nowhere: the list changes from page to page."""

REMEMBERED = 10_000
"""Number of recent records kept to join pages."""

TICK_SECONDS = 0.2


T = TypeVar("T")


class Unusable(Exception):
    """The service lacks a feature that this strategy needs."""


@frozen
class ReadResult:
    """Records that may belong to the job, oldest first.

    `complete`: no visible record was missed. `newest`: the newest creation time read. `total`: the service's record count, if known.
    """

    records: Sequence[Record]
    complete: bool
    newest: float | None = None
    total: int | None = None


@frozen
class Baseline:
    """The newest records before the first row was sent. They and all older records do not belong to the job.

    `oldest`: their oldest creation time, None if they are not sorted by time. `total`: the record count. `is_whole`: they were all records.
    """

    newest: float | None = None
    ids: frozenset[str] = frozenset()
    oldest: float | None = None
    total: int | None = None
    is_whole: bool = False

    @classmethod
    def of(cls, page: Page[Record]) -> Baseline:
        moments = [moment for record in page.items if (moment := moment_of(record)) is not None]
        by_time = len(moments) == len(page.items) and moments == sorted(moments, reverse=True)
        is_short = len(page.items) < SMALLEST_PAGE
        is_whole = len(page.items) >= page.total and not may_count_page(page) if page.total is not None else is_short
        ids = frozenset(record.id for record in page.items)
        return cls(max(moments, default=None), ids, moments[-1] if moments and by_time else None, page.total, is_whole)

    @classmethod
    def of_changed(cls, page: Page[Record]) -> Baseline | None:
        """Return a baseline from the page of records changed last, None if it is not sorted. A younger record not on it is new."""
        seconds = [moment for record in page.items if (moment := seconds_of(record.updated_at)) is not None]
        if len(seconds) < len(page.items) or seconds != sorted(seconds, reverse=True):
            return None
        baseline = cls.of(page)
        return cls(max(seconds, default=None), baseline.ids, min(seconds, default=None), page.total, baseline.is_whole)

    @classmethod
    def from_document(cls, document: Any) -> Baseline | None:
        if not document:
            return None
        oldest = document.get("oldest", document["newest"])
        return cls(document["newest"], frozenset(document["ids"]), oldest, document.get("total"), document.get("isWhole", False))

    def to_document(self) -> Json:
        return {"newest": self.newest, "ids": sorted(self.ids), "oldest": self.oldest, "total": self.total, "isWhole": self.is_whole}

    @property
    def earliest(self) -> float | None:
        """Time before which no record is certainly new; None if there is no such time."""
        return None if self.is_whole else self.oldest

    def is_new(self, record: Record) -> bool:
        """Whether a record was certainly created after the baseline. A new record stamped by a slow clock may look old."""
        if record.id in self.ids:
            return False
        moment = moment_of(record)
        return self.is_whole or (self.oldest is not None and moment is not None and moment > self.oldest)


@dataclass
class Reader:
    """The read calls of one job, with a count of requests. It stops waiting for an answer once `stop` returns true.

    `singly`: the lists are out of date, so records are read one by one. `note` announces long reads. `new_records`: those that were listed.
    """

    lister: Getter
    object_id: str
    stop: Callable[[], bool] = lambda: False
    requests: int = 0
    singly: bool = False
    note: Callable[[str], None] = lambda _: None
    new_records: int = 0

    def page(self, offset: int = 0) -> Page[Record]:
        return self.list_records(self.object_id, sort="created_at", order="desc", limit=PAGE_LIMIT, offset=offset)

    def current(self, listed: Record) -> Record:
        """Return a listed record as it is now. A deleted one stays as listed. Raises the errors of the call."""
        try:
            return self.record(listed.id) if self.singly else listed
        except NotFoundError:
            return listed

    def record(self, record_id: str) -> Record:
        return self._wait_for(lambda: self.lister.get_record(self.object_id, record_id))

    def list_records(self, object_id: str, **query: Unpack[ListQuery]) -> Page[Record]:
        """Return a page in any order. Raises the errors of the call, and InterruptedByUser."""
        return self._wait_for(lambda: self.lister.list_records(object_id, **query))

    def _wait_for(self, call: Callable[[], T]) -> T:
        self.requests += 1
        outcome: Future[T] = Future()

        def ask() -> None:
            try:
                answer = call()
            except BaseException as error:
                outcome.set_exception(error)
            else:
                outcome.set_result(answer)

        # Use a separate thread, so that a hanging request cannot keep an interrupted program alive.
        threading.Thread(target=ask, daemon=True).start()
        while True:
            try:
                return outcome.result(TICK_SECONDS)
            except TimeoutError:
                if outcome.done():
                    raise
                if self.stop():
                    raise InterruptedByUser("interrupted") from None


Enough = Callable[[Sequence[Record], int | None], bool]
"""Returns whether the records read so far, newest first, and the total answer the question."""


def read_newest(reader: Reader, baseline: Baseline | None, since: float | None, enough: Enough = lambda *_: False) -> ReadResult:
    """Read records, newest first, back to a given time, or until they are `enough`. Those in `baseline` are left out."""
    old = baseline.ids if baseline is not None else frozenset()

    def candidates(rows: Sequence[Record]) -> list[Record]:
        return [row for row in rows if row.id not in old and (since is None or is_after(row, since))]

    walk = Walk()
    total = None
    while walk.pages < MOST_PAGES:
        page = reader.page(walk.offset)
        total = page.total
        news = walk.add(page)
        if walk.is_over or walk.is_stuck or walk.reached(since) or enough(candidates(news), total):
            break
        if walk.pages == LONG_READ:
            reader.note(f"reading more than {LONG_READ} pages of new records to find rows in doubt")
    newest = moment_of(walk.rows[0]) if walk.rows else None
    return ReadResult(candidates(walk.rows)[::-1], walk.is_over or walk.reached(since), newest, total)


@dataclass
class Walk:
    """Walks through pages that move down while others create records. A page that does not begin with a known record restarts it.

    With `goes_back`, such a page takes it back half a page: enough for a list that orders records of one time anew on every page.
    """

    goes_back: bool = False
    rows: list[Record] = field(default_factory=list)
    offset: int = 0
    pages: int = 0
    is_over: bool = False
    _seen: dict[str, None] = field(default_factory=dict)
    _oldest: float | None = None
    _in_order: bool = True
    _page: Sequence[str] = ()
    _repeats: int = 0
    _stalls: int = 0

    @property
    def is_stuck(self) -> bool:
        """Whether pages repeat the previous page, or the list changes too often."""
        return self._repeats >= MOST_REPEATS or self._stalls > MOST_STALLS

    def add(self, page: Page[Record]) -> Sequence[Record]:
        self.pages += 1
        items = page.items
        ids = [row.id for row in items]
        self._repeats = self._repeats + 1 if items and self.offset and ids == self._page else 0
        self._page = ids
        if self.offset and (not items or items[0].id not in self._seen):
            if self.goes_back and items and self._repeats < MOST_REPEATS:
                self.offset = max(0, self.offset - PAGE_LIMIT // 2 - self.pages % 10)  # a new place each time
                self._stalls += not self.offset
                return ()
            self.rows, self._seen, self.offset, self._oldest, self._in_order = [], {}, 0, None, True
            self._stalls += 1
            return ()
        new = [row for row in items if row.id not in self._seen]
        self._stalls += not new
        for row in new:
            moment = moment_of(row)
            self._in_order = self._in_order and moment is not None and (self._oldest is None or moment <= self._oldest)
            self._oldest = moment
        self.rows += new
        self._seen.update(dict.fromkeys(row.id for row in new))
        for old in list(islice(self._seen, max(0, len(self._seen) - REMEMBERED))):
            del self._seen[old]
        end = self.offset + len(items)
        # A short page may not be the last; a page without new records was pushed down.
        self.is_over = (len(items) < 2 and not new) or (len(items) < PAGE_LIMIT and page.total is not None and end >= page.total)
        # An overlap of one record shows that none was skipped.
        self.offset = max(0, end - 1)
        return new

    def reached(self, since: float | None) -> bool:
        """Whether everything from `since` on was read. False if the service does not sort by time."""
        return since is not None and self._in_order and self._oldest is not None and self._oldest < since


def is_after(record: Record, since: float) -> bool:
    """Whether a record may have been created at this moment or later. True for a record without a readable time."""
    moment = moment_of(record)
    return moment is None or moment >= since


def moment_of(record: Record) -> float | None:
    """Return a record's creation time in Unix seconds of the service's clock; None if unreadable."""
    return seconds_of(record.created_at)
