"""Files that appear completely or not at all."""

from __future__ import annotations

import errno
import gzip
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TextIO, cast

from crmctl.errors import StorageError, UsageError, reason, storage_error


@contextmanager
def whole_file(path: Path, *, encoding: str = "utf-8", errors: str = "strict", mode: int = 0o666) -> Iterator[TextIO]:
    """Open a text stream for a file that replaces `path` when the block ends without an error.

    The file is gzipped if its name ends in .gz. Newlines stay as written. Pipes and devices are written directly. Raises UsageError if the
    file cannot be written, StorageError on a full disk.
    """
    with whole_bytes(path, mode=mode) as raw, _text(raw, encoding, errors, packed=path.name.endswith(".gz")) as text:
        yield text


@contextmanager
def whole_bytes(path: Path, *, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """Like `whole_file`, for bytes."""
    target = target_of(path)
    special = is_special(target)
    part = target if special else target.with_name(target.name + ".part")
    try:
        with _open(part, mode, target) as raw:
            yield raw
            raw.flush()
            if not special:
                os.fsync(raw.fileno())
        if not special:
            part.replace(target)
            sync_path(target.parent)
    except BaseException as error:
        if not special:
            part.unlink(missing_ok=True)
        if isinstance(error, OSError) and isinstance(failure := storage_error(error, target), StorageError):
            raise failure from error
        raise


def sync_path(path: Path) -> None:
    """Make a file survive a power cut; of a folder, the names of its files."""
    if os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)


def check_place(path: Path, source: Path | None = None) -> None:
    """Raise UsageError if `path` cannot be written or is `source` itself. Call it before anything is sent."""
    if source is not None and path.exists() and source.exists() and path.samefile(source):
        raise UsageError(f"{path} is the file that is imported", hint="give another file", code="unwritable_file")
    if path.is_dir():
        raise UsageError(f"cannot write {path}: it is a directory", code="unwritable_file")
    folder = target_of(path).parent
    if not folder.is_dir():
        raise UsageError(f"cannot write {path}: there is no directory {folder}", code="unwritable_file")
    if not os.access(path if is_special(path) else folder, os.W_OK):
        raise UsageError(f"cannot write {path}: permission denied", code="unwritable_file")


def target_of(path: Path) -> Path:
    """Return the file behind links; a pipe or device as given, because /dev/stdout leads to no path. Raises UsageError for a loop."""
    if is_special(path):
        return path
    with suppress(RuntimeError, OSError):
        if not (target := path.resolve()).is_symlink():  # from Python 3.13 on, a loop is returned
            return target
    raise UsageError(f"cannot write {path}: its symbolic links form a loop", code="unwritable_file")


def is_special(path: Path) -> bool:
    """Whether the path is a pipe, a device or something else that a file cannot replace."""
    return path.exists() and not path.is_file()


def _open(part: Path, mode: int, target: Path) -> IO[bytes]:
    """Open the part of a file that becomes `target`. Raises UsageError and StorageError, which name the target."""
    try:
        return cast(IO[bytes], os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb"))
    except OSError as error:
        error.filename = str(target)
        failure = storage_error(error, target, UsageError(f"cannot write {target}: {reason(error)}", code="unwritable_file"))
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
            # discard the trailer: a truncated file must not end like a complete one
            cast(gzip.GzipFile, sink).fileobj = io.BytesIO()
            with suppress(OSError, ValueError):
                text.close()
        raise
    text.detach()
    if packed:
        sink.close()
