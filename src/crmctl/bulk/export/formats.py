"""The formats of an export: which one a name asks for, and writing records in it to a file or as text. Knows no service."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path as FilePath
from pathlib import PurePath

from crmctl.bulk.atomic_file import whole_bytes, whole_file
from crmctl.bulk.export import columnar
from crmctl.bulk.export.layout import Layout, Wires
from crmctl.bulk.extras import require_files_extra
from crmctl.errors import UsageError
from crmctl.models.delimited_text import delimited_row
from crmctl.models.nearest import suggestion

TEXT_FORMATS = ("jsonl", "csv", "tsv", "json")
BINARY_FORMATS = ("parquet", "xlsx")
FORMATS = TEXT_FORMATS + BINARY_FORMATS
SUFFIXES = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".tsv": "tsv", ".tab": "tsv", ".json": "json", ".parquet": "parquet",
    ".xlsx": "xlsx",
}  # fmt: skip
CHUNK = 500


def export_format(name: str | None, declared: str | None) -> str:
    """The format of an export: as declared, else by the file's name (`.gz` aside), else jsonl. Raises UsageError for an unknown one."""
    chosen = declared
    if declared is None:
        suffix = PurePath(name.removesuffix(".gz")).suffix.lower() if name is not None else ".jsonl"
        chosen = SUFFIXES.get(suffix)
    if chosen not in FORMATS:
        problem = f"unknown format {declared}" if declared is not None else f"the name {name} does not say which format is wanted"
        raise UsageError(problem, hint=suggestion(declared or "", FORMATS, f"--format {'|'.join(FORMATS)}"), code="unknown_format")
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
