"""`-o jsonl`: one compact line per item, handed over page by page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from crmctl.models import jsontext
from crmctl.output.value_text import Item, Rendering
from crmctl.output.views import View


def items(pages: Iterable[list[Item]], _view: View | None, _how: Rendering) -> Iterator[str]:
    for page in pages:
        yield "".join(f"{jsontext.dumps(item)}\n" for item in page)


def item(item: Item, _view: View | None, _how: Rendering) -> str:
    return f"{jsontext.dumps(item)}\n"


def value(value: Any, _how: Rendering) -> str:
    """A list is one line per element, anything else one line."""
    return "".join(f"{jsontext.dumps(element)}\n" for element in (value if isinstance(value, list) else [value]))
