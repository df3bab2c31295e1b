"""The formats of an export: which one a name asks for, and records as the text or the bytes of a file. Knows no service."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path as FilePath
from pathlib import PurePath
from typing import Any

from crmctl.bulk.atomic_file import whole_bytes, whole_file
from crmctl.bulk.extras import require_files_extra
from crmctl.errors import UsageError
from crmctl.models import jsontext
from crmctl.models.attributes import Attribute
from crmctl.models.delimited_text import delimited_row
from crmctl.models.fieldpaths import Path, narrow, value_at

TEXT_FORMATS = ("jsonl", "csv", "tsv", "json")
BINARY_FORMATS = ("parquet", "xlsx")
FORMATS = TEXT_FORMATS + BINARY_FORMATS
JSON_FORMATS = ("jsonl", "json")
SUFFIXES = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".tsv": "tsv", ".tab": "tsv", ".json": "json", ".parquet": "parquet",
    ".xlsx": "xlsx",
}  # fmt: skip
CHUNK = 500
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


def export_format(name: str | None, declared: str | None) -> str:
    """The format of an export: as declared, else by the file's name (`.gz` aside), else jsonl. Raises UsageError for an unknown one."""
    chosen = declared
    if declared is None:
        suffix = PurePath(name.removesuffix(".gz")).suffix.lower() if name is not None else ".jsonl"
        chosen = SUFFIXES.get(suffix)
    if chosen not in FORMATS:
        problem = f"unknown format {declared}" if declared is not None else f"the name {name} does not say which format is wanted"
        raise UsageError(problem, hint=f"--format {'|'.join(FORMATS)}", code="unknown_format")
    if chosen in BINARY_FORMATS and (name is None or name.endswith(".gz")):
        problem = "is not for a pipe" if name is None else "is compressed already"
        raise UsageError(f"{chosen} {problem}", hint=f"write it with -O FILE.{chosen}", code="unknown_format")
    return chosen


def check_libraries(format: str) -> None:
    """Raise UsageError, before anything is read, when what writes this format is not installed."""
    if format in BINARY_FORMATS:
        require_files_extra("pyarrow" if format == "parquet" else "openpyxl")


def write_file(path: FilePath, layout: Layout, wires: Wires) -> None:
    """Write a complete file in the place of `path`. Raises UsageError when it cannot be written, RejectedError for what it cannot hold."""
    if layout.format in BINARY_FORMATS:
        from crmctl.bulk.export import columnar

        write = columnar.write_parquet if layout.format == "parquet" else columnar.write_xlsx
        with whole_bytes(path) as raw:
            write(raw, layout, wires)
        return
    with whole_file(path) as stream:
        for text in texts(layout, wires()):
            stream.write(text)


def texts(layout: Layout, wires: Iterable[str]) -> Iterator[str]:
    """The text of an export in a text format, piece by piece."""
    pieces = _chunks(wires if layout.is_table else map(layout.text, wires))
    if layout.format == "jsonl":
        for chunk in pieces:
            yield "\n".join(chunk) + "\n"
    elif layout.format == "json":
        opening = "["
        for chunk in pieces:
            yield opening + ",".join("\n" + wire for wire in chunk)
            opening = ","
        yield "\n]\n" if opening == "," else "[]\n"
    else:
        yield delimited_row(layout.columns or [], layout.format)
        for chunk in pieces:
            yield "".join(delimited_row(layout.cells(wire), layout.format, excel_safe=layout.excel_safe) for wire in chunk)


def _chunks(wires: Iterable[str]) -> Iterator[list[str]]:
    rest = iter(wires)
    while chunk := list(islice(rest, CHUNK)):
        yield chunk
