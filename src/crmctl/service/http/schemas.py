"""Shapes of requests and answers. Requests are checked against them; both are documented by them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.alias_generators import to_camel

from crmctl.models.jsontext import Json
from crmctl.models.resources import BULK_LIMIT, PAGE_LIMIT, AttributeType
from crmctl.service.conditions import MAX_CONDITIONS
from crmctl.service.faults import Body
from crmctl.service.files.storage import BUCKET, MAX_PATH
from crmctl.service.http.bodies import LARGEST_OFFSET, OPERATORS
from crmctl.service.roles import MEANINGS
from crmctl.service.store.activities import MOST_LINKS
from crmctl.service.store.attributes import MAX_OPTIONS
from crmctl.service.store.record_tables import MAX_DESCRIPTION, MAX_NAME, MAX_SLUG
from crmctl.values.attribute_types import TYPES

_VISIBLE = r"^[^\x00]*[^\s\x00-\x1f\x7f-\x9f][^\x00]*$"
"""At least one visible character, and no NUL."""


def _documented(**rules: Any) -> Any:
    """Return rules for the document alone: the store checks them with better messages."""
    return Field(json_schema_extra=rules)


Id = Annotated[str, _documented(format="uuid")]
Timestamp = Annotated[str, _documented(format="date-time")]
Url = Annotated[str, _documented(format="uri")]
Name = Annotated[str, _documented(maxLength=MAX_NAME, pattern=_VISIBLE)]
Slug = Annotated[str, _documented(maxLength=MAX_SLUG, pattern="^[a-z0-9][a-z0-9_-]*$")]
Description = Annotated[str, _documented(maxLength=MAX_DESCRIPTION, pattern=r"^[^\x00]*$")]


def sometimes() -> Any:
    """Return a field that an answer leaves out if it has no value."""
    return Field(default_factory=lambda: None)


class Shape(BaseModel):
    """Base of the answers: camelCase on the wire."""

    model_config = ConfigDict(alias_generator=to_camel, defer_build=True)


def listed(name: str, **item: type[Shape]) -> type[Shape]:
    """Return the shape of a list: one field with the items."""
    [(field, of)] = item.items()
    return create_model(name, __base__=Shape, **{field: (list[of], ...)})  # type: ignore[call-overload, no-any-return, valid-type]


class ErrorBody(Shape):
    error: str
    message: str
    details: Json | None = None


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
    config: Json | None
    created_at: Timestamp
    updated_at: Timestamp


class ObjectWithAttributes(Object):
    attributes: list[Attribute]


ObjectList = listed("ObjectList", objects=Object)


AttributeList = listed("AttributeList", attributes=Attribute)


class Record(Shape):
    id: Id
    object_id: Id
    data: Json
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


MemberList = listed("MemberList", members=Member)


class NamedKey(Shape):
    id: Id
    name: str


class RemovedMember(Deleted):
    keys: list[NamedKey]


class Person(Shape):
    """The author of something."""

    id: Id
    name: str
    email: str


class NamedObject(Shape):
    id: Id
    plural_name: str
    slug: str


class LinkedRecord(Body):
    object_id: Id
    record_id: Id


class Participant(Body):
    type: Literal["user", "person"]
    id: Id


class Activity(Shape):
    id: Id
    title: str
    summary: str
    activity_date: Timestamp
    linked_records: list[LinkedRecord]
    participants: list[Participant]
    created_by: Person
    created_at: Timestamp
    updated_at: Timestamp


ActivityList = listed("ActivityList", activities=Activity)


class Report(Shape):
    id: Id
    name: str
    description: str
    last_run_at: Timestamp = sometimes()
    created_at: Timestamp
    creator: Person


class ReportWithDefinition(Report):
    object: NamedObject = sometimes()
    definition: Json


ReportList = listed("ReportList", reports=Report)


class ReportRun(Shape):
    """`error` is there when the run failed."""

    id: Id
    status: Literal["completed", "failed"]
    result_count: int
    started_at: Timestamp
    completed_at: Timestamp
    error: str = sometimes()


class StartedReportRun(Shape):
    run: ReportRun


ReportRunList = listed("ReportRunList", runs=ReportRun)


class ReportRunWithResults(ReportRun):
    """`truncated`: there were more results than the limit of the report."""

    truncated: bool
    columns: list[str]
    results: list[Json]


class Workflow(Shape):
    id: Id
    name: str
    description: str
    trigger: str
    enabled: bool
    created_at: Timestamp
    object: NamedObject = sometimes()
    created_by: Person


class WorkflowWithDefinition(Workflow):
    """`cron` and `timezone` are there when the trigger is a schedule."""

    conditions: list[Json]
    actions: list[Json]
    cron: str = sometimes()
    timezone: str = sometimes()


WorkflowList = listed("WorkflowList", workflows=Workflow)


class WorkflowRunStarted(Shape):
    message: str
    workflow_id: Id
    workflow_name: str


class WorkflowRun(Shape):
    id: Id
    status: Literal["pending", "running", "completed", "failed", "skipped"]
    title: str
    trigger_event: str
    error: str | None
    started_at: Timestamp = sometimes()
    completed_at: Timestamp = sometimes()
    created_at: Timestamp


WorkflowRunList = listed("WorkflowRunList", runs=WorkflowRun)


class Actor(Shape):
    type: Literal["key", "member", "workflow", "operator"]
    id: Id = sometimes()
    name: str = sometimes()


class HistoryValue(Shape):
    attribute_slug: str
    old: Any
    new: Any


class Change(Shape):
    at: Timestamp
    type: Literal["record.created", "record.updated", "record.deleted"]
    by: Actor | None
    changes: list[HistoryValue]


class RecordHistory(Shape):
    changes: list[Change]
    pagination: Pagination
    known_since: Timestamp = sometimes()


class Extensions(Shape):
    extensions: list[str]
    console_url: Url


class StoredFile(Shape):
    bucket: str
    path: str
    content_type: str
    size: int
    uploaded_at: Timestamp
    public_url: Url


class Replay(Shape):
    delivery_id: Id
    is_new: bool


class UploadUrl(Shape):
    signed_url: Url
    public_url: Url


class EventType(Shape):
    name: str
    description: str


class Webhooks(Shape):
    portal_url: Url
    event_types: list[EventType]


class ObjectCreate(Body):
    plural_name: Name
    singular_name: Name | None = None
    description: Description | None = None
    slug: Slug | None = None


class ObjectUpdate(Body):
    """Omitted fields keep their values; the defaults only make a field optional."""

    plural_name: Name = Field(default_factory=str)
    description: Description | None = None
    is_active: bool = Field(default_factory=bool)


_OPTIONS = {"type": "array", "minItems": 1, "maxItems": MAX_OPTIONS, "uniqueItems": True, "items": {"type": "string", "pattern": _VISIBLE}}
_CONFIGS: dict[str, Json] = {
    "select": {"options": _OPTIONS},
    "reference": {"allowed_object_id": {"type": "string", "format": "uuid"}},
}


def _configs_by_type(schema: Json) -> None:
    """Document which config belongs to which type; the store checks it."""
    schema["properties"]["type"]["enum"] = list(TYPES)
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
    config: Json | None = None


class AttributeUpdate(Body):
    name: Name


class OptionsEdit(Body):
    """`rename` maps old names to new ones; records with an option that `retire` names keep it, and it takes no new ones."""

    add: list[Name] = Field(default_factory=list, max_length=MAX_OPTIONS)
    rename: dict[str, Name] = Field(default_factory=dict, max_length=MAX_OPTIONS)
    retire: list[str] = Field(default_factory=list, max_length=MAX_OPTIONS)


class RecordWrite(Body):
    data: Json


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
    # Each item is `{data: object, id?: UUID}`; a malformed one fails alone, like one with a wrong value.
    records: list[Any] = Field(max_length=BULK_LIMIT, description="Items of the form {data: object, id?: UUID}; a wrong one fails alone.")


class BulkDelete(Body):
    ids: list[str] = Field(max_length=BULK_LIMIT)


class MemberUpdate(Body):
    role: Annotated[str, _documented(enum=[role.label for role in MEANINGS])]


class ActivityUpdate(Body):
    title: Name = Field(default_factory=str)
    summary: Description | None = None
    activity_date: Timestamp | None = None
    linked_records: Annotated[list[LinkedRecord], Field(max_length=MOST_LINKS)] | None = None
    participants: Annotated[list[Participant], Field(max_length=MOST_LINKS)] | None = None


class ActivityCreate(ActivityUpdate):
    title: Name


class WorkflowRunStart(Body):
    """`data` stands in for a record's data; a `recordId` in it makes the run about that record."""

    data: Json | None = None


class UploadRequest(Body):
    path: Annotated[str, _documented(minLength=1, maxLength=MAX_PATH)]
    bucket: Annotated[str, _documented(pattern=f"^{BUCKET}$")]
