"""Where a field lies inside an item, and what lies there. Works on plain values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Path = tuple[str, ...]


def value_at(item: Any, path: Path) -> Any:
    """The value inside nested mappings, or None where there is none."""
    for key in path:
        if not isinstance(item, Mapping):
            return None
        item = item.get(key)
    return item


def narrow(item: Mapping[str, Any], paths: Iterable[Path]) -> dict[str, Any]:
    """An item of the same shape with only what the paths lead to; what is not there stays away."""
    result: dict[str, Any] = {}
    for path in paths:
        source: Any = item
        for key in path:
            if not isinstance(source, Mapping) or key not in source:
                break
            source = source[key]
        else:
            target = result
            for key in path[:-1]:
                inner = target.get(key)
                target[key] = inner = {} if inner is None else inner
                target = inner
            target[path[-1]] = source
    return result
