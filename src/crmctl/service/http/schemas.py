"""Shapes of requests and answers, and reading bodies and query parameters. Requests are checked against the shapes; both are documented
by them."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Annotated, Any, Literal
from urllib.parse import parse_qsl

from pydantic import BeforeValidator, Field

from crmctl.errors import reason
from crmctl.frozen import frozen
from crmctl.models import jsontext, resources
from crmctl.models.jsontext import Json
from crmctl.models.resources import BULK_LIMIT, PAGE_LIMIT, AttributeType, Resource
from crmctl.service.faults import Body, check_shape
from crmctl.service.files.storage import BUCKET, MAX_PATH
from crmctl.service.http.json_answers import bad_request
from crmctl.service.store.activities import Links, Participants
from crmctl.service.store.condition_sql import MAX_CONDITIONS, ConditionDefinition, too_many_conditions
from crmctl.service.store.members import MEANINGS
from crmctl.service.store.objects import MAX_OPTIONS
from crmctl.service.store.record_tables import MAX_DESCRIPTION, MAX_NAME, MAX_SLUG
from crmctl.values.attribute_types import TYPES
from crmctl.values.operators import Operator

DEEPEST = 64
"""Deepest nesting of a body: enough for any data, far below the limits of parsers."""

MOST_VALUES = 200_000
"""Most values of a body: a hundred records with all attributes that an object can have, several times."""

_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)


def parse_json(raw: bytes) -> Any:
    """Parse a body. Raises a 400 for anything but UTF-8 JSON (NaN, duplicate keys, huge numbers, deep nesting), and for too many values."""
    # Before any value takes memory. Most bodies have few separators, strings included.
    if _count_separators(raw) > MOST_VALUES and _count_separators(_STRING.sub(b"", raw)) > MOST_VALUES:
        raise bad_request(f"the request body holds more than {MOST_VALUES:,} values")
    try:
        return jsontext.loads(raw.decode("utf-8-sig"), unique_keys=True, deepest=DEEPEST)
    except jsontext.TooDeepError:
        raise bad_request(f"the request body is nested deeper than {DEEPEST} levels") from None
    except ValueError as error:
        raise bad_request(f"the request body is not JSON: {reason(error)}") from None


def _count_separators(raw: bytes) -> int:
    return raw.count(b",") + raw.count(b"[") + raw.count(b"{")


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


@frozen
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


_VISIBLE = r"^[^\x00]*[^\s\x00-\x1f\x7f-\x9f][^\x00]*$"
"""At least one visible character, and no NUL."""

_ON_ONE_LINE = r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]*[^\s\x00-\x1f\x7f-\x9f][^\x00-\x1f\x7f-\x9f\u2028\u2029]*$"
"""At least one visible character, and no control characters."""


def _documented(**rules: Any) -> Any:
    """Return rules for the document alone: the store checks them with better messages."""
    return Field(json_schema_extra=rules)


Timestamp = Annotated[str, _documented(format="date-time")]
Name = Annotated[str, _documented(maxLength=MAX_NAME, pattern=_ON_ONE_LINE)]
Title = Annotated[str, _documented(maxLength=MAX_NAME, pattern=_VISIBLE)]
Slug = Annotated[str, _documented(maxLength=MAX_SLUG, pattern="^[a-z0-9][a-z0-9_-]*$")]
Description = Annotated[str, _documented(maxLength=MAX_DESCRIPTION, pattern=r"^[^\x00]*$")]


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
    shapes = {"int": _WHOLE, "bool": _FLAG, "Json": _DOCUMENT}
    return shapes.get(kind) or resource(getattr(resources, kind))


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


def _whole(number: Any) -> Any:
    """Return `5.0` as 5: JSON writes an integer in both ways."""
    return int(number) if isinstance(number, float) and number.is_integer() else number


Integer = Annotated[int, BeforeValidator(_whole)]


class RecordSearch(Body):
    filters: list[SearchFilter] = Field(default_factory=list, max_length=MAX_CONDITIONS)
    sort: SearchSort | None = None
    limit: Integer = Field(50, ge=1, le=PAGE_LIMIT)
    offset: Integer = Field(0, ge=0, le=LARGEST_OFFSET)


class BulkWrite(Body):
    mode: Literal["create", "upsert"] = "create"
    # Each item is `{data: object, id?: UUID}`; a malformed one fails alone, like one with a wrong value.
    records: list[Any] = Field(max_length=BULK_LIMIT, description="Items of the form {data: object, id?: UUID}; a wrong one fails alone.")


class BulkDelete(Body):
    ids: list[str] = Field(max_length=BULK_LIMIT)


class MemberUpdate(Body):
    role: Annotated[str, _documented(enum=[role.label for role in MEANINGS])]


class ActivityUpdate(Body):
    """Omitted fields keep their values; the defaults only make a field optional."""

    title: Title = Field(default_factory=str)
    summary: Description | None = None
    activity_date: Timestamp = Field(default_factory=str)
    linked_records: Links | None = None
    participants: Participants | None = None


class ActivityCreate(ActivityUpdate):
    """An activity without a date, or with null as its date, happens now."""

    title: Title
    activity_date: Timestamp | None = None  # type: ignore[assignment]


class WorkflowRunStart(Body):
    """`data` stands in for a record's data; a `recordId` in it makes the run about that record."""

    data: Json | None = None


class UploadRequest(Body):
    path: Annotated[str, _documented(minLength=1, maxLength=MAX_PATH)]
    bucket: Annotated[str, _documented(pattern=f"^{BUCKET}$")]
