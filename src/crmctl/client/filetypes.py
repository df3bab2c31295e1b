"""What kind of file something is: by its first bytes where they tell, else by its name. The same on every machine."""

from __future__ import annotations

import mimetypes
from pathlib import PurePath

UNKNOWN = "application/octet-stream"
SAMPLE = 4096
"""First bytes that are looked at."""

_MAGIC: tuple[tuple[int, bytes, str], ...] = (
    (0, b"\x89PNG\r\n\x1a\n", "image/png"),
    (0, b"\xff\xd8\xff", "image/jpeg"),
    (0, b"GIF87a", "image/gif"),
    (0, b"GIF89a", "image/gif"),
    (8, b"WEBP", "image/webp"),
    (8, b"WAVE", "audio/wav"),
    (8, b"AVI ", "video/x-msvideo"),
    (4, b"ftypheic", "image/heic"),
    (4, b"ftypheix", "image/heic"),
    (4, b"ftypavif", "image/avif"),
    (4, b"ftypM4A ", "audio/mp4"),
    (4, b"ftypqt  ", "video/quicktime"),
    (4, b"ftyp", "video/mp4"),
    (0, b"II*\x00", "image/tiff"),
    (0, b"MM\x00*", "image/tiff"),
    (0, b"\x00\x00\x01\x00", "image/vnd.microsoft.icon"),
    (0, b"%PDF-", "application/pdf"),
    (0, b"%!PS", "application/postscript"),
    (0, b"{\\rtf", "application/rtf"),
    (0, b"PK\x03\x04", "application/zip"),
    (0, b"PK\x05\x06", "application/zip"),
    (0, b"\x1f\x8b", "application/gzip"),
    (0, b"BZh", "application/x-bzip2"),
    (0, b"\xfd7zXZ\x00", "application/x-xz"),
    (0, b"7z\xbc\xaf\x27\x1c", "application/x-7z-compressed"),
    (0, b"(\xb5/\xfd", "application/zstd"),
    (0, b"Rar!\x1a\x07", "application/vnd.rar"),
    (0, b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "application/x-ole-storage"),
    (0, b"SQLite format 3\x00", "application/vnd.sqlite3"),
    (0, b"PAR1", "application/vnd.apache.parquet"),
    (0, b"OggS", "audio/ogg"),
    (0, b"fLaC", "audio/flac"),
    (0, b"ID3", "audio/mpeg"),
    (0, b"\x1aE\xdf\xa3", "video/webm"),
    (0, b"wOFF", "font/woff"),
    (0, b"wOF2", "font/woff2"),
)
_CONTAINERS = {
    "application/zip": frozenset("docx xlsx pptx odt ods odp epub jar apk kmz numbers pages key".split()),  # noqa: SIM905 - a list of words
    "application/x-ole-storage": frozenset({"doc", "xls", "ppt", "msg"}),
    "audio/ogg": frozenset({"ogv", "opus"}),
    "video/mp4": frozenset({"m4a", "m4v"}),
    "video/webm": frozenset({"mkv", "mka"}),
}
"""Formats that other formats are made of: there the name decides."""

_NAMES = {
    "csv": "text/csv",
    "tsv": "text/tab-separated-values",
    "json": "application/json",
    "jsonl": "application/x-ndjson",
    "ndjson": "application/x-ndjson",
    "md": "text/markdown",
    "yaml": "application/yaml",
    "yml": "application/yaml",
    "toml": "application/toml",
    "log": "text/plain",
    "svg": "image/svg+xml",
    "xml": "application/xml",
    "js": "text/javascript",
    "ics": "text/calendar",
    "vcf": "text/vcard",
    "eml": "message/rfc822",
    "docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    "pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
    "odt": "application/vnd.oasis.opendocument.text",
    "ods": "application/vnd.oasis.opendocument.spreadsheet",
    "odp": "application/vnd.oasis.opendocument.presentation",
    "epub": "application/epub+zip",
    "msg": "application/vnd.ms-outlook",
    "m4a": "audio/mp4",
    "m4v": "video/mp4",
    "mkv": "video/x-matroska",
    "opus": "audio/ogg",
}
_TYPES = mimetypes.MimeTypes(filenames=())  # without what this machine has configured


def content_type(name: str, sample: bytes) -> str:
    """The media type of a file called `name` that begins with `sample`."""
    extension = PurePath(name).suffix.lower().removeprefix(".")
    by_name = _NAMES.get(extension) or _TYPES.guess_type(f"x.{extension}")[0]
    by_content = next((kind for offset, magic, kind in _MAGIC if sample.startswith(magic, offset)), None)
    if by_content is not None:
        return by_name if by_name and extension in _CONTAINERS.get(by_content, ()) else by_content
    if by_name is not None:
        return UNKNOWN if by_name.startswith("text/") and b"\x00" in sample and not _is_utf16(sample) else by_name
    return "text/plain" if sample and _is_text(sample) else UNKNOWN


def _is_text(sample: bytes) -> bool:
    try:
        sample.decode()
    except UnicodeDecodeError as error:
        if error.start < len(sample) - 3:  # not a character that the sample cuts
            return False
    return not any(byte < 32 and byte not in b"\t\n\r\f\x1b" for byte in sample)


def _is_utf16(sample: bytes) -> bool:
    return sample.startswith((b"\xff\xfe", b"\xfe\xff"))
