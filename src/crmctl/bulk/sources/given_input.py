"""What a user gave as an input: a file is read where it is; what can be read only once is copied first, for all that read it again."""

from __future__ import annotations

import os
import re
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from crmctl.errors import UsageError, reason, storage_error

STDIN = "-"
STDIN_NAMES = frozenset({STDIN, "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"})
DESCRIPTOR = re.compile(r"/dev/fd/\d+|/proc/(self|\d+)/fd/\d+|/dev/tty")
COPY_NAME = "input"


@dataclass(frozen=True)
class GivenInput:
    """An input as the user named it, and where its bytes are. `is_copy`: that is a copy of a stream, which may be moved elsewhere."""

    name: str
    path: Path
    is_copy: bool = False

    @classmethod
    def at(cls, path: Path) -> GivenInput:
        """A file that is read where it is."""
        return cls(str(path), path)


def is_stream(file: str) -> bool:
    """Whether an input can be read only once: stdin, a pipe, what a shell puts in the place of `<(command)`.

    Raises UsageError for what is not there, and for what is no file: directories, sockets, devices.
    """
    if file in STDIN_NAMES:
        return True
    try:
        mode = Path(file).stat().st_mode
    except OSError as error:
        raise UsageError(f"cannot read {file}: {_why(error)}", code="unreadable_file") from error
    if stat.S_ISFIFO(mode) or DESCRIPTOR.fullmatch(file) or os.path.realpath(file) == os.devnull:
        return True
    if not stat.S_ISREG(mode):
        kind = "a directory" if stat.S_ISDIR(mode) else "a socket" if stat.S_ISSOCK(mode) else "a device"
        raise UsageError(f"cannot read {file}: it is {kind}", hint="give a file, or - for stdin", code="unreadable_file")
    return False


def copy_stream(file: str, stdin: BinaryIO, folder: Path) -> Path:
    """Copy a stream into a private file that can be read more than once. Raises UsageError, and StorageError when it has no room."""
    path = folder / COPY_NAME
    path.touch(mode=0o600)
    try:
        with path.open("wb") as copy:
            if file in STDIN_NAMES:
                shutil.copyfileobj(stdin, copy)
            else:
                with Path(file).open("rb") as stream:
                    shutil.copyfileobj(stream, copy)
    except OSError as error:
        failure = storage_error(error, path) or UsageError(f"cannot read {file}: {reason(error)}", code="unreadable_file")
        raise failure from error
    return path


def _why(error: OSError) -> str:
    return "no such file" if isinstance(error, FileNotFoundError) else reason(error)
