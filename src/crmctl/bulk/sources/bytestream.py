"""Bytes of a file: opening, gzip, and refusing what is plainly something else. Nothing here knows text."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from crmctl.errors import UsageError, reason

GZIP_MAGIC = b"\x1f\x8b"
BUFFER_SIZE = 256 * 1024

FOREIGN: list[tuple[bytes, str, str]] = [
    (b"PK\x03\x04", "a zip archive and no Excel workbook", "unpack the archive first, or save the sheet as CSV (UTF-8)"),
    (b"\xd0\xcf\x11\xe0", "an old Excel workbook", "save the sheet as CSV (UTF-8)"),
    (b"BZh", "compressed with bzip2", "unpack it first, for example: bzip2 -dc FILE | crmctl bulk import OBJECT -"),
    (b"\xfd7zXZ\x00", "compressed with xz", "unpack it first, for example: xz -dc FILE | crmctl bulk import OBJECT -"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd", "unpack it first, for example: zstd -dc FILE | crmctl bulk import OBJECT -"),
    (b"PAR1", "a Parquet file", "convert it to CSV or JSONL"),
    (b"SQLite format 3\x00", "an SQLite database", "export the table as CSV"),
    (b"%PDF-", "a PDF document", "export the table as CSV"),
    (b"<!doctype html", "an HTML page", "a download that needs a login often saves the login page instead of the file"),
    (b"<html", "an HTML page", "a download that needs a login often saves the login page instead of the file"),
    (b"<?xml", "an XML document", "convert it to CSV or JSONL"),
]
"""First bytes (compared in lower case for text), what the file is, and the way out."""


def is_gzip(path: Path, name: str) -> bool:
    """Whether the content, not the name, says gzip. Raises UsageError for a file that cannot be opened."""
    return read_start(path, name, 2, compressed=False) == GZIP_MAGIC


def read_start(path: Path, name: str, size: int, *, compressed: bool) -> bytes:
    """The first `size` bytes, decompressed where `compressed`."""
    with open_bytes(path, name, compressed=compressed) as stream:
        return stream.read(size)


def refuse_foreign(start: bytes, name: str) -> None:
    """Raise UsageError when the first bytes belong to a format that is no table of text."""
    probe = start.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    for magic, what, hint in FOREIGN:
        if start.startswith(magic) or (magic.startswith(b"<") and probe.startswith(magic)):
            raise UsageError(f"{name} is {what}, not CSV, TSV, JSONL or JSON", hint=hint, code="unknown_format")


@contextmanager
def open_bytes(path: Path, name: str, *, compressed: bool) -> Iterator[BinaryIO]:
    """The file's bytes, decompressed where asked. Every failure to open, read or decompress inside the block becomes a UsageError."""
    try:
        if path.exists() and not path.is_file():
            kind = "a directory" if path.is_dir() else "not a regular file"
            raise UsageError(f"{name} is {kind}", hint="give a file, or pipe the data in and give - as the file", code="unreadable_file")
        with path.open("rb", buffering=BUFFER_SIZE) as raw:
            if not compressed:
                yield raw
                return
            with gzip.GzipFile(fileobj=raw, mode="rb") as plain, io.BufferedReader(cast(io.RawIOBase, plain), BUFFER_SIZE) as stream:
                yield cast(BinaryIO, stream)
    except EOFError as error:
        raise UsageError(
            f"{name} is cut off: the gzip data ends before its end mark", hint="copy or download the file again", code="unreadable_file"
        ) from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise UsageError(
            f"{name} is not intact gzip: {reason(error)}", hint="copy or download the file again", code="unreadable_file"
        ) from error
    except OSError as error:
        raise UsageError(f"cannot read {name}: {reason(error)}", code="unreadable_file") from error
