"""Walking a list page by page. Knows neither the endpoint nor what is done with the items."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from crmctl.client.shapes import Page
from crmctl.errors import ServiceError
from crmctl.models.base import Resource
from crmctl.models.records import PAGE_LIMIT

R = TypeVar("R", bound=Resource)

_DEFAULT_PAGES = (50, 20)
"""The specification's default page sizes: a page of exactly this length may come from a service that does not heed `limit`."""

_LEAST_PAGE, _ROUND = 10, 5
"""A page of another round length may be as long as pages of a service get, too. Only the next page tells, where there is no total and no
longer page came before; where that is the same once more, it was the whole list."""

REPEATS = 2
"""Pages in a row without anything new that prove that `offset` is not heeded; a single one comes where others insert a page in front."""


def iterate(
    fetch: Callable[[int, int], Page[R]],
    *,
    limit: int | None = None,
    offset: int = 0,
    on_shift: Callable[[], None] = lambda: None,
) -> Iterator[Page[R]]:
    """Pages of `fetch(limit, offset)` from `offset` on, until `limit` items (None: all) were given or the list ends.

    The first page is always given, even when empty, so that its `total` is known. What a page repeats of the one before is left out;
    `on_shift` is called when that, or another `total`, shows that others changed the list meanwhile: something may be missing. Raises
    ServiceError `no_progress` when pages bring nothing new: the service does not heed `offset`, and going on would never end.
    """
    given, position, repeats, longest = 0, offset, 0, 0
    known: set[Any] = set()
    seen: set[int] = set()
    total: int | None = None
    while True:
        wanted = PAGE_LIMIT if limit is None else min(PAGE_LIMIT, limit - given)
        page = fetch(wanted, position)
        items = [item for item in page.items if item.wire.get("id") is None or item.wire["id"] not in known]
        if page.items and _digest(page.items) in seen:
            items = []
        repeats = repeats + 1 if page.items and not items else 0
        if repeats and page.total is None and _is_short(page, wanted) and len(page.items) not in _DEFAULT_PAGES:
            return
        if repeats == REPEATS:
            raise ServiceError(
                "the service sends the same page again and again instead of the next one",
                code="no_progress",
                hint="ask for fewer with --limit",
            )
        seen.add(_digest(page.items))
        if position > offset and (page.total != total or len(items) < len(page.items)):
            on_shift()
        known, total = {item.wire.get("id") for item in page.items}, page.total
        items = items if limit is None else items[: limit - given]
        if items or position == offset:
            yield Page(items, page.total, page.limit, page.offset, page.date)
        given += len(items)
        position += len(page.items)
        longest = max(longest, len(page.items))
        if not page.items or given == limit or _is_last(page, wanted, position, longest):
            return


def _digest(items: list[R]) -> int:
    return hash(tuple(str(item.wire.get("id")) for item in items))


def _is_short(page: Page[R], wanted: int) -> bool:
    return len(page.items) < min(wanted, page.limit)


def _is_last(page: Page[R], wanted: int, position: int, longest: int) -> bool:
    if page.total is not None:
        return position >= page.total
    length = len(page.items)
    return _is_short(page, wanted) and (length < longest or length < _LEAST_PAGE or length % _ROUND != 0)
