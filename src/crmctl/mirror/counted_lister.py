"""The service's list call as a sync uses it: requests are counted, and what is excluded never reaches the mirror."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from crmctl.bulk.read.read_back import Getter
from crmctl.client.shapes import Page
from crmctl.mirror.object_table import without_values
from crmctl.models.filters import Condition
from crmctl.models.records import Record


class CountedLister:
    """A Getter over another one. `page` is the last page as it came; `stop` says when to give up, by raising."""

    def __init__(self, getter: Getter, excluded: Collection[str] = (), stop: Callable[[], None] = lambda: None) -> None:
        self.requests = 0
        self.total: int | None = None
        self.date: str | None = None
        self._getter = getter
        self._excluded = frozenset(excluded)
        self._stop = stop

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
        self._stop()
        self.requests += 1
        page = self._getter.list_records(object_id, filters=filters, sort=sort, order=order, limit=limit, offset=offset)
        self.total, self.date = page.total, page.date
        return replace(page, items=[without_values(record, self._excluded) for record in page.items]) if self._excluded else page

    def get_record(self, object_id: str, record_id: str) -> Record:
        self._stop()
        self.requests += 1
        return without_values(self._getter.get_record(object_id, record_id), self._excluded)
