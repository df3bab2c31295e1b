"""Data on its way to stdout: format, --fields and --query."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

from crmctl.config.output_formats import OUTPUT_FORMATS
from crmctl.errors import UsageError
from crmctl.models import jsontext
from crmctl.models.field_paths import Path, narrow
from crmctl.models.ids import suggestion
from crmctl.output import formats
from crmctl.output.messages import Messages
from crmctl.output.streams import ClosedPipe, Streams, paged
from crmctl.output.value_text import Rendering
from crmctl.output.views import View, generic_view

SHOWN_EXPRESSION = 200
"""Most characters of an expression in a message."""


def choose_fields(names: Sequence[str], view: View, sample: Mapping[str, Any] | None = None) -> dict[str, Path]:
    """Return the path of every field, in order. A name may go deeper with dots (`user.email`).

    A field that the service sent beyond its specification counts when the sample item has it. Raises UsageError listing the valid names.
    """
    valid = {**{name: (name,) for name in sample or {}}, **view.fields}
    chosen: dict[str, Path] = {}
    unknown = []
    for name in names:
        head, *rest = name.split(".")
        if name in valid:
            chosen[name] = valid[name]
        elif head in valid:
            chosen[name] = (*valid[head], *rest)
        else:
            unknown.append(name)
    if unknown:
        every = list(dict.fromkeys([*view.fields, *valid]))
        raise UsageError(
            f"unknown field{'s' if len(unknown) > 1 else ''} for {view.noun}: {', '.join(unknown)}",
            hint=suggestion(unknown[0], every, f"valid fields: {', '.join(every)}"),
            code="unknown_field",
            details={"unknown": unknown, "valid": every},
        )
    return chosen


def compile_query(expression: str) -> Callable[[Any], Any]:
    """Return a JMESPath expression as a function. Both compiling and applying raise UsageError for a wrong expression."""
    import jmespath  # only --query pays for it
    from jmespath.exceptions import JMESPathError

    def wrong(error: Exception) -> UsageError:
        shown = repr(_cut(expression, SHOWN_EXPRESSION))
        return UsageError(f"--query {shown}: {_why(error)}", hint="the language is described at https://jmespath.org", code="bad_query")

    try:
        compiled = jmespath.compile(expression)
    except (JMESPathError, ValueError) as error:
        raise wrong(error) from error

    from crmctl.output.query_functions import ExactFunctions

    options = jmespath.Options(custom_functions=ExactFunctions())

    def apply(document: Any) -> Any:
        try:
            return compiled.search(document, options)
        except (JMESPathError, ValueError, TypeError, ArithmeticError) as error:
            raise wrong(error) from error

    return apply


def _why(error: Exception) -> str:
    """Return what is wrong in an expression, and where. The library's own texts repeat it and print whole values."""
    if types := getattr(error, "expected_types", None):  # of a JMESPathTypeError
        actual = getattr(error, "actual_type", "")
        return f"{getattr(error, 'function_name', '')}() takes {' or '.join(types)}, not {jsontext.TYPE_NAMES.get(actual, actual)}"
    place = getattr(error, "lex_position", None)
    if place is not None:
        return f"it cannot be read from character {place + 1} on"
    if isinstance(error, TypeError | ArithmeticError):
        return "it compares values of different kinds, or computes with a number out of range"
    return _cut(" ".join(str(error).split()), SHOWN_EXPRESSION)


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[:length] + "…"


_BATCH = 100
"""Items written at a time if the caller has no pages."""
_IN_MEMORY = 8 * 1024 * 1024

Item = Any
"""A mapping as it came over the wire, or a crmctl.models Resource, which carries that mapping as `wire`."""


class Emitter:
    """Prints results in one format. Build it before the first request: it refuses a bad --query.

    After an error stdout is empty in `json`, `yaml` and `table`; `jsonl`, `csv`, `tsv` and `ids` stream, and stop at the error.
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
        remember: Callable[[Sequence[str]], None] | None = None,
    ) -> None:
        """`remember` receives the ids that a table shortens; without it tables show whole ids."""
        if format not in OUTPUT_FORMATS:
            raise UsageError(f"unknown output format {format!r}", hint=f"valid formats: {', '.join(OUTPUT_FORMATS)}")
        self.streams = streams
        self.format = format
        self.fields = list(fields) if fields is not None else None
        self.excel_safe = excel_safe
        self.pager = pager
        self.raw = raw
        self.messages = messages or Messages(streams, machine=format != "table")
        self._remember = remember
        self._query = compile_query(query) if query else None
        self.is_after_write = False
        """Whether the results to print are those of a change."""
        self._remarks: list[str] = []

    @property
    def _writer(self) -> formats.FormatWriter:
        row = OUTPUT_FORMATS[self.format]
        if row.writer == "Table":
            from crmctl.output.table import Table  # only people need it

            return Table(row)
        writer: formats.FormatWriter = getattr(formats, row.writer)(row)
        return writer

    def check_fields(self, view: View) -> None:
        """Raise UsageError for an unknown field, and for rows without ids, for commands that must not write first."""
        self._check_ids(view.fields)
        if self.fields is not None:
            choose_fields(self.fields, view)

    def _check_ids(self, names: Collection[str]) -> None:
        """Raise UsageError if the format is `ids` and none of these fields identifies a row."""
        if self.format == "ids" and self._query is None and names and not self.is_after_write and not {*names} & {*formats.IDENTITIES}:
            raise UsageError("these rows have no ids", hint=f"-q '[].{next(iter(names))}' prints another field, -o json all of them")

    def check_result(self, document: Mapping[str, Any]) -> None:
        """Raise UsageError for --fields or --query that does not fit the result of an action, before it; the document has its shape."""
        if self.fields is not None:
            choose_fields(self.fields, View("the result", (), {}), document)
        if self._query is not None:
            self._query(document)

    def emit_items(self, items: Iterable[Item], view: View | None = None) -> int:
        """Print a list without pages, and return the number of items."""
        rest = iter(items)
        return self.emit_pages(iter(lambda: list(islice(rest, _BATCH)), []), view)

    def emit_rows(self, rows: Sequence[Mapping[str, Any]], noun: str, *, first: Sequence[str] = ()) -> None:
        """Print rows of any shape. A table begins with the columns in `first`."""
        self.emit_items(rows, generic_view(rows, noun, first=first))

    def emit_pages(self, pages: Iterable[Iterable[Item]], view: View | None = None) -> int:
        """Print a list page by page where the format allows it, and return the number of items.

        An empty list gets a note on stderr. Raises UsageError for an unknown field, before any output.
        """
        count = 0

        def listed() -> Iterator[list[Mapping[str, Any]]]:
            nonlocal count
            for page in pages:
                items = [_mapping(item) for item in page]
                count += len(items)
                yield items

        items = listed()
        first = next(items, [])
        chosen, view = self._narrow_view(view, first[0] if first else None)
        self._check_ids(first[0] if first else ())
        everything = chain([first] if first else [], items)
        with paged(self.streams, self.pager if count else None):
            if self._query is not None:
                all_items = [item for page in everything for item in self._narrowed(page, chosen, keep=True)]
                self._write([self._value(self._answer(all_items))])
            else:
                narrowed = (self._narrowed(page, chosen, keep=self._writer.row.keeps_shape) for page in everything)
                chunks = self._writer.items(narrowed, view, self.rendering())
                self._write(self._spooled(chunks) if self._writer.row.is_document else chunks)
        self._tell_remarks()
        if not count:
            self.messages.note(f"no {view.noun if view else 'results'} found")
        return count

    def emit_item(self, item: Item, view: View | None = None) -> None:
        """Print one resource. Raises UsageError for an unknown field."""
        mapping = _mapping(item)
        chosen, view = self._narrow_view(view, mapping)
        keep = self._query is not None or self._writer.row.keeps_shape
        mapping = self._narrowed([mapping], chosen, keep=keep)[0]
        if self._query is not None:
            self._last(self._value(self._answer(mapping)))
        else:
            self._last(self._writer.item(mapping, view, self.rendering()))

    def emit_result(self, document: Any, text: str | None = None) -> None:
        """Print the result of an action, any JSON value. A table shows `text` instead."""
        if self.format == "table" and text is not None and self._query is None and self.fields is None:
            self._last(f"{text}\n")
        elif isinstance(document, Mapping):
            self.emit_item(document)
        else:
            self._last(self._value(self._answer(document) if self._query else document))

    def _answer(self, document: Any) -> Any:
        """Return the result of the query."""
        assert self._query is not None
        with self._telling_of_the_change():
            return self._query(document)

    @contextlib.contextmanager
    def _telling_of_the_change(self) -> Iterator[None]:
        """Say in a refusal that the change was made: a usage error alone would mean that nothing was sent."""
        try:
            yield
        except UsageError as error:
            if self.is_after_write:
                error.message += "; the change was made"
            raise

    def _value(self, value: Any) -> str:
        """Return any JSON value as output; with `raw` a text without its quotes, as jq prints it."""
        return f"{value}\n" if self.raw and isinstance(value, str) else self._writer.value(value, self.rendering())

    def _narrow_view(self, view: View | None, sample: Mapping[str, Any] | None) -> tuple[dict[str, tuple[str, ...]] | None, View | None]:
        if self.fields is None:
            return None, view
        full_view = view or View("results", (), {})
        if not full_view.fields and sample is None:
            return None, view  # without items and known fields any name may be right
        with self._telling_of_the_change():
            chosen = choose_fields(self.fields, full_view, sample)
        return chosen, full_view.narrowed(chosen)

    def _narrowed(
        self, page: list[Mapping[str, Any]], chosen: Mapping[str, tuple[str, ...]] | None, *, keep: bool
    ) -> list[Mapping[str, Any]]:
        return [narrow(item, chosen.values()) for item in page] if chosen is not None and keep else page

    def rendering(self) -> Rendering:
        return Rendering(
            width=self.streams.width,
            terminal=self.streams.stdout_is_terminal,
            excel_safe=self.excel_safe,
            chosen=self.fields is not None,
            paint=self.streams.paint,
            note=self._remarks.append,
            remember=self._remember,
        )

    def _write(self, chunks: Iterable[str]) -> None:
        for chunk in chunks:
            with self._telling_of_the_change():
                self.streams.write_out(chunk)
        if self.streams.sink is None:
            self._tell_remarks()

    def _tell_remarks(self) -> None:
        """Print remarks below their data."""
        for remark in self._remarks:
            self.messages.note(remark)
        self._remarks.clear()

    def _last(self, text: str) -> None:
        """Write the last output. A reader that has gone must not change how the run ends."""
        with contextlib.suppress(ClosedPipe):
            self._write([text])

    @staticmethod
    def _spooled(chunks: Iterable[str]) -> Iterator[str]:
        """Hold chunks back until all exist, on disk if they are large, so that a document is complete or absent."""
        with tempfile.SpooledTemporaryFile(_IN_MEMORY, "w+", encoding="utf-8", errors="surrogatepass", newline="") as spool:
            for chunk in chunks:
                spool.write(chunk)
            spool.seek(0)
            while text := spool.read(1 << 20):
                yield text


def _mapping(item: Item) -> Mapping[str, Any]:
    return item if isinstance(item, Mapping) else item.wire
