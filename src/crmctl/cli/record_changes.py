"""The history of a record on the command line: one line for each value that changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from crmctl.cli.list_window import Window
from crmctl.cli.targets import on_object
from crmctl.errors import NotFoundError, RejectedError

if TYPE_CHECKING:
    from crmctl.cli.runtime import Runtime
    from crmctl.client.shapes import Page
    from crmctl.models.records import HistoryEntry

FIELDS = ("at", "by", "change", "attribute", "old", "new")


def show_changes(runtime: Runtime, object_name: str, record_name: str, part: Window) -> None:
    """Emit the values that the wanted changes changed. Raises RejectedError where the service keeps no history."""
    from crmctl.cli.named_records import find_record
    from crmctl.client.paging import iterate
    from crmctl.output.views import generic_view

    record_id = find_record(runtime, object_name, record_name).id

    def fetch(limit: int, offset: int) -> Page[HistoryEntry]:
        return on_object(runtime, object_name, lambda target: runtime.crm.record_history(target, record_id, limit=limit, offset=offset))

    total, shown, rows = None, 0, list[dict[str, Any]]()
    try:
        for page in iterate(fetch, limit=part.limit, offset=part.offset):
            total, shown = page.total, shown + len(page.items)
            rows += (line for entry in page.items for line in _lines(entry))
    except NotFoundError:
        # Of a record that is there, only a service without histories knows nothing.
        on_object(runtime, object_name, lambda target: runtime.crm.get_record(target, record_id))
        raise RejectedError("this service keeps no history of its records", code="not_supported") from None
    runtime.emitter.emit_items(rows, generic_view(rows or [dict.fromkeys(FIELDS)], "changes"))
    if total is not None and part.offset + shown < total:
        runtime.messages.note(f"showing {shown:,} of {total:,} changes; use --limit or --all")


def _lines(entry: HistoryEntry) -> Iterator[dict[str, Any]]:
    """A change that changed no value is a line too."""
    who = entry.by or {}
    about = {"at": entry.at, "by": who.get("name") or who.get("type") or "service", "change": entry.type.rpartition(".")[2]}
    for change in entry.changes or [{}]:
        yield about | {"attribute": change.get("attributeSlug"), "old": change.get("old"), "new": change.get("new")}
