"""Checks the shape of a document from outside (a request body, a definitions file) and says in one sentence what is wrong where."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from crmctl.service.faults import BadRequest

_SAYINGS = {
    "missing": "is required",
    "extra_forbidden": "is not a field that is known here",
    "string_type": "must be a string",
    "bool_type": "must be true or false",
    "int_type": "must be an integer",
    "dict_type": "must be an object",
    "list_type": "must be an array",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
}


class Body(BaseModel):
    """Base of the shapes: unknown fields are refused, so that a misspelt one is never silently dropped; camelCase outside."""

    model_config = ConfigDict(extra="forbid", strict=True, alias_generator=to_camel)


def check_shape(model: type[Body], document: Any) -> Body:
    """The document as `model`. Raises BadRequest that names the first field at fault."""
    try:
        return model.model_validate(document)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
        field = _path(problem["loc"])
        saying = _SAYINGS.get(problem["type"], problem["msg"][:1].lower() + problem["msg"][1:])
        raise BadRequest(f"{field} {saying}", {"field": field}) from None


def _path(location: tuple[int | str, ...]) -> str:
    """`("records", 3, "data")` as `records[3].data`."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
