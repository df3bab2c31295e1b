"""Forms that carry a file (multipart/form-data), as browsers send them: fields as text, the file as it is. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import unquote

_NAME = re.compile(rb'content-disposition: *form-data; *name="([^"]*)"(?:; *filename="([^"]*)")?', re.IGNORECASE)
_TYPE = re.compile(rb"content-type: *([a-z0-9!#$&^_.+-]{1,80}/[a-z0-9!#$&^_.+-]{1,80})", re.IGNORECASE)
_BOUNDARY = re.compile(r'multipart/form-data; *boundary="?([0-9A-Za-z\'()+_,./:=?-]{1,70})"?', re.IGNORECASE)

DEFAULT_TYPE = "application/octet-stream"


@dataclass(frozen=True)
class UploadedFile:
    """`name` is its own, without folders."""

    name: str
    content_type: str
    content: bytes


@dataclass(frozen=True)
class FormParts:
    """A form taken apart: what each field says, and the files by field."""

    fields: dict[str, list[str]] = field(default_factory=dict)
    files: dict[str, UploadedFile] = field(default_factory=dict)


def boundary_of(content_type: str) -> str | None:
    """None for a form without files."""
    found = _BOUNDARY.match(content_type)
    return found[1] if found else None


def split_parts(raw: bytes, boundary: str) -> FormParts:
    """Browsers write the file's bytes as they are between two lines with the boundary; what is cut off is left out."""
    parts = FormParts()
    for piece in (b"\r\n" + raw).split(b"\r\n--" + boundary.encode())[1:]:
        head, mark, content = piece.partition(b"\r\n\r\n")
        named = _NAME.search(head)
        if not mark or named is None:
            continue
        name = named[1].decode(errors="replace")
        if named[2] is None:
            parts.fields.setdefault(name, []).append(content.decode(errors="replace"))
            continue
        typed = _TYPE.search(head)
        own = re.split(r"[/\\]", unquote(named[2].decode(errors="replace"), errors="replace"))[-1]
        parts.files[name] = UploadedFile(own, typed[1].decode().lower() if typed else DEFAULT_TYPE, content)
    return parts
