"""Values as text for people."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

from crmctl.models import jsontext
from crmctl.output.streams import clean
from crmctl.values.moments import moment_of


def local(timestamp: str) -> tuple[str, str] | None:
    """Return local time to the minute and the name of its zone; None for a text that is no ISO 8601 timestamp."""
    moment = moment_of(timestamp)
    if moment is None:
        return None
    try:
        here = moment.astimezone()
    except (OverflowError, ValueError, OSError):
        return None
    return f"{here:%Y-%m-%d %H:%M}", here.tzname() or ""


Item = Mapping[str, Any]


@dataclass(frozen=True)
class Rendering:
    """Settings of an output. `width` None: lines have no limit. `now` is Unix time.

    `terminal`: times are local. `chosen`: the user named the columns, so all must appear. `note` receives remarks for the user,
    `remember` the ids that a table shortens; None shows whole ids.
    """

    width: int | None
    terminal: bool
    now: float
    excel_safe: bool
    chosen: bool
    paint: Callable[[str, str], str]
    note: Callable[[str], None]
    remember: Callable[[Sequence[str]], None] | None = None


def shown(value: Any, kind: str, how: Rendering) -> str:
    """Return one value as clean text on one line; an empty text for null."""
    if value is None:
        return ""
    return clean(RENDERERS.get(kind, _plain)(value, how))


def _plain(value: Any, how: Rendering) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(_plain(element, how) for element in value)
    if isinstance(value, Mapping):
        return _label(value) or jsontext.dumps(value)
    return "" if value is None else jsontext.dumps(value)


def _label(value: Mapping[str, Any]) -> str:
    """Return the name inside an object, if it has one."""
    return next(
        (str(value[key]) for key in ("name", "title", "label", "email", "slug") if isinstance(value.get(key), str) and value[key]), ""
    )


def _first(value: Mapping[str, Any], keys: tuple[str, ...]) -> Any:
    return next((value[key] for key in keys if value.get(key) not in (None, "")), None)


_NAME_PARTS = (
    ("prefix", "title"),
    ("first", "firstName", "first_name", "given", "givenName"),
    ("middle", "middleName", "middle_name"),
    ("last", "lastName", "last_name", "family", "familyName"),
    ("suffix",),
)
_ADDRESS_PARTS = (
    ("line1", "street", "street1", "address1", "addressLine1", "address", "line_1"),
    ("line2", "street2", "address2", "addressLine2", "line_2"),
    ("city", "town", "locality"),
    ("state", "region", "province", "stateCode"),
    ("postalCode", "zip", "postal_code", "zipCode", "postcode"),
    ("country", "countryCode", "country_code"),
)


def _parts(value: Any, parts: tuple[tuple[str, ...], ...], joint: str, how: Rendering) -> str:
    """Join the known parts in reading order; without one, all values in the service's order."""
    if not isinstance(value, Mapping):
        return _plain(value, how)
    found = [_first(value, keys) for keys in parts]
    chosen = [part for part in found if part is not None] or [part for part in value.values() if part not in (None, "")]
    return joint.join(_plain(part, how) for part in chosen)


def _name(value: Any, how: Rendering) -> str:
    full = _first(value, ("full", "fullName", "full_name", "displayName")) if isinstance(value, Mapping) else None
    return str(full) if full else _parts(value, _NAME_PARTS, " ", how)


def _address(value: Any, how: Rendering) -> str:
    return ", ".join(line for line in _parts(value, _ADDRESS_PARTS, ", ", how).splitlines() if line)


NO_CENTS = frozenset({"BIF", "CLP", "DJF", "GNF", "ISK", "JPY", "KMF", "KRW", "PYG", "RWF", "UGX", "VND", "VUV", "XAF", "XOF", "XPF"})


def _currency(value: Any, how: Rendering) -> str:
    if not isinstance(value, Mapping):
        return _money(value, "", how)
    amount = _first(value, ("amount", "value", "number"))
    code = _first(value, ("currency", "currencyCode", "currency_code", "code", "unit"))
    return _money(amount, _plain(code, how), how) if amount is not None else _plain(value, how)


def _money(amount: Any, code: str, how: Rendering) -> str:
    """Return an amount with grouped thousands, at least two decimals, and every digit."""
    if isinstance(amount, bool) or not isinstance(amount, int | float | Decimal | str):
        return _plain(amount, how)
    try:
        number = Decimal(str(amount))
    except InvalidOperation:
        return " ".join(part for part in (str(amount), code) if part)
    decimals = -int(number.as_tuple().exponent) if number.is_finite() else 0
    places = max(decimals, 0 if code.upper() in NO_CENTS else 2)
    return " ".join(part for part in (f"{number:,.{places}f}", code) if part)


class NamedReference(NamedTuple):
    """A reference and the label of its record, for tables."""

    id: str
    label: str


def _reference(value: Any, how: Rendering) -> str:
    if isinstance(value, NamedReference):
        return value.label
    if isinstance(value, list):
        return ", ".join(_reference(element, how) for element in value)
    if isinstance(value, Mapping):
        found = _first(value, ("id", "recordId"))
        return str(found) if found is not None else _plain(value, how)
    return _plain(value, how)


def _time(value: Any, how: Rendering) -> str:
    here = local(value) if how.terminal and isinstance(value, str) else None
    return here[0] if here is not None else _plain(value, how)


def _settings(value: Any, how: Rendering) -> str:
    """Return the entries of an object as `name: value`."""
    return "; ".join(f"{name}: {_plain(entry, how)}" for name, entry in value.items()) if isinstance(value, Mapping) else _plain(value, how)


def _edits(value: Any, how: Rendering) -> str:
    """Return values before and after, `name: [before, after]`, as `name: before → after`."""
    if not isinstance(value, Mapping) or not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in value.values()):
        return _plain(value, how)
    return "; ".join(f"{name}: {' → '.join(_plain(side, how) or 'nothing' for side in pair)}" for name, pair in value.items())


def zones(values: Iterable[Any], how: Rendering) -> str:
    """Return the zones of local times for a header: ` (CET)`; an empty text if times are not local."""
    if not how.terminal:
        return ""
    found = dict.fromkeys(here[1] for value in values if isinstance(value, str) and (here := local(value)) is not None)
    return f" ({'/'.join(sorted(found))})" if found else ""


RENDERERS: dict[str, Callable[[Any, Rendering], str]] = {
    "name": _name,
    "address": _address,
    "currency": _currency,
    "id": _reference,
    "reference": _reference,
    "time": _time,
    "settings": _settings,
    "edits": _edits,
}
"""Renderers of the kinds that need more than plain text."""
