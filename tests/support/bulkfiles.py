"""Attributes and sources for bulk tests in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from crmctl.files.rows import Source, SourceOptions
from crmctl.files.sources import open_source
from crmctl.models.resources import Attribute


def attribute(slug: str, type: str = "text", **fields: Any) -> Attribute:
    """Return an attribute as the service sends it; fields by their wire names (isRequired, isUnique, isList, config, name, isActive)."""
    return Attribute.parse({"id": f"attr-{slug}", "slug": slug, "name": slug.replace("_", " ").title(), "type": type, **fields})


def select(slug: str, *options: str, **fields: Any) -> Attribute:
    return attribute(slug, "select", config={"options": list(options)}, **fields)


def source_of(directory: Path, content: bytes | str, name: str = "data.csv", **options: Any) -> Source:
    """Return a source over a fresh file with this content; options are those of SourceOptions."""
    path = directory / "content.bin"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return open_source(path, SourceOptions(**options), name=name)


def read(directory: Path, content: bytes | str, name: str = "data.csv", **options: Any) -> list[Any]:
    """Return the content of every row: cells, a value, or the code of its problem."""
    return [
        row.problem.code if row.problem else (row.cells if row.value is None else row.value)
        for row in source_of(directory, content, name, **options).rows()
    ]
