"""Uploaded files on disk. A file's name is a hash of its bucket and path, so no path of a client ever reaches the file system.

Each file is one line of JSON that describes it, then its bytes: what a file is and what is in it change together.
"""

from __future__ import annotations

import contextlib
import hashlib
import heapq
import math
import os
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import BinaryIO, Self

from crmctl.models import jsontext
from crmctl.models.numbers import size_text
from crmctl.service.faults import OverQuota
from crmctl.service.store.timestamps import to_micros, to_wire

CHUNK = 256 * 1024
ABANDONED_SECONDS = 24 * 3600.0
"""An unfinished upload this old belongs to a process that was killed."""


COUNT_SECONDS = 10.0
"""Files that other processes add and remove are counted after this time; before anything is refused, after a second."""


class Room:
    """How many bytes the files of one folder have; what is being written counts from its first byte."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._stored = self._coming = 0
        self._counted_at = -math.inf

    def take(self, count: int, most: int) -> None:
        """Raises OverQuota, and takes nothing, where all files together would have more than `most`."""
        with self._lock:
            self._require(count, most)
            self._coming += count

    def require(self, count: int, most: int) -> None:
        """Raises OverQuota where there is no room for so many; takes none."""
        with self._lock:
            self._require(count, most)

    def settle(self, count: int, stored: int = 0) -> None:
        """What was taken is written, and so many bytes more are in the folder, or it is given up."""
        with self._lock:
            self._coming -= count
            self._stored += stored

    def _require(self, count: int, most: int) -> None:
        for age in (COUNT_SECONDS, REFUSAL_SECONDS):
            if time.monotonic() - self._counted_at >= age:
                self._stored = sum(_size(each) for each in self._folder.glob("??/*"))
                self._counted_at = time.monotonic()
            if self._stored + self._coming + count <= most:
                return
        raise OverQuota(f"all uploaded files together would be over the quota of {size_text(most)}", {"limit": most})


REFUSAL_SECONDS = 1.0


@cache
def room_in(folder: Path) -> Room:
    """The one of this process."""
    return Room(folder)


class Incoming:
    """A file being written. Nothing of it can be seen before `finish`; closed without that, nothing remains."""

    def __init__(self, place: Path, folder: Path, heading: bytes, most: int) -> None:
        self._place = place
        self._most, self._room, self._taken = most, room_in(folder.parent), 0
        self._partial = folder / f"{uuid.uuid4()}.part"
        self._file = self._partial.open("xb")
        self._file.write(heading)

    def write(self, data: bytes) -> None:
        """Raises OverQuota, OSError."""
        self._room.take(len(data), self._most)
        self._taken += len(data)
        self._file.write(data)

    def finish(self) -> None:
        """On disk for good when this returns, in place of what was there."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._place.parent.mkdir(parents=True, exist_ok=True)
        added = _size(self._partial) - _size(self._place)
        self._partial.replace(self._place)
        self._settle(added)
        _sync_folder(self._place.parent)

    def close(self) -> None:
        """After `finish` this does nothing."""
        with contextlib.suppress(OSError):
            self._file.close()
        self._partial.unlink(missing_ok=True)
        self._settle(0)

    def _settle(self, added: int) -> None:
        taken, self._taken = self._taken, 0
        self._room.settle(taken, added)


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

    def __init__(self, folder: Path, most: int) -> None:
        """`most`: how many bytes all files may have."""
        self._folder = folder
        self._most = most

    def receive(self, bucket: str, path: str, content_type: str, size: int = 0) -> Incoming:
        """Begin to write a file; `size`, where it is known, is how long it will be. Raises OverQuota, OSError."""
        room_in(self._folder).require(size, self._most)
        incoming = self._folder / "incoming"
        incoming.mkdir(parents=True, exist_ok=True)
        heading = jsontext.dumps({"bucket": bucket, "path": path, "contentType": content_type})
        return Incoming(self._place(bucket, path), incoming, heading.encode() + b"\n", self._most)

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


def _size(path: Path) -> int:
    """0 where there is no such file, or no longer."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _sync_folder(folder: Path) -> None:
    """The new name itself must outlive a power failure; Windows keeps it without being asked."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
