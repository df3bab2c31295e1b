"""What each noun shows: the columns of its table, every name that --fields takes, the columns of its CSV. Data only; no formatting."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from crmctl.models.fieldpaths import Path

if TYPE_CHECKING:
    from crmctl.models.attributes import Attribute


@dataclass(frozen=True)
class Column:
    """One column: where the value is inside an item, its heading, and how it is shown (a key of rendering.RENDERERS)."""

    path: Path
    header: str
    kind: str = "text"


@dataclass(frozen=True)
class View:
    """How a noun is shown. `columns` are the table's, the most important first; `fields` maps every name to its place in an item.

    `export` names the columns of csv and tsv; `lists` says how a list of items inside an item is shown under it.
    """

    noun: str
    columns: tuple[Column, ...]
    fields: Mapping[str, Path]
    export: tuple[str, ...] = ()
    kinds: Mapping[str, str] = field(default_factory=dict)
    lists: Mapping[str, View] = field(default_factory=dict)

    def column(self, name: str, path: Path) -> Column:
        """The column for a name, shown like the table shows it."""
        known = next((column for column in self.columns if column.path == path), None)
        return Column(path, name, known.kind if known else self.kinds.get(name, "text"))

    def narrowed(self, chosen: Mapping[str, Path]) -> View:
        """The same noun with only the chosen fields, in the chosen order."""
        columns = tuple(self.column(name, path) for name, path in chosen.items())
        return replace(self, columns=columns, fields=dict(chosen), export=tuple(chosen))


def generic_view(items: Iterable[Mapping[str, Any]], noun: str = "results", *, first: Sequence[str] = ()) -> View:
    """A view of items whose shape nobody specified: every top-level key of the given ones, in order of appearance.

    A table begins with the columns named `first`, so that a narrow one has room for them.
    """
    names = list(dict.fromkeys(key for item in items for key in item))
    shown = dict.fromkeys([*(name for name in first if name in names), *names])
    columns = tuple(Column((name,), name, _KINDS.get(name, "text")) for name in shown)
    return View(noun, columns, {name: (name,) for name in names}, tuple(names))


TYPE_KINDS = {
    "text": "text",
    "email": "email",
    "phone_number": "email",
    "number": "number",
    "checkbox": "checkbox",
    "name": "name",
    "address": "address",
    "currency": "currency",
    "date": "date",
    "list": "list",
    "reference": "id",
    "select": "word",
}

_KINDS = {
    **dict.fromkeys(("id", "objectId", "userId", "workflowId", "recordId", "runId"), "id"),
    **dict.fromkeys(
        ("createdAt", "updatedAt", "lastRunAt", "startedAt", "completedAt", "activityDate", "expiresAt", "lastUsedAt", "asOf"),
        "time",
    ),
    **dict.fromkeys(
        (
            "resultCount",
            "displayOrder",
            "count",
            "rows",
            "bytes",
            "created",
            "updated",
            "unchanged",
            "deleted",
            "failed",
            "rejected",
            "skipped",
            "inDoubt",
            "unsent",
            "records",
            "requests",
            "totalRequests",
        ),
        "number",
    ),
    **dict.fromkeys(("isActive", "isRequired", "isUnique", "isList", "enabled", "proven"), "checkbox"),
    **dict.fromkeys(("slug", "type", "status", "role", "trigger"), "word"),
    "email": "email",
}


def record_view(attributes: Iterable[Attribute]) -> View:
    """The view of one object's records: `id`, one column per attribute slug in display order, `createdAt`, `updatedAt`."""
    ordered = sorted(attributes, key=lambda attribute: attribute.display_order if attribute.display_order is not None else 1 << 30)
    slugs = [attribute.slug for attribute in ordered]
    data = tuple(Column(("data", attribute.slug), attribute.slug, attribute_kind(attribute)) for attribute in ordered)
    fields: dict[str, Path] = {
        "id": ("id",),
        **{slug: ("data", slug) for slug in slugs if slug not in _RECORD_FIELDS},
        **{name: (name,) for name in _RECORD_FIELDS[1:]},
    }
    columns = (Column(("id",), "id", "id"), *data, Column(("updatedAt",), "updatedAt", "time"))
    export = ("id", *(slug for slug in slugs if slug not in _RECORD_FIELDS), "createdAt", "updatedAt")
    return View("records", columns, fields, export, kinds=_KINDS)


def attribute_kind(attribute: Attribute) -> str:
    """How values of an attribute are shown: a key of value_text.RENDERERS."""
    kind = TYPE_KINDS.get(attribute.type or "", "text")
    return "list" if attribute.is_list and kind != "id" else kind


_RECORD_FIELDS = ("id", "objectId", "data", "createdAt", "updatedAt")


def _view(noun: str, table: str, fields: str, **lists: View) -> View:
    """A view from names: `table` columns (dotted paths allowed), then all `fields` of the specification."""
    columns = tuple(Column(tuple(name.split(".")), name, _KINDS.get(name.split(".")[-1], "text")) for name in table.split())
    names = fields.split()
    return View(noun, columns, {name: (name,) for name in [*names, *lists]}, tuple(names), kinds=_KINDS, lists=lists)


ATTRIBUTES = _view(
    "attributes",
    "slug name type isRequired isUnique isList isActive",
    "id objectId name slug type isRequired isUnique isList isActive displayOrder config createdAt updatedAt",
)
OBJECTS = _view(
    "objects",
    "slug singularName pluralName type isActive id",
    "id type pluralName singularName description slug isActive createdAt updatedAt",
    attributes=ATTRIBUTES,
)
SCHEMA_CHANGES = _view("differences", "action object attribute summary", "action object attribute details reason summary")
MEMBERS = _view("members", "user.name user.email role user.id", "id role createdAt user")
ACTIVITIES = _view(
    "activities",
    "id title activityDate createdBy.name",
    "id title summary activityDate linkedRecords participants createdBy createdAt updatedAt",
)
REPORTS = _view("reports", "id name lastRunAt creator.name", "id name description lastRunAt createdAt creator")
REPORT_RUNS = _view("runs", "id status resultCount startedAt completedAt", "id status resultCount startedAt completedAt")
WORKFLOWS = _view(
    "workflows",
    "id name trigger object.slug enabled",
    "id name description trigger enabled createdAt object createdBy",
)
WORKFLOW_RUNS = _view(
    "runs", "id status title startedAt completedAt error", "id status title triggerEvent error startedAt completedAt createdAt"
)
EVENT_TYPES = _view("event types", "name description", "name description")
MIRROR_SYNCS = _view(
    "objects",
    "object records created updated deleted read requests proven asOf",
    "object records created updated deleted asOf proven proof read reason requests",
)
MIRROR_OBJECTS = _view(
    "objects",
    "object records asOf proven proof totalRequests",
    "object records asOf proven proof excluded syncs requests totalRequests table",
)
MIRROR_MISTAKES = _view("wrong records", "object id problem", "object id problem")
MIRROR_HITS = _view("records", "object id excerpt", "object id excerpt score data")
UPLOADS = _view("files", "path publicUrl bytes contentType", "file path publicUrl bytes contentType")
