"""Reading records back to see whether rows of ours are there: through a filter, or newest first back to a moment. Decides nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol, TypeVar

from crmctl.bulk.read.sorted_lists import SMALLEST_PAGE
from crmctl.bulk.rows.batches import Entry
from crmctl.bulk.rows.markers import Marker
from crmctl.client.record_lists import Getter
from crmctl.client.shapes import Page
from crmctl.errors import InterruptedByUser
from crmctl.models.filters import Condition, Operator
from crmctl.models.records import PAGE_LIMIT, Record
from crmctl.models.timestamps import seconds_of

MOST_PAGES = 400
"""A read-back that would take more requests gives up, and cannot say that something is absent."""


MOST_REPEATS = 3
"""So many equal pages at growing offsets: the service does not heed the offset, and more requests show no more."""

REMEMBERED = 10_000
"""So many of the records just read are remembered, to join pages."""

TICK_SECONDS = 0.2


T = TypeVar("T")


class Unusable(Exception):
    """The service does not do what this way of reading needs."""


@dataclass(frozen=True)
class ReadResult:
    """Records that may be ours, oldest first. `complete`: nothing that was visible can have been missed. `newest`: when the newest record
    that was seen was created. `total`: how many records the service says there are, None where it does not say."""

    records: Sequence[Record]
    complete: bool
    newest: float | None = None
    total: int | None = None


@dataclass(frozen=True)
class Baseline:
    """The newest records before the first row was sent: they, and all that were created before them, are not ours. `oldest`: when the
    last of them was created, None where they do not come by time; `total`: how many records there were; `is_whole`: these were all."""

    newest: float | None = None
    ids: frozenset[str] = frozenset()
    oldest: float | None = None
    total: int | None = None
    is_whole: bool = False

    @classmethod
    def of(cls, page: Page[Record]) -> Baseline:
        moments = [moment for record in page.items if (moment := moment_of(record)) is not None]
        by_time = len(moments) == len(page.items) and moments == sorted(moments, reverse=True)
        is_whole = len(page.items) >= page.total if page.total is not None else len(page.items) < SMALLEST_PAGE
        ids = frozenset(record.id for record in page.items)
        return cls(max(moments, default=None), ids, moments[-1] if moments and by_time else None, page.total, is_whole)

    @classmethod
    def of_changed(cls, page: Page[Record]) -> Baseline | None:
        """The same by a page of the records that changed last, with the times of their changes: what is younger than the oldest of them,
        and none of them, was created since. None where the page does not come by time."""
        seconds = [moment for record in page.items if (moment := seconds_of(record.updated_at)) is not None]
        if len(seconds) < len(page.items) or seconds != sorted(seconds, reverse=True):
            return None
        whole = cls.of(page)
        return cls(max(seconds, default=None), whole.ids, min(seconds, default=None), page.total, whole.is_whole)

    @classmethod
    def from_document(cls, document: Any) -> Baseline | None:
        if not document:
            return None
        oldest = document.get("oldest", document["newest"])
        return cls(document["newest"], frozenset(document["ids"]), oldest, document.get("total"), document.get("isWhole", False))

    def to_document(self) -> dict[str, Any]:
        return {"newest": self.newest, "ids": sorted(self.ids), "oldest": self.oldest, "total": self.total, "isWhole": self.is_whole}

    @property
    def earliest(self) -> float | None:
        """No record that is certainly new was created before this moment; None where any may be."""
        return None if self.is_whole else self.oldest

    def is_new(self, record: Record) -> bool:
        """Whether a record was certainly made after this was taken; one that was made by a clock far behind may be new all the same."""
        if record.id in self.ids:
            return False
        moment = moment_of(record)
        return self.is_whole or (self.oldest is not None and moment is not None and moment > self.oldest)


@dataclass
class Reader:
    """The reading calls of one job; counts its requests. When `stop` says so, an answer is no longer waited for."""

    lister: Getter
    object_id: str
    stop: Callable[[], bool] = lambda: False
    requests: int = 0

    def page(self, offset: int = 0, *, filters: Sequence[Condition] = ()) -> Page[Record]:
        """One page of 100. Raises what the call raises, and InterruptedByUser."""
        return self.list_records(self.object_id, filters=filters, sort="created_at", order="desc", limit=PAGE_LIMIT, offset=offset)

    def record(self, record_id: str) -> Record:
        """One record. Raises what the call raises, and InterruptedByUser."""
        return self._wait_for(lambda: self.lister.get_record(self.object_id, record_id))

    def list_records(
        self,
        object_id: str,
        *,
        filters: Sequence[Condition] = (),
        sort: str | None = None,
        order: str | None = None,
        limit: int = 50,
        offset: int = 0,
    ) -> Page[Record]:
        """One page in any order: a Reader is a Lister too. Raises what the call raises, and InterruptedByUser."""
        return self._wait_for(
            lambda: self.lister.list_records(object_id, filters=filters, sort=sort, order=order, limit=limit, offset=offset)
        )

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

        # A thread of its own: a request that hangs must not keep a program alive that was told to end.
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
"""Told of the records of every page, newest first, and of the total: whether all of them together answer the question."""


class ReadStrategy(Protocol):
    """One way of reading."""

    @property
    def name(self) -> str: ...

    def read(self, reader: Reader, entries: Sequence[Entry], since: float | None, enough: Enough) -> ReadResult:
        """The records that may be these rows, created at `since` (Unix time of the service) or later. Raises Unusable."""
        ...

    def probe(self, reader: Reader) -> None:
        """Ask for what cannot be there; raises Unusable when something comes."""
        ...


@dataclass(frozen=True)
class ByPrefix:
    """Through a filter on the markers' prefix."""

    marker: Marker
    operator: Operator

    @property
    def name(self) -> str:
        return f"{self.marker.slug} {self.operator}"

    def read(self, reader: Reader, entries: Sequence[Entry], since: float | None, enough: Enough) -> ReadResult:
        records: dict[str, Record] = {}
        complete = True
        for prefix in self.marker.prefixes([entry.ordinal for entry in entries]):
            walk = self._walk(reader, prefix)
            records.update((record.id, record) for record in reversed(walk.rows))
            complete = complete and walk.is_over
        return ReadResult(list(records.values()), complete)

    def probe(self, reader: Reader) -> None:
        if self._walk(reader, self.marker.prefix(0)).rows:
            raise Unusable(f"{self.name}: the service finds what is not there")

    def total(self, reader: Reader) -> int | None:
        """How many records of the job the service says there are. Raises Unusable."""
        prefix = f"{self.marker.job}."
        page = reader.page(filters=[Condition(self.marker.slug, self.operator, prefix)])
        self._check(page, prefix)
        return page.total

    def _check(self, page: Page[Record], prefix: str) -> None:
        if not all(str(row.data.get(self.marker.slug)).casefold().startswith(prefix) for row in page.items):
            raise Unusable(f"{self.name}: the service does not heed this filter")

    def _walk(self, reader: Reader, prefix: str) -> Walk:
        walk = Walk()
        while not (walk.is_over or walk.is_stuck) and walk.pages < MOST_PAGES:
            page = reader.page(walk.offset, filters=[Condition(self.marker.slug, self.operator, prefix)])
            self._check(page, prefix)
            walk.add(page)
        return walk


@dataclass(frozen=True)
class NewestFirst:
    """All records, the newest first, back to a moment. `baseline` are those that were there before."""

    baseline: Baseline | None
    name: str = "newest first"

    def read(self, reader: Reader, entries: Sequence[Entry], since: float | None, enough: Enough) -> ReadResult:
        walk = Walk()
        total = None
        while walk.pages < MOST_PAGES:
            page = reader.page(walk.offset)
            total = page.total
            news = walk.add(page)
            if walk.is_over or walk.is_stuck or walk.reached(since) or enough(self._candidates(news, since), total):
                break
        newest = moment_of(walk.rows[0]) if walk.rows else None
        return ReadResult(self._candidates(walk.rows, since)[::-1], walk.is_over or walk.reached(since), newest, total)

    def probe(self, reader: Reader) -> None:
        """Nothing to be asked for."""

    def _candidates(self, rows: Sequence[Record], since: float | None) -> list[Record]:
        old = self.baseline.ids if self.baseline is not None else frozenset()
        return [row for row in rows if row.id not in old and (since is None or is_after(row, since))]


@dataclass
class Walk:
    """Through pages that move down while others create: each must begin with a record already seen, or the walk starts over."""

    rows: list[Record] = field(default_factory=list)
    offset: int = 0
    pages: int = 0
    is_over: bool = False
    _seen: dict[str, None] = field(default_factory=dict)
    _oldest: float | None = None
    _in_order: bool = True
    _page: Sequence[str] = ()
    _repeats: int = 0

    @property
    def is_stuck(self) -> bool:
        """Whether further pages show what the one before showed."""
        return self._repeats >= MOST_REPEATS

    def add(self, page: Page[Record]) -> Sequence[Record]:
        """Take the page at `offset`; returns the records that are new."""
        self.pages += 1
        items = page.items
        ids = [row.id for row in items]
        self._repeats = self._repeats + 1 if items and self.offset and ids == self._page else 0
        self._page = ids
        if self.offset and (not items or items[0].id not in self._seen):
            self.rows, self._seen, self.offset, self._oldest, self._in_order = [], {}, 0, None, True
            return ()
        new = [row for row in items if row.id not in self._seen]
        for row in new:
            moment = moment_of(row)
            self._in_order = self._in_order and moment is not None and (self._oldest is None or moment <= self._oldest)
            self._oldest = moment
        self.rows += new
        self._seen.update(dict.fromkeys(row.id for row in new))
        for old in list(islice(self._seen, max(0, len(self._seen) - REMEMBERED))):
            del self._seen[old]
        end = self.offset + len(items)
        # A page may be short for other reasons than the end; a page without news has been pushed down.
        self.is_over = (len(items) < 2 and not new) or (len(items) < PAGE_LIMIT and page.total is not None and end >= page.total)
        # One record of overlap shows that none was skipped.
        self.offset = max(0, end - 1)
        return new

    def reached(self, since: float | None) -> bool:
        """Whether everything from `since` on has been seen; never where the service does not sort by time."""
        return since is not None and self._in_order and self._oldest is not None and self._oldest < since


def is_after(record: Record, since: float) -> bool:
    """Whether a record may have been created at this moment or later; one without a readable time may."""
    moment = moment_of(record)
    return moment is None or moment >= since


def moment_of(record: Record) -> float | None:
    """When a record was created, in Unix seconds of the service's clock; None where that cannot be read."""
    return seconds_of(record.created_at)
