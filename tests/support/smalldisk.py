"""A small separate file system: a tmpfs, if this process may mount one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SIZE = 8_000_000


def can_mount() -> bool:
    return os.name == "posix" and os.geteuid() == 0 and Path("/proc/mounts").exists()


@contextmanager
def small_disk(folder: Path) -> Iterator[Path | None]:
    """Mount a file system of 8 MB in a new folder; yield None if that is impossible."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder)]
    if not can_mount() or subprocess.run(command, capture_output=True, check=False).returncode:
        yield None
        return
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], capture_output=True, check=True)


@contextmanager
def limit_free_space(disk: Path, size: int) -> Iterator[None]:
    """Leave this many bytes free until the block ends, in steps of 4,096."""
    ballast = disk / "ballast"
    room = os.statvfs(disk)
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(1, room.f_bavail * room.f_frsize - size))
    try:
        yield
    finally:
        ballast.unlink()
