"""One export: records of an object as JSON lines, CSV, TSV or a JSON array, into a stream, or a file that appears whole or not at all."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from crmctl.bulk.scanning import Lister, ScanStatistics, scan
from crmctl.bulk.seen import SeenIds
from crmctl.bulk.sender import Progress
from crmctl.bulk.wholefile import whole_file
from crmctl.clock import Clock
from crmctl.errors import UsageError
from crmctl.models import jsontext
from crmctl.models.delimited_text import delimited_row
from crmctl.models.filters import Condition
from crmctl.models.records import Record

FORMATS = ("jsonl", "csv", "tsv", "json")
SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".tsv": "tsv", ".tab": "tsv", ".json": "json"}

Write = Callable[[str], object]


@dataclass(frozen=True)
class ExportOptions:
    """`slugs` are the columns of csv and tsv, in display order; the JSON formats give records as the service sends them."""

    format: str = "jsonl"
    conditions: Sequence[Condition] = ()
    slugs: Sequence[str] = ()
    excel_safe: bool = False


@dataclass(frozen=True)
class ExportSummary:
    """What an export did. `repeated` counts records that came more than once because others wrote meanwhile; each is in the file once."""

    object: str
    format: str
    rows: int
    requests: int
    repeated: int
    elapsed: float
    file: Path | None = None

    def to_document(self) -> dict[str, Any]:
        """The JSON form, every key always present."""
        return {
            "object": self.object,
            "format": self.format,
            "rows": self.rows,
            "requests": self.requests,
            "repeated": self.repeated,
            "elapsedSeconds": round(self.elapsed, 3),
            "file": str(self.file) if self.file is not None else None,
        }


def export_format(name: str | None, declared: str | None) -> str:
    """The format of an export: as declared, else by the file's name (`.gz` aside), else jsonl. Raises UsageError for an unknown one."""
    if declared is not None:
        if declared not in FORMATS:
            raise UsageError(f"unknown format {declared}", hint=f"one of {', '.join(FORMATS)}", code="unknown_format")
        return declared
    if name is None:
        return "jsonl"
    suffix = PurePath(name.removesuffix(".gz")).suffix.lower()
    if suffix not in SUFFIXES:
        raise UsageError(
            f"the name {name} does not say which format is wanted", hint=f"give --format {'|'.join(FORMATS)}", code="unknown_format"
        )
    return SUFFIXES[suffix]


def export_records(
    lister: Lister, object_slug: str, object_id: str, options: ExportOptions, write: Write, clock: Clock, progress: Progress
) -> ExportSummary:
    """Stream every matching record through `write`, one call per page. Raises what the list call raises."""
    started = clock.monotonic()
    statistics = ScanStatistics()
    with SeenIds() as seen:
        pages = scan(lister, object_id, options.conditions, seen, statistics)
        progress.start("exporting")
        try:
            for text in _texts(_counted(pages, progress), options):
                write(text)
        finally:
            progress.finish()
        rows = len(seen)
    return ExportSummary(object_slug, options.format, rows, statistics.requests, statistics.repeated, clock.monotonic() - started)


def export_to_file(
    lister: Lister,
    object_slug: str,
    object_id: str,
    options: ExportOptions,
    path: Path,
    clock: Clock,
    progress: Progress,
    *,
    replace: bool = False,
) -> ExportSummary:
    """Export into a file, gzipped when its name ends in .gz. A complete new file takes the place of an existing one.

    Raises UsageError for an existing file without `replace`, and for one that cannot be written.
    """
    if path.is_file() and not replace:
        raise UsageError(f"{path} exists", hint="--yes replaces it", code="file_exists")
    with whole_file(path) as stream:
        summary = export_records(lister, object_slug, object_id, options, stream.write, clock, progress)
    return dataclasses.replace(summary, file=path)


def _counted(pages: Iterator[list[Record]], progress: Progress) -> Iterator[list[Record]]:
    for page in pages:
        yield page
        progress.advance(len(page))


def _texts(pages: Iterator[list[Record]], options: ExportOptions) -> Iterator[str]:
    """The text of an export, page by page."""
    if options.format == "jsonl":
        for page in pages:
            yield "".join(jsontext.dumps(record.wire) + "\n" for record in page)
    elif options.format == "json":
        opening = "["
        for page in pages:
            yield opening + ",".join("\n" + jsontext.dumps(record.wire) for record in page)
            opening = ","
        yield "\n]\n" if opening == "," else "[]\n"
    else:
        columns = ["id", *options.slugs, "createdAt", "updatedAt"]
        yield delimited_row(columns, options.format)
        for page in pages:
            rows = ([record.id, *map(record.data.get, options.slugs), record.created_at, record.updated_at] for record in page)
            yield "".join(delimited_row(row, options.format, excel_safe=options.excel_safe) for row in rows)
