"""The resources on the wire (specification sections 2 to 4)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError

from crmctl.errors import ServiceError
from crmctl.models.jsontext import Json


def to_camel(name: str) -> str:
    """A field's name on the wire."""
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


class Resource(BaseModel):
    """A resource as the service sent it: typed fields for the code, `wire` for output, exactly as it came.

    Timestamps and UUIDs stay strings: crmctl shows what the service said and never reformats it.
    """

    model_config = ConfigDict(extra="ignore", alias_generator=to_camel, populate_by_name=True, defer_build=True)

    _wire: Json = PrivateAttr(default_factory=dict)

    @property
    def wire(self) -> Json:
        """The JSON object as received, with every field the service sent, in its order."""
        return self._wire

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Self:
        """Read one resource; an optional field of an unexpected type is treated as absent.

        Raises ServiceError when a required field (normally `id`) is missing or unusable.
        """
        try:
            resource = cls.model_validate(raw)
        except ValidationError as error:
            odd = {str(problem["loc"][0]) for problem in error.errors() if problem["loc"]}
            try:
                resource = cls.model_validate({key: value for key, value in raw.items() if key not in odd})
            except ValidationError:
                raise ServiceError(
                    f"the service sent a {cls.__name__.lower()} without a usable {', '.join(sorted(odd))}", code="unreadable_answer"
                ) from error
        resource._wire = dict(raw)
        return resource


class NamedResource(Resource):
    """Any resource, of which only id and name are read; `wire` has all of it."""

    id: str
    name: str | None = None


class Person(Resource):
    """Who created something: `{id, name, email}`."""

    id: str | None = None
    name: str | None = None
    email: str | None = None


class User(Person):
    image: str | None = None


class Member(Resource):
    id: str
    role: str | None = None
    created_at: str | None = None
    user: User | None = None


class LinkedRecord(Resource):
    object_id: str | None = None
    record_id: str | None = None


class Participant(Resource):
    """`type` is `user` (a member, by user id) or `person` (a record)."""

    type: str | None = None
    id: str | None = None


class Activity(Resource):
    id: str
    title: str | None = None
    summary: str | None = None
    activity_date: str | None = None
    linked_records: list[LinkedRecord] | None = None
    participants: list[Participant] | None = None
    created_by: Person | None = None
    created_at: str | None = None
    updated_at: str | None = None


class AttributeType(StrEnum):
    """The twelve attribute types of the specification."""

    TEXT = "text"
    EMAIL = "email"
    NUMBER = "number"
    PHONE_NUMBER = "phone_number"
    CHECKBOX = "checkbox"
    NAME = "name"
    ADDRESS = "address"
    CURRENCY = "currency"
    DATE = "date"
    SELECT = "select"
    LIST = "list"
    REFERENCE = "reference"


class Attribute(Resource):
    """`type` stays a string: a service may know more types than this specification."""

    id: str
    slug: str
    object_id: str | None = None
    name: str | None = None
    type: str | None = None
    is_required: bool | None = None
    is_unique: bool | None = None
    is_list: bool | None = None
    is_active: bool | None = None
    display_order: int | None = None
    config: Json | None = None
    created_at: str | None = None
    updated_at: str | None = None

    @property
    def options(self) -> list[str]:
        """The options of a select attribute, in the service's order; options given as objects count by their `value` or `name`."""
        options = (self.config or {}).get("options")
        if not isinstance(options, list):
            return []
        return [str(option.get("value", option.get("name", ""))) if isinstance(option, dict) else str(option) for option in options]

    @property
    def target_object_id(self) -> str | None:
        """The object a reference attribute points to."""
        target = (self.config or {}).get("allowed_object_id")
        return str(target) if target else None


class UploadUrl(Resource):
    """`signed_url` takes one PUT without the API key; `public_url` is where the file is then found."""

    signed_url: str
    public_url: str | None = None


class Object(Resource):
    id: str
    slug: str | None = None
    type: str | None = None
    plural_name: str | None = None
    singular_name: str | None = None
    description: str | None = None
    is_active: bool | None = None
    created_at: str | None = None
    updated_at: str | None = None

    @property
    def is_standard(self) -> bool:
        """Standard objects can be neither changed nor deleted."""
        return self.type == "standard"


BULK_LIMIT = 100
"""Most records, or ids, in one bulk request (specification section 8)."""

PAGE_LIMIT = 100
"""Largest page of any list (specification section 8)."""


class Record(Resource):
    id: str
    object_id: str | None = None
    data: Json = Field(default_factory=dict)
    created_at: str | None = None
    updated_at: str | None = None


class HistoryEntry(Resource):
    """One change of a record, as crmctl's own service tells it."""

    at: str
    type: str
    by: Json | None = None
    changes: list[Json] = Field(default_factory=list)


class Pagination(Resource):
    total: int | None = None
    limit: int | None = None
    offset: int | None = None


class BulkFailure(Resource):
    """One record that a bulk call refused: its zero-based index in the request and why."""

    index: int
    error: str = ""


class BulkResult(Resource):
    created: int = 0
    updated: int = 0
    failed: list[BulkFailure] = Field(default_factory=list)


class Report(Resource):
    id: str
    name: str | None = None
    description: str | None = None
    last_run_at: str | None = None
    created_at: str | None = None
    creator: Person | None = None


class ReportRun(Resource):
    """Results have no specified shape: read them from `wire`."""

    id: str
    status: str | None = None
    result_count: int | None = None
    started_at: str | None = None
    completed_at: str | None = None
    created_at: str | None = None
    error: str | None = None


EVENT_TYPES: dict[str, str] = {
    "record.created": "A record is created in any object",
    "record.updated": "A record is updated",
    "record.deleted": "A record is deleted",
    "activity.created": "An activity is created",
    "activity.updated": "An activity is updated",
    "activity.deleted": "An activity is deleted",
    "workflow.completed": "A workflow run completed successfully",
    "workflow.failed": "A workflow run failed",
}


class EventType(Resource):
    name: str
    description: str | None = None


class Webhooks(Resource):
    portal_url: str | None = None
    event_types: list[EventType] = Field(default_factory=list)


class WorkflowObject(Resource):
    id: str | None = None
    plural_name: str | None = None
    slug: str | None = None


class Workflow(Resource):
    id: str
    name: str | None = None
    description: str | None = None
    trigger: str | None = None
    enabled: bool | None = None
    created_at: str | None = None
    object: WorkflowObject | None = None
    created_by: Person | None = None


class WorkflowRun(Resource):
    id: str
    status: str | None = None
    title: str | None = None
    trigger_event: str | None = None
    error: str | None = None
    started_at: str | None = None
    completed_at: str | None = None
    created_at: str | None = None


class WorkflowStart(Resource):
    """The 202 answer of Run Workflow: it carries no run id."""

    message: str | None = None
    workflow_id: str | None = None
    workflow_name: str | None = None
