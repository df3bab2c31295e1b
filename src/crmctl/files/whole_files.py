"""Files that appear completely or not at all, temporary databases, turns of processes, and optional libraries."""

from __future__ import annotations

import errno
import gzip
import io
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import IO, Any, ClassVar, TextIO, TypeVar, cast

from crmctl.clock import Clock
from crmctl.errors import ConfigError, CrmctlError, StorageError, UsageError, install_command, reason, storage_error


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
    try:
        return path.resolve()
    except (RuntimeError, OSError) as error:
        raise UsageError(f"cannot write {path}: its symbolic links form a loop", code="unwritable_file") from error


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


def open_spill(tables: str, cache_kib: int = 2_000) -> sqlite3.Connection:
    """Open an empty database with these tables, in one endless transaction. Nothing in it survives a crash."""
    # An empty name makes SQLite use a temporary file: in memory while small, deleted when closed. The garbage collector may close it in
    # any thread.
    database = sqlite3.connect("", isolation_level=None, check_same_thread=False)
    for setting in ("journal_mode = OFF", "synchronous = OFF", f"cache_size = -{cache_kib}"):
        database.execute(f"PRAGMA {setting}")
    database.executescript(tables)
    database.execute("BEGIN")
    return database


def open_tables(path: Path | None, tables: str) -> sqlite3.Connection:
    """Open a private file (0600) with these tables, or a temporary one, for several threads in turn."""
    if path is not None:
        path.touch(mode=0o600)
    with ExitStack() as unless_ready:
        database = unless_ready.enter_context(closing(sqlite3.connect(path or "", isolation_level=None, check_same_thread=False)))
        database.executescript(tables)
        unless_ready.pop_all()
    return database


class Spill(ExitStack):
    """Base of classes that keep rows in a temporary database with `TABLES`."""

    TABLES: ClassVar[str]
    CACHE_KIB: ClassVar[int] = 2_000

    def __init__(self) -> None:
        super().__init__()
        self._db = self.enter_context(closing(open_spill(self.TABLES, self.CACHE_KIB)))


LOOK_SECONDS = 0.2
A_LOOK = 0.1
"""Longest wait in seconds when a process only checks whether a turn is in progress."""


@contextmanager
def take_turn(
    path: Path, clock: Clock, patience: float, tell: Callable[[float], bool], refusal: Callable[[], CrmctlError]
) -> Iterator[None]:
    """Hold the lock of a file, which ends with its process. `tell` gets the seconds waited so far, until it returns true.

    Raises the error of `refusal` after `patience` seconds, ConfigError and StorageError if locking fails.
    """
    with ExitStack() as stack:
        begun, is_told = clock.monotonic(), False
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            base = stack.enter_context(closing(sqlite3.connect(path, isolation_level=None, timeout=A_LOOK)))
            while not _is_ours(base):
                waited = clock.monotonic() - begun
                if waited >= patience:
                    raise refusal()
                is_told = is_told or tell(waited)
                clock.sleep(min(LOOK_SECONDS, patience - waited))
        except (OSError, sqlite3.Error) as error:
            raise _unlockable(path, error) from error
        yield


def _is_ours(base: sqlite3.Connection) -> bool:
    """Take the lock; return whether that worked. A lock is free as soon as its holder has ended for any reason."""
    try:
        base.execute("BEGIN EXCLUSIVE")
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorname", "").startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            return False
        raise
    return True


def _unlockable(path: Path, error: Exception) -> CrmctlError:
    """Return the error for a lock that fails for a reason other than being held."""
    failure = storage_error(error, path)
    if isinstance(failure, StorageError) and failure.code == "no_space":
        return failure
    return ConfigError(f"cannot lock {path}: {reason(error)}", hint="CRMCTL_STATE_DIR names another directory")


CHUNK_ROWS = 500

R = TypeVar("R")


def chunks(rows: Iterable[R], size: int = CHUNK_ROWS) -> Iterator[list[R]]:
    """Yield the rows in lists of `size`; the last list may be shorter."""
    iterator = iter(rows)
    while chunk := list(islice(iterator, size)):
        yield chunk


def require_files_extra(library: str) -> Any:
    """Import a library of the extra `files`. Raises UsageError with the command to install it."""
    try:
        return import_module(library)
    except ImportError as error:
        raise UsageError(
            f"Parquet and Excel files need {library.partition('.')[0]}, which is not installed",
            hint=install_command("files"),
            code="not_installed",
        ) from error
