"""The document beside an exported file: what is in it, as of when, how it was read, and its checksum."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crmctl.bulk.atomic_file import whole_file
from crmctl.bulk.export.layout import Layout
from crmctl.bulk.export.passes import GatherState
from crmctl.models import jsontext
from crmctl.models.timestamps import to_timestamp
from crmctl.version import __version__

BLOCK = 1024 * 1024


@dataclass(frozen=True)
class Subject:
    """What is exported: an object of a service; `schema` is a digest of its attributes."""

    object: str
    object_id: str
    origin: str
    schema: str | None = None


def manifest_path(path: Path) -> Path:
    """Where the manifest of a file lies."""
    return path.with_name(path.name + ".manifest.json")


def describe(path: Path, subject: Subject, layout: Layout, state: GatherState, rows: int, request: dict[str, Any]) -> dict[str, Any]:
    """The manifest of a file that was just written. Moments are by the service's clock."""
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
            size += len(block)
    return {
        "file": path.name,
        "object": subject.object,
        "objectId": subject.object_id,
        "origin": subject.origin,
        "format": layout.format,
        "columns": layout.columns,
        "excelSafe": layout.excel_safe,
        "rows": rows,
        "bytes": size,
        "sha256": digest.hexdigest(),
        "filters": request["filters"],
        "changedSince": _moment(request["since"]),
        "startedAt": _moment(state.started),
        "finishedAt": _moment(state.statistics.date or state.as_of),
        "consistentAsOf": _moment(state.as_of),
        "pruned": state.pruned if request["prune"] else None,
        "flags": state.flags,
        "requests": state.statistics.requests,
        "passes": state.passes,
        "schema": subject.schema,
        "crmctl": __version__,
    }


def write_manifest(path: Path, document: dict[str, Any]) -> Path:
    """Write the manifest beside `path`; where it lies."""
    place = manifest_path(path)
    with whole_file(place) as stream:
        stream.write(jsontext.dumps(document, indent=2) + "\n")
    return place


def _moment(micros: int | None) -> str | None:
    return None if micros is None else to_timestamp(micros)
