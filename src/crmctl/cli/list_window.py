"""Show paged lists: the window, the pages as they arrive, and a note if there is more."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from crmctl.errors import UsageError
from crmctl.frozen import frozen

if TYPE_CHECKING:
    from crmctl.cli.runtime import Runtime
    from crmctl.client.answers import Page
    from crmctl.models.jsontext import Json
    from crmctl.output.views import View

DEFAULT_LIMIT = 50
ORDERS = ("asc", "desc")


@frozen
class Window:
    """The part of a list to show: `limit` items (None: all) from `offset` on."""

    limit: int | None
    offset: int


def window(limit: int | None, every: bool, offset: int) -> Window:
    """Return the window of --limit, --all and --offset. Raises UsageError for a bad limit."""
    if every and limit is not None:
        raise UsageError("--limit and --all exclude each other", hint="leave one of them out")
    if limit is not None and limit < 1:
        raise UsageError(f"--limit must be 1 or more, not {limit}", hint="--all shows everything")
    return Window(None if every else limit or DEFAULT_LIMIT, offset)


def show_pages(runtime: Runtime, fetch: Callable[[int, int], Page[Any]], part: Window, view: Callable[[Json | None], View]) -> None:
    """Show the items of a paged list as its pages arrive. `view` gets the first item, or None."""
    from crmctl.client.answers import iterate

    doubts: list[str] = []
    show_found(runtime, part, iterate(fetch, limit=part.limit, offset=part.offset, on_doubt=doubts.append), doubts, view)


def show_found(
    runtime: Runtime,
    part: Window,
    pages: Iterator[Page[Any]],
    doubts: Sequence[str],
    view: Callable[[Json | None], View],
    present: Callable[[Sequence[Any]], Iterable[Any]] = lambda items: items,
) -> None:
    """Show pages as they arrive; `present` transforms their items. Then note `doubts`, which reading may add, and what is left out."""
    page = first = next(pages)

    def shown_items() -> Iterator[Iterable[Any]]:
        nonlocal page
        for page in chain([first], pages):
            yield present(page.items)

    shown = runtime.emitter.emit_pages(shown_items(), view(first.items[0].wire if first.items else None))
    for doubt in dict.fromkeys(doubts):
        runtime.messages.note(doubt)
    if shown == part.limit and (page.total is None or part.offset + shown < page.total):
        known = f"showing {shown:,}, there may be more" if page.total is None else f"showing {shown:,} of {page.total:,}"
        runtime.messages.note(f"{known}; use --limit or --all")
