"""The file of a backup: a compressed tar whose last member, the manifest, has the checksum of every other one.

So a file that ends too early, or that was changed, is never taken for a whole one.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from crmctl.errors import RejectedError, reason
from crmctl.models import jsontext

MANIFEST = "manifest.json"
FORMAT = 1
CHUNK = 1024 * 1024
_LEVEL = 4
"""Of compression: half the time of the usual one for a tenth more."""


@dataclass
class ArchiveWriter:
    """Members are added one after the other; `finish` makes it whole."""

    path: Path
    checksums: dict[str, str] = field(default_factory=dict)

    def __enter__(self) -> Self:
        # Whoever has it has the data, and the keys that sign links.
        self._file = open(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "w+b")  # noqa: PTH123
        self._tar = tarfile.open(fileobj=self._file, mode="w:gz", compresslevel=_LEVEL)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with contextlib.suppress(OSError):
            self._tar.close()
        self._file.close()

    def add(self, name: str, source: Path) -> None:
        """A file under this name; what is appended to it meanwhile does not come along. Raises FileNotFoundError, OSError."""
        with source.open("rb") as content:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = os.fstat(content.fileno()).st_size, 0o600
            reader = _Hashing(content)
            self._tar.addfile(entry, reader)
        self.checksums[name] = reader.hexdigest()

    def finish(self, manifest: Mapping[str, Any]) -> None:
        """On disk for good when this returns."""
        text = jsontext.dumps({"format": FORMAT, **manifest, "sha256": self.checksums}, indent=2).encode()
        entry = tarfile.TarInfo(MANIFEST)
        entry.size, entry.mode = len(text), 0o600
        self._tar.addfile(entry, BytesIO(text))
        self._tar.close()
        self._file.flush()
        os.fsync(self._file.fileno())


def unpack(path: Path, folder: Path | None) -> dict[str, Any]:
    """Write the members below the folder, or nowhere; the manifest, once all of them are known to be what was written.

    Raises RejectedError for what is no whole backup: what is in the folder then is worth nothing.
    """
    found: dict[str, str] = {}
    manifest: dict[str, Any] | None = None
    with _reading(path) as tar:
        for entry in tar:
            content = tar.extractfile(entry) if entry.isreg() else None
            if content is not None and entry.name == MANIFEST:
                manifest = jsontext.loads(content.read())
            elif content is not None:
                found[entry.name] = _copied(content, None if folder is None else _place(folder, entry.name))
    if manifest is None:
        raise RejectedError(f"{path} is not a whole backup: it ends too early", code="damaged_backup")
    if manifest.get("format") != FORMAT:
        raise RejectedError(f"{path} is a backup of a format that this crmctl does not know", hint="upgrade crmctl")
    differing = sorted(name for name in found.keys() | manifest["sha256"].keys() if found.get(name) != manifest["sha256"].get(name))
    if differing:
        raise RejectedError(f"{path} is damaged: {differing[0]} is not what was written", code="damaged_backup")
    return manifest


def _copied(content: IO[bytes], place: Path | None) -> str:
    """The checksum of what was copied."""
    reader = _Hashing(content)
    if place is None:
        while reader.read(CHUNK):
            pass
        return reader.hexdigest()
    place.parent.mkdir(parents=True, exist_ok=True)
    with open(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:  # noqa: PTH123
        while piece := reader.read(CHUNK):
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    return reader.hexdigest()


def _place(folder: Path, name: str) -> Path:
    place = (folder / name).resolve()
    if not place.is_relative_to(folder.resolve()):
        raise RejectedError(f"the backup holds {name!r}, which leads out of it", code="damaged_backup")
    return place


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[tarfile.TarFile]:
    try:
        with gzip.open(path) as content, tarfile.open(fileobj=content, mode="r|") as tar:
            yield tar
            # To the very end, where the checksum of all of it is.
            while content.read(CHUNK):
                pass
    except (tarfile.TarError, EOFError, ValueError, zlib.error) as error:
        raise RejectedError(f"{path} is not a whole backup of a service", code="damaged_backup") from error
    except OSError as error:
        # A file that is not compressed at all is an OSError too, without a number.
        problem = reason(error) if error.errno else "it is not a backup of a service"
        raise RejectedError(f"cannot read {path}: {problem}", code="damaged_backup" if not error.errno else None) from error


class _Hashing:
    """A file whose bytes are counted into a checksum as they are read."""

    def __init__(self, content: IO[bytes]) -> None:
        self._content = content
        self._digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        piece = self._content.read(size)
        self._digest.update(piece)
        return piece

    def hexdigest(self) -> str:
        return self._digest.hexdigest()
