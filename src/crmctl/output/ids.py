"""`-o ids`: one id per line, for `xargs` and `bulk delete --ids`. A job's id is called `job`, a setting's `key`, a profile's `profile`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from crmctl.output.control_characters import clean
from crmctl.output.value_text import Item, Rendering
from crmctl.output.views import View

_NAMES = ("id", "job", "key", "profile")


def items(pages: Iterable[list[Item]], _view: View | None, _how: Rendering) -> Iterator[str]:
    for page in pages:
        yield "".join(_line(item) for item in page)


def item(item: Item, _view: View | None, _how: Rendering) -> str:
    return _line(item)


def value(value: Any, _how: Rendering) -> str:
    """The ids of a list of items, or a list of texts that a query has made of them; what has no id gives no line."""
    return "".join(_line(element) for element in (value if isinstance(value, list) else [value]))


def _line(item: Any) -> str:
    found = next((item[name] for name in _NAMES if name in item), None) if isinstance(item, Mapping) else item
    return f"{clean(str(found))}\n" if isinstance(found, str | int) and not isinstance(found, bool) else ""
