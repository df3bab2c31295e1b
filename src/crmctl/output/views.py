"""Views of the nouns: table columns, names for --fields, CSV columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from crmctl.frozen import frozen
from crmctl.models.field_paths import Path, record_places

if TYPE_CHECKING:
    from crmctl.models.resources import Attribute


@frozen
class Column:
    """One column: the path of its value, its heading, and its kind (a key of value_text.RENDERERS)."""

    path: Path
    header: str
    kind: str = "text"


@frozen
class View:
    """Display of a noun. `columns` are those of the table, the most important first; `fields` maps every name to its path in an item.

    `export` names the columns of csv and tsv; `lists` holds the views of lists inside an item.
    `has_short_ids`: commands accept the endings of these ids, so that a table on a terminal can shorten them.
    """

    noun: str
    columns: tuple[Column, ...]
    fields: Mapping[str, Path]
    export: tuple[str, ...] = ()
    lists: Mapping[str, View] = field(default_factory=dict)
    has_short_ids: bool = False
    attributes: tuple[Attribute, ...] = ()
    is_spread: bool = True
    """csv and tsv show composite attributes in more columns than one."""

    def column(self, name: str, path: Path) -> Column:
        """Return the column of a name, of the same kind as in the table."""
        column = next((column for column in self.columns if column.path == path), None)
        return Column(path, name, column.kind if column else _kind(name))

    def narrowed(self, chosen: Mapping[str, Path]) -> View:
        """Return the view with only the chosen fields, in their order."""
        columns = tuple(self.column(name, path) for name, path in chosen.items())
        return replace(self, columns=columns, fields=dict(chosen), export=tuple(chosen))


def generic_view(items: Iterable[Mapping[str, Any]], noun: str = "results", *, first: Sequence[str] = ()) -> View:
    """Return a view of items of unknown shape: every top-level key in order of appearance.

    A table begins with the columns in `first`, so that a narrow one has room for them.
    """
    names = list(dict.fromkeys(key for item in items for key in item))
    shown = dict.fromkeys([*(name for name in first if name in names), *names])
    columns = tuple(Column((name,), name, _kind(name)) for name in shown)
    return View(noun, columns, {name: (name,) for name in names}, tuple(names))


_KINDS = {
    **dict.fromkeys(("id", "objectId", "userId", "workflowId", "recordId", "runId", "linkedRecords"), "id"),
    **dict.fromkeys(("at", "activityDate", "asOf"), "time"),
    **dict.fromkeys(("isActive", "isRequired", "isUnique", "isList", "enabled", "proven"), "checkbox"),
    **dict.fromkeys(("slug", "type", "status", "role", "trigger"), "word"),
    **dict.fromkeys(("note", "proof", "message", "problem", "reason", "summary", "description", "content", "outcome"), "sentence"),
    "email": "email",
    "config": "settings",
    "values": "edits",
    **dict.fromkeys(("samples", "scopes"), "sample"),
    **dict.fromkeys(("distinct", "fillRate"), "number"),
}


def _kind(name: str) -> str:
    """Return the kind of a field of the service by its name."""
    return "time" if name.endswith(("At", "_at")) else _KINDS.get(name, "text")


def record_view(attributes: Iterable[Attribute], *, is_spread: bool = True) -> View:
    """Return the view of one object's records: `id`, one column per attribute slug in display order, `createdAt`, `updatedAt`.

    `is_spread`: csv and tsv show money in two columns and other composites by part.
    """
    ordered = sorted(attributes, key=lambda attribute: attribute.display_order if attribute.display_order is not None else 1 << 30)
    others: dict[str, Path] = {"objectId": ("objectId",), "data": ("data",)}
    places = record_places((attribute.slug for attribute in ordered), [*others])
    data = tuple(Column(("data", attribute.slug), attribute.slug, attribute_kind(attribute)) for attribute in ordered)
    times = {name: places[name] for name in ("createdAt", "updatedAt")}
    fields = {name: path for name, path in places.items() if name not in times} | others | times
    columns = (Column(("id",), "id", "id"), *data, Column(("updatedAt",), "updatedAt", "time"))
    return View("records", columns, fields, tuple(places), has_short_ids=True, attributes=tuple(ordered), is_spread=is_spread)


def attribute_kind(attribute: Attribute) -> str:
    """Return the kind of an attribute's values: a key of value_text.RENDERERS."""
    from crmctl.values.attribute_types import type_of  # a list as JSON needs no type

    kind = type_of(attribute.type).shown
    return "list" if attribute.is_list and kind != "id" else kind


def table_view(noun: str, table: str, fields: str, **lists: View) -> View:
    """Return a view from names: `table` columns (dotted paths allowed), then all `fields` of the specification."""
    columns = tuple(Column(tuple(name.split(".")), name, _kind(name.split(".")[-1])) for name in table.split())
    names = fields.split()
    return View(noun, columns, {name: (name,) for name in [*names, *lists]}, tuple(names), lists=lists)


SCHEMA_CHANGES = table_view("differences", "action object attribute summary", "action object attribute details reason summary")
FILES = table_view("files", "path bucket size contentType uploadedAt publicUrl", "path bucket size contentType uploadedAt publicUrl")
EVENT_TYPES = table_view("event types", "name description", "name description")
MIRROR_SYNCS = table_view(
    "objects",
    "object records created updated deleted read requests proven asOf",
    "object records created updated deleted asOf proven proof read reason requests",
)
CHECKS = table_view(
    "checks",
    "name object status failing trend owner",
    "name object kind severity status failing max owner message ids file trend",
)
MIRROR_OBJECTS = table_view(
    "objects",
    "object records asOf proven proof totalRequests",
    "object records asOf proven proof excluded syncs requests totalRequests table",
)
MIRROR_MISTAKES = replace(table_view("wrong records", "object id problem", "object id problem"), has_short_ids=True)
MIRROR_HITS = replace(table_view("records", "object id excerpt", "object id excerpt score data"), has_short_ids=True)
UPLOADS = table_view("files", "path publicUrl bytes contentType", "file path publicUrl bytes contentType")
