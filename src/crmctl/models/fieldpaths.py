"""Where a field lies inside an item, and what lies there. Works on plain values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Path = tuple[str, ...]


def value_at(item: Any, path: Path) -> Any:
    """The value inside nested mappings, or None where there is none; of a list of mappings the values inside each."""
    for depth, key in enumerate(path):
        if isinstance(item, list) and any(isinstance(element, Mapping) for element in item):
            return [value_at(element, path[depth:]) for element in item]
        if not isinstance(item, Mapping):
            return None
        item = item.get(key)
    return item


def narrow(item: Mapping[str, Any], paths: Iterable[Path]) -> dict[str, Any]:
    """An item of the same shape with only what the paths lead to; what is not there stays away."""
    result: dict[str, Any] = {}
    for path in paths:
        _add(result, item, path)
    return result


def _add(target: dict[str, Any], source: Any, path: Path) -> None:
    """What the path leads to in `source`, at the same place of `target`."""
    if not isinstance(source, Mapping) or path[0] not in source:
        return
    key, value = path[0], source[path[0]]
    if len(path) == 1:
        target[key] = value
    elif isinstance(value, list) and any(isinstance(element, Mapping) for element in value):
        elements = target.setdefault(key, [{} for _ in value])
        for one, element in zip(elements, value, strict=True):
            _add(one, element, path[1:])
    elif isinstance(value, Mapping) and _leads_to_something(value, path[1:]):
        known = target.get(key)
        target[key] = inner = dict(known) if isinstance(known, Mapping) else {}
        _add(inner, value, path[1:])


def _leads_to_something(item: Any, path: Path) -> bool:
    for key in path:
        if isinstance(item, list):
            return True
        if not isinstance(item, Mapping) or key not in item:
            return False
        item = item[key]
    return True
