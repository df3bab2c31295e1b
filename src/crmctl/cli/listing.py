"""Paged lists on the command line: how much was asked for, pages as they arrive, and the note when there is more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from crmctl.errors import UsageError

if TYPE_CHECKING:
    from crmctl.cli.runtime import Runtime
    from crmctl.client.shapes import Page
    from crmctl.output.views import View

DEFAULT_LIMIT = 50
SORTS = ("created_at", "updated_at")
ORDERS = ("asc", "desc")


@dataclass(frozen=True)
class Window:
    """The part of a list that is wanted: `limit` items (None: all) from `offset` on."""

    limit: int | None
    offset: int


def window(limit: int | None, every: bool, offset: int) -> Window:
    """The window that --limit, --all and --offset ask for. Raises UsageError for numbers that make no sense."""
    if every and limit is not None:
        raise UsageError("--limit and --all exclude each other", hint="leave one of them out")
    if limit is not None and limit < 1:
        raise UsageError(f"--limit must be 1 or more, not {limit}", hint="--all shows everything")
    if offset < 0:
        raise UsageError(f"--offset must be 0 or more, not {offset}")
    return Window(None if every else limit or DEFAULT_LIMIT, offset)


def one_of(option: str, value: str | None, choices: tuple[str, ...]) -> str | None:
    """The value, when it is one of the choices or not given. Raises UsageError listing them."""
    if value is None or value in choices:
        return value
    raise UsageError(f"{option} must be {' or '.join(choices)}, not {value!r}")


def show_pages(
    runtime: Runtime, fetch: Callable[[int, int], Page[Any]], part: Window, view: Callable[[dict[str, Any] | None], View]
) -> None:
    """Emit the items of a paged list as its pages arrive. `view` gets the first item, or None when there is none."""
    from crmctl.client.paging import iterate

    pages = iterate(fetch, limit=part.limit, offset=part.offset)
    first = next(pages)
    total = first.total
    shown = runtime.emitter.emit_pages((page.items for page in chain([first], pages)), view(first.items[0].wire if first.items else None))
    if part.limit is None:
        return
    if total is not None and part.offset + shown < total:
        runtime.messages.note(f"showing {shown:,} of {total:,}; use --limit or --all")
    elif total is None and shown == part.limit:
        runtime.messages.note(f"showing {shown:,}, there may be more; use --limit or --all")
