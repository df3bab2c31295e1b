"""`-o yaml`: one document, keys in the service's order, no anchors, numbers digit for digit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from decimal import Decimal
from functools import cache
from typing import Any

from crmctl.output.value_text import Item, Rendering
from crmctl.output.views import View

_LINE_ENDS = re.compile("[\x85\u2028\u2029]")


def items(pages: Iterable[list[Item]], _view: View | None, _how: Rendering) -> Iterator[str]:
    """A sequence; each page continues it."""
    empty = True
    for page in pages:
        if page:
            empty = False
            yield dump(page)
    if empty:
        yield "[]\n"


def item(item: Item, _view: View | None, _how: Rendering) -> str:
    return dump(item)


def value(value: Any, _how: Rendering) -> str:
    return dump(value)


def dump(value: Any) -> str:
    """Any JSON value as a YAML document."""
    import yaml

    text: str = yaml.dump(value, Dumper=_dumper(), sort_keys=False, allow_unicode=True, default_flow_style=False, width=float("inf"))
    return text.removesuffix("...\n")


@cache
def _dumper() -> Any:
    import yaml

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    def decimal(dumper: Any, number: Decimal) -> Any:
        mantissa, exponent, power = str(number).partition("E")
        text = (mantissa if "." in mantissa else f"{mantissa}.0") + exponent.lower() + power  # YAML 1.1 knows 1.0e+30, not 1E+30
        return dumper.represent_scalar("tag:yaml.org,2002:float", text)

    def text(dumper: Any, value: str) -> Any:
        # YAML takes these for line ends; only between double quotes are they escaped.
        style = '"' if _LINE_ENDS.search(value) else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(Decimal, decimal)
    Dumper.add_representer(str, text)
    return Dumper
