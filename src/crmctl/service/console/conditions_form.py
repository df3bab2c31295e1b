"""Conditions in a form: rows of attribute, comparison and value, and back to the entries of a definition."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import Any

from crmctl.models.jsontext import Json
from crmctl.models.resources import AttributeType
from crmctl.service.console.cells import SYMBOLS
from crmctl.service.console.visits import Visit, day, is_wire_time
from crmctl.service.faults import BadRequest
from crmctl.service.store import objects
from crmctl.service.store.tx import Tx
from crmctl.values import yaml_text
from crmctl.values.operators import VALUELESS, Kind, Operator

PHRASES = {str(operator): operator.meaning.phrase for operator in Operator}
"""The operators in words."""

_ORDERED = {Kind.EQUALITY, Kind.ORDER, Kind.PRESENCE}
_CHOSEN = {Kind.EQUALITY, Kind.PRESENCE}
_KINDS = {
    AttributeType.SELECT: _CHOSEN,
    AttributeType.REFERENCE: _CHOSEN,
    AttributeType.CHECKBOX: {Kind.TRUTH, Kind.PRESENCE},
    AttributeType.NUMBER: _ORDERED,
    AttributeType.CURRENCY: _ORDERED,
    AttributeType.DATE: _ORDERED,
}
"""The kinds of operators that forms offer for a type; other types are texts."""
_GROUPED = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d*)?")

_MONEY = re.compile(r"([^\d\s.,+-]*)\s*([-+]?[\d.,]+)\s*([^\d\s.,+-]*)")

_DAY = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)

PERIODS = {
    "today": "is today",
    "yesterday": "was yesterday",
    "thisWeek": "is this week",
    "thisMonth": "is this month",
    "lastMonth": "was last month",
    "last30Days": "is in the last 30 days",
    "thisYear": "is this year",
}
"""Filters of dates in lists, in words; days begin at midnight in the visitor's time zone."""

Rows = tuple[tuple[str, str, str], ...]
"""Attribute, operator and value as they were typed."""


def phrase(name: str, kind: str | None) -> str:
    """Return an operator or period in words: of `is greater than, after` the first ones, for a date `is after`."""
    words = (PHRASES | PERIODS).get(name, name)
    number, _, date = words.partition(", ")
    return words if kind is None or not date else f"is {date}" if kind == AttributeType.DATE else number


def operators_for(attribute: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the operators that make sense for an attribute, in words; all of them without one."""
    if attribute is None:
        return PHRASES
    kinds = _KINDS.get(attribute["type"], {Kind.EQUALITY, Kind.PATTERN, Kind.PRESENCE})
    return {str(operator): phrase(operator, attribute["type"]) for operator in Operator if operator.meaning.kind in kinds}


def filters_for(attribute: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the operators of a list's filters: of dates the periods, too."""
    return operators_for(attribute) | (PERIODS if attribute is None or attribute["type"] == AttributeType.DATE else {})


OPERATOR_TYPES = {
    name: " ".join(kind for kind in AttributeType if name in filters_for({"type": kind})) for name in (*PHRASES, *PERIODS)
} | {str(operator): "" for operator in Operator if operator.meaning.kind is Kind.PRESENCE}
"""The types that have each operator, "" for all types. A script offers those of the chosen attribute."""


def days_of(period: str, now: float, zone: tzinfo) -> tuple[str, str]:
    """Return the first day of a period, and the day after its last."""
    today = datetime.fromtimestamp(now, zone).date()
    month, monday = today.replace(day=1), today - timedelta(today.weekday())
    days = {
        "today": (today, today + timedelta(1)),
        "yesterday": (today - timedelta(1), today),
        "thisWeek": (monday, monday + timedelta(7)),
        "thisMonth": (month, (month + timedelta(31)).replace(day=1)),
        "lastMonth": ((month - timedelta(1)).replace(day=1), month),
        "last30Days": (today - timedelta(29), today + timedelta(1)),
        "thisYear": (today.replace(month=1, day=1), today.replace(year=today.year + 1, month=1, day=1)),
    }
    first, after = days[period]
    return first.isoformat(), after.isoformat()


def midnight(day: str, zone: tzinfo) -> str:
    """Return the timestamp at which a day begins in this time zone, and other texts unchanged."""
    if _DAY.fullmatch(day) is None:
        return day
    try:
        return datetime.fromisoformat(day).replace(tzinfo=zone).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError):
        return day


def day_after(day: str) -> str:
    """Return the day after a day, and an empty text for other texts."""
    try:
        return (date.fromisoformat(day) + timedelta(1)).isoformat() if _DAY.fullmatch(day) else ""
    except (ValueError, OverflowError):
        return ""


def ungrouped(text: str) -> str:
    """Return `12500.50` for `12,500.50`, the way lists show numbers, and other texts unchanged."""
    return text.replace(",", "") if _GROUPED.fullmatch(text.strip()) else text


def money_of(text: str) -> tuple[str, str]:
    """Return amount and currency of `1,000 EUR`, `EUR 1000` and `€1,000`; other texts unchanged, with an empty currency."""
    match = _MONEY.fullmatch(text.strip())
    marks = [mark for mark in (match[1], match[3]) if mark] if match else []
    code = {symbol: code for code, symbol in SYMBOLS.items()}.get(marks[0], marks[0].upper()) if len(marks) == 1 else ""
    return (match[2], code) if match and re.fullmatch("[A-Z]{3}", code) else (text, "")


def stored_value(attribute: Mapping[str, Any] | None, value: str) -> str:
    """Return a typed value in its stored form: an option in its own case, a number without separators."""
    if attribute is None:
        return value
    if attribute["type"] == AttributeType.SELECT:
        options = attribute["config"]["options"]
        return next((option for option in options if option.casefold() == value.strip().casefold()), value)
    return ungrouped(value) if attribute["type"] in (AttributeType.NUMBER, AttributeType.CURRENCY) else value


def rows_of(fields: Mapping[str, Sequence[str]]) -> Rows:
    """Return the rows of a form or an address that name an attribute."""
    columns = (fields.get(name, []) for name in ("where", "op", "value"))
    return tuple((slug, name, value) for slug, name, value in zip(*columns, strict=False) if slug)


def refuse_unfinished(rows: Rows) -> None:
    """Raise BadRequest for a condition without a value: ignoring it would match every record."""
    for slug, name, value in rows:
        if not value and name in PHRASES and not needs_no_value(name):
            message = f"the filter on {slug!r} with {name} has no value; choose {PHRASES[Operator.IS_EMPTY]!r} to find empty values"
            raise BadRequest(f"{message}, or “–” to remove it", {"field": "value", "slug": slug})


def needs_no_value(name: str) -> bool:
    return name in VALUELESS or name in PERIODS


def with_targets(visit: Visit, attributes: Sequence[Json]) -> list[Json]:
    """Return the attributes, each with the slug of the object it refers to as `target`; a script looks up its records."""
    slugs = visit.slugs
    return [attribute | {"target": slugs.get((attribute["config"] or {}).get("allowed_object_id", ""))} for attribute in attributes]


def definitions_of(tx: Tx, visit: Visit) -> list[Json]:
    """Return the rows of a form as entries of a definition, values as the attributes of the form's object store them."""
    about = objects.find_object_by_slug(tx, visit.text("object"))
    by_slug = {attribute["slug"]: attribute for attribute in objects.list_attributes(tx, about["id"])} if about else {}
    return [
        {"attributeSlug": slug, "operator": name, "value": "true" if needs_no_value(name) else stored_value(by_slug.get(slug), value)}
        for slug, name, value in rows_of(visit.form)
    ]


def rows_from(definitions: Sequence[Mapping[str, Any]]) -> Rows:
    texts = (tuple(str(definition.get(part, "")) for part in ("attributeSlug", "operator", "value")) for definition in definitions)
    return tuple((slug, name, "" if needs_no_value(name) else value) for slug, name, value in texts)


def definition_values(tx: Tx, visit: Visit, entry: Json, conditions: str) -> Json:
    """Return the template values of a report's or workflow's form; `conditions` is the field that holds them."""
    about = objects.find_object_by_slug(tx, str(entry.get("object", "")))
    return {
        "is_yaml": "yaml" in (visit.text("as"), visit.query.get("as")),
        "yaml": visit.raw("yaml") if visit.text("as") == "yaml" else yaml_text.dumps(entry),
        "attributes": with_targets(visit, objects.list_attributes(tx, about["id"])) if about else [],
        "conditions": rows_from(entry.get(conditions, [])),
        "operators": operators_for,
        "operator_types": OPERATOR_TYPES,
    }


def in_words(definitions: Sequence[Mapping[str, Any]], names: Mapping[str, tuple[str, str]]) -> list[str]:
    """Return each condition as a sentence: `Status is new`. `known` are names and types by slug."""
    return [condition_text(row, names) for row in rows_from(definitions)]


def condition_text(condition: tuple[str, str, str], names: Mapping[str, tuple[str, str]]) -> str:
    slug, operator, value = condition
    name, kind = names.get(slug, (slug, None))
    return f"{name} {phrase(operator, kind)} {day(value) if kind == AttributeType.DATE and is_wire_time(value) else value}".rstrip()


def operators_in_words(message: str) -> str:
    """Return a message of the store as forms word it: `'score' (is greater than)` instead of `'score' with greaterThan`."""
    return re.sub(r"(?<=') with (\w+)", lambda match: f" ({phrase(match[1], '')})" if match[1] in PHRASES else match[0], message)
