"""Walking a list page by page. Knows neither the endpoint nor what is done with the items."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from crmctl.client.shapes import Page
from crmctl.errors import ServiceError
from crmctl.models.base import Resource
from crmctl.models.records import PAGE_LIMIT

R = TypeVar("R", bound=Resource)

_DEFAULT_PAGES = (50, 20)
"""The specification's default page sizes: a page of exactly this length may come from a service that does not heed `limit`."""


def iterate(
    fetch: Callable[[int, int], Page[R]], *, limit: int | None = None, offset: int = 0, page_size: int = PAGE_LIMIT
) -> Iterator[Page[R]]:
    """Pages of `fetch(limit, offset)` from `offset` on, until `limit` items (None: all) were given or the list ends.

    The first page is always given, even when empty, so that its `total` is known. Raises ServiceError `no_progress` when the service
    sends a page twice: it does not heed `offset`, and going on would never end.
    """
    taken, seen = 0, set[int]()
    while True:
        wanted = page_size if limit is None else min(page_size, limit - taken)
        page = fetch(wanted, offset + taken)
        items = page.items if limit is None else page.items[: limit - taken]
        if items:
            _check_progress(items, seen)
        if items or taken == 0:
            yield Page(items, page.total, page.limit, page.offset, page.date)
        taken += len(items)
        if not items or taken == limit or _is_last(page, wanted, offset + taken):
            return


def _is_last(page: Page[R], wanted: int, position: int) -> bool:
    if page.total is not None:
        return position >= page.total
    length = len(page.items)
    return length < min(wanted, page.limit) and length not in _DEFAULT_PAGES


def _check_progress(items: list[R], seen: set[int]) -> None:
    page = hash(tuple(str(item.wire.get("id")) for item in items))
    if page in seen:
        raise ServiceError(
            "the service sends the same page again and again instead of the next one", code="no_progress", hint="ask for fewer with --limit"
        )
    seen.add(page)
