"""Whether a service's operators look into composite values: shown by what they find, else by a record that they must find."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from crmctl.client.queries.list_reader import ListReader
from crmctl.client.queries.record_filter import Narrowing
from crmctl.client.shapes import Page
from crmctl.errors import RejectedError
from crmctl.models.comparison import elements_of
from crmctl.models.filters import Condition
from crmctl.models.records import Record

FirstPage = Callable[[Sequence[Condition]], Page[Record]]


def looks_into(first_page: FirstPage, narrowing: Narrowing, readers: Iterable[ListReader]) -> bool:
    """False where a record that the operator must find is not found by it."""
    if any(_is_object(record, narrowing.slug) for reader in readers for record in reader.first):
        return True
    operator = narrowing.conditions[0].operator
    for record in first_page(()).items:
        text = narrowing.part(record.data.get(narrowing.slug)) if operator.takes_value else "true"
        if text and _is_object(record, narrowing.slug):
            try:
                page = first_page((Condition(narrowing.slug, operator, text),))
            except RejectedError:
                return False
            return (page.total or 0) > len(page.items) or any(found.id == record.id for found in page.items)
    return True


def _is_object(record: Record, slug: str) -> bool:
    return any(isinstance(element, Mapping) and any(element.values()) for element in elements_of(record.data.get(slug)))
