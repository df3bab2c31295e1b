"""Conditions in a form: rows of attribute, comparison and value, and back to the entries of a definition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from crmctl.models.filters import Operator
from crmctl.service.console.visits import Visit
from crmctl.service.faults import BadRequest

OPERATORS = {
    Operator.EQUALS: "is",
    Operator.NOT_EQUALS: "is not",
    Operator.CONTAINS: "contains",
    Operator.NOT_CONTAINS: "does not contain",
    Operator.STARTS_WITH: "starts with",
    Operator.ENDS_WITH: "ends with",
    Operator.GREATER_THAN: "is greater than, after",
    Operator.LESS_THAN: "is less than, before",
    Operator.GREATER_THAN_OR_EQUAL: "is at least, on or after",
    Operator.LESS_THAN_OR_EQUAL: "is at most, on or before",
    Operator.IS_EMPTY: "is empty",
    Operator.IS_NOT_EMPTY: "is not empty",
    Operator.IS_TRUE: "is true",
    Operator.IS_FALSE: "is false",
}
"""The operators of the specification in words, all of them."""

Rows = tuple[tuple[str, str, str], ...]
"""Attribute, operator and value as they were typed."""


def rows_of(fields: Mapping[str, Sequence[str]]) -> Rows:
    """The rows of a form or an address that name an attribute."""
    given = (fields.get(name, []) for name in ("where", "op", "value"))
    return tuple((slug, name, value) for slug, name, value in zip(*given, strict=False) if slug)


def refuse_unfinished(rows: Rows) -> None:
    """A condition without a value is not left out in silence: what it asks would be answered for everything. Raises BadRequest."""
    for slug, name, value in rows:
        if not value and name in OPERATORS and not needs_no_value(name):
            message = f"the filter on {slug!r} with {name} has no value; choose {OPERATORS[Operator.IS_EMPTY]!r} for what has none"
            raise BadRequest(f"{message}, or '–' to take it out", {"field": "value", "slug": slug})


def needs_no_value(name: str) -> bool:
    return any(name == operator and not operator.takes_value for operator in Operator)


def definitions_of(visit: Visit) -> list[dict[str, Any]]:
    """The rows of a form as entries of a definition."""
    return [
        {"attributeSlug": slug, "operator": name, "value": "true" if needs_no_value(name) else value}
        for slug, name, value in rows_of(visit.form)
    ]


def rows_from(definitions: Sequence[Mapping[str, Any]]) -> Rows:
    """Entries of a definition as rows."""
    return tuple(
        (str(each.get("attributeSlug", "")), str(each.get("operator", "")), str(each.get("value", "")) if _shows(each) else "")
        for each in definitions
    )


def in_words(definitions: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> list[str]:
    """Each condition as a sentence: `Status is new`."""
    return [f"{names.get(slug, slug)} {OPERATORS[Operator(name)]} {value}".rstrip() for slug, name, value in rows_from(definitions)]


def blamed(message: str, rows: Rows, names: Mapping[str, str]) -> str:
    """What the store says of a condition, in the words of the form."""
    for slug, name, _ in rows:
        if name in OPERATORS:
            message = message.replace(f"{slug!r} with {name}", f"{names.get(slug, slug)} ({OPERATORS[Operator(name)]})")
    return message


def _shows(definition: Mapping[str, Any]) -> bool:
    return not needs_no_value(str(definition.get("operator")))
