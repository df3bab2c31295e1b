"""Results of reports as rows and as bars."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from crmctl.errors import UsageError
from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.output.streams import Streams, cell_width, clean
from crmctl.output.table import pad

Row = Json

_METADATA = {
    *("id", "status", "resultCount", "startedAt", "completedAt", "createdAt", "updatedAt", "error", "duration", "durationMs", "type"),
    *("reportId", "report", "name", "description", "creator", "createdBy", "organizationId"),
    *("columns", "truncated", "pagination", "total", "limit", "offset"),
}
_HOLDERS = ("results", "data", "rows", "items")
_NAMES = ("key", "slug", "field", "name", "label")


def results_of(run: Mapping[str, Any]) -> Any:
    """Return the results inside a run exactly as the service sent them; None when there are none.

    They are under one of the usual names, else all that is not known to describe the run itself.
    """
    key = next((key for key in _HOLDERS if run.get(key) is not None), None)
    if key is not None:
        is_bare = _is_list(run[key]) and not any(isinstance(line, Mapping) for line in run[key])
        return {"columns": run["columns"], key: run[key]} if is_bare and _is_list(run.get("columns")) else run[key]
    rest = {key: value for key, value in run.items() if key not in _METADATA and value is not None}
    return None if not rest else next(iter(rest.values())) if len(rest) == 1 else rest


def rows_of(results: Any) -> list[Row]:
    """Return results as rows: objects, lists of cells below their `columns`, single values, or the entries of one object."""
    columns: Sequence[Any] = ()
    while isinstance(results, Mapping) and (key := next((key for key in _HOLDERS if key in results), None)) is not None:
        columns, results = results.get("columns") or columns, results[key]
    if results is None:
        return []
    if isinstance(results, Mapping):
        return [{"name": name, "value": value} for name, value in results.items()]
    lines = results if _is_list(results) else [results]
    names = _column_names(columns, max((len(line) for line in lines if _is_list(line)), default=0))
    return [
        dict(line) if isinstance(line, Mapping) else dict(zip(names, line, strict=False)) if _is_list(line) else {"value": line}
        for line in lines
    ]


def _column_names(columns: Sequence[Any], width: int) -> list[str]:
    """Return a name for each column: the one given, if it is the first of its kind, else its number."""
    names: list[str] = []
    for number in range(max(len(columns), width)):
        column = columns[number] if number < len(columns) else None
        if isinstance(column, Mapping):
            column = next((column[key] for key in _NAMES if isinstance(column.get(key), str)), None)
        names.append(str(column) if column not in (None, "", *names) else str(number + 1))
    return names


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def number_of(value: Any) -> Decimal | None:
    """Return a number, the number in a text, or the amount of a sum of money; None for anything else, booleans included."""
    if isinstance(value, Mapping):
        value = next((value[key] for key in ("amount", "value", "count") if key in value), None)
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal | str):
        return None
    try:
        number = Decimal(str(value).strip())
    except ArithmeticError:
        return None
    return number if number.is_finite() else None


DEFAULT_WIDTH = 80
_LEAST_BAR = 8
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_IDENTITIES = frozenset({"id", "objectId", "recordId"})


def draw_chart(rows: Sequence[Row], streams: Streams) -> str:
    """Return a block of bars per column of numbers, as wide as the terminal.

    Raises UsageError when there is nothing that bars could show.
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    numeric = [name for name in names if _is_numeric(name, rows)]
    if not numeric:
        why = "the results are empty" if not rows else f"none of {', '.join(names)} holds numbers"
        raise UsageError(f"there is nothing to chart: {why}", hint="leave --chart out to see the results", code="nothing_to_chart")
    labels_from = [
        name for name in names if name not in numeric and any(isinstance(row.get(name), str | bool | Mapping | list) for row in rows)
    ]
    if not labels_from and len(numeric) > 1:
        labels_from = [numeric.pop(0)]
    labels = [_label(row, labels_from, number) for number, row in enumerate(rows, 1)]
    width = streams.width or DEFAULT_WIDTH
    unicode = is_utf8(streams)
    blocks = []
    for name in numeric:
        values = [number_of(row.get(name)) for row in rows]
        heading = f"{streams.paint(clean(name), 'header')}\n"
        blocks.append(heading + _block(labels, values, width, unicode=unicode))
    return "\n".join(blocks)


def is_utf8(streams: Streams) -> bool:
    """Whether the terminal's locale is UTF-8. Python may have set LC_CTYPE to C.UTF-8, which says nothing about the terminal."""
    environ = streams.environ
    ctype = environ.get("LC_CTYPE", "")
    if ctype in ("C.UTF-8", "C.utf8") and environ.get("LANG", "C") in ("", "C", "POSIX"):
        ctype = ""
    locale = environ.get("LC_ALL") or ctype or environ.get("LANG") or ""
    if not locale and sys.platform == "win32":
        locale = getattr(streams.stdout, "encoding", None) or ""
    return "utf8" in locale.lower().replace("-", "")


def _is_numeric(name: str, rows: Sequence[Row]) -> bool:
    present = [row[name] for row in rows if row.get(name) is not None]
    return bool(present) and name not in _IDENTITIES and all(number_of(value) is not None for value in present)


def _label(row: Row, names: Sequence[str], number: int) -> str:
    if not names:
        return str(number)
    words = []
    for name in names:
        value = row.get(name)
        if isinstance(value, Mapping):
            value = next((value[key] for key in ("name", "label", "title", "slug", "id") if value.get(key)), value)
        words.append(value if isinstance(value, str) else "" if value is None else jsontext.dumps(value))
    return clean(" ".join(word for word in words if word)) or ("(empty)" if row else str(number))


def _block(labels: Sequence[str], values: Sequence[Decimal | None], width: int, *, unicode: bool) -> str:
    texts = ["" if value is None else _written(value) for value in values]
    value_width = max(len(text) for text in texts)
    natural = max(cell_width(label) for label in labels)
    label_width = min(natural, max(width - value_width - _LEAST_BAR - 4, 4), max(width * 2 // 5, 8))
    room = max(width - label_width - value_width - 4, _LEAST_BAR)
    known = [value for value in values if value is not None]
    high, low = max([*known, Decimal(0)]), min([*known, Decimal(0)])
    span = (high - low) or Decimal(1)
    left = int(room * -low / span) if low else 0
    right = room - left
    if low and not 0 < left < room:
        left = min(max(left, 1), room - 1) if high else room
        right = room - left
    lines = []
    for label, value, text in zip(labels, values, texts, strict=True):
        before = _bar(-(value or Decimal(0)), -low, left, unicode=unicode, rightwards=False)
        after = _bar(value or Decimal(0), high, right, unicode=unicode, rightwards=True)
        bars = f"{before}{after}"
        lines.append(f"{_shortened(label, label_width, unicode=unicode)}  {bars}{' ' if bars else ''}{text}".rstrip() + "\n")
    return "".join(lines)


def _bar(value: Decimal, highest: Decimal, room: int, *, unicode: bool, rightwards: bool) -> str:
    """Return a bar of at most `room` cells. Bars to the left are padded to end at the axis; any value above zero is visible."""
    if value <= 0 or highest <= 0:
        return "" if rightwards else " " * room
    eighths = max(int(value / highest * room * 8), 1)
    if not unicode or not rightwards:
        cells = max(round(eighths / 8), 1)
        filled = ("█" if unicode else "#") * cells
        return filled if rightwards else filled.rjust(room)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _shortened(text: str, width: int, *, unicode: bool) -> str:
    shown = pad(text, width, right=False)
    return shown if unicode else shown.replace("…", "~")


def _written(value: Decimal) -> str:
    """Return the number with thousands separators and without trailing zeros."""
    text = f"{value:,f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
