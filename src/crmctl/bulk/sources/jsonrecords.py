"""One JSON value to one row: what may be a record, and how a record as an export writes it becomes a flat one."""

from __future__ import annotations

from typing import Any

from crmctl.bulk.findings import Finding
from crmctl.bulk.sources.rows import Row
from crmctl.errors import json_words
from crmctl.models import jsontext

RESOURCE_FIELDS = frozenset({"id", "objectId", "data", "createdAt", "updatedAt"})
"""The fields of a record on the wire. An object of these only (and result columns, `_...`) carries its values under `data`."""

HEADER_SAMPLE = 1000
"""Records whose keys make the header of a JSON file."""


def row_of(read: Row, value: Any) -> Row:
    """A row of one parsed value; what is not an object of valid text is a row with a problem. `read` is what is known of it so far."""
    if not isinstance(value, dict):
        return problem_row(
            read, Finding("not_an_object", f"{_kind(value)} where a record was expected", hint="every record is a JSON object")
        )
    if "\\u" in read.raw and jsontext.holds_half(value):
        half = "half a character (a lone surrogate such as \\ud800)"
        return problem_row(read, Finding("invalid_text", half, hint="the file was cut or written wrongly"))
    return read._replace(value=_flat(value))


def problem_row(read: Row, problem: Finding) -> Row:
    return read._replace(problem=problem.at(read.ordinal, read.first_line, read.last_line))


def json_problem(error: Exception) -> Finding:
    """The finding for a text that is not one JSON value, or that names a key twice."""
    column = getattr(error, "colno", None)
    if column is None:
        twice = "twice" in str(error)
        return Finding("duplicate_key" if twice else "invalid_json", str(error), hint="keep one of them" if twice else None)
    words = json_words(getattr(error, "msg", ""))
    return Finding("invalid_json", f"not JSON: {words} at character {column}", hint="JSONL holds one whole object per line")


def header_of(rows: list[Row]) -> list[str]:
    """The keys of some rows, in order of first appearance."""
    seen: dict[str, None] = {}
    for row in rows:
        seen.update(dict.fromkeys(row.value or {}))
    return list(seen)


def _flat(value: dict[str, Any]) -> dict[str, Any]:
    data = value.get("data")
    if not isinstance(data, dict) or not all(key in RESOURCE_FIELDS or key.startswith("_") for key in value):
        return value
    fields = {key: field for key, field in value.items() if key != "data"}
    return value if fields.keys() & data.keys() else {**fields, **data}


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, str):
        return "a string"
    return "an array" if isinstance(value, list) else "a number"
