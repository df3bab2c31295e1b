"""Query parameters: one table per list says what is allowed, reads a query string and documents itself in the OpenAPI."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from crmctl.errors import reason
from crmctl.models.filters import Operator
from crmctl.models.records import PAGE_LIMIT
from crmctl.service.http.errors import bad_request
from crmctl.service.values.conditions import MAX_CONDITIONS, too_many_conditions

LARGEST_OFFSET = 2**53 - 1
MOST_FIELDS = 10_000
"""Of a query string; what is over a limit that means something is refused by that one."""

_FILTER = re.compile(r"filter\[(.+)\]\[([^\[\]]*)\]", re.DOTALL)


@dataclass(frozen=True)
class Integer:
    """A whole number within bounds."""

    name: str
    default: int
    smallest: int
    largest: int
    description: str = ""

    def read(self, text: str) -> int:
        if not re.fullmatch(r"[+-]?[0-9]{1,20}", text, re.ASCII) or not self.smallest <= int(text) <= self.largest:
            raise bad_request(f"{self.name} must be an integer from {self.smallest} to {self.largest}", field=self.name)
        return int(text)

    def schema(self) -> dict[str, Any]:
        return {"type": "integer", "minimum": self.smallest, "maximum": self.largest, "default": self.default}


@dataclass(frozen=True)
class Choice:
    """One of a few words."""

    name: str
    default: str
    values: tuple[str, ...]
    description: str = ""

    def read(self, text: str) -> str:
        if text not in self.values:
            raise bad_request(f"{self.name} must be one of {', '.join(self.values)}", field=self.name)
        return text

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "enum": list(self.values), "default": self.default}


@dataclass(frozen=True)
class Identifier:
    """The id of a resource; None when it is not given."""

    name: str
    description: str = ""
    default: None = None

    def read(self, text: str) -> str:
        if not re.fullmatch(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", text):
            raise bad_request(f"{self.name} must be a UUID", field=self.name)
        return text.lower()

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "format": "uuid"}


@dataclass(frozen=True)
class Filters:
    """The `filter[<slug>][<operator>]` parameters of List Records, as entries of a search body's `filters`."""

    name: str = "filter"

    def take(self, name: str, value: str) -> dict[str, str] | None:
        """The condition that one parameter stands for; None when it is not a filter at all."""
        if not name.startswith("filter"):
            return None
        match = _FILTER.fullmatch(name)
        if match is None:
            raise bad_request(f"{name} must have the form filter[<attribute slug>][<operator>]", field=name)
        slug, operator = match.groups()
        return {"attributeSlug": slug, "operator": operator, "value": value}


Parameter = Integer | Choice | Identifier
OPERATORS = tuple(str(operator) for operator in Operator)
SORT = Choice("sort", "created_at", ("created_at", "updated_at"), "The timestamp to sort by; equal ones keep the order of creation.")
ORDER = Choice("order", "desc", ("asc", "desc"))
OFFSET = Integer("offset", 0, 0, LARGEST_OFFSET, "How many to skip.")


def page_parameters(default_limit: int = 50) -> tuple[Integer, Integer]:
    return Integer("limit", default_limit, 1, PAGE_LIMIT, "How many to return."), OFFSET


def read_query(query_string: bytes, parameters: Sequence[Parameter], filters: Filters | None = None) -> dict[str, Any]:
    """Every parameter with its value or default; with `filters`, also `filters` as a list.

    Raises a 400 naming the parameter for an unknown, repeated or bad one: a misspelt filter must not silently select everything.
    """
    values: dict[str, Any] = {parameter.name: parameter.default for parameter in parameters}
    known = {parameter.name: parameter for parameter in parameters}
    conditions: list[dict[str, str]] = []
    seen: set[str] = set()
    for name, text in _pairs(query_string):
        condition = filters.take(name, text) if filters else None
        if condition is not None:
            conditions.append(condition)
            continue
        if name not in known:
            raise bad_request(f"{name} is not a parameter of this request", field=name)
        if name in seen:
            raise bad_request(f"{name} is given twice", field=name)
        seen.add(name)
        values[name] = known[name].read(text)
    if len(conditions) > MAX_CONDITIONS:
        raise too_many_conditions(len(conditions))
    return values | {"filters": conditions} if filters else values


def _pairs(query_string: bytes) -> list[tuple[str, str]]:
    try:
        pairs = parse_qsl(
            query_string.decode("ascii"), keep_blank_values=True, encoding="utf-8", errors="strict", max_num_fields=MOST_FIELDS
        )
        if any("\0" in name or "\0" in text for name, text in pairs):
            raise ValueError("a NUL character is not allowed")
    except ValueError as error:
        raise bad_request(f"the query string cannot be read: {reason(error)}") from None
    return pairs


def document_parameters(parameters: Sequence[Parameter], filters: Filters | None = None) -> list[dict[str, Any]]:
    """The parameters as OpenAPI knows them."""
    documents = [
        {"name": one.name, "in": "query", "required": False, "description": one.description, "schema": one.schema()} for one in parameters
    ]
    if filters:
        documents.append(
            {
                "name": "filter",
                "in": "query",
                "required": False,
                "style": "deepObject",
                "explode": True,
                "description": "Conditions as `filter[<attribute slug>][<operator>]=value`, all of which must hold. "
                f"Operators: {', '.join(OPERATORS)}; the value of the last four is `true`.",
                "schema": {"type": "object", "maxProperties": 0},
            }
        )
    return documents
