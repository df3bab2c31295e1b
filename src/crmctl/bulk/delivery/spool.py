"""The valid rows of a check, kept encoded in an unnamed file until they are sent, so that nothing is typed twice and memory stays flat."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from crmctl.bulk.payloads.batches import Entry
from crmctl.models import jsontext

READ_BYTES = 1_000_000


class EntrySpool:
    """Entries in the order they were added. The file has no name and vanishes with the process, however that ends."""

    def __init__(self, folder: Path) -> None:
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - closed by __exit__

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()

    def add(self, entries: Iterable[Entry]) -> None:
        # JSON text holds no bare tab or line feed.
        self._file.writelines(
            b"%d\t%s\t%s\n" % (entry.ordinal, jsontext.dumps(entry.id).encode() if entry.id else b"null", entry.encoded)
            for entry in entries
        )

    def __iter__(self) -> Iterator[Entry]:
        """All entries, from the first one; several readers may take turns."""
        at = 0
        while True:
            self._file.seek(at)
            lines = self._file.readlines(READ_BYTES)
            at = self._file.tell()
            if not lines:
                return
            for line in lines:
                ordinal, id, encoded = line[:-1].split(b"\t", 2)  # noqa: A001
                yield Entry(int(ordinal), encoded, jsontext.loads(id) if id != b"null" else None)
