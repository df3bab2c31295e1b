"""Request bodies: bytes to checked JSON, and JSON to the shape an endpoint documents. What the values mean is the store's business."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from crmctl.models import jsontext
from crmctl.service.http.errors import bad_request

DEEPEST = 64
"""Levels of nesting a body may have: enough for any data, far from where parsers give up."""

_SAYINGS = {
    "missing": "is required",
    "extra_forbidden": "is not a field of this request",
    "string_type": "must be a string",
    "bool_type": "must be true or false",
    "int_type": "must be an integer",
    "dict_type": "must be an object",
    "list_type": "must be an array",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
}


def parse_json(raw: bytes) -> Any:
    """The body as JSON values.

    Raises a 400 for anything that is not UTF-8 JSON: NaN, duplicate keys, numbers beyond reason and absurd nesting included.
    """
    try:
        document = jsontext.loads(raw.decode("utf-8"), unique_keys=True)
        _check_depth(document, DEEPEST)
    except RecursionError:
        raise bad_request(f"the request body is nested deeper than {DEEPEST} levels") from None
    except ArithmeticError:
        raise bad_request("the request body holds a number beyond all reason") from None
    except ValueError as error:
        raise bad_request(f"the request body is not JSON: {error}") from None
    return document


def _check_depth(value: Any, depth: int) -> None:
    if not isinstance(value, dict | list):
        return
    if depth == 0:
        raise RecursionError
    for item in value.values() if isinstance(value, dict) else value:
        _check_depth(item, depth - 1)


class Body(BaseModel):
    """Base of the request bodies: unknown fields are refused, so that a misspelt one is never silently dropped."""

    model_config = ConfigDict(extra="forbid", strict=True, alias_generator=to_camel)


def shape(model: type[Body], raw: bytes, *, optional: bool = False) -> dict[str, Any]:
    """The fields that were sent, checked against `model`. Raises a 400 that names the first field at fault."""
    if optional and not raw.strip():
        return {}
    document = parse_json(raw)
    if not isinstance(document, dict):
        raise bad_request("the request body must be a JSON object")
    try:
        model.model_validate(document)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
        field = _path(problem["loc"])
        saying = _SAYINGS.get(problem["type"], problem["msg"][:1].lower() + problem["msg"][1:])
        raise bad_request(f"{field} {saying}", field=field) from None
    return document


def _path(location: tuple[int | str, ...]) -> str:
    """`("records", 3, "data")` as `records[3].data`."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
