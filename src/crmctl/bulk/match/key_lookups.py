"""Finding the records of many keys with few requests: one by one through a filter, or all records in one pass. Writes nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Protocol

from crmctl.bulk.match.at_hand import AtHand, nothing_at_hand
from crmctl.bulk.match.key_filters import KeyFilter, Question
from crmctl.bulk.match.key_index import KeyIndex
from crmctl.bulk.read.full_scan import ScanStatistics, scan
from crmctl.bulk.read.seen_ids import SeenIds
from crmctl.bulk.read.sorted_lists import SMALLEST_PAGE, Listing, PassStatistics, Unsorted
from crmctl.bulk.read.stable_pages import AnchoredPass
from crmctl.client.record_lists import Lister
from crmctl.client.shapes import Page
from crmctl.errors import InterruptedByUser, NotFoundError, RejectedError, ServiceError
from crmctl.models.filters import Condition
from crmctl.models.records import PAGE_LIMIT, Record
from crmctl.models.timestamps import MICROS, micros_of

PAGE_STEP = PAGE_LIMIT - 1
"""New records a page brings: neighbouring pages share one."""

AT_ONCE = 5
"""So many requests take so little time that what is asked for last is known as of the first."""

FEW = 10
"""So many requests are made without a word."""

MARGIN = 5 * MICROS
"""How much later than its time a change may become visible, in microseconds."""


class RecordSink(Protocol):
    """Takes records as they are now."""

    def see(self, records: Iterable[Record], /) -> None: ...


@dataclass
class Lookup:
    """One object of the service. `as_of`: everything changed before this moment (microseconds of the service) has been seen; `stop` says
    when to give up; `newest`: the page of the records that changed last, where somebody has just read it. `at_hand`: where all of them may
    be without asking, of which `slugs` are looked at; `now` is a clock that only runs; `head` is what changed last,
    where the last request has told it; `tell` hears what many requests are for before they are made. Counts its requests."""

    lister: Lister
    object_id: str
    stop: Callable[[], bool] = lambda: False
    advance: Callable[[int], None] = lambda _: None
    tell: Callable[[str], None] = lambda _: None
    newest: Page[Record] | None = None
    at_hand: AtHand = nothing_at_hand
    slugs: Collection[str] | None = None
    requests: int = 0
    as_of: int = 0
    now: Callable[[], float] = monotonic
    head: Page[Record] | None = None
    _certain: int = 0
    _known: tuple[int, float] = (0, 0.0)

    def fill(self, index: KeyIndex) -> None:
        """Let the index see the record of every key it wants, as of now. Raises what reading raises, and InterruptedByUser."""
        count = index.key_count
        if not count:
            return
        stock = self.at_hand(self.object_id, self.slugs)
        if stock is not None:
            self.requests += stock.requests
            for records in stock.pages:
                index.see(records)
            self.as_of = stock.as_of
            self.refresh(index)
            return
        begun, newest = self.requests, self._newest()
        moments = [micros for record in newest.items if (micros := micros_of(record.updated_at)) is not None]
        self.as_of = max(moments, default=0)
        index.see(newest.items)
        size = len(newest.items)
        if newest.total == size or (newest.total is None and size < SMALLEST_PAGE):
            return
        singly = self._asks_singly(count, newest)
        self._price(f"looking up {count:,} keys", 2 * count + 3 if singly else None, newest)
        if singly and self._ask(index, newest):
            if self.requests - begun <= AT_ONCE:
                return
        else:
            if singly:
                self._price("the filter does not tell: reading all records", None, newest)
            with SeenIds() as seen:
                for records in scan(self, Listing(self.object_id), seen, ScanStatistics()):
                    index.see(records)
        self.refresh(index)

    def refresh(self, index: RecordSink) -> bool:
        """Let the index see what has changed since `as_of`; False where the service cannot say. Who looked when a moment was past by more
        than the margin has seen all of it, and does not read again what was written shortly before."""
        begun, known = self.now(), self.as_of
        if known != self._known[0]:
            self._known = known, begun
        since = max(known - MARGIN, self._certain)
        for field in ("updated_at", "created_at"):
            listing = Listing(self.object_id, field=field, descending=True, until=since)
            try:
                for records in AnchoredPass(self, listing, PassStatistics()).pages():
                    index.see(records)
                    moments = (micros_of(record.updated_at) or 0 for record in records)
                    self.as_of = max(self.as_of, *moments, 0)
                if (begun - self._known[1]) * MICROS > MARGIN:
                    self._certain = known
                return True
            except Unsorted:
                continue
        return False

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
        """One page. Raises InterruptedByUser when it is time to stop."""
        if self.stop():
            raise InterruptedByUser("interrupted")
        self.requests += 1
        page = self.lister.list_records(object_id, filters=filters, sort=sort, order=order, limit=limit, offset=offset)
        self.head = page if (sort, offset, limit) == ("updated_at", 0, PAGE_LIMIT) else None
        self.advance(len(page.items))
        return page

    def _newest(self) -> Page[Record]:
        if self.newest is not None:
            self.requests += 1  # whoever read it has not counted it
            return self.newest
        return self.list_records(self.object_id, sort="updated_at", order="desc", limit=PAGE_LIMIT)

    def _asks_singly(self, count: int, newest: Page[Record]) -> bool:
        """Whether one request per key, and one to see what filters do, are fewer than one per page."""
        if newest.total is not None:
            return count + 1 < self._pages(newest.total)
        probe = self.list_records(self.object_id, sort="updated_at", order="desc", limit=1, offset=PAGE_STEP * (count + 1))
        return bool(probe.items)

    def _price(self, purpose: str, most: int | None, newest: Page[Record]) -> None:
        """Say how many requests reading takes, at most `most`, where they are more than a few."""
        pages = self._pages(newest.total) + 3 if newest.total is not None else None  # with those that changed meanwhile
        requests = min((one for one in (most, pages) if one is not None), default=0)
        if requests > FEW:
            among = f" among {newest.total:,} records" if newest.total is not None else ""
            self.tell(f"{purpose}{among}: {requests:,} requests{' at most' if most is not None else ''}")

    @staticmethod
    def _pages(total: int) -> int:
        """Requests that reading so many records takes, with the look from the other end and that at what has changed meanwhile."""
        return -(-total // PAGE_STEP) + 2

    def _ask(self, index: KeyIndex, newest: Page[Record]) -> bool:
        """Ask for every key by itself. False where an answer does not say all, or asking takes as much as reading: then nobody knows more
        than before of keys that were not found."""
        asker = KeyFilter.of(index.rule, newest.items)
        if asker is None:
            return False
        most = self.requests + (self._pages(newest.total) if newest.total is not None else index.key_count + 1)
        is_proven = False
        for key in index.distinct():
            if (exact := asker.exact(key)) is not None and self._finds(index, key, exact, most):
                continue
            if (every := asker.every(key)) is None or (found := self._finds(index, key, every, most)) is None:
                return False
            if not found and not is_proven:
                # That nothing is found means something only where the same question finds what is there.
                is_proven = self._finds_sample(asker)
                if not is_proven:
                    return False
        return True

    def _finds(self, index: KeyIndex, key: str, question: Question, most: int) -> bool | None:
        """Whether records of a key are among those that answer; None where they may not be all, or not an answer."""
        page = self._answer(question)
        if page is None or self.requests >= most:
            return None
        if not _is_whole(page):
            if page.total is None or self.requests + self._pages(page.total) >= most:
                return None
            return self._finds_among_many(index, key, question)
        index.see(page.items)
        return any(index.rule.key(record.data) == key for record in page.items)

    def _finds_among_many(self, index: KeyIndex, key: str, question: Question) -> bool | None:
        found = False
        with SeenIds() as seen:
            for records in scan(self, Listing(self.object_id, question.conditions), seen, ScanStatistics()):
                if not all(question.fits(record.data) for record in records):
                    return None
                index.see(records)
                found = found or any(index.rule.key(record.data) == key for record in records)
        return found

    def _finds_sample(self, asker: KeyFilter) -> bool:
        page = self._answer(asker.control) if asker.control is not None else None
        return page is not None and any(record.id == asker.sample.id for record in page.items)

    def _answer(self, question: Question) -> Page[Record] | None:
        """The first page of an answer, the oldest records first; None where the service does not heed the conditions.

        The sample is young: a service that puts its pages together first, and looks at the conditions then, does not find it there.
        """
        try:
            page = self.list_records(self.object_id, filters=question.conditions, sort="created_at", order="asc", limit=PAGE_LIMIT)
        except (RejectedError, NotFoundError, ServiceError):
            return None
        return page if all(question.fits(record.data) for record in page.items) else None


def _is_whole(page: Page[Record]) -> bool:
    return len(page.items) < SMALLEST_PAGE or page.total == len(page.items)
