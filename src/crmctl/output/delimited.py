"""`-o csv` and `-o tsv`: a header row, then one row per item. How a row reads as text is in `models.delimited_text`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from crmctl.models.delimited_text import delimited_row
from crmctl.models.fieldpaths import Path, value_at
from crmctl.output.value_text import Item, Rendering
from crmctl.output.views import View, generic_view


def items(pages: Iterable[list[Item]], view: View | None, how: Rendering) -> Iterator[str]:
    """The header travels with the first page: when that one cannot be had, nothing has been written."""
    columns: list[Path] | None = None
    for page in pages:
        text = ""
        if columns is None:
            view = view or generic_view(page)
            columns = [view.fields[name] for name in view.export]
            text = _row(view.export, how)
        yield text + "".join(_row([value_at(item, path) for path in columns], how) for item in page)
    if columns is None and view is not None:
        yield _row(view.export, how)


def item(item: Item, view: View | None, how: Rendering) -> str:
    return "".join(items([[item]], view, how))


def value(value: Any, how: Rendering) -> str:
    """Whatever a query made: items become rows under their keys, lists become rows, anything else one cell under `value`."""
    elements = value if isinstance(value, list) else [value]
    if elements and all(isinstance(element, Mapping) for element in elements):
        return "".join(items([elements], generic_view(elements), how))
    if elements and all(isinstance(element, list) for element in elements):
        width = max(len(element) for element in elements)
        header = _row([str(number) for number in range(1, width + 1)], how)
        return header + "".join(_row([*element, *[None] * (width - len(element))], how) for element in elements)
    return _row(["value"], how) + "".join(_row([element], how) for element in elements)


def _row(values: Sequence[Any], how: Rendering) -> str:
    return delimited_row(values, how.format, excel_safe=how.excel_safe)
