"""How the values of records read to a person on a page: names, addresses, money, yes and no. What a form shows is in record_form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from crmctl.models import jsontext
from crmctl.models.attributes import AttributeType
from crmctl.service.console.templates import moment
from crmctl.service.values.composite import read_address, read_name
from crmctl.service.values.text import Invalid


@dataclass(frozen=True)
class ShownValue:
    """One value as text; `path` leads to the record it refers to."""

    text: str = ""
    path: str = ""
    is_number: bool = False


def value_text(type: str, value: Any) -> str:
    """Of one value, or of a list of them."""
    if value is None:
        return ""
    if isinstance(value, list):
        return ", ".join(value_text(type, element) for element in value)
    return _TEXTS.get(type, _plain)(value)


def is_numeric(type: str) -> bool:
    return type in (AttributeType.NUMBER, AttributeType.CURRENCY)


def grouped(value: Any) -> str:
    """A number with thousands separators, to its last digit."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return _plain(value)
    exact = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
    if abs(exact.adjusted()) > 30:
        return jsontext.dumps(value)
    return f"{exact:,f}"


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "Yes" if value else "No"
    return value if isinstance(value, str) else jsontext.dumps(value)


def _composite(read: Callable[[Any], str]) -> Callable[[Any], str]:
    def text(value: Any) -> str:
        try:
            return read(value)
        except Invalid:
            return _plain(value)

    return text


def _money(value: Any) -> str:
    amount, currency = (value.get("amount"), value.get("currency")) if isinstance(value, Mapping) else (value, None)
    figures = f"{amount:,.2f}" if isinstance(amount, float) and round(amount, 2) == amount else grouped(amount)
    return f"{figures} {currency or ''}".strip()


def _date(value: Any) -> str:
    return moment(value) if isinstance(value, str) and len(value) > 19 and value.endswith("Z") else _plain(value)


_TEXTS: dict[str, Callable[[Any], str]] = {
    AttributeType.NAME: _composite(read_name),
    AttributeType.ADDRESS: _composite(read_address),
    AttributeType.CURRENCY: _money,
    AttributeType.NUMBER: grouped,
    AttributeType.DATE: _date,
}
