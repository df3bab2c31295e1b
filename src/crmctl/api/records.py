"""The records of one object, one at a time or page by page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from crmctl.api.client_context import ClientContext
from crmctl.client.queries.clauses import FilterReader
from crmctl.client.queries.query_context import QueryContext
from crmctl.client.queries.record_filter import Admits, ListOrder
from crmctl.client.queries.record_query import RecordQuery
from crmctl.client.record_lists import SHIFTED
from crmctl.errors import UsageError
from crmctl.models.filters import Condition
from crmctl.models.records import Record

Filter: TypeAlias = str | Condition | Sequence[str | Condition]
"""One condition or several that must all hold, as `crmctl help filters` spells them: `email endsWith @acme.com`, `amount>=1000`."""


class Records:
    """Every method may raise what a request raises, and NotFoundError for an object or a record that is not there."""

    def __init__(self, context: ClientContext, object_name: str) -> None:
        self._context = context
        self._object = object_name

    def list(
        self,
        filter: Filter = (),
        *,
        limit: int | None = None,
        sort: Literal["created_at", "updated_at"] | None = None,
        order: Literal["asc", "desc"] | None = None,
    ) -> Iterator[Record]:
        """Every record that meets the filter, newest first unless sorted otherwise, `limit` at most; pages are read as they are needed.

        When others change the list meanwhile, one may come twice or be missing, of which the listener hears; `bulk.export` is complete.
        Raises UsageError for a filter that is none.
        """
        if limit is not None and limit < 1:
            raise UsageError(f"limit must be at least 1, not {limit}")
        listener = self._context.listener
        pages = as_query(self._context, self._object, filter, ListOrder(sort, order)).pages(limit, 0, lambda: listener.note(SHIFTED))
        return (record for page in pages for record in page.items)

    def count(self, filter: Filter = ()) -> int:
        """How many records meet the filter."""
        return as_query(self._context, self._object, filter).count()

    def get(self, record_id: str) -> Record:
        context = self._context
        return context.directory.with_object(self._object, lambda target: context.crm.get_record(target, record_id))

    def create(self, data: Mapping[str, Any]) -> Record:
        """Make a record of values by attribute slug, as JSON. Raises RejectedError for what the service does not take."""
        context = self._context
        context.guard_write()
        return context.directory.with_object(self._object, lambda target: context.crm.create_record(target, data))

    def update(self, record_id: str, data: Mapping[str, Any]) -> Record:
        """Change these attributes; None clears one, and a composite value is replaced as a whole."""
        context = self._context
        context.guard_write()
        return context.directory.with_object(self._object, lambda target: context.crm.update_record(target, record_id, data))

    def delete(self, record_id: str) -> None:
        context = self._context
        context.guard_write()
        context.directory.with_object(self._object, lambda target: context.crm.delete_record(target, record_id))


def as_query(context: ClientContext, object_name: str, filter: Filter, order: ListOrder | None = None) -> RecordQuery:
    """What a filter means: one condition or several that must all hold. Raises UsageError, and what looking up others raises."""
    given = [filter] if isinstance(filter, str | Condition) else filter
    note = context.listener.note
    asked = QueryContext(context.crm, context.directory, context.clock.now(), warn=note, tell=note)
    return RecordQuery(asked, object_name, FilterReader(asked, object_name).read(given), order)


def as_conditions(context: ClientContext, object_name: str, filter: Filter) -> tuple[tuple[Condition, ...], Admits | None]:
    """For who reads a list by itself: conditions to ask it with, and what decides the rest, where there is a rest. Raises UsageError."""
    return as_query(context, object_name, filter).one_list() if filter else ((), None)
