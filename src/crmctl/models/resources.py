"""The resources on the wire (specification sections 2 to 4)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from enum import StrEnum
from pathlib import PurePath
from typing import Any, ClassVar, NamedTuple, Self, dataclass_transform

from crmctl.errors import ServiceError
from crmctl.models.jsontext import Json


def to_camel(name: str) -> str:
    """A field's name on the wire."""
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


def document_of(result: object, names: str, **others: Any) -> dict[str, Any]:
    """Return the JSON form of attributes in the order of their names, which become camel case. `others` are values by such a name."""
    document: dict[str, Any] = {}
    for name in names.split():
        camel = to_camel(name)
        value = others[camel] if camel in others else getattr(result, name)
        document[camel] = str(value) if isinstance(value, PurePath) else list(value) if isinstance(value, tuple) else value
    return document


class _Unusable(ValueError):
    """A value that does not fit its field."""


Reader = Callable[[Any], Any]


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _Unusable
    return value


def _integer(value: Any) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        raise _Unusable from None
    if not isinstance(value, int | float | Decimal | str) or (not isinstance(value, str) and number != value):
        raise _Unusable
    return number


_TRUTH = dict.fromkeys(("true", "1", "yes", "y", "t", "on"), True) | dict.fromkeys(("false", "0", "no", "n", "f", "off"), False)


def _truth(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if (truth := _TRUTH.get(str(value).lower())) is None:
        raise _Unusable
    return truth


def _document(value: Any) -> Json:
    if not isinstance(value, Mapping):
        raise _Unusable
    return dict(value)


def _list_of(read: Reader) -> Reader:
    def read_all(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise _Unusable
        return [read(item) for item in value]

    return read_all


class _WireField(NamedTuple):
    """`default` is a value, or a type to call for lists and documents; `required` fields have none."""

    name: str
    wire: str
    read: Reader
    is_optional: bool
    required: bool
    default: Any


_READERS: dict[str, Reader] = {
    "str": _text,
    "int": _integer,
    "bool": _truth,
    "Json": _document,
    "list[Json]": _list_of(_document),
    "list[str]": _list_of(_text),
}
_MISSING = object()


def _new(kind: type) -> Any:
    """Mark a field whose default is a new list or document."""
    return kind


@dataclass_transform(kw_only_default=True)
class Resource:  # noqa: PLW1641 - values may be lists, so it has no hash
    """A resource as the service sent it: typed fields for the code, `wire` for output, exactly as it came.

    Timestamps and UUIDs stay strings: crmctl shows what the service said and never reformats it. Annotations without a default are
    required. Reading a service's answer loads no other library.
    """

    _table: ClassVar[tuple[_WireField, ...] | None] = None

    def __init_subclass__(cls) -> None:
        cls._table = None

    def __init__(self, **values: Any) -> None:
        slots = self.__dict__
        for field in self.fields():
            slots[field.name] = field.default() if isinstance(field.default, type) else field.default
        slots.update(values)
        self._wire: Json = {}

    @property
    def wire(self) -> Json:
        """The JSON object as received, with every field the service sent, in its order."""
        return self._wire

    @classmethod
    def fields(cls) -> tuple[_WireField, ...]:
        """Return the fields, found once for each class."""
        if cls._table is None:
            annotated = {name: kind for base in reversed(cls.__mro__) for name, kind in vars(base).get("__annotations__", {}).items()}
            cls._table = tuple(_field(cls, name, kind) for name, kind in annotated.items() if not kind.startswith("ClassVar"))
        return cls._table

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Self:
        """Read one resource; an optional field of an unexpected type is treated as absent.

        Raises ServiceError when a required field (normally `id`) is missing or unusable.
        """
        resource = cls.__new__(cls)
        resource._fill(raw, strict=False)
        return resource

    @classmethod
    def read_inner(cls, raw: Any) -> Self:
        """Read a resource inside another. Raises ValueError unless every field fits."""
        if not isinstance(raw, Mapping):
            raise _Unusable
        resource = cls.__new__(cls)
        resource._fill(raw, strict=True)
        return resource

    def _fill(self, raw: Mapping[str, Any], *, strict: bool) -> None:
        slots = self.__dict__
        odd = []
        for name, wire, read, is_optional, required, default in self.fields():
            value = raw[wire] if wire in raw else raw.get(name, _MISSING)
            if value is None and is_optional:
                slots[name] = None
                continue
            if value is not _MISSING:
                try:
                    slots[name] = read(value)
                    continue
                except _Unusable:
                    if strict:
                        raise
            if required:
                odd.append(wire)
            slots[name] = default() if isinstance(default, type) else default
        if odd and strict:
            raise _Unusable
        if odd:
            kind = re.sub("(?=[A-Z])", " ", type(self).__name__).strip().lower()
            message = f"the service sent {'an' if kind[0] in 'aeiou' else 'a'} {kind} without a usable {', '.join(sorted(odd))}"
            raise ServiceError(message, code="unreadable_answer")
        self._wire = dict(raw)

    def with_changes(self, **values: Any) -> Self:
        """Return a copy with other values."""
        changed = type(self).__new__(type(self))
        changed.__dict__.update(self.__dict__, **values)
        return changed

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    def __repr__(self) -> str:
        shown = ", ".join(f"{field.name}={self.__dict__[field.name]!r}" for field in self.fields())
        return f"{type(self).__name__}({shown})"


def _field(cls: type[Resource], name: str, kind: str) -> _WireField:
    """Return a field from its annotation: a type of `_READERS`, a resource, or a list of one, each perhaps `| None`."""
    plain = kind.removesuffix(" | None")
    read = _READERS.get(plain)
    if read is None:
        inner: type[Resource] = globals()[plain.removeprefix("list[").removesuffix("]")]
        read = _list_of(inner.read_inner) if plain.startswith("list[") else inner.read_inner
    default = getattr(cls, name, _MISSING)
    return _WireField(name, to_camel(name), read, kind != plain, default is _MISSING, None if default is _MISSING else default)


class Item(Resource):
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
    def holds_items(self) -> bool:
        """Whether values are lists of items."""
        return bool(self.is_list) or self.type == AttributeType.LIST

    @property
    def options(self) -> list[str]:
        """The options of a select attribute, in the service's order; options given as objects count by their `value`, `name` or `label`."""
        options = (self.config or {}).get("options")
        if not isinstance(options, list):
            return []
        keys = ("value", "name", "label")
        return [str(next((option[key] for key in keys if key in option), "") if isinstance(option, dict) else option) for option in options]

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

SMALLEST_PAGE = 20
"""A shorter page ends a list of unknown length, because no service uses a smaller default page."""

PAGE_LIMIT = 100
"""Largest page of any list (specification section 8)."""


class Record(Resource):
    id: str
    object_id: str | None = None
    data: Json = _new(dict)
    created_at: str | None = None
    updated_at: str | None = None


class HistoryEntry(Resource):
    """One change of a record, as crmctl's own service tells it."""

    at: str
    type: str
    by: Json | None = None
    changes: list[Json] = _new(list)


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
    failed: list[BulkFailure] = _new(list)


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
    event_types: list[EventType] = _new(list)


class Extensions(Resource):
    extensions: list[str] = _new(list)
    console_url: str | None = None


class StoredFile(Resource):
    bucket: str | None = None
    path: str | None = None
    content_type: str | None = None
    size: int | None = None
    uploaded_at: str | None = None
    public_url: str | None = None


class Replay(Resource):
    delivery_id: str
    is_new: bool = False


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
