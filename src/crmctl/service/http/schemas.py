"""The shapes of requests and answers at the service's edge. Requests are checked against them; answers are documented by them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from crmctl.models.attributes import AttributeType
from crmctl.models.records import BULK_LIMIT, PAGE_LIMIT
from crmctl.service.http.parameters import LARGEST_OFFSET, OPERATORS
from crmctl.service.shapes import Body
from crmctl.service.store.attributes import MAX_OPTIONS
from crmctl.service.store.checks import MAX_DESCRIPTION, MAX_NAME, MAX_SLUG
from crmctl.service.values.conditions import MAX_CONDITIONS

_VISIBLE = r"^[^\x00]*[^\s\x00-\x1f\x7f-\x9f][^\x00]*$"
"""Something to see, and no NUL."""


def _documented(**rules: Any) -> Any:
    """Rules that only the document shows: the store checks them, and says it in a better sentence."""
    return Field(json_schema_extra=rules)


Id = Annotated[str, _documented(format="uuid")]
Timestamp = Annotated[str, _documented(format="date-time")]
Name = Annotated[str, _documented(maxLength=MAX_NAME, pattern=_VISIBLE)]
Slug = Annotated[str, _documented(maxLength=MAX_SLUG, pattern="^[a-z0-9][a-z0-9_-]*$")]
Description = Annotated[str, _documented(maxLength=MAX_DESCRIPTION, pattern=r"^[^\x00]*$")]


def sometimes() -> Any:
    """A field of an answer that is left out where there is no value."""
    return Field(default_factory=lambda: None)


class Shape(BaseModel):
    """Base of the answers' shapes: camelCase on the wire."""

    model_config = ConfigDict(alias_generator=to_camel)


class ErrorBody(Shape):
    error: str
    message: str
    details: dict[str, Any] | None = None


class Object(Shape):
    id: Id
    type: Literal["standard", "custom"]
    plural_name: str
    singular_name: str
    description: str
    slug: str
    is_active: bool
    created_at: Timestamp
    updated_at: Timestamp


class Attribute(Shape):
    id: Id
    object_id: Id
    name: str
    slug: str
    type: AttributeType
    is_required: bool
    is_unique: bool
    is_list: bool
    is_active: bool
    display_order: int
    config: dict[str, Any] | None
    created_at: Timestamp
    updated_at: Timestamp


class ObjectWithAttributes(Object):
    attributes: list[Attribute]


class ObjectList(Shape):
    objects: list[Object]


class AttributeList(Shape):
    attributes: list[Attribute]


class Record(Shape):
    id: Id
    object_id: Id
    data: dict[str, Any]
    created_at: Timestamp
    updated_at: Timestamp


class Pagination(Shape):
    total: int
    limit: int
    offset: int


class RecordList(Shape):
    records: list[Record]
    pagination: Pagination


class BulkFailure(Shape):
    index: int
    error: str


class BulkResult(Shape):
    created: int
    updated: int
    failed: list[BulkFailure]


class Deleted(Shape):
    deleted: Literal[True]


class DeletedCount(Shape):
    deleted: int


class User(Shape):
    id: Id
    name: str
    email: str
    image: str = sometimes()


class Member(Shape):
    id: Id
    role: str
    created_at: Timestamp
    user: User


class MemberList(Shape):
    members: list[Member]


class Person(Shape):
    """Who made something."""

    id: Id
    name: str
    email: str


class NamedObject(Shape):
    id: Id
    plural_name: str
    slug: str


class ObjectCreate(Body):
    plural_name: Name
    singular_name: Name | None = None
    description: Description | None = None
    slug: Slug | None = None


class ObjectUpdate(Body):
    """What is left out stays; the defaults only make a field optional."""

    plural_name: Name = Field(default_factory=str)
    description: Description | None = None
    is_active: bool = Field(default_factory=bool)


_OPTIONS = {"type": "array", "minItems": 1, "maxItems": MAX_OPTIONS, "uniqueItems": True, "items": {"type": "string", "pattern": _VISIBLE}}
_CONFIGS: dict[str, dict[str, Any]] = {
    "select": {"options": _OPTIONS},
    "reference": {"allowed_object_id": {"type": "string", "format": "uuid"}},
}


def _configs_by_type(schema: dict[str, Any]) -> None:
    """Which config goes with which type; the store checks it."""
    schema["properties"]["type"]["enum"] = [str(one) for one in AttributeType]
    schema["allOf"] = [
        {
            "if": {"properties": {"type": {"const": kind}}},
            "then": {
                "required": ["config"],
                "properties": {"config": {"type": "object", "properties": config, "required": list(config), "additionalProperties": False}},
            },
        }
        for kind, config in _CONFIGS.items()
    ] + [
        {
            "if": {"properties": {"type": {"not": {"enum": list(_CONFIGS)}}}},
            "then": {"properties": {"config": {"type": ["object", "null"], "maxProperties": 0}}},
        }
    ]


class AttributeCreate(Body):
    model_config = ConfigDict(json_schema_extra=_configs_by_type)

    name: Name
    type: str
    slug: Slug | None = None
    is_required: bool = False
    is_unique: bool = False
    is_list: bool = False
    config: dict[str, Any] | None = None


class AttributeUpdate(Body):
    name: Name


class RecordWrite(Body):
    data: dict[str, Any]


class SearchFilter(Body):
    attribute_slug: Slug
    operator: Annotated[str, _documented(enum=list(OPERATORS))]
    value: str | bool | int | float = "true"


class SearchSort(Body):
    field: Literal["created_at", "updated_at"] = "created_at"
    order: Literal["asc", "desc"] = "desc"


class RecordSearch(Body):
    filters: list[SearchFilter] = Field(default_factory=list, max_length=MAX_CONDITIONS)
    sort: SearchSort | None = None
    limit: int = Field(50, ge=1, le=PAGE_LIMIT)
    offset: int = Field(0, ge=0, le=LARGEST_OFFSET)


class BulkWrite(Body):
    mode: Literal["create", "upsert"] = "create"
    # Each item `{data: object, id?: UUID}`; one of another shape fails alone, like one with a wrong value.
    records: list[Any] = Field(max_length=BULK_LIMIT, description="Items of the form {data: object, id?: UUID}; a wrong one fails alone.")


class BulkDelete(Body):
    ids: list[str] = Field(max_length=BULK_LIMIT)
