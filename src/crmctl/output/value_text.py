"""Values as text for people."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

from crmctl.frozen import frozen
from crmctl.models import jsontext
from crmctl.models.ids import reference_id
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


@frozen
class Rendering:
    """Settings of an output. `width` None: lines have no limit.

    `terminal`: times are local. `chosen`: the user named the columns, so all must appear. `note` receives remarks for the user,
    `remember` the ids that a table shortens; None shows whole ids.
    """

    width: int | None
    terminal: bool
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
        return _label(value) or _composite(value, how) or (jsontext.dumps(value) if value else "")
    return "" if value is None else jsontext.dumps(value)


def _label(value: Mapping[str, Any]) -> str:
    """Return the name inside an object, if it has one."""
    return next(
        (str(value[key]) for key in ("name", "title", "label", "email", "slug") if isinstance(value.get(key), str) and value[key]), ""
    )


def _first(value: Mapping[str, Any], keys: tuple[str, ...]) -> Any:
    return next((value[key] for key in keys if value.get(key) not in (None, "")), None)


def _usual_part(kind: str, key: str) -> str | None:
    from crmctl.values.composites import usual_part  # a list as JSON shows no part

    return usual_part(kind, key)


def _parts_of(kind: str, value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the filled parts of a composite by their usual names, in reading order."""
    from crmctl.values.attribute_types import PART_NAMES

    filled = {key: entry for key, entry in value.items() if entry not in (None, "")}
    parts = {_usual_part(kind, key): entry for key, entry in reversed(filled.items())} | filled  # the usual name, else the first other one
    return {part: parts[part] for part in PART_NAMES[kind] if part in parts}


_TELLING = {"currency": {"currency"}, "name": {"first", "last"}, "address": {"street", "city", "postalCode"}}
"""Parts that only one kind of composite has."""


def _composite(value: Mapping[str, Any], how: Rendering) -> str:
    """Return an object that has nothing but the parts of money, a name or an address as such; an empty text for any other."""
    # Not `code` or `unit`, which may as well belong to a phone or a weight.
    money = {"currency", "currencyCode", "currency_code"}
    for kind, telling in _TELLING.items():
        parts = {key: _usual_part(kind, key) for key in value}
        if all(parts.values()) and any(part in telling for key, part in parts.items() if kind != "currency" or key in money):
            return RENDERERS[kind](value, how)
    return ""


def are_money(values: Iterable[Any]) -> bool:
    """Whether all values are amounts with a currency, apart from missing ones."""
    present = [value for value in values if value is not None]
    return bool(present) and all(isinstance(value, Mapping) and _parts_of("currency", value).keys() == set(value) for value in present)


def _joined(kind: str, value: Any, joint: str, how: Rendering) -> str:
    """Join the known parts in reading order; without one, all values in the service's order."""
    if not isinstance(value, Mapping):
        return _plain(value, how)
    chosen = [*_parts_of(kind, value).values()] or [part for part in value.values() if part not in (None, "")]
    return joint.join(_plain(part, how) for part in chosen)


def _name(value: Any, how: Rendering) -> str:
    full = _first(value, ("full", "fullName", "full_name", "displayName")) if isinstance(value, Mapping) else None
    return str(full) if full else _joined("name", value, " ", how)


def _address(value: Any, how: Rendering) -> str:
    return ", ".join(line for line in _joined("address", value, ", ", how).splitlines() if line)


NO_CENTS = frozenset({"BIF", "CLP", "DJF", "GNF", "ISK", "JPY", "KMF", "KRW", "PYG", "RWF", "UGX", "VND", "VUV", "XAF", "XOF", "XPF"})


def _currency(value: Any, how: Rendering) -> str:
    if not isinstance(value, Mapping):
        return _money(value, "", how)
    parts = _parts_of("currency", value)
    if "amount" not in parts:
        return _label(value) or jsontext.dumps(value)
    return _money(parts["amount"], _plain(parts.get("currency"), how), how)


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
    return _plain(reference_id(value), how)


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
    zone_names = dict.fromkeys(here[1] for value in values if isinstance(value, str) and (here := local(value)) is not None)
    return f" ({'/'.join(sorted(zone_names))})" if zone_names else ""


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
