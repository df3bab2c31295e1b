"""Finding the records of many keys with few requests: one by one through a filter, or all records in one pass. Writes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from crmctl.bulk.match.key_index import KeyIndex
from crmctl.bulk.read.full_scan import ScanStatistics, scan
from crmctl.bulk.read.seen_ids import SeenIds
from crmctl.bulk.read.sorted_lists import SMALLEST_PAGE, Lister, Listing, PassStatistics, Unsorted
from crmctl.bulk.read.stable_pages import AnchoredPass
from crmctl.client.shapes import Page
from crmctl.errors import InterruptedByUser, RejectedError
from crmctl.models.filters import Condition
from crmctl.models.records import PAGE_LIMIT, Record
from crmctl.models.timestamps import MICROS, micros_of

SMALL = 20_000
"""Objects with no more records are read as a whole, which also shows each record as it is now."""

PAGE_STEP = PAGE_LIMIT - 1
"""New records a page brings: neighbouring pages share one."""

MARGIN = 5 * MICROS
"""How much later than its time a change may become visible, in microseconds."""


class RecordSink(Protocol):
    """Takes records as they are now."""

    def see(self, records: Iterable[Record], /) -> None: ...


@dataclass
class Lookup:
    """One object of the service. `as_of`: everything changed before this moment (microseconds of the service) has been seen; `stop` says
    when to give up. Counts its requests."""

    lister: Lister
    object_id: str
    stop: Callable[[], bool] = lambda: False
    advance: Callable[[int], None] = lambda _: None
    requests: int = 0
    as_of: int = 0

    def fill(self, index: KeyIndex) -> None:
        """Let the index see the record of every key it wants, as of now. Raises what reading raises, and InterruptedByUser."""
        count = index.key_count
        if not count:
            return
        newest = self._newest()
        moments = [micros for record in newest.items if (micros := micros_of(record.updated_at)) is not None]
        self.as_of = max(moments, default=0)
        index.see(newest.items)
        size = len(newest.items)
        if newest.total == size or (newest.total is None and size < SMALLEST_PAGE):
            return
        if not (self._asks_singly(index, count, newest) and self._ask(index)):
            with SeenIds() as seen:
                for records in scan(self, self.object_id, (), seen, ScanStatistics()):
                    index.see(records)
        self.refresh(index)

    def refresh(self, index: RecordSink) -> bool:
        """Let the index see what has changed since `as_of`; False where the service cannot say."""
        since = self.as_of - MARGIN
        for field in ("updated_at", "created_at"):
            listing = Listing(self.object_id, field=field, descending=True, until=since)
            try:
                for records in AnchoredPass(self, listing, PassStatistics()).pages():
                    index.see(records)
                    moments = (micros_of(record.updated_at) or 0 for record in records)
                    self.as_of = max(self.as_of, *moments, 0)
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
        self.advance(len(page.items))
        return page

    def _newest(self, **options: Any) -> Page[Record]:
        return self.list_records(self.object_id, sort="updated_at", order="desc", limit=PAGE_LIMIT, **options)

    def _asks_singly(self, index: KeyIndex, count: int, newest: Page[Record]) -> bool:
        """Whether one request per key is cheaper than one per page, and the service's comparison is as good as ours."""
        if not index.rule.can_be_asked:
            return False
        if newest.total is not None:
            if newest.total <= SMALL or count > newest.total // PAGE_STEP:
                return False
        else:
            far = max(SMALL, PAGE_STEP * count)
            probe = self.list_records(self.object_id, sort="updated_at", order="desc", limit=1, offset=far)
            if not probe.items:
                return False
        return self._filter_works(index, newest.items)

    def _filter_works(self, index: KeyIndex, known: Sequence[Record]) -> bool:
        """Whether the filter finds a record that is there, and only such."""
        sample = next((key for record in known if (key := index.rule.key(record.data)) is not None), None)
        if sample is None:
            return False
        found = self._by_key(index, sample)
        return found is not None and len(found) > 0

    def _ask(self, index: KeyIndex) -> bool:
        """Ask for every key by itself; False where the service does not answer one of them, which says nothing about its record."""
        for key in index.distinct():
            if (records := self._by_key(index, key)) is None:
                return False
            index.see(records)
        return True

    def _by_key(self, index: KeyIndex, key: str) -> list[Record] | None:
        """The records of a key; None when the service does not heed the filter."""
        try:
            page = self.list_records(self.object_id, filters=index.rule.conditions(key), limit=PAGE_LIMIT)
        except RejectedError:
            return None
        return page.items if all(index.rule.key(record.data) == key for record in page.items) else None
