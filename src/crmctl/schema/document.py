"""The file of a schema: objects and their attributes without ids, so that what one service has can be laid on another.

The names are the wire's own; only `config.allowed_object_id` becomes `config.allowed_object`, the slug of the object a reference points to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic.alias_generators import to_camel

from crmctl.errors import RejectedError, UsageError, reason
from crmctl.models import jsontext, yamltext
from crmctl.models.attributes import AttributeType

VERSION = 1
TARGET = "allowed_object"
"""In the file's `config` of a reference: the slug of the object it points to."""


_HINT = "crmctl schema pull -o yaml shows the form"


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True, strict=True)


class AttributeSpec(_Part):
    """One attribute as it should be. A flag that is left out is false."""

    slug: str = Field(min_length=1)
    name: str | None = None
    type: str
    is_required: bool = False
    is_unique: bool = False
    is_list: bool = False
    config: dict[str, Any] | None = None

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


class ObjectSpec(_Part):
    """One object as it should be. `type` is a note for the reader: a standard object is there or is not."""

    slug: str = Field(min_length=1)
    type: str | None = None
    singular_name: str | None = None
    plural_name: str | None = None
    description: str | None = None
    attributes: list[AttributeSpec] = []

    @field_validator("attributes")
    @classmethod
    def _once_each(cls, attributes: list[AttributeSpec]) -> list[AttributeSpec]:
        return _unique(attributes)


class SchemaDocument(_Part):
    version: int = VERSION
    objects: list[ObjectSpec]

    @field_validator("version")
    @classmethod
    def _known(cls, version: int) -> int:
        if version != VERSION:
            raise ValueError(f"this crmctl reads version {VERSION}")
        return version

    @field_validator("objects")
    @classmethod
    def _once_each(cls, objects: list[ObjectSpec]) -> list[ObjectSpec]:
        return _unique(objects)

    def wire(self) -> dict[str, Any]:
        """As it is written: every key that says something."""
        return self.model_dump(by_alias=True, exclude_none=True)


def _unique(parts: list[Any]) -> list[Any]:
    slugs = [part.slug for part in parts]
    if twice := sorted({slug for slug in slugs if slugs.count(slug) > 1}):
        raise ValueError(f"given twice: {', '.join(twice)}")
    return parts


def read_schema(content: bytes, name: str) -> SchemaDocument:
    """The document in a file's bytes, JSON or YAML. Raises UsageError when it is neither, RejectedError when it is no schema."""
    try:
        text = content.decode("utf-8-sig")
        value = jsontext.loads(text) if text.lstrip().startswith("{") else yamltext.loads(text)
    except ValueError as error:
        raise UsageError(f"{name} is neither JSON nor YAML: {reason(error)}", hint=_HINT) from error
    if not isinstance(value, Mapping):
        raise RejectedError(f"{name} holds no schema: it must be an object with `objects`", hint=_HINT)
    try:
        return SchemaDocument.model_validate(dict(value))
    except ValidationError as error:
        problems = [{"place": _place(value, one["loc"]), "problem": _said(one["type"], one["msg"])} for one in error.errors()]
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        said = f"{name}: {problems[0]['place']}: {problems[0]['problem']}{more}"
        raise RejectedError(said, hint=_HINT, code="invalid_schema", details=problems) from error


_PROBLEMS = {
    "missing": "is missing",
    "extra_forbidden": "is no key that belongs there",
    "string_type": "must be text",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "must be a whole number"),
    **dict.fromkeys(("dict_type", "model_type", "mapping_type", "model_attributes_type"), "must be an object"),
}


def _said(kind: str, text: str) -> str:
    return _PROBLEMS.get(kind) or text.removeprefix("Value error, ").replace("Input should be", "must be")


def _place(value: Any, path: Sequence[str | int]) -> str:
    """Where in the file, in the reader's words: objects.people.attributes.email.type, slugs instead of numbers where there are some."""
    words = []
    for step in path:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            value = None
        slug = value.get("slug") if isinstance(value, Mapping) and isinstance(step, int) else None
        words.append(slug if isinstance(slug, str) else str(step))
    return ".".join(words) or "the document"
