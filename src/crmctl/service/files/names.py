"""Which buckets and paths a file may have. Pure; paths are compared and signed in the form that comes out of here."""

from __future__ import annotations

import re
import unicodedata

from crmctl.service.faults import BadRequest
from crmctl.service.store.checks import invalid

MAX_PATH = 900
"""Bytes in UTF-8; storages stop at 1024, prefixes included."""

MAX_SEGMENT = 255
BUCKET = r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_DEVICE = re.compile(r"(con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³]|conin\$|conout\$)(\..*)?", re.IGNORECASE | re.DOTALL)
"""Names that Windows keeps for devices, with any extension."""


def check_bucket(bucket: str) -> str:
    """Raises BadRequest."""
    if not re.fullmatch(BUCKET, bucket, re.ASCII) or ".." in bucket:
        raise invalid("bucket", "must be 1 to 63 letters, digits, dots, hyphens and underscores, with a letter or digit at both ends")
    return bucket


def normalise_path(path: str) -> str:
    """The path in composed form (NFC). Raises BadRequest for everything that could mean another place on some system."""
    path = unicodedata.normalize("NFC", path)
    problem = _problem(path)
    if problem:
        raise BadRequest(f"path {problem}", {"field": "path"})
    return path


def _problem(path: str) -> str | None:
    if not path:
        return "must not be empty"
    if _CONTROL.search(path):
        return "must not hold control characters"
    if len(path.encode()) > MAX_PATH:
        return f"must not be longer than {MAX_PATH} bytes"
    if "\\" in path or path.startswith("/") or re.match(r"[A-Za-z]:", path):
        return "must be relative, with forward slashes"
    for segment in path.split("/"):
        if segment in ("", ".", ".."):
            return "must not hold empty parts, . or .."
        if len(segment.encode()) > MAX_SEGMENT:
            return f"must not hold a name longer than {MAX_SEGMENT} bytes"
        if segment.endswith((".", " ")) or segment.startswith(" ") or _DEVICE.fullmatch(segment):
            return f"must not hold the name {segment!r}: some systems keep it for themselves"
    return None
