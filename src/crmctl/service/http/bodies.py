"""Request bodies and query parameters."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from crmctl.errors import reason
from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.models.resources import PAGE_LIMIT
from crmctl.service.faults import Body, check_shape
from crmctl.service.http.json_answers import bad_request
from crmctl.service.store.condition_sql import MAX_CONDITIONS, too_many_conditions
from crmctl.values.operators import Operator

DEEPEST = 64
"""Deepest nesting of a body: enough for any data, far below the limits of parsers."""


MOST_VALUES = 200_000
"""Most values of a body: a hundred records with all attributes that an object can have, several times."""

_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)

_SPACED = re.compile(rb"[ \t\r\n]:")
"""Blanks before a colon, which clients rarely write."""


def parse_json(raw: bytes) -> Any:
    """Parse a body. Raises a 400 for anything but UTF-8 JSON (NaN, duplicate keys, huge numbers, deep nesting), and for too many values."""
    if _has_too_many_values(raw):
        raise bad_request(f"the request body holds more than {MOST_VALUES:,} values")
    try:
        text = raw.decode("utf-8")
        document = jsontext.loads(text)
        # Each member has one colon after its name: with as many colons as members, no key is repeated.
        if raw.count(b'":') != _count_members(document) or _SPACED.search(raw):
            document = jsontext.loads(text, unique_keys=True)
    except RecursionError:
        raise bad_request(f"the request body is nested deeper than {DEEPEST} levels") from None
    except ValueError as error:
        raise bad_request(f"the request body is not JSON: {reason(error)}") from None
    return document


def _has_too_many_values(raw: bytes) -> bool:
    """Whether a body has too many values, decided before any of them takes memory. Most bodies have few separators, strings included."""
    return _count_separators(raw) > MOST_VALUES and _count_separators(_STRING.sub(b"", raw)) > MOST_VALUES


def _count_separators(raw: bytes) -> int:
    return raw.count(b",") + raw.count(b"[") + raw.count(b"{")


def _count_members(document: Any) -> int:
    """Return the number of members of all objects. Raises RecursionError for nesting deeper than DEEPEST."""
    members, level = 0, [document]
    for _ in range(DEEPEST):
        below: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                members += len(value)
                below += value.values()
            elif isinstance(value, list):
                below += value
        # A comprehension, because most values hold no others.
        level = [value for value in below if type(value) is dict or type(value) is list]
        if not level:
            return members
    raise RecursionError


def read_shape(model: type[Body], raw: bytes, *, optional: bool = False) -> Json:
    """Return the fields of a body, checked against `model`. Raises a 400 naming the first wrong field."""
    if optional and not raw.strip():
        return {}
    document = parse_json(raw)
    if not isinstance(document, dict):
        raise bad_request("the request body must be a JSON object")
    check_shape(model, document)
    return document


LARGEST_OFFSET = 2**53 - 1
MOST_FIELDS = 10_000
"""Most fields of a query string. Tighter limits, of conditions for example, apply first."""

_FILTER = re.compile(r"filter\[(.+)\]\[([^\[\]]*)\]", re.DOTALL)


UUID_PATTERN = "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"


@dataclass(frozen=True)
class Parameter:
    """A parameter of the query, whose `schema` is that of an integer, a choice, or the id of a resource."""

    name: str
    schema: Json
    description: str = ""

    def read(self, text: str) -> int | str:
        match self.schema:
            case {"minimum": smallest, "maximum": largest}:
                if not re.fullmatch(r"[+-]?[0-9]{1,20}", text, re.ASCII) or not smallest <= int(text) <= largest:
                    raise bad_request(f"{self.name} must be an integer from {smallest} to {largest}", field=self.name)
                return int(text)
            case {"enum": values}:
                if text not in values:
                    raise bad_request(f"{self.name} must be one of {', '.join(values)}", field=self.name)
                return text
        if not re.fullmatch(UUID_PATTERN, text):
            raise bad_request(f"{self.name} must be a UUID", field=self.name)
        return text.lower()


def integer(name: str, default: int, smallest: int, largest: int, description: str = "") -> Parameter:
    return Parameter(name, {"type": "integer", "minimum": smallest, "maximum": largest, "default": default}, description)


def choice(name: str, values: Sequence[str], description: str = "") -> Parameter:
    """Return a parameter with these values, the first by default."""
    return Parameter(name, {"type": "string", "enum": list(values), "default": values[0]}, description)


def identifier(name: str, description: str = "") -> Parameter:
    return Parameter(name, {"type": "string", "format": "uuid"}, description)


OPERATORS = tuple(str(operator) for operator in Operator)
SORT = choice("sort", ("created_at", "updated_at"), "The timestamp to sort by; equal ones keep the order of creation.")
ORDER = choice("order", ("desc", "asc"))
OFFSET = integer("offset", 0, 0, LARGEST_OFFSET, "How many to skip.")


def page_parameters(default_limit: int = 50) -> tuple[Parameter, Parameter]:
    return integer("limit", default_limit, 1, PAGE_LIMIT, "How many to return."), OFFSET


def read_query(query_string: bytes, parameters: Sequence[Parameter], filters: bool = False) -> Json:
    """Return every parameter with its value or default; with `filters`, also the list `filters` of a search body's form.

    Raises a 400 naming an unknown, repeated or wrong parameter: a misspelt filter must not select everything.
    """
    values: Json = {parameter.name: parameter.schema.get("default") for parameter in parameters}
    by_name = {parameter.name: parameter for parameter in parameters}
    conditions: list[dict[str, str]] = []
    seen: set[str] = set()
    for name, text in _pairs(query_string):
        if filters and name.startswith("filter"):
            conditions.append(_condition(name, text))
            continue
        if name not in by_name:
            raise bad_request(f"{name} is not a parameter of this request", field=name)
        if name in seen:
            raise bad_request(f"{name} is given twice", field=name)
        seen.add(name)
        values[name] = by_name[name].read(text)
    if len(conditions) > MAX_CONDITIONS:
        raise too_many_conditions(len(conditions))
    return values | {"filters": conditions} if filters else values


def _condition(name: str, value: str) -> dict[str, str]:
    match = _FILTER.fullmatch(name)
    if match is None:
        raise bad_request(f"{name} must have the form filter[<attribute slug>][<operator>]", field=name)
    slug, operator = match.groups()
    return {"attributeSlug": slug, "operator": operator, "value": value}


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


def document_parameters(parameters: Sequence[Parameter], filters: bool = False) -> list[Json]:
    documents = [
        {"name": parameter.name, "in": "query", "required": False, "description": parameter.description, "schema": parameter.schema}
        for parameter in parameters
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
