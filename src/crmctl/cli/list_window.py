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

    seen = SeenPages(part)
    show_found(runtime, seen, iterate(fetch, limit=part.limit, offset=part.offset, on_doubt=seen.doubts.append), view)


def show_found(
    runtime: Runtime,
    seen: SeenPages,
    pages: Iterator[Page[Any]],
    view: Callable[[Json | None], View],
    present: Callable[[Sequence[Any]], Iterable[Any]] = lambda items: items,
) -> None:
    """Show pages as they arrive; `present` transforms their items."""
    pages = seen.watch(pages)
    first = next(pages)
    shown = runtime.emitter.emit_pages(
        (present(page.items) for page in chain([first], pages)), view(first.items[0].wire if first.items else None)
    )
    for note in seen.notes(shown):
        runtime.messages.note(note)


class SeenPages:
    """Facts about the whole list: its length, and sentences on items that may be missing."""

    def __init__(self, part: Window) -> None:
        self.part = part
        self.total: int | None = None
        self.doubts: list[str] = []

    def watch(self, pages: Iterator[Page[Any]]) -> Iterator[Page[Any]]:
        for page in pages:
            self.total = page.total
            yield page

    def notes(self, shown: int) -> Iterator[str]:
        """Yield notes on items left out or possibly missing."""
        part = self.part
        more = self.total is not None and part.offset + shown < self.total
        yield from dict.fromkeys(self.doubts)
        if shown == part.limit and more:
            yield f"showing {shown:,} of {self.total:,}; use --limit or --all"
        elif shown == part.limit and self.total is None:
            yield f"showing {shown:,}, there may be more; use --limit or --all"
