"""Plans in files: one line of JSON with everything an import rests on, then a line for each row. Reading and writing; nothing is compared.

A plan holds no API key, and of records and rows only ids, attribute names and fingerprints.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from crmctl.bulk.atomic_file import check_place, is_special, whole_bytes
from crmctl.bulk.run.decisions import Decision
from crmctl.errors import UsageError, reason
from crmctl.models import jsontext

FORMAT = 1
KIND = "crmctl import plan"

LONGEST_HEADER = 10_000_000


@dataclass(frozen=True)
class PlanHeader:
    """What an import rests on. `options` is all that decides the payloads besides the input, `summary` what the dry run predicted."""

    object: str
    object_id: str
    origin: str
    mode: str
    input: str
    """The file as the user named it."""
    path: str
    """Where it was, absolute."""
    sha256: str
    size: int
    mapping: str
    """Digest of the decided mapping."""
    schema: str
    """Digest of the object's attributes."""
    version: str
    created_at: str
    options: Mapping[str, Any]
    summary: Mapping[str, Any]
    keys: tuple[str, ...] = ()
    marker: str | None = None
    before_images: str = "auto"

    def to_document(self) -> dict[str, Any]:
        return {
            "kind": KIND,
            "format": FORMAT,
            "version": self.version,
            "createdAt": self.created_at,
            "origin": self.origin,
            "object": self.object,
            "objectId": self.object_id,
            "mode": self.mode,
            "keys": list(self.keys),
            "marker": self.marker,
            "beforeImages": self.before_images,
            "input": {"name": self.input, "path": self.path, "sha256": self.sha256, "size": self.size},
            "mapping": self.mapping,
            "schema": self.schema,
            "summary": dict(self.summary),
            "options": dict(self.options),
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> PlanHeader:
        """Raises KeyError and TypeError for what is no header."""
        source = document["input"]
        return cls(
            object=document["object"],
            object_id=document["objectId"],
            origin=document["origin"],
            mode=document["mode"],
            input=source["name"],
            path=source["path"],
            sha256=source["sha256"],
            size=source["size"],
            mapping=document["mapping"],
            schema=document["schema"],
            version=document["version"],
            created_at=document["createdAt"],
            options=document["options"],
            summary=document["summary"],
            keys=tuple(document["keys"]),
            marker=document["marker"],
            before_images=document["beforeImages"],
        )


@dataclass(frozen=True)
class SavedPlan:
    """A plan that was read and is as it was written."""

    path: Path
    header: PlanHeader
    _start: int = field(repr=False)

    def decisions(self) -> Iterator[Decision]:
        """What each row does, in input order."""
        with self.path.open("rb") as file:
            file.seek(self._start)
            for line in file:
                yield Decision.from_document(jsontext.loads(line))


def check_plan_path(path: Path, source: Path) -> None:
    """Better now than after everything was read. Raises UsageError for a plan that cannot be written there."""
    if is_special(path) and not path.is_dir():
        raise UsageError(f"cannot write {path}: not a file", code="unwritable_file")
    check_place(path, source)


def write_plan(path: Path, header: PlanHeader, decisions: Iterable[Decision]) -> None:
    """Write a plan (0600), whole or not at all. Raises UsageError when that is not possible."""
    document = header.to_document()
    digest = hashlib.sha256(jsontext.dumps(document, sort_keys=True).encode())
    with tempfile.TemporaryFile() as lines:
        rows = 0
        for decision in decisions:
            line = jsontext.dumps(decision.to_document()).encode() + b"\n"
            digest.update(line)
            lines.write(line)
            rows += 1
        lines.seek(0)
        with whole_bytes(path, mode=0o600) as file:
            file.write(jsontext.dumps({**document, "decisions": rows, "sha256": digest.hexdigest()}).encode() + b"\n")
            while block := lines.read(1 << 20):
                file.write(block)
        path.chmod(0o600)


def read_plan(path: Path) -> SavedPlan:
    """A plan from its file. Raises UsageError for one that cannot be read, is none, or is not as it was written."""
    try:
        with path.open("rb") as file:
            return _read(path, file)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {reason(error)}", code="unreadable_file") from error


def _read(path: Path, file: BinaryIO) -> SavedPlan:
    first = file.readline(LONGEST_HEADER)
    document = _header_of(path, first)
    rows, stated = document.pop("decisions", None), document.pop("sha256", None)
    digest = hashlib.sha256(jsontext.dumps(document, sort_keys=True).encode())
    found = 0
    for line in file:
        digest.update(line)
        found += 1
    if digest.hexdigest() != stated or found != rows:
        hint = "make it anew: crmctl bulk import OBJECT FILE --dry-run --plan PLAN"
        raise UsageError(f"{path} is not as it was written: changed, or cut short", hint=hint, code="damaged_plan")
    try:
        return SavedPlan(path, PlanHeader.from_document(document), len(first))
    except (KeyError, TypeError) as error:
        raise UsageError(f"{path} is not a plan", code="not_a_plan") from error


def _header_of(path: Path, first: bytes) -> dict[str, Any]:
    try:
        document = jsontext.loads(first)
    except ValueError:
        document = None
    if not isinstance(document, dict) or document.get("kind") != KIND:
        hint = "crmctl bulk import OBJECT FILE --dry-run --plan PLAN makes one"
        raise UsageError(f"{path} is not a plan", hint=hint, code="not_a_plan")
    if document.get("format") != FORMAT:
        raise UsageError(f"{path} was written by another version of crmctl ({document.get('version')})", code="not_a_plan")
    return document
