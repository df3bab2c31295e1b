"""Values as pages show them: text, chips, amounts, times and links."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from decimal import Decimal
from typing import Any

from crmctl.frozen import frozen
from crmctl.models import jsontext
from crmctl.models.resources import AttributeType
from crmctl.service.console.visits import Visit, day, is_wire_time, titled
from crmctl.service.store import records
from crmctl.service.store.preferences import option_colours
from crmctl.service.store.tx import Tx
from crmctl.values.value_readers import Invalid, canonical_uuid, read_address, read_name

COLOURS = ("grey", "blue", "purple", "amber", "green", "red")
SYMBOLS = {"EUR": "€", "USD": "$", "GBP": "£", "JPY": "¥", "CNY": "CN¥", "INR": "₹", "KRW": "₩", "BRL": "R$", "ILS": "₪"}


@frozen
class ListCell:
    """One value. `kind`: text, number, time (the day), moment (day and time), lines, code or chips.

    `path` is a link in this area; `badge` stands before the text, `note` below it; `more` unfolds.
    """

    text: str = ""
    kind: str = "text"
    path: str = ""
    badge: str = ""
    note: str = ""
    links: Sequence[tuple[str, str]] = ()
    more: Sequence[str] = ()
    chips: Sequence[tuple[str, str]] = ()
    is_bad: bool = False


def cells_of(tx: Tx, shown: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]], visit: Visit) -> list[list[ListCell]]:
    """Return the values of these attributes for each record; references show the record's name."""
    slugs, labels = visit.slugs, labels_in(tx, shown, [row["data"] for row in rows])
    colours = option_colours(tx) if any(attribute["type"] in _OPTIONS for attribute in shown) else {}

    def cell(attribute: Mapping[str, Any], value: Any) -> ListCell:
        target = reference_target(attribute)
        if target is None or not isinstance(value, str):
            return value_cell(attribute, value, colours.get(attribute["id"], {}))
        if value not in labels or target not in slugs:
            return ListCell(f"…{value[-8:]} (deleted)")
        return ListCell(labels[value], path=f"/records/{slugs[target]}/{value}")

    return [[cell(attribute, row["data"].get(attribute["slug"])) for attribute in shown] for row in rows]


_OPTIONS = (AttributeType.SELECT, AttributeType.LIST)


def colours_of(options: Sequence[str], chosen: Mapping[str, str]) -> dict[str, str]:
    """Return the colour of each option: the chosen one, else that of its position."""
    return {option: chosen.get(option) or COLOURS[place % len(COLOURS)] for place, option in enumerate(options)}


def value_cell(attribute: Mapping[str, Any], value: Any, chosen: Mapping[str, str]) -> ListCell:
    """Return the cell of a value that is no reference; `chosen` are the colours of options.

    `attribute` needs a type, and a config if it has options.
    """
    kind = attribute["type"]
    if kind in _OPTIONS and value:
        colours = colours_of((attribute.get("config") or {}).get("options", ()), chosen)
        elements = value if isinstance(value, list) else [value]
        chips = tuple((value_text(kind, element), colours.get(_plain(element), COLOURS[0])) for element in elements)
        return ListCell(value_text(kind, value), "chips", chips=chips)
    if kind == AttributeType.DATE and isinstance(value, str) and is_wire_time(value):
        return ListCell(value, "time")
    return ListCell(value_text(kind, value), "number" if is_numeric(kind) else "text")


def reference_target(attribute: Mapping[str, Any]) -> str | None:
    """Return the id of the object that a single reference leads to."""
    is_single = attribute["type"] == AttributeType.REFERENCE and not attribute["isList"]
    return str(attribute["config"]["allowed_object_id"]) if is_single else None


def labels_in(tx: Tx, attributes: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the names of the records that these data refer to, by id. Deleted records and invalid ids have none."""
    labels: dict[str, str] = {}
    for attribute in attributes:
        if target := reference_target(attribute):
            values = [data.get(attribute["slug"]) for data in rows]
            ids = [value for value in values if isinstance(value, str) and canonical_uuid(value)]
            labels |= records.labels_of(tx, target, ids) if ids else {}
    return labels


def value_text(kind: str, value: Any) -> str:
    """Return a value, or a list of values, as text."""
    if value is None:
        return ""
    if isinstance(value, list):
        return ", ".join(value_text(kind, element) for element in value)
    try:
        return _TEXTS.get(kind, _plain)(value)
    except Invalid:
        return _plain(value)


def is_numeric(kind: str) -> bool:
    return kind in (AttributeType.NUMBER, AttributeType.CURRENCY)


def grouped(value: Any) -> str:
    """Return a number with thousands separators and all its digits."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return _plain(value)
    exact = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
    if abs(exact.adjusted()) > 30:
        return jsontext.dumps(value)
    # A whole number stored as a float has no decimals of its own.
    return f"{exact:,f}".removesuffix(".0") if isinstance(value, float) else f"{exact:,f}"


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "Yes" if value else "No"
    return value if isinstance(value, str) else jsontext.dumps(value)


def _money(value: Any) -> str:
    """Return `€1,250.50`, or `CHF 0.01` for a currency without a symbol of its own."""
    amount, currency = (value.get("amount"), value.get("currency")) if isinstance(value, Mapping) else (value, None)
    figures = f"{amount:,.2f}" if isinstance(amount, float) and round(amount, 2) == amount else grouped(amount)
    if not currency:
        return figures
    mark = SYMBOLS.get(currency, f"{currency} ")
    return f"-{mark}{figures[1:]}" if figures.startswith("-") else f"{mark}{figures}"


_PERIOD = re.compile(r"(\d{4})-(?:W(\d\d)|Q(\d)|(\d\d))")


def _date(value: Any) -> str:
    """Return a date or a period of a report: `31 Jan 2026`, `Week 5, 2026`, `Q1 2026`, `Jan 2026`."""
    if isinstance(value, str) and is_wire_time(value):
        return day(value)
    if period := _PERIOD.fullmatch(value) if isinstance(value, str) else None:
        year, week, quarter, _ = period.groups()
        return f"Week {int(week)}, {year}" if week else f"Q{quarter} {year}" if quarter else day(f"{value}-01").partition(" ")[2]
    return _plain(value)


def first_day(text: str) -> int:
    """Return the ordinal of a date, or of the first day of a report's period."""
    year, part, number = int(text[:4]), text[5:6], text[6:]
    if part == "W":
        return date.fromisocalendar(year, int(number), 1).toordinal()
    if part == "Q":
        return date(year, 3 * int(number) - 2, 1).toordinal()
    return date.fromisoformat(f"{text}-01-01"[:10]).toordinal()


_TEXTS: dict[str, Callable[[Any], str]] = {
    AttributeType.NAME: read_name,
    AttributeType.ADDRESS: read_address,
    AttributeType.CURRENCY: _money,
    AttributeType.NUMBER: grouped,
    AttributeType.DATE: _date,
    AttributeType.SELECT: lambda value: titled(_plain(value)),
}
