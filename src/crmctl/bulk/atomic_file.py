"""Files that appear whole or not at all: written under a `.part` name, brought to disk, then renamed."""

from __future__ import annotations

import errno
import gzip
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TextIO, cast

from crmctl.errors import UsageError, reason, storage_error


@contextmanager
def whole_file(path: Path, *, encoding: str = "utf-8", errors: str = "strict", mode: int = 0o666) -> Iterator[TextIO]:
    """A text stream for a file that takes the place of `path` when the block ends well; gzipped when the name ends in .gz.

    Newlines are written as they are. What is not a regular file, such as a pipe or a device, is written directly. Raises UsageError when
    the file cannot be written, StorageError when its disk is full.
    """
    with whole_bytes(path, mode=mode) as raw, _text(raw, encoding, errors, packed=path.name.endswith(".gz")) as text:
        yield text


@contextmanager
def whole_bytes(path: Path, *, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """The same for bytes, as they are."""
    target = path.resolve()
    special = is_special(target)
    part = target if special else target.with_name(target.name + ".part")
    try:
        with _open(part, mode) as raw:
            yield raw
            raw.flush()
            if not special:
                os.fsync(raw.fileno())
        if not special:
            part.replace(target)
            _keep_name(target.parent)
    except BaseException as error:
        if not special:
            part.unlink(missing_ok=True)
        if isinstance(error, OSError) and (failure := storage_error(error, target)) is not None:
            raise failure from error
        raise


def _keep_name(folder: Path) -> None:
    """Bring the renaming to disk: who notes afterwards that the file is there must be right after a power cut too."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)


def check_place(path: Path, source: Path | None = None) -> None:
    """Better now than after everything was sent: raises UsageError where no file can be written, and for `source` itself."""
    if source is not None and path.exists() and source.exists() and path.samefile(source):
        raise UsageError(f"{path} is the file that is imported", hint="give another file", code="unwritable_file")
    if path.is_dir():
        raise UsageError(f"cannot write {path}: it is a directory", code="unwritable_file")
    folder = path.resolve().parent
    if not folder.is_dir():
        raise UsageError(f"cannot write {path}: there is no directory {folder}", code="unwritable_file")
    if not os.access(path if is_special(path) else folder, os.W_OK):
        raise UsageError(f"cannot write {path}: permission denied", code="unwritable_file")


def is_special(path: Path) -> bool:
    """Whether there is something that no file can take the place of."""
    return path.exists() and not path.is_file()


def _open(path: Path, mode: int) -> IO[bytes]:
    try:
        return cast(IO[bytes], os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb"))
    except OSError as error:
        failure = storage_error(error, path) or UsageError(f"cannot write {path}: {reason(error)}", code="unwritable_file")
        raise failure from error


@contextmanager
def _text(raw: IO[bytes], encoding: str, errors: str, *, packed: bool) -> Iterator[TextIO]:
    sink: IO[bytes] = cast(IO[bytes], gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0)) if packed else raw
    text = io.TextIOWrapper(sink, encoding=encoding, errors=errors, newline="", write_through=False)
    try:
        yield text
        text.flush()
    except BaseException:
        if packed:
            # Closed into nothing: what is cut off must not end like a whole file.
            cast(gzip.GzipFile, sink).fileobj = io.BytesIO()
            with suppress(OSError, ValueError):
                text.close()
        raise
    text.detach()
    if packed:
        sink.close()
