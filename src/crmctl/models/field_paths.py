"""Paths into JSON values, and JSON values as rows of delimited text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from crmctl.models import jsontext
from crmctl.models.jsontext import Json

Path = tuple[str, ...]


def record_places(slugs: Iterable[str], taken: Sequence[str] = ()) -> dict[str, Path]:
    """Return the columns of records: id, attributes by slug, times. An attribute with one of these or the `taken` names is `data.SLUG`."""
    names = {"id", "createdAt", "updatedAt", *taken}
    data: dict[str, Path] = {f"data.{slug}" if slug in names else slug: ("data", slug) for slug in slugs}
    return {"id": ("id",), **data, "createdAt": ("createdAt",), "updatedAt": ("updatedAt",)}


def value_at(item: Any, path: Path) -> Any:
    """Return the value inside nested mappings, or None. For a list of mappings return the values inside each."""
    for depth, key in enumerate(path):
        if isinstance(item, list) and any(isinstance(element, Mapping) for element in item):
            return [value_at(element, path[depth:]) for element in item]
        if not isinstance(item, Mapping):
            return None
        item = item.get(key)
    return item


def narrow(item: Mapping[str, Any], paths: Iterable[Path]) -> Json:
    """Return an item of the same shape that contains only the paths, as far as they exist."""
    result: Json = {}
    for path in paths:
        _add(result, item, path)
    return result


def _add(target: Json, source: Any, path: Path) -> None:
    """Copy the value at the path in `source` to the same place in `target`."""
    if not isinstance(source, Mapping) or path[0] not in source:
        return
    key, value = path[0], source[path[0]]
    if len(path) == 1:
        target[key] = value
    elif isinstance(value, list) and any(isinstance(element, Mapping) for element in value):
        elements = target.setdefault(key, [{} for _ in value])
        for item, element in zip(elements, value, strict=True):
            _add(item, element, path[1:])
    elif isinstance(value, Mapping) and _leads_to_something(value, path[1:]):
        present = target.get(key)
        target[key] = inner = dict(present) if isinstance(present, Mapping) else {}
        _add(inner, value, path[1:])


def _leads_to_something(item: Any, path: Path) -> bool:
    for key in path:
        if isinstance(item, list):
            return True
        if not isinstance(item, Mapping) or key not in item:
            return False
        item = item[key]
    return True


GUARD = "'"
_FORMULA = tuple("=+-@\t\r\n＝＋－＠")
_PLAIN_NUMBER = re.compile(r"[-+]?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?")


@cache
def _quoted(delimiter: str) -> re.Pattern[str]:
    """Return the pattern of cells that need quotes."""
    return re.compile(rf'["{re.escape(delimiter)}\r\n]|^\s|\s$')


def delimited_row(values: Sequence[Any], delimiter: str = ",", *, excel_safe: bool = False) -> str:
    """Return one line of CSV or TSV. `excel_safe` puts an apostrophe before text that a spreadsheet would run as a formula."""
    quoted = _quoted(delimiter)
    cells = [_cell(value, quoted, excel_safe=excel_safe) for value in values]
    # One empty cell alone would read as a blank line.
    return (delimiter.join(cells) if cells != [""] else '""') + "\n"


def _cell(value: Any, quoted: re.Pattern[str], *, excel_safe: bool) -> str:
    if value is None:
        return ""
    text = value if isinstance(value, str) else jsontext.dumps(value)
    if excel_safe and isinstance(value, str) and _needs_guard(text):
        text = GUARD + text
    return '"' + text.replace('"', '""') + '"' if quoted.search(text) else text


def without_guard(text: str) -> str:
    """Return a cell without the apostrophe of `excel_safe`."""
    return text[1:] if text.startswith(GUARD) and _needs_guard(text[1:]) else text


def _needs_guard(text: str) -> bool:
    """Whether a spreadsheet would run a text. A text that looks guarded gets a second guard, so that reading it back is exact."""
    bare = text.lstrip(GUARD)
    return bare.startswith(_FORMULA) and (bare != text or not _PLAIN_NUMBER.fullmatch(text))
