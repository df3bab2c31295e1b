"""The valid rows of a checked input, encoded as they are sent, in a file of the job: nothing is typed twice, memory stays flat, and a job
that goes on begins at once. It is gone when nothing is left to send.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import dropwhile
from pathlib import Path
from types import TracebackType
from typing import Self

from crmctl.bulk.rows.batches import Entry
from crmctl.errors import storage_error
from crmctl.models import jsontext

FILE_NAME = "rows"
READ_BYTES = 1_000_000


class EntrySpool:
    """Entries in the order they were added, by increasing ordinal. Without `keep` the file vanishes when it is closed."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / f"{FILE_NAME}.part"
        self._file = os.fdopen(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600), "r+b")

    @classmethod
    def kept(cls, folder: Path, seal: Sequence[int] | None) -> EntrySpool | None:
        """What an earlier run of the job has kept, where it is still what `keep` sealed; None else: the rows can be made anew."""
        spool = cls.__new__(cls)
        spool._path = folder / FILE_NAME
        try:
            spool._file = spool._path.open("r+b")
        except OSError:
            return None
        if seal is None or spool._seal() != [*seal]:
            spool._file.close()
            return None
        return spool

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            with self._on_disk():
                self._file.close()
        finally:
            if self._path.name != FILE_NAME:
                self._path.unlink(missing_ok=True)

    def add(self, entries: Iterable[Entry]) -> None:
        """Raises StorageError."""
        # JSON text holds no bare tab or line feed.
        lines = [
            b"%d\t%s\t%s\n" % (ordinal, jsontext.dumps(record_id).encode() if record_id else b"null", encoded)
            for ordinal, encoded, record_id in entries
        ]
        with self._on_disk():
            self._file.writelines(lines)

    def keep(self) -> list[int]:
        """Bring all of it to disk, for later runs of the job; returns a seal that tells whether it is still whole. Raises StorageError."""
        with self._on_disk():
            self._file.flush()
            os.fsync(self._file.fileno())
            seal = self._seal()
            self._path = self._path.rename(self._path.with_name(FILE_NAME))
        return seal

    @staticmethod
    def discard(folder: Path) -> None:
        """Nothing of the job is left to send."""
        (folder / FILE_NAME).unlink(missing_ok=True)

    def since(self, ordinal: int) -> Iterator[Entry]:
        """The entries from a row on; several readers may take turns. Finding the place takes a few reads, however many there are."""
        at = self._place(ordinal)
        while True:
            self._file.seek(at)
            lines = self._file.readlines(READ_BYTES)
            at = self._file.tell()
            if not lines:
                return
            entries = map(_entry, lines)
            yield from entries if _entry(lines[0]).ordinal >= ordinal else dropwhile(lambda entry: entry.ordinal < ordinal, entries)

    @contextmanager
    def _on_disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise storage_error(error, self._path) or error from error

    def _seal(self) -> list[int]:
        """Size and checksum."""
        check = 0
        self._file.seek(0)
        while block := self._file.read(READ_BYTES):
            check = zlib.crc32(block, check)
        return [self._file.tell(), check]

    def _place(self, ordinal: int) -> int:
        """Where a line begins, with no row from `ordinal` on before it."""
        low, high = 0, self._file.seek(0, os.SEEK_END)
        while high - low > READ_BYTES:
            middle = (low + high) // 2
            self._file.seek(middle)
            self._file.readline()
            begins, line = self._file.tell(), self._file.readline()
            if line and begins < high and _entry(line).ordinal <= ordinal:
                low = begins
            else:
                high = middle
        return low


def _entry(line: bytes) -> Entry:
    ordinal, id, encoded = line[:-1].split(b"\t", 2)  # noqa: A001
    # tuple.__new__ takes half the time of calling Entry.
    return tuple.__new__(Entry, (int(ordinal), encoded, jsontext.loads(id) if id != b"null" else None))
