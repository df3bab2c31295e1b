"""Tables for a terminal: column widths, wrapping and drawing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from typing import Any

from crmctl.models.field_paths import value_at
from crmctl.models.ids import is_uuid
from crmctl.output.formats import FormatWriter
from crmctl.output.streams import cell_width, clean, clean_lines, wrapped
from crmctl.output.value_text import Item, Rendering, are_money, shown, zones
from crmctl.output.views import Column, View, generic_view

GAP = "  "
LEAST = 32
"""Minimum cells of a shortened text; with less room the table drops a column."""

NAMING = 3
"""Columns that tell records apart: id, name and what identifies them come first."""

LEAST_OF_CHOSEN = 20
"""Minimum cells of a column named by --fields."""


@dataclass(frozen=True, eq=False)
class Cells:
    """A column as text: `right` aligns to the right, `rigid` is never cut, others to no less than `short` cells.

    A column that `wraps` continues a text below. `is_value`: it shows values of records, which others can stand for.
    """

    header: str
    texts: list[str]
    right: bool = False
    rigid: bool = False
    short: int = LEAST
    wraps: bool = False
    is_value: bool = False

    @cached_property
    def natural(self) -> int:
        """The width that cuts no text."""
        return max([cell_width(self.header), *map(cell_width, self.texts)])

    @property
    def least(self) -> int:
        return self.natural if self.rigid else min(self.natural, self.short)

    @property
    def is_empty(self) -> bool:
        return not any(self.texts)

    @cached_property
    def is_sparse(self) -> bool:
        return self.is_value and 2 * sum(map(bool, self.texts)) < len(self.texts)


def fits(columns: list[Cells], width: int | None) -> bool:
    """Whether all columns can be read in lines of this width."""
    return width is None or _total([column.least for column in columns]) <= width


def fit(columns: list[Cells], width: int | None, *, may_drop: bool) -> tuple[list[Cells], list[int]]:
    """Return the columns that fit and their widths. All empty columns go first, then values behind the NAMING columns that fewer than half
    of the records have, then others, each from the right; the first stays.

    Without `may_drop` all stay, even if lines get longer than the terminal.
    """
    kept = list(columns)
    if may_drop and not fits(kept, width):
        kept = [columns[0], *(column for column in columns[1:] if not column.is_empty)]
        while len(kept) > 1 and not fits(kept, width):
            kept.remove(max(kept[1:], key=lambda column: (column.is_sparse and column not in columns[:NAMING], kept.index(column))))
    return kept, _widths(kept, width)


def _total(widths: list[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _widths(columns: list[Cells], width: int | None) -> list[int]:
    """Return natural widths if they fit; else texts share the remaining room, and short ones keep their width."""
    widths = [column.natural for column in columns]
    if width is None or _total(widths) <= width:
        return widths
    texts = sorted((number for number, column in enumerate(columns) if not column.rigid), key=lambda number: widths[number])
    room = width - _total([column.natural if column.rigid else 0 for column in columns])
    for position, number in enumerate(texts):
        share = max(room // (len(texts) - position), columns[number].least)
        widths[number] = min(widths[number], share)
        room -= widths[number]
    return widths


def pad(text: str, width: int, right: bool) -> str:
    """Return the text in exactly `width` cells, shortened with an ellipsis if needed."""
    length = cell_width(text)
    if length > width:
        from rich.cells import set_cell_size

        text = set_cell_size(text, max(width - 1, 0)).rstrip() + "…"
        length = cell_width(text)
    blanks = " " * (width - length)
    return blanks + text if right else text + blanks


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines with aligned columns."""
    widths = [max(map(cell_width, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(pad(cell, width, False) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


_RIGHT = frozenset({"number", "currency"})
_WRAPPED = frozenset({"sentence", "edits"})
_NARROWER = {"sentence": 24, "edits": 24, "sample": 20}
"""Minimum cells of the kinds that are read with less than LEAST."""

_RIGID = frozenset({"id", "email", "number", "currency", "time", "date", "checkbox"})


class Table(FormatWriter):
    """Columns for people."""

    def items(self, pages: Iterable[list[Item]], view: View | None, how: Rendering) -> Iterator[str]:
        """Yield the whole table at once: its widths depend on every row."""
        rows = [item for page in pages for item in page]
        if rows:
            yield _table(rows, view or generic_view(rows), how)

    def item(self, item: Item, view: View | None, how: Rendering) -> str:
        """Return one line per field, then the item's lists as tables."""
        view = view or generic_view([item])
        lists = {name: view.lists[name] for name in view.lists if isinstance(item.get(name), list)}
        lines = _block([column for column in _block_columns(item, view, how) if column.header not in lists], item, how)
        for name, inner in lists.items():
            lines += f"\n{how.paint(name, 'header')}\n" + (_table(item[name], inner, how) if item[name] else "none\n")
        return lines

    def value(self, value: Any, how: Rendering) -> str:
        """Return the result of a query as rows, a block or lines of text."""
        if value is None:
            return ""
        if isinstance(value, Mapping):
            return self.item(value, None, how)
        if isinstance(value, list) and value and all(isinstance(element, Mapping) for element in value):
            return _table(value, generic_view(value), how)
        if isinstance(value, list) and value and all(isinstance(element, list) for element in value):
            rows: list[Item] = [{str(number): cell for number, cell in enumerate(element, 1)} for element in value]
            return _table(rows, generic_view(rows), how)
        return "".join(f"{shown(element, 'text', how)}\n" for element in (value if isinstance(value, list) else [value]))


SHORT_ID = 8
"""Characters at the end of an id that a table on a terminal shows: ids made together share their beginning."""


def _cells(rows: list[Item], column: Column, view: View, how: Rendering) -> Cells:
    values = [value_at(row, column.path) for row in rows]
    types = {type(value) for value in values if value is not None}
    are_numbers = bool(types) and types <= {int, float}
    kind = "number" if column.kind == "text" and (are_numbers or are_money(values)) else column.kind
    texts = [shown(value, kind, how) for value in values]
    if view.has_short_ids and kind in ("id", "reference"):
        texts = short_ids(texts, how)
    short = LEAST_OF_CHOSEN if how.chosen else _NARROWER.get(kind, LEAST)
    return Cells(
        _heading(column, rows, how),
        texts,
        kind in _RIGHT,
        kind in _RIGID,
        short,
        kind in _WRAPPED,
        column.path[0] == "data",
    )


def columns_with_room(rows: list[Item], view: View, how: Rendering) -> set[str]:
    """Return the columns that a table of these rows shows, whatever names its references have. Remembers no ids."""
    silent = replace(how, remember=None if how.remember is None else lambda _: None)
    kept, _ = fit([_cells(rows, column, view, silent) for column in view.columns], how.width, may_drop=not how.chosen)
    return {cells.header for cells in kept}


def short_ids(texts: list[str], how: Rendering) -> list[str]:
    """Shorten the ids among the texts on a terminal, and remember them."""
    if how.remember is None:
        return texts
    how.remember([text for text in texts if is_uuid(text)])
    return [text[-SHORT_ID:] if is_uuid(text) else text for text in texts]


def _table(rows: list[Item], view: View, how: Rendering) -> str:
    columns = [_cells(rows, column, view, how) for column in view.columns]
    if how.chosen and len(columns) > 1 and not fits(columns, how.width):
        return "\n".join(_block(list(view.columns), row, how) for row in rows)
    kept, widths = fit(columns, how.width, may_drop=not how.chosen)
    headers = {column.header for column in kept}
    gone = (named.header for named, column in zip(view.columns, columns, strict=True) if not (column.header in headers or column.is_empty))
    missing = ", ".join(map(clean, gone))
    if missing:
        how.note(f"not shown, too wide for this terminal: {missing}; choose columns with --fields, or use -o json")
    header = GAP.join(pad(clean(column.header), width, column.right) for column, width in zip(kept, widths, strict=True))
    lines = [how.paint(header.rstrip(), "header")]
    for number in range(len(rows)):
        texts = ((column.texts[number], column.wraps, width) for column, width in zip(kept, widths, strict=True))
        cells = [wrapped(text, width) if wraps else [text] for text, wraps, width in texts]
        for parts in zip_longest(*cells, fillvalue=""):
            padded = (pad(part, width, column.right) for part, column, width in zip(parts, kept, widths, strict=True))
            lines.append(GAP.join(padded).rstrip())
    return "\n".join(lines) + "\n"


def _heading(column: Column, rows: list[Item], how: Rendering) -> str:
    """Return the column's name; for times with their zone."""
    return column.header + (zones((value_at(row, column.path) for row in rows), how) if column.kind == "time" else "")


def _block_columns(item: Item, view: View, how: Rendering) -> list[Column]:
    """Return the view's fields that the item has, then other fields of the service."""
    columns = [view.column(name, path) for name, path in view.fields.items()]
    if how.chosen:
        return columns
    covered = {column.path for column in columns}
    spread = {path[0] for path in covered if len(path) > 1}  # fields whose parts have columns of their own
    flat = [
        column
        for column in columns
        if len(column.path) > 1 or column.path[0] not in spread or not isinstance(item.get(column.path[0]), Mapping)
    ]
    extra: list[Column] = []
    for name, inner in item.items():
        if (name,) not in covered:
            extra.append(Column((name,), name))
        elif isinstance(inner, Mapping) and name in spread:
            extra += [Column((name, key), key) for key in inner if (name, key) not in covered]
    return [column for column in [*flat, *extra] if _has(item, column)]


def _has(item: Any, column: Column) -> bool:
    for key in column.path:
        if not isinstance(item, Mapping) or key not in item:
            return False
        item = item[key]
    return True


def _block(columns: list[Column], item: Item, how: Rendering) -> str:
    heads = [clean(_heading(column, [item], how)) for column in columns]
    label = max(map(cell_width, heads), default=0)
    text = ""
    for column, heading in zip(columns, heads, strict=True):
        value = value_at(item, column.path)
        lines = clean_lines(value) if isinstance(value, str) and column.kind != "time" else [shown(value, column.kind, how)]
        lines = [part for line in lines for part in wrapped(line, how.width and how.width - label - len(GAP))]
        head = how.paint(pad(heading, label, right=False), "dim")
        indent = "\n" + " " * (label + len(GAP))
        text += f"{head}{GAP}{indent.join(lines)}".rstrip() + "\n"
    return text
