"""The calls that read records and activities, counted; what the last page of records said is at hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from crmctl.bulk.read.linked_activities import ActivityPages
from crmctl.client.record_lists import Getter
from crmctl.client.shapes import Page
from crmctl.models.activities import Activity
from crmctl.models.filters import Condition
from crmctl.models.records import Record


class ReadService(Getter, ActivityPages, Protocol):
    """The calls of the client that only read."""


class CountedReads:
    """`shown`: what of a record may be seen at all. `total` and `date` are of the last page of records."""

    def __init__(self, service: ReadService, shown: Callable[[Record], Record] = lambda record: record) -> None:
        self.requests = 0
        self.total: int | None = None
        self.date: str | None = None
        self._service = service
        self._shown = shown

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
        self.requests += 1
        page = self._service.list_records(object_id, filters=filters, sort=sort, order=order, limit=limit, offset=offset)
        self.total, self.date = page.total, page.date
        return replace(page, items=[self._shown(record) for record in page.items])

    def get_record(self, object_id: str, record_id: str) -> Record:
        self.requests += 1
        return self._shown(self._service.get_record(object_id, record_id))

    def list_activities(
        self, *, record_id: str | None = None, object_id: str | None = None, limit: int = 50, offset: int = 0
    ) -> Page[Activity]:
        self.requests += 1
        return self._service.list_activities(record_id=record_id, object_id=object_id, limit=limit, offset=offset)
