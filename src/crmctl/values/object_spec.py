"""The wanted state of an object and its attributes, as schema files and the service's definitions files hold it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from crmctl.models.jsontext import Json
from crmctl.models.resources import AttributeType

TARGET = "allowed_object"
"""In the file's `config` of a reference: the slug of the target object."""


class SpecPart(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True, strict=True)


def unique_slugs(parts: list[Any]) -> list[Any]:
    slugs = [part.slug for part in parts]
    if twice := sorted({slug for slug in slugs if slugs.count(slug) > 1}):
        raise ValueError(f"given twice: {', '.join(twice)}")
    return parts


class AttributeSpec(SpecPart):
    """The wanted state of one attribute. Missing flags are false."""

    slug: str = Field(min_length=1)
    name: str | None = None
    type: str
    is_required: bool = False
    is_unique: bool = False
    is_list: bool = False
    config: Json | None = None
    is_active: bool | None = None

    @model_validator(mode="after")
    def _has_its_config(self) -> AttributeSpec:
        config = self.config or {}
        if self.type == AttributeType.SELECT and not isinstance(config.get("options"), list):
            raise ValueError("a select needs config.options, a list")
        if self.type == AttributeType.REFERENCE and not isinstance(config.get(TARGET), str):
            raise ValueError(f"a reference needs config.{TARGET}, the slug of an object")
        return self

    @property
    def target(self) -> str | None:
        return (self.config or {}).get(TARGET)


class ObjectSpec(SpecPart):
    """The wanted state of one object. `type` is informative: standard objects cannot be created."""

    slug: str = Field(min_length=1)
    type: str | None = None
    singular_name: str | None = None
    plural_name: str | None = None
    description: str | None = None
    attributes: Annotated[list[AttributeSpec], AfterValidator(unique_slugs)] = []


_PROBLEMS = {
    "missing": "is missing",
    "extra_forbidden": "is no key that belongs there",
    "string_type": "must be text",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "too_short": "must not be empty",
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "must be a whole number"),
    **dict.fromkeys(("dict_type", "model_type", "mapping_type", "model_attributes_type"), "must be an object"),
}


def problems_of(error: ValidationError, value: Any) -> list[Json]:
    """Return place and problem of everything that is wrong with the value of a file."""
    problems = []
    for problem in error.errors():
        said = re.sub("^(Input|String|List) should", "must", problem["msg"].removeprefix("Value error, "))
        problems.append({"place": _place(value, problem["loc"]), "problem": _PROBLEMS.get(problem["type"]) or said})
    return problems


def _place(value: Any, path: Sequence[str | int]) -> str:
    """Return the place in the file for a message: objects.people.attributes.email.type, with slugs or names instead of numbers."""
    words = []
    for step in path:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            value = None
        name = value.get("slug", value.get("name")) if isinstance(value, Mapping) and isinstance(step, int) else None
        words.append(name if isinstance(name, str) else str(step))
    return ".".join(words) or "the document"
