"""A run removes temporary folders of killed runs, but not of running ones."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from tests.support.own_folder import own_folder


def test_folders_of_dead_processes_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    gone = os.fork()
    if not gone:
        os._exit(0)
    os.waitpid(gone, 0)
    left = [
        tmp_path / name
        for name in (f"crmctl-warm-{gone}-x", f"crmctl-warm-{os.getpid()}-x", "crmctl-warm-somebody", f"crmctl-other-{gone}-x")
    ]
    for folder in left:
        folder.mkdir()
        (folder / "socket").touch()
    mine = own_folder("warm")
    assert mine.is_dir()
    assert [folder.exists() for folder in left] == [False, True, True, True]
