"""`-o table`: rows for a person, a block of names and values for one item. What does not fit is decided in columns.py."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from crmctl.models.fieldpaths import value_at
from crmctl.output.columns import GAP, LEAST, LEAST_OF_CHOSEN, Cells, cell_width, fit, fits, pad
from crmctl.output.control_characters import clean, clean_lines
from crmctl.output.value_text import Item, Rendering, shown, zones
from crmctl.output.views import Column, View, generic_view
from crmctl.output.word_wrap import wrapped

_RIGHT = frozenset({"number", "currency"})
_RIGID = frozenset({"id", "email", "number", "currency", "time", "date", "checkbox"})


def items(pages: Iterable[list[Item]], view: View | None, how: Rendering) -> Iterator[str]:
    """All rows at once: the widths depend on every one of them."""
    rows = [item for page in pages for item in page]
    if rows:
        yield _table(rows, view or generic_view(rows), how)


def item(item: Item, view: View | None, how: Rendering) -> str:
    """One line per field, then the lists of items that belong to it."""
    view = view or generic_view([item])
    lists = {name: view.lists[name] for name in view.lists if isinstance(item.get(name), list)}
    lines = _block([column for column in _block_columns(item, view, how) if column.header not in lists], item, how)
    for name, inner in lists.items():
        lines += f"\n{how.paint(name, 'header')}\n" + (_table(item[name], inner, how) if item[name] else "none\n")
    return lines


def value(value: Any, how: Rendering) -> str:
    """Whatever a query made, in the nearest form: rows, a block, or lines of text."""
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return item(value, None, how)
    if isinstance(value, list) and value and all(isinstance(element, Mapping) for element in value):
        return _table(value, generic_view(value), how)
    if isinstance(value, list) and value and all(isinstance(element, list) for element in value):
        rows: list[Item] = [{str(number): cell for number, cell in enumerate(element, 1)} for element in value]
        return _table(rows, generic_view(rows), how)
    return "".join(f"{shown(element, 'text', how)}\n" for element in (value if isinstance(value, list) else [value]))


def _table(rows: list[Item], view: View, how: Rendering) -> str:
    columns = [
        Cells(
            _heading(column, rows, how),
            [shown(value_at(row, column.path), column.kind, how) for row in rows],
            column.kind in _RIGHT,
            column.kind in _RIGID,
            LEAST_OF_CHOSEN if how.chosen else LEAST,
        )
        for column in view.columns
    ]
    if how.chosen and len(columns) > 1 and not fits(columns, how.width):
        return "\n".join(_block(list(view.columns), row, how) for row in rows)
    kept, widths = fit(columns, how.width, may_drop=not how.chosen)
    gone = (named.header for named, column in zip(view.columns, columns, strict=True) if column not in kept and not column.is_empty)
    missing = ", ".join(map(clean, gone))
    if missing:
        how.note(f"not shown, too wide for this terminal: {missing}; choose columns with --fields, or use -o json")
    header = GAP.join(pad(clean(column.header), width, column.right) for column, width in zip(kept, widths, strict=True))
    lines = [how.paint(header.rstrip(), "header")]
    for number in range(len(rows)):
        cells = (pad(column.texts[number], width, column.right) for column, width in zip(kept, widths, strict=True))
        lines.append(GAP.join(cells).rstrip())
    return "\n".join(lines) + "\n"


def _heading(column: Column, rows: list[Item], how: Rendering) -> str:
    """The column's name; of times also their zone, once for all."""
    return column.header + (zones((value_at(row, column.path) for row in rows), how) if column.kind == "time" else "")


def _block_columns(item: Item, view: View, how: Rendering) -> list[Column]:
    """The view's fields that the item has, in the view's order, then what the service sent beyond them."""
    columns = [view.column(name, path) for name, path in view.fields.items()]
    if how.chosen:
        return columns
    flat = [
        column
        for column in columns
        if not isinstance(item.get(column.path[0]), Mapping) or len(column.path) > 1 or not _spread(column, columns)
    ]
    covered = {column.path for column in columns}
    extra: list[Column] = []
    for name, inner in item.items():
        if (name,) not in covered:
            extra.append(Column((name,), name))
        elif isinstance(inner, Mapping) and any(len(path) > 1 and path[0] == name for path in covered):
            extra += [Column((name, key), key) for key in inner if (name, key) not in covered]
    return [column for column in [*flat, *extra] if _has(item, column)]


def _spread(column: Column, columns: list[Column]) -> bool:
    """Whether the parts of this field have columns of their own."""
    return any(len(other.path) > 1 and other.path[0] == column.path[0] for other in columns)


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
