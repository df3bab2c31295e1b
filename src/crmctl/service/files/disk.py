"""Uploaded files on disk. A file's name is a hash of its bucket and path, so no path of a client ever reaches the file system.

Each file is one line of JSON that describes it, then its bytes: what a file is and what is in it change together.
"""

from __future__ import annotations

import contextlib
import hashlib
import heapq
import os
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Self

from crmctl.models import jsontext
from crmctl.service.store.timestamps import to_micros, to_wire

CHUNK = 256 * 1024
ABANDONED_SECONDS = 24 * 3600.0
"""An unfinished upload this old belongs to a process that was killed."""


COUNT_SECONDS = 10.0


class Incoming:
    """A file being written. Nothing of it can be seen before `finish`; closed without that, nothing remains."""

    def __init__(self, place: Path, folder: Path, heading: bytes) -> None:
        self._place = place
        self._partial = folder / f"{uuid.uuid4()}.part"
        self._file = self._partial.open("xb")
        self._file.write(heading)

    def write(self, data: bytes) -> None:
        self._file.write(data)

    def finish(self) -> None:
        """On disk for good when this returns, in place of what was there."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._place.parent.mkdir(parents=True, exist_ok=True)
        self._partial.replace(self._place)
        _sync_folder(self._place.parent)

    def close(self) -> None:
        """After `finish` this does nothing."""
        with contextlib.suppress(OSError):
            self._file.close()
        self._partial.unlink(missing_ok=True)


@dataclass(frozen=True)
class Stored:
    """A file opened for reading; `size` without its heading, `version` changes with every upload."""

    file: BinaryIO
    content_type: str
    start: int
    size: int
    version: str

    def read(self, first: int, count: int) -> Iterator[bytes]:
        """`count` bytes from `first`, in pieces; closes the file."""
        with self.file as file:
            file.seek(self.start + first)
            while count > 0 and (piece := file.read(min(CHUNK, count))):
                count -= len(piece)
                yield piece

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()


@dataclass(frozen=True)
class FileEntry:
    """One file of the list; `uploaded_at` in wire form."""

    bucket: str
    path: str
    content_type: str
    size: int
    uploaded_at: str


class Disk:
    """The files below one folder, which is made when the first one comes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._counted_at: float | None = None
        self._used = 0

    def used(self, now: float) -> int:
        """Bytes of all files, counted anew now and then; `now` is on the monotonic clock."""
        if self._counted_at is None or now - self._counted_at >= COUNT_SECONDS:
            self._used = sum(each.stat().st_size for each in self._folder.glob("*/*") if each.is_file())
            self._counted_at = now
        return self._used

    def receive(self, bucket: str, path: str, content_type: str) -> Incoming:
        """Begin to write a file. Raises OSError."""
        incoming = self._folder / "incoming"
        incoming.mkdir(parents=True, exist_ok=True)
        heading = jsontext.dumps({"bucket": bucket, "path": path, "contentType": content_type})
        return Incoming(self._place(bucket, path), incoming, heading.encode() + b"\n")

    def open(self, bucket: str, path: str) -> Stored | None:
        """None where there is no such file."""
        try:
            file = self._place(bucket, path).open("rb")
        except FileNotFoundError:
            return None
        heading = file.readline()
        status = os.fstat(file.fileno())
        version = f"{status.st_mtime_ns:x}-{status.st_ino:x}-{status.st_size:x}"
        return Stored(file, jsontext.loads(heading.decode())["contentType"], len(heading), status.st_size - len(heading), version)

    def list_files(self, limit: int) -> list[FileEntry]:
        """The newest first. Reads the heading of those alone; one that disappears meanwhile is left out."""
        places = [(place.stat().st_mtime, place) for place in self._folder.glob("??/*")]
        entries = []
        for changed, place in heapq.nlargest(limit, places):
            with contextlib.suppress(FileNotFoundError), place.open("rb") as file:
                heading = file.readline()
                about = jsontext.loads(heading.decode())
                size = os.fstat(file.fileno()).st_size - len(heading)
                entries.append(FileEntry(about["bucket"], about["path"], about["contentType"], size, to_wire(to_micros(changed))))
        return entries

    def sweep(self) -> None:
        """Remove what killed processes left unfinished."""
        # By the machine's clock and not the service's: it is compared with what the file system says.
        before = time.time() - ABANDONED_SECONDS
        for partial in (self._folder / "incoming").glob("*.part"):
            with contextlib.suppress(FileNotFoundError):
                if partial.stat().st_mtime < before:
                    partial.unlink()

    def _place(self, bucket: str, path: str) -> Path:
        name = hashlib.sha256(f"{bucket}/{path}".encode(errors="surrogatepass")).hexdigest()
        return self._folder / name[:2] / name


def _sync_folder(folder: Path) -> None:
    """The new name itself must outlive a power failure; Windows keeps it without being asked."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
