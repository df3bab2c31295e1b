"""`-o json`: exactly one document, indented by two, every digit and every letter as the service sent it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from crmctl.models import jsontext
from crmctl.output.value_text import Item, Rendering
from crmctl.output.views import View


def items(pages: Iterable[list[Item]], _view: View | None, _how: Rendering) -> Iterator[str]:
    """An array, written page by page so that its size does not matter."""
    opening = "[\n  "
    for page in pages:
        if page:
            yield opening + ",\n  ".join(_indented(item) for item in page)
            opening = ",\n  "
    yield "[]\n" if opening.startswith("[") else "\n]\n"


def item(item: Item, _view: View | None, _how: Rendering) -> str:
    return value(item, _how)


def value(value: Any, _how: Rendering) -> str:
    return jsontext.dumps(value, indent=2) + "\n"


def _indented(item: Item) -> str:
    # A line break in a string is written as \n, so every real one is a place to indent.
    return jsontext.dumps(item, indent=2).replace("\n", "\n  ")
