"""What a file of an export holds of each record: its columns or fields, and the cells or the text of one record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from crmctl.models import jsontext
from crmctl.models.attributes import Attribute
from crmctl.models.fieldpaths import Path, narrow, value_at

JSON_FORMATS = ("jsonl", "json")
_TIMES: dict[Path, str] = {("createdAt",): "time", ("updatedAt",): "time"}

Wires = Callable[[], Iterable[str]]
"""The records to be written, as JSON text, from the first one at every call."""


@dataclass(frozen=True)
class Layout:
    """`format`, and the attributes that are the columns of all but the JSON formats, which give records as the service sends them.

    `fields`, by name the place of each in a record, are all that is wanted, in that order.
    """

    format: str = "jsonl"
    attributes: Sequence[Attribute] = ()
    excel_safe: bool = False
    fields: Mapping[str, Path] | None = None

    @property
    def is_table(self) -> bool:
        return self.format not in JSON_FORMATS

    @property
    def columns(self) -> list[str] | None:
        """The names of the columns of a table, or of the wanted fields; None for the JSON formats with all fields."""
        if self.fields is not None:
            return list(self.fields)
        return ["id", *(attribute.slug for attribute in self.attributes), "createdAt", "updatedAt"] if self.is_table else None

    @property
    def kinds(self) -> list[str]:
        """The type of every column: that of its attribute, `time`, or `text`."""
        types: dict[Path, str] = {("data", one.slug): "text" if one.is_list else one.type or "text" for one in self.attributes}
        if self.fields is None:
            return ["text", *types.values(), "time", "time"]
        return [{**types, **_TIMES}.get(path, "text") for path in self.fields.values()]

    def cells(self, wire: str) -> list[Any]:
        """One record as the values of the columns."""
        record = jsontext.loads(wire)
        if self.fields is not None:
            return [value_at(record, path) for path in self.fields.values()]
        data = record.get("data") if isinstance(record.get("data"), dict) else {}
        values = (data.get(attribute.slug) for attribute in self.attributes)
        return [record.get("id"), *values, record.get("createdAt"), record.get("updatedAt")]

    def text(self, wire: str) -> str:
        """One record as JSON text of one line."""
        return wire if self.fields is None else jsontext.dumps(narrow(jsontext.loads(wire), self.fields.values()))
