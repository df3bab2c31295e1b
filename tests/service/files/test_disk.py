"""Files on disk are complete or absent, and killed processes leave nothing behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from crmctl.service.faults import OverQuota
from crmctl.service.files import storage as disks
from crmctl.service.files.storage import CHUNK, Disk, read_pieces

MOST = 10 * CHUNK


def put(disk: Disk, path: str, data: bytes) -> None:
    incoming = disk.receive("b", path, "text/plain")
    try:
        incoming.write(data)
        incoming.finish()
    finally:
        incoming.close()


def read(disk: Disk, path: str) -> bytes | None:
    stored = disk.open("b", path)
    return None if stored is None else b"".join(read_pieces(stored.file))


def test_a_file_becomes_visible_once_complete(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "files", MOST)
    put(disk, "a", b"old")
    incoming = disk.receive("b", "a", "text/html")
    incoming.write(b"new")
    assert read(disk, "a") == b"old"
    incoming.finish()
    assert read(disk, "a") == b"new"
    assert read(disk, "c") is None


def test_a_reader_keeps_the_file_it_opened(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "files", MOST)
    put(disk, "a", b"x" * (CHUNK + 1))
    stored = disk.open("b", "a")
    assert stored is not None
    pieces = read_pieces(stored.file)
    first = next(pieces)
    put(disk, "a", b"new")
    assert first + b"".join(pieces) == b"x" * (CHUNK + 1)
    assert stored.file.closed


def test_an_abandoned_upload_leaves_nothing(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "files", MOST)
    incoming = disk.receive("b", "a", "text/plain")
    incoming.write(b"half")
    incoming.close()
    assert read(disk, "a") is None
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_all_files_share_the_quota_and_freed_space_can_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disks, "COUNT_SECONDS", 0.0)
    folder, heading = tmp_path / "files", 60
    disk, beside = Disk(folder, 3000), Disk(folder, 3000)
    put(disk, "a", b"x" * 1000)
    first, second = disk.receive("b", "b", "text/plain"), beside.receive("b", "c", "text/plain")
    first.write(b"x" * 800)
    second.write(b"x" * 800)
    with pytest.raises(OverQuota, match=r"over the quota of 2\.9 KB"):
        second.write(b"x" * 800)
    second.close()
    first.write(b"x" * 800)
    first.finish()
    assert read(disk, "c") is None
    with pytest.raises(OverQuota):
        disk.receive("b", "c", "text/plain", 500)
    # Replaced and deleted files free their space.
    put(disk, "a", b"x" * 100)
    put(disk, "c", b"x" * (1300 - 3 * heading - 100))
    with pytest.raises(OverQuota):
        put(disk, "d", b"x" * 500)
    next(path for path in folder.glob("??/*") if path.stat().st_size > 1500).unlink()
    put(disk, "d", b"x" * 500)
    assert list((folder / "incoming").iterdir()) == []


@pytest.mark.parametrize("counts_again", [False, True])
def test_an_abandoned_upload_releases_its_declared_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counts_again: bool) -> None:
    disk = Disk(tmp_path / "files", 3000)
    if counts_again:
        monkeypatch.setattr(disks, "COUNT_SECONDS", 0.0)
    for _ in range(5):
        given_up = disk.receive("b", "a", "text/plain", 2500)
        given_up.write(b"x" * 100)
        with pytest.raises(OverQuota):
            disk.receive("b", "b", "text/plain", 1000)
        given_up.close()
        given_up.close()
    put(disk, "b", b"x" * 2500)
    with pytest.raises(OverQuota):
        disk.receive("b", "c", "text/plain", 1000)


def test_leftovers_of_killed_processes_are_removed_after_a_day(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "files", MOST)
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
def test_an_unwritable_folder_is_an_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(OSError, match="Permission"):
        Disk(tmp_path / "files", MOST).receive("b", "a", "text/plain")
