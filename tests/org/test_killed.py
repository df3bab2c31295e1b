"""Pulls and applies that were killed: the folder is complete or unchanged, and a repeated apply loses and doubles nothing."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from crmctl.org.replacement import finish_replacement, new_content, replace_content, sibling
from tests.org.test_apply import at, by_new_ids, other
from tests.org.test_pull import content
from tests.support.cli import run_crmctl, start_crmctl
from tests.support.organizations import furnish
from tests.support.patience import PATIENCE
from tests.support.service import RunningService

__all__ = ["other"]


class Killed(BaseException):
    pass


@pytest.mark.parametrize("last", range(8))
def test_a_pull_killed_at_any_rename_is_completed_or_had_no_effect(last: int) -> None:
    folder, names = Path("crm"), ("a", "b", "c")
    folder.mkdir()
    (folder / "kept").write_text("kept")
    for name in names[:2]:
        (folder / name).write_text("old")
    left, moves = last, {"rename": Path.rename, "replace": Path.replace}

    def counted(name: str) -> Callable[[Path, Path], Path]:
        def move(self: Path, target: Path) -> Path:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed
            return moves[name](self, target)

        return move

    with pytest.MonkeyPatch.context() as patch, suppress(Killed):
        for name in moves:
            patch.setattr(Path, name, counted(name))
        with new_content(folder) as place:
            for name in names[1:]:
                (place / name).write_text("new")
            replace_content(folder, names)
    finish_replacement(folder)
    unchanged, complete = {"a": b"old", "b": b"old", "kept": b"kept"}, {"b": b"new", "c": b"new", "kept": b"kept"}
    assert content(folder) == (unchanged if last == 0 else complete)
    with new_content(folder):
        pass
    assert not sibling(folder).exists()


@pytest.mark.parametrize("writes", [1, 4, 9])
def test_an_apply_killed_after_some_writes_continues(crm: RunningService, other: RunningService, writes: int) -> None:
    furnish(crm, 51)
    run_crmctl("org", "pull", "crm").ok()
    with start_crmctl("org", "apply", "crm", env=at(other)) as process:
        deadline = time.monotonic() + PATIENCE
        while process.poll() is None and sum(entry["method"] != "GET" for entry in [*other.log]) < writes and time.monotonic() < deadline:
            pass
        process.kill()
        process.wait(timeout=PATIENCE)
    run_crmctl("org", "apply", "crm", "--settle", "15", "--map", "map.json", env=at(other)).ok()
    assert run_crmctl("org", "apply", "crm", env=at(other)).ok().json()["changes"] == 0
    shutil.rmtree("second", ignore_errors=True)
    run_crmctl("org", "pull", "second", env=at(other)).ok()
    assert by_new_ids(Path("crm"), json.loads(Path("map.json").read_text())) == by_new_ids(Path("second"), {})
