"""Data on its way to stdout: the only dispatch on the output format. Which part is wanted is selection.py's, how it looks the formats'."""

from __future__ import annotations

import contextlib
import importlib
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from crmctl.clock import Clock, SystemClock
from crmctl.errors import UsageError
from crmctl.models.fieldpaths import narrow
from crmctl.output.messages import Messages
from crmctl.output.pager import paged
from crmctl.output.selection import choose_fields, compile_query
from crmctl.output.streams import ClosedPipe, Streams
from crmctl.output.value_text import Rendering
from crmctl.output.views import View

FORMATS = {
    "table": "crmctl.output.table",
    "json": "crmctl.output.json_document",
    "jsonl": "crmctl.output.json_lines",
    "csv": "crmctl.output.delimited",
    "tsv": "crmctl.output.delimited",
    "yaml": "crmctl.output.yaml_document",
    "ids": "crmctl.output.ids",
}
_KEEPS_SHAPE = frozenset({"json", "jsonl", "yaml"})
"""Formats in which --fields leaves the item's own shape; in the others the fields are columns."""

_ONE_DOCUMENT = frozenset({"json", "yaml"})
_BATCH = 100
"""Items written at a time where nobody says what a page is."""
_IN_MEMORY = 8 * 1024 * 1024

Item = Any
"""A mapping as it came over the wire, or a crmctl.models Resource, which carries that mapping as `wire`."""


class Emitter:
    """Prints what a command found, in one format. Build it before the first request: a bad --query is refused here.

    After an error stdout is empty in `json`, `yaml` and `table`; `jsonl`, `csv`, `tsv` and `ids` stream, and end where the error came.
    """

    def __init__(
        self,
        streams: Streams,
        format: str,
        fields: Sequence[str] | None = None,
        query: str | None = None,
        excel_safe: bool = False,
        pager: str | None = None,
        *,
        raw: bool = False,
        messages: Messages | None = None,
        clock: Clock | None = None,
    ) -> None:
        if format not in FORMATS:
            raise UsageError(f"unknown output format {format!r}", hint=f"valid formats: {', '.join(FORMATS)}")
        self.streams = streams
        self.format = format
        self.fields = list(fields) if fields is not None else None
        self.excel_safe = excel_safe
        self.pager = pager
        self.raw = raw
        self.messages = messages or Messages(streams, machine=format != "table")
        self.clock: Clock = clock or SystemClock()
        self._query = compile_query(query) if query else None
        self._remarks: list[str] = []

    def check_fields(self, view: View) -> None:
        """Refuse an unknown --fields now. For commands that write: their answer would be too late. Raises UsageError."""
        if self.fields is not None:
            choose_fields(self.fields, view)

    def check_result(self, document: Mapping[str, Any]) -> None:
        """Refuse a --fields or --query that does not fit the result of an action, before it is done; the document has its shape.

        Raises UsageError.
        """
        if self.fields is not None:
            choose_fields(self.fields, View("the result", (), {}), document)
        if self._query is not None:
            self._query(document)

    def emit_items(self, items: Iterable[Item], view: View | None = None) -> int:
        """A list that does not come in pages; returns how many items there were."""
        rest = iter(items)
        return self.emit_pages(iter(lambda: list(islice(rest, _BATCH)), []), view)

    def emit_pages(self, pages: Iterable[Iterable[Item]], view: View | None = None) -> int:
        """A list that arrives in pages, each handed on before the next is fetched where the format allows it; returns how many items.

        An empty list is said so on stderr. Raises UsageError for an unknown field, before any output.
        """
        counted = _Counted(pages)
        items = iter(counted)
        first = next(items, [])
        chosen, view = self._narrow_view(view, first[0] if first else None)
        everything = _chain(first, items)
        with paged(self.streams, self.pager if counted.items else None):
            self._emit_list(everything, chosen, view)
        self._tell_remarks()
        if counted.items == 0:
            self.messages.note(f"no {view.noun if view else 'results'} found")
        return counted.items

    def _emit_list(
        self, everything: Iterator[list[Mapping[str, Any]]], chosen: dict[str, tuple[str, ...]] | None, view: View | None
    ) -> None:
        if self._query is not None:
            whole = [item for page in everything for item in self._narrowed(page, chosen, keep=True)]
            self._write([self._value(self._query(whole))])
        else:
            narrowed = (self._narrowed(page, chosen, keep=self.format in _KEEPS_SHAPE) for page in everything)
            chunks = self._format_module().items(narrowed, view, self.rendering())
            self._write(self._spooled(chunks) if self.format in _ONE_DOCUMENT else chunks)

    def emit_item(self, item: Item, view: View | None = None) -> None:
        """One resource. Raises UsageError for an unknown field."""
        mapping = _mapping(item)
        chosen, view = self._narrow_view(view, mapping)
        keep = self._query is not None or self.format in _KEEPS_SHAPE
        mapping = self._narrowed([mapping], chosen, keep=keep)[0]
        if self._query is not None:
            self._last(self._value(self._query(mapping)))
        else:
            self._last(self._format_module().item(mapping, view, self.rendering()))

    def emit_result(self, document: Any, text: str | None = None) -> None:
        """The result of an action, any JSON value. `text` is what a table shows instead."""
        if self.format == "table" and text is not None and self._query is None and self.fields is None:
            self._last(f"{text}\n")
        elif isinstance(document, Mapping):
            self.emit_item(document)
        else:
            self._last(self._value(self._query(document) if self._query else document))

    def _value(self, value: Any) -> str:
        """Any JSON value; with `raw` a text without its quotes, as jq prints it."""
        return f"{value}\n" if self.raw and isinstance(value, str) else str(self._format_module().value(value, self.rendering()))

    def _narrow_view(self, view: View | None, sample: Mapping[str, Any] | None) -> tuple[dict[str, tuple[str, ...]] | None, View | None]:
        if self.fields is None:
            return None, view
        known = view or View("results", (), {})
        if view is None and sample is None:
            return None, None  # nothing came and nothing is known about it: no name can be wrong
        chosen = choose_fields(self.fields, known, sample)
        return chosen, known.narrowed(chosen)

    def _narrowed(
        self, page: list[Mapping[str, Any]], chosen: Mapping[str, tuple[str, ...]] | None, *, keep: bool
    ) -> list[Mapping[str, Any]]:
        return [narrow(item, chosen.values()) for item in page] if chosen is not None and keep else page

    def _format_module(self) -> Any:
        return importlib.import_module(FORMATS[self.format])

    def rendering(self) -> Rendering:
        """How values are shown in this run."""
        return Rendering(
            format=self.format,
            width=self.streams.width,
            terminal=self.streams.stdout_is_terminal,
            now=self.clock.now(),
            excel_safe=self.excel_safe,
            chosen=self.fields is not None,
            paint=self.streams.paint,
            note=self._remarks.append,
        )

    def _write(self, chunks: Iterable[str]) -> None:
        for chunk in chunks:
            self.streams.write_out(chunk)
        if self.streams.sink is None:
            self._tell_remarks()

    def _tell_remarks(self) -> None:
        """Under the data they are about."""
        for remark in self._remarks:
            self.messages.note(remark)
        self._remarks.clear()

    def _last(self, text: str) -> None:
        """Output after which only the end comes: that nobody reads it must not change how the run ends."""
        with contextlib.suppress(ClosedPipe):
            self._write([text])

    @staticmethod
    def _spooled(chunks: Iterable[str]) -> Iterator[str]:
        """The chunks once all of them exist, held on disk where they are many: a document is whole or not there at all."""
        with tempfile.SpooledTemporaryFile(_IN_MEMORY, "w+", encoding="utf-8", errors="surrogatepass", newline="") as spool:
            for chunk in chunks:
                spool.write(chunk)
            spool.seek(0)
            while text := spool.read(1 << 20):
                yield text


class _Counted:
    """Pages as lists of mappings, counting the items that went by."""

    def __init__(self, pages: Iterable[Iterable[Item]]) -> None:
        self.pages = pages
        self.items = 0

    def __iter__(self) -> Iterator[list[Mapping[str, Any]]]:
        for page in self.pages:
            items = [_mapping(item) for item in page]
            self.items += len(items)
            yield items


def _chain(first: list[Mapping[str, Any]], rest: Iterator[list[Mapping[str, Any]]]) -> Iterator[list[Mapping[str, Any]]]:
    if first:
        yield first
    yield from rest


def _mapping(item: Item) -> Mapping[str, Any]:
    return item if isinstance(item, Mapping) else item.wire
