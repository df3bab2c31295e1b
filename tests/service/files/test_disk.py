"""Files on disk: complete or not there, and nothing left behind by processes that were killed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from crmctl.service.files.disk import CHUNK, Disk


def put(disk: Disk, path: str, data: bytes) -> None:
    incoming = disk.receive("b", path, "text/plain")
    incoming.write(data)
    incoming.finish()
    incoming.close()


def read(disk: Disk, path: str) -> bytes | None:
    stored = disk.open("b", path)
    return None if stored is None else b"".join(stored.read(0, stored.size))


def test_a_file_is_seen_when_it_is_finished_and_not_before(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "files")
    put(disk, "a", b"old")
    incoming = disk.receive("b", "a", "text/html")
    incoming.write(b"new")
    assert read(disk, "a") == b"old"
    incoming.finish()
    assert read(disk, "a") == b"new"
    assert read(disk, "c") is None


def test_a_reader_keeps_the_file_it_opened(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "files")
    put(disk, "a", b"x" * (CHUNK + 1))
    stored = disk.open("b", "a")
    assert stored is not None
    pieces = stored.read(1, stored.size - 1)
    first = next(pieces)
    put(disk, "a", b"new")
    assert first + b"".join(pieces) == b"x" * CHUNK
    assert stored.file.closed


def test_an_upload_given_up_leaves_nothing(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "files")
    incoming = disk.receive("b", "a", "text/plain")
    incoming.write(b"half")
    incoming.close()
    assert read(disk, "a") is None
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_what_killed_processes_left_is_removed_after_a_day(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "files")
    disk.sweep()
    abandoned, young = (disk.receive("b", name, "text/plain") for name in ("old", "young"))
    [first, second] = sorted((tmp_path / "files" / "incoming").iterdir())
    now = second.stat().st_mtime
    os.utime(first, (0, now - 24 * 3600 - 60))
    os.utime(second, (0, now - 24 * 3600 + 3600))
    disk.sweep()
    assert list((tmp_path / "files" / "incoming").iterdir()) == [second]
    abandoned.close()
    young.close()


@pytest.mark.skipif(os.name != "posix", reason="folders without permission to write are a POSIX matter")
@pytest.mark.skipif(os.name == "posix" and os.getuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(OSError, match="Permission"):
        Disk(tmp_path / "files").receive("b", "a", "text/plain")
