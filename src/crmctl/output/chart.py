"""Results of reports as rows and as bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from crmctl.errors import UsageError
from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.models.numbers import decimal_of
from crmctl.output.streams import Streams, cell_width, clean
from crmctl.output.table import pad

Row = Json

_METADATA = frozenset(
    {
        *("id", "status", "resultCount", "startedAt", "completedAt", "createdAt", "updatedAt", "error", "duration", "durationMs", "type"),
        *("reportId", "report", "name", "description", "creator", "createdBy", "organizationId"),
        *("pagination", "meta", "metadata", "total", "count", "limit", "offset"),
    }
)
_HOLDERS = ("results", "result", "data", "rows", "items", "records", "values", "groups", "buckets", "series", "output")
_LABELS = ("labels", "categories")
_HEADINGS = ("columns", "headers", "header", "fields", "columnNames", *_LABELS)
_POINTS = ("data", "points", "values")
_GROUPED = ("data", "values", "measures", "metrics", "aggregates", "group", "groups", "key", "keys")
_NAMES = ("key", "slug", "field", "name", "id", "label", "title", "header")
_DEPTH = 6


def results_of(run: Mapping[str, Any]) -> Any:
    """Return the results inside a run exactly as the service sent them; None when there are none.

    They are under one of the usual names, else all that is not known to describe the run itself.
    """
    beside = next((key for key in _HEADINGS if _is_list(run.get(key))), None)
    lines = next((key for key in _HOLDERS if _is_list(run.get(key))), None)
    if beside is not None and lines is not None and not any(isinstance(line, Mapping) for line in run[lines]):
        return {beside: run[beside], lines: run[lines]}  # rows of bare cells mean nothing without their columns
    for key in _HOLDERS:
        if run.get(key) is not None:
            return run[key]
    rest = {key: value for key, value in run.items() if key not in _METADATA and key not in _HOLDERS and value is not None}
    return None if not rest else next(iter(rest.values())) if len(rest) == 1 else rest


def rows_of(value: Any, depth: int = _DEPTH) -> list[Row]:
    """Return results of any shape as rows of named values."""
    if value is None:
        return []
    if isinstance(value, Mapping):
        return _rows_of_mapping(value, depth)
    if not _is_list(value):
        return [{"value": value}]
    if value and all(_is_list(line) for line in value):
        heading = _first_line_as_heading(value)
        return _named(value[1:], heading) if heading else _named(value, [])
    if value and all(isinstance(item, Mapping) and _points(item) is not None for item in value):
        rows: list[Row] = []
        for number, one in enumerate(value, 1):
            front = {"series": _name({key: one[key] for key in one if key in _NAMES}, number, "label")}
            rows += [{**front, **row} for row in rows_of(_points(one), 1)]
        return rows
    return [_flat(item) if isinstance(item, Mapping) else {"value": item} for item in value]


def _points(series: Mapping[str, Any]) -> Sequence[Any] | None:
    return next((series[key] for key in _POINTS if _is_list(series.get(key))), None)


def _flat(item: Mapping[str, Any]) -> Row:
    """Flatten a row whose groups, measures or data are one level deeper."""
    row: Row = {}
    for name, value in item.items():
        inside = value if name in _GROUPED and isinstance(value, Mapping) else {name: value}
        clash = any(key in row or (key in item and key != name) for key in inside)
        row |= {name: value} if clash else inside
    return row


def _rows_of_mapping(value: Mapping[str, Any], depth: int) -> list[Row]:
    cells = _cells(value)
    if cells is not None:
        return cells
    inner = _inner(value) if depth else None
    if inner is not None:
        return rows_of(inner, depth - 1)
    if not value:
        return []
    if all(_is_list(column) for column in value.values()):
        return _columns(value)
    if all(isinstance(item, Mapping) for item in value.values()):
        key = next(name for name in ("name", "key", "group", "") if not any(name in item for item in value.values()))
        return [{key or "#": name, **item} for name, item in value.items()]
    return [{"name": name, "value": item} for name, item in value.items()]


def _cells(value: Mapping[str, Any]) -> list[Row] | None:
    """Return the rows of `{columns, rows}` or `{labels, series}` in their many spellings."""
    heading = next((value[key] for key in _HEADINGS if _is_list(value.get(key))), None)
    if heading is None:
        return None
    labelled = any(heading is value.get(key) for key in _LABELS)
    lines = next((value[key] for key in ("rows", "data", "values", "results", "records", "items") if _is_list(value.get(key))), None)
    if lines is not None and all(_is_list(line) for line in lines):
        return _named(lines, [_name(item, number) for number, item in enumerate(heading, 1)])
    if lines is not None and all(isinstance(line, Mapping) for line in lines) and not labelled:
        names = [_name(item, number) for number, item in enumerate(heading, 1)]
        return [{**{name: line[name] for name in names if name in line}, **line} for line in lines]
    series = next((value[key] for key in ("datasets", "series") if _is_list(value.get(key))), None)
    if series is None and labelled and lines is not None and len(lines) == len(heading):
        return [{"label": label, "value": line} for label, line in zip(heading, lines, strict=True)]
    if series is None or not all(isinstance(entry, Mapping) for entry in series):
        return None
    columns: Json = {"label": heading}
    for number, entry in enumerate(series, 1):
        columns[_name({key: entry[key] for key in entry if key in _NAMES}, number, "label")] = _points(entry) or []
    return _columns(columns)


def _inner(value: Mapping[str, Any]) -> Any:
    """Return the content of a wrapper: the value under a usual name, or its only array of rows."""
    for key in _HOLDERS:
        if isinstance(value.get(key), list | tuple | Mapping):
            others = [item for name, item in value.items() if name != key and name not in _METADATA]
            if not any(isinstance(item, list | tuple | Mapping) for item in others):
                return value[key]
    arrays = [item for item in value.values() if _is_list(item)]
    if len(arrays) == 1 and len(value) > 1 and arrays[0] and all(isinstance(line, list | tuple | Mapping) for line in arrays[0]):
        return arrays[0]
    return arrays[0] if len(arrays) == len(value) == 1 and any(isinstance(line, Mapping) for line in arrays[0]) else None


def _named(lines: Sequence[Any], heading: Sequence[str]) -> list[Row]:
    width = max([len(heading), *(len(line) for line in lines)])
    names = [*heading, *(str(number) for number in range(len(heading) + 1, width + 1))]
    unique: list[str] = []
    for name in names:
        copies = sum(other == name or other.startswith(f"{name} (") for other in unique)
        unique.append(name if name not in unique else f"{name} ({copies + 1})")
    return [dict(zip(unique, [*line, *[None] * (width - len(line))], strict=True)) for line in lines]


def _first_line_as_heading(lines: Sequence[Sequence[Any]]) -> list[str] | None:
    """Return the first line if it is a header: distinct texts above lines with other values."""
    first, rest = lines[0], lines[1:]
    texts = [item for item in first if isinstance(item, str) and item]
    if not rest or len(texts) != len(first) or len(set(texts)) != len(texts):
        return None
    return texts if all(any(not isinstance(item, str) for item in line) for line in rest) else None


def _columns(value: Mapping[str, Sequence[Any]]) -> list[Row]:
    """Return columns of values as rows; short columns end in None."""
    height = max((len(column) for column in value.values()), default=0)
    return [{name: column[number] if number < len(column) else None for name, column in value.items()} for number in range(height)]


def _name(item: Any, number: int, first: str | None = None) -> str:
    if isinstance(item, Mapping):
        keys = _NAMES if first is None else (first, *_NAMES)
        item = next((item[key] for key in keys if isinstance(item.get(key), str) and item[key]), None)
    return str(item) if item not in (None, "") else str(number)


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def number_of(value: Any) -> Decimal | None:
    """Return a number, the number in a text, or the amount of a sum of money; None for anything else, booleans included."""
    if isinstance(value, Mapping):
        value = next((value[key] for key in ("amount", "value", "count") if key in value), None)
    return decimal_of(value)


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
    blocks = []
    for name in numeric:
        values = [number_of(row.get(name)) for row in rows]
        heading = f"{streams.paint(clean(name), 'header')}\n"
        blocks.append(heading + _block(labels, values, width))
    return "\n".join(blocks)


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


def _block(labels: Sequence[str], values: Sequence[Decimal | None], width: int) -> str:
    texts = ["" if value is None else _written(value) for value in values]
    value_width = max(len(text) for text in texts)
    natural = max(cell_width(label) for label in labels)
    label_width = min(natural, max(width - value_width - _LEAST_BAR - 4, 4), max(width * 2 // 5, 8))
    room = max(width - label_width - value_width - 4, _LEAST_BAR)
    numbers = [value for value in values if value is not None]
    high, low = max([*numbers, Decimal(0)]), min([*numbers, Decimal(0)])
    axis = min(max(int(room * -low / (high - low)), 1), room - 1 if high else room) if low else 0
    lines = []
    for label, value, text in zip(labels, values, texts, strict=True):
        if value is not None and value < 0:
            bar = ("█" * max(round(axis * value / low), 1)).rjust(axis)
        else:
            eighths = max(int((room - axis) * 8 * value / high), 1) if value else 0  # any value above zero is visible
            bar = " " * axis + "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
        lines.append(f"{pad(label, label_width, right=False)}  {bar}{' ' if bar else ''}{text}".rstrip() + "\n")
    return "".join(lines)


def _written(value: Decimal) -> str:
    """Return the number with thousands separators and without trailing zeros."""
    text = f"{value:,f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
