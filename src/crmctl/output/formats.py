"""Writers of the output formats."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from crmctl.config.output_formats import OutputFormat
from crmctl.models import jsontext
from crmctl.models.field_paths import delimited_row
from crmctl.output.streams import clean
from crmctl.output.value_text import Item, Rendering
from crmctl.output.views import View, generic_view

if TYPE_CHECKING:
    from crmctl.values.composites import RecordColumns


class FormatWriter(ABC):
    """A writer of one output format."""

    def __init__(self, row: OutputFormat) -> None:
        self.row = row

    @abstractmethod
    def items(self, pages: Iterable[list[Item]], view: View | None, how: Rendering) -> Iterator[str]:
        """Write a list, page by page where the format allows it."""

    def item(self, item: Item, view: View | None, how: Rendering) -> str:
        return self.value(item, how)

    @abstractmethod
    def value(self, value: Any, how: Rendering) -> str:
        """Write any JSON value."""


class JsonDocument(FormatWriter):
    """Exactly one document, indented by two, with every digit and every letter as the service sent it."""

    def items(self, pages: Iterable[list[Item]], _view: View | None, _how: Rendering) -> Iterator[str]:
        opening = "[\n  "
        for page in pages:
            if page:
                # A line break in a string is written as \n, so every real one is a place to indent.
                yield opening + ",\n  ".join(jsontext.dumps(item, indent=2).replace("\n", "\n  ") for item in page)
                opening = ",\n  "
        yield "[]\n" if opening.startswith("[") else "\n]\n"

    def value(self, value: Any, _how: Rendering) -> str:
        return jsontext.dumps(value, indent=2) + "\n"


class JsonLines(FormatWriter):
    """One compact line per item."""

    def items(self, pages: Iterable[list[Item]], _view: View | None, _how: Rendering) -> Iterator[str]:
        for page in pages:
            yield "".join(f"{jsontext.dumps(item)}\n" for item in page)

    def value(self, value: Any, _how: Rendering) -> str:
        return "".join(f"{jsontext.dumps(element)}\n" for element in (value if isinstance(value, list) else [value]))


class Delimited(FormatWriter):
    """A header row, then one row per item."""

    def items(self, pages: Iterable[list[Item]], view: View | None, how: Rendering) -> Iterator[str]:
        """The header travels with the first page, so a failing first request leaves the output empty."""
        columns = None
        for page in pages:
            view = view or generic_view(page)
            text = ""
            if columns is None:
                columns = _columns(view, page)
                text = self._row(columns.names, how)
            yield text + "".join(self._row(columns.cells(item), how) for item in page)
        if columns is None and view is not None and view.export:
            yield self._row(_columns(view, []).names, how)

    def item(self, item: Item, view: View | None, how: Rendering) -> str:
        return "".join(self.items([[item]], view, how))

    def value(self, value: Any, how: Rendering) -> str:
        """Items become rows under their keys, lists become rows, anything else becomes one cell under `value`."""
        elements = value if isinstance(value, list) else [value]
        if elements and all(isinstance(element, Mapping) for element in elements):
            return "".join(self.items([elements], generic_view(elements), how))
        if elements and all(isinstance(element, list) for element in elements):
            width = max(map(len, elements))
            rows = [[str(number) for number in range(1, width + 1)], *([*row, *[None] * (width - len(row))] for row in elements)]
        else:
            rows = [["value"], *([element] for element in elements)]
        return "".join(self._row(row, how) for row in rows)

    def _row(self, values: Sequence[Any], how: Rendering) -> str:
        return delimited_row(values, self.row.delimiter, excel_safe=how.excel_safe)


def _columns(view: View, page: Sequence[Item]) -> RecordColumns:
    """Return the columns of a view. Records of the first page show the parts of values that get a column; other values stay JSON."""
    from crmctl.values.composites import RecordColumns, attribute_columns

    samples = (data for item in page if isinstance(data := item.get("data"), Mapping))
    return RecordColumns(
        {name: view.fields[name] for name in view.export}, attribute_columns(view.attributes, samples, is_spread=view.is_spread)
    )


class YamlDocument(FormatWriter):
    """One document, keys in the service's order, no anchors, numbers digit for digit."""

    def items(self, pages: Iterable[list[Item]], _view: View | None, _how: Rendering) -> Iterator[str]:
        """Write a sequence, which each page continues."""
        is_empty = True
        for page in filter(None, pages):
            is_empty = False
            yield self.value(page, _how)
        if is_empty:
            yield "[]\n"

    def value(self, value: Any, _how: Rendering) -> str:
        from crmctl.values.yaml_text import dumps

        return dumps(value)


class Ids(FormatWriter):
    """One id per line, for `xargs` and `bulk delete --ids`. Jobs, settings, profiles and files are named by `IDENTITIES`."""

    def items(self, pages: Iterable[list[Item]], _view: View | None, how: Rendering) -> Iterator[str]:
        for page in pages:
            yield self.value(page, how)

    def value(self, value: Any, _how: Rendering) -> str:
        """Write the ids of items, or the texts that a query has made of them. An element without an id gives no line."""
        return "".join(map(_id_line, value if isinstance(value, list) else [value]))


IDENTITIES = ("id", "job", "key", "profile", "publicUrl")


def _id_line(item: Any) -> str:
    name = next((item[key] for key in ("id", *item) if key in item and key in IDENTITIES), None) if isinstance(item, Mapping) else item
    return f"{clean(str(name))}\n" if isinstance(name, str | int) and not isinstance(name, bool) else ""
