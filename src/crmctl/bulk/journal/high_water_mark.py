"""How much of a job was ever sent, in a tiny file beside its journal: a journal that went back in time is told by it. No decisions here."""

from __future__ import annotations

import contextlib
import os
import zlib
from pathlib import Path
from typing import NamedTuple

from crmctl.clock import SystemClock
from crmctl.errors import StorageError, reason, storage_error

FILE_NAME = "journal.mark"

SLOT_BYTES = 512
"""One sector, which a disk writes whole or not at all. There are two, written in turn: a torn one leaves the other."""

TOUCHED_SECONDS = 60.0
"""A file that changed so long after its content was written has been copied or restored by somebody else."""


class Mark(NamedTuple):
    """`sends`: attempts of batches; `last`: the highest row of them; `at`: Unix time of the newest."""

    sends: int = 0
    last: int = 0
    at: float = 0.0


class HighWaterMark:
    """The mark of the job in a folder, which one process writes at a time."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME
        self._file: int | None = None

    def read(self) -> tuple[Mark, bool]:
        """The mark, and whether more cannot have been sent: not so where it is gone or damaged, or somebody else put the file there."""
        try:
            content, changed = self._path.read_bytes(), self._path.stat().st_ctime
        except OSError:
            return Mark(), False
        found = [slot for at in (0, SLOT_BYTES) if (slot := _parse(content[at : at + SLOT_BYTES])) is not None]
        if not found:
            return Mark(), False
        mark, written = max(found)
        return mark, os.name != "posix" or abs(changed - written) <= TOUCHED_SECONDS

    def write(self, mark: Mark) -> None:
        """On disk when this returns. Raises StorageError."""
        try:
            if self._file is None:
                self._file = self._open()
            os.lseek(self._file, SLOT_BYTES * (mark.sends % 2), os.SEEK_SET)
            os.write(self._file, _encode(mark))
            _bring_to_disk(self._file)
        except OSError as error:
            raise storage_error(error, self._path) or StorageError(f"cannot write {self._path}: {reason(error)}") from error

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _open(self) -> int:
        """A file that has its full size, so that writing needs no room and moves nothing but its own bytes."""
        file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if os.fstat(file).st_size != 2 * SLOT_BYTES:
                os.truncate(file, 0)
                os.write(file, _encode(Mark()) * 2)
                os.fsync(file)
                _bring_name_to_disk(self._path.parent)
                _bring_name_to_disk(self._path.parent.parent)
        except BaseException:
            os.close(file)
            raise
        return file


def _encode(mark: Mark) -> bytes:
    text = f"crmctl 1 {mark.sends} {mark.last} {mark.at!r} {SystemClock().now()!r}".encode()
    return (text + b" %d" % zlib.crc32(text)).ljust(SLOT_BYTES - 1) + b"\n"


def _parse(slot: bytes) -> tuple[Mark, float] | None:
    text, _, check = slot.rstrip().rpartition(b" ")
    try:
        name, version, sends, last, at, written = text.split()
        if (name, version, int(check)) != (b"crmctl", b"1", zlib.crc32(text)):
            return None
        return Mark(int(sends), int(last), float(at)), float(written)
    except ValueError:
        return None


def _bring_to_disk(file: int) -> None:
    getattr(os, "fdatasync", os.fsync)(file)


def _bring_name_to_disk(folder: Path) -> None:
    """That a folder has a file in it; some systems cannot, and do not need it."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
