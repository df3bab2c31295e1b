"""Shapes of requests and answers. Requests are checked against them; both are documented by them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any, Literal

from pydantic import Field

from crmctl.models import resources
from crmctl.models.jsontext import Json
from crmctl.models.resources import BULK_LIMIT, PAGE_LIMIT, AttributeType, Resource
from crmctl.service.faults import Body
from crmctl.service.files.storage import BUCKET, MAX_PATH
from crmctl.service.http.bodies import LARGEST_OFFSET, OPERATORS
from crmctl.service.store.activities import MOST_LINKS
from crmctl.service.store.attributes import MAX_OPTIONS
from crmctl.service.store.condition_sql import MAX_CONDITIONS, ConditionDefinition
from crmctl.service.store.members import MEANINGS
from crmctl.service.store.record_tables import MAX_DESCRIPTION, MAX_NAME, MAX_SLUG
from crmctl.values.attribute_types import TYPES

_VISIBLE = r"^[^\x00]*[^\s\x00-\x1f\x7f-\x9f][^\x00]*$"
"""At least one visible character, and no NUL."""


def _documented(**rules: Any) -> Any:
    """Return rules for the document alone: the store checks them with better messages."""
    return Field(json_schema_extra=rules)


Id = Annotated[str, _documented(format="uuid")]
Timestamp = Annotated[str, _documented(format="date-time")]
Name = Annotated[str, _documented(maxLength=MAX_NAME, pattern=_VISIBLE)]
Slug = Annotated[str, _documented(maxLength=MAX_SLUG, pattern="^[a-z0-9][a-z0-9_-]*$")]
Description = Annotated[str, _documented(maxLength=MAX_DESCRIPTION, pattern=r"^[^\x00]*$")]


class ActivityLink(Body):
    object_id: Id
    record_id: Id


class ActivityParticipant(Body):
    type: Literal["user", "person"]
    id: Id


REFERENCE = "#/components/schemas/{model}"

SHAPES: dict[str, Json] = {}
"""The shapes of answers by name, as JSON schemas."""

_TEXT, _WHOLE, _FLAG, _DOCUMENT = ({"type": kind} for kind in ("string", "integer", "boolean", "object"))
_ID, _TIME, _URL = ({"type": "string", "format": form} for form in ("uuid", "date-time", "uri"))
_FORMATS = {"id": _ID, "Id": _ID, "at": _TIME, "At": _TIME, "activityDate": _TIME, "Url": _URL}
"""Schemas of texts, by the end of the field's name."""

_SOMETIMES = {"lastRunAt", "knownSince", "image", "details", "object", "cron", "timezone"}
"""Fields that an answer leaves out if they have no value."""


def shape(name: str, optional: Collection[str] = (), /, **fields: Json) -> Json:
    """Name a shape of answers, and return a reference to it."""
    required = [field for field in fields if field not in _SOMETIMES and field not in optional]
    SHAPES[name] = {"title": name, "type": "object", "properties": fields, "required": required}
    return {"$ref": REFERENCE.format(model=name)}


def resource(kind: type[Resource], optional: Collection[str] = (), *, name: str = "", **others: Json | None) -> Json:
    """Return the reference to the shape of a resource, of which `others` replace fields, add some, or leave them out (None)."""
    annotated = {field: text for base in reversed(kind.__mro__[:-2]) for field, text in vars(base)["__annotations__"].items()}
    fields = {resources.to_camel(field): text for field, text in annotated.items()}
    read = {field: others.get(field) or _field(field, text.removesuffix(" | None")) for field, text in fields.items()}
    return shape(name or kind.__name__, optional, **{field: schema for field, schema in (read | others).items() if schema is not None})


def _field(name: str, kind: str) -> Json:
    if kind.startswith("list["):
        return _list(_field("", kind[5:-1]))
    if kind == "str":
        return next((form for end, form in _FORMATS.items() if name.endswith(end)), _TEXT)
    known = {"int": _WHOLE, "bool": _FLAG, "Json": _DOCUMENT}
    return known.get(kind) or resource(getattr(resources, kind))


def _list(item: Json) -> Json:
    return {"type": "array", "items": item}


def _nullable(schema: Json) -> Json:
    return {"anyOf": [schema, {"type": "null"}]}


def _one_of(*values: str) -> Json:
    return {"type": "string", "enum": list(values)}


def listed(name: str, **fields: Json) -> Json:
    """Return the reference to the shape of a list: one field with the items."""
    return shape(name, **{field: _list(item) for field, item in fields.items()})


ERROR = shape("ErrorBody", error=_TEXT, message=_TEXT, details=_DOCUMENT)
_DELETED: Json = {"type": "boolean", "const": True}
DELETED = shape("Deleted", deleted=_DELETED)
DELETED_COUNT = shape("DeletedCount", deleted=_WHOLE)
OBJECT = resource(resources.Object, type=_one_of("standard", "custom"))
ATTRIBUTE = resource(resources.Attribute, type=_one_of(*AttributeType), config=_nullable(_DOCUMENT))
OBJECT_WITH_ATTRIBUTES = shape("ObjectWithAttributes", **SHAPES["Object"]["properties"], attributes=_list(ATTRIBUTE))
RECORD = resource(resources.Record)
PAGINATION = resource(resources.Pagination)
RECORDS = shape("RecordList", records=_list(RECORD), pagination=PAGINATION)
BULK_RESULT = resource(resources.BulkResult)
MEMBER = resource(resources.Member)
REMOVED_MEMBER = shape("RemovedMember", deleted=_DELETED, keys=_list(shape("NamedKey", id=_ID, name=_TEXT)))
ACTIVITY = resource(resources.Activity)
REPORT = resource(resources.Report)
NAMED_OBJECT = resource(resources.WorkflowObject, name="NamedObject")
REPORT_WITH_DEFINITION = resource(resources.Report, name="ReportWithDefinition", object=NAMED_OBJECT, definition=_DOCUMENT)
_ENDED = _one_of("completed", "failed")
REPORT_RUN = resource(resources.ReportRun, {"error"}, createdAt=None, status=_ENDED)
_RESULTS = {"truncated": _FLAG, "columns": _list(_TEXT), "results": _list(_DOCUMENT)}
REPORT_RUN_WITH_RESULTS = resource(resources.ReportRun, {"error"}, createdAt=None, name="ReportRunWithResults", status=_ENDED, **_RESULTS)
STARTED_REPORT_RUN = shape("StartedReportRun", run=REPORT_RUN)
WORKFLOW = resource(resources.Workflow, object=NAMED_OBJECT)
_PLAN = {"conditions": _list(_DOCUMENT), "actions": _list(_DOCUMENT), "cron": _TEXT, "timezone": _TEXT}
WORKFLOW_WITH_DEFINITION = resource(resources.Workflow, name="WorkflowWithDefinition", object=NAMED_OBJECT, **_PLAN)
WORKFLOW_RUN = resource(
    resources.WorkflowRun,
    {"startedAt", "completedAt"},
    status=_one_of("pending", "running", "completed", "failed", "skipped"),
    error=_nullable(_TEXT),
)
WORKFLOW_START = resource(resources.WorkflowStart, name="WorkflowRunStarted")
_ACTOR = shape("Actor", {"id", "name"}, type=_one_of("key", "member", "workflow", "operator"), id=_ID, name=_TEXT)
_CHANGES = _list(shape("HistoryValue", attributeSlug=_TEXT, old={}, new={}))
_CHANGE = resource(
    resources.HistoryEntry,
    name="Change",
    type=_one_of("record.created", "record.updated", "record.deleted"),
    by=_nullable(_ACTOR),
    changes=_CHANGES,
)
HISTORY = shape("RecordHistory", changes=_list(_CHANGE), pagination=PAGINATION, knownSince=_TIME)
_TRUST = {"name": _TEXT, "issuer": _TEXT, "claims": _DOCUMENT, "scopes": _list(_TEXT), "ttl": _WHOLE, "development": _FLAG}
TRUST = shape("Trust", id=_ID, **_TRUST, createdAt=_TIME)
EXTENSIONS = resource(resources.Extensions)
_SECTIONS = {name: _list(_DOCUMENT) for name in ("members", "objects", "reports", "workflows", "webhooks")}
DEFINITIONS = shape("Definitions", set(_SECTIONS), version=_WHOLE, **_SECTIONS)
DEFINED = shape("DefinitionCounts", **dict.fromkeys((*_SECTIONS, "attributes"), _DOCUMENT))
STORED_FILE = resource(resources.StoredFile)
REPLAY = resource(resources.Replay)
UPLOAD_URL = resource(resources.UploadUrl)
WEBHOOKS = resource(resources.Webhooks)


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


_CONFIG = "Of a select `{options: [text, ...]}`, of a reference `{allowed_object_id: id}`; other types have none."


class AttributeCreate(Body):
    name: Name
    type: Annotated[str, _documented(enum=list(TYPES))]
    slug: Slug | None = None
    is_required: bool = False
    is_unique: bool = False
    is_list: bool = False
    config: Annotated[Json | None, Field(description=_CONFIG)] = None


class AttributeUpdate(Body):
    name: Name


class OptionsEdit(Body):
    """`rename` maps old names to new ones; records with an option that `retire` names keep it, and it takes no new ones."""

    add: list[Name] = Field(default_factory=list, max_length=MAX_OPTIONS)
    rename: dict[str, Name] = Field(default_factory=dict, max_length=MAX_OPTIONS)
    retire: list[str] = Field(default_factory=list, max_length=MAX_OPTIONS)


class RecordWrite(Body):
    data: Json


class SearchFilter(ConditionDefinition):
    attribute_slug: Slug
    operator: Annotated[str, _documented(enum=list(OPERATORS))]


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
    linked_records: Annotated[list[ActivityLink], Field(max_length=MOST_LINKS)] | None = None
    participants: Annotated[list[ActivityParticipant], Field(max_length=MOST_LINKS)] | None = None


class ActivityCreate(ActivityUpdate):
    title: Name


class WorkflowRunStart(Body):
    """`data` stands in for a record's data; a `recordId` in it makes the run about that record."""

    data: Json | None = None


class UploadRequest(Body):
    path: Annotated[str, _documented(minLength=1, maxLength=MAX_PATH)]
    bucket: Annotated[str, _documented(pattern=f"^{BUCKET}$")]
