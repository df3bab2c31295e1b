"""Killed pulls and applies: the folder is complete or unchanged, and a repeated apply loses and doubles nothing."""

from __future__ import annotations

import errno
import json
import shutil
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest

from crmctl.double_client import TestService
from crmctl.errors import PartialError, UsageError
from crmctl.org.folder import finish_replacement, new_content, replace_content, sibling
from crmctl.org.jobs import raise_unfinished
from crmctl.plan.results import ImportResult
from crmctl.write.database import RowState
from crmctl.write.jobs import Summary
from tests.org.test_apply import at, by_new_ids, other
from tests.org.test_diff import lines_of, write_lines
from tests.org.test_pull import content
from tests.support.campaigns import rest_in_campaigns
from tests.support.cli import start_crmctl
from tests.support.inprocess import run_here
from tests.support.patience import PATIENCE
from tests.support.service import RunningService

__all__ = ["other"]


class Killed(BaseException):
    pass


@pytest.mark.parametrize("last", range(7))
def test_a_pull_killed_at_any_rename_is_completed_or_had_no_effect(last: int) -> None:
    folder, names = Path("crm"), ("members.yaml", "webhooks.yaml", "schema.yaml")
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
            replace_content(folder)
    finish_replacement(folder)
    unchanged = {"kept": b"kept", **dict.fromkeys(names[:2], b"old")}
    complete = {"kept": b"kept", **dict.fromkeys(names[1:], b"new")}
    assert content(folder) == (unchanged if last == 0 else complete)
    with new_content(folder):
        pass
    assert not sibling(folder).exists()


def test_a_folder_that_is_a_mount_point_is_replaced_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path("crm")
    folder.mkdir()
    (folder / "schema.yaml").write_text("old")
    monkeypatch.setattr("crmctl.org.folder.is_mounted", Path.is_dir)
    with new_content(folder) as place:
        assert folder.resolve() in place.parents, "a rename cannot leave the file system"
        (place / "schema.yaml").write_text("new")
        replace_content(folder)
    assert content(folder) == {"schema.yaml": b"new"}


def test_a_replacement_that_cannot_be_completed_is_an_error_of_the_folder() -> None:
    folder = Path("crm")
    folder.mkdir()

    def refuse(source: Path, target: Path) -> Path:
        if target.parent == folder:
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        return source.replace(target)

    def replace() -> None:
        with new_content(folder) as place:
            (place / "schema.yaml").write_text("new")
            replace_content(folder)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "rename", refuse)
        for action in (replace, lambda: finish_replacement(folder)):
            with pytest.raises(UsageError, match="cannot write crm"):
                action()
    finish_replacement(folder)
    assert content(folder) == {"schema.yaml": b"new"}


@pytest.mark.parametrize("writes", rest_in_campaigns([4, 1, 9]))
def test_an_apply_killed_after_some_writes_continues(pulled: Path, other: RunningService, writes: int) -> None:
    with start_crmctl("org", "apply", "crm", env=at(other)) as process:
        deadline = time.monotonic() + PATIENCE
        while process.poll() is None and sum(entry["method"] != "GET" for entry in [*other.log]) < writes and time.monotonic() < deadline:
            pass
        process.kill()
        process.wait(timeout=PATIENCE)
    run_here("org", "apply", "crm", "--settle", "15", "--map", "map.json", env=at(other)).ok()
    assert run_here("org", "apply", "crm", env=at(other)).ok().json()["changes"] == 0
    shutil.rmtree("second", ignore_errors=True)
    run_here("org", "pull", "second", env=at(other)).ok()
    assert by_new_ids(Path("crm"), json.loads(Path("map.json").read_text())) == by_new_ids(Path("second"), {})


def test_an_activity_with_a_lost_answer_is_neither_doubled_nor_forgotten(crm: RunningService) -> None:
    person = crm.client.post(f"/api/v1/objects/{crm.object_id('people')}/records", json={"data": {"email": "ada@acme.com"}}).json()["id"]
    link = {"objectId": crm.object_id("people"), "recordId": person}
    crm.client.post("/api/v1/activities", json={"title": "Call", "summary": "", "linkedRecords": [link], "participants": []})
    run_here("org", "pull", "crm").ok()
    double = TestService()
    try:
        double.faults("POST /api/v1/activities [nth=1] -> drop=after")
        run_here("org", "apply", "crm", env=dict(double.env)).exits(6)
        done = run_here("org", "apply", "crm", "--settle", "0", "--map", "map.json", env=dict(double.env)).ok().json()
        [activity] = run_here("activities", "list", env=dict(double.env)).ok().json()
        assert json.loads(Path("map.json").read_text())[lines_of(Path("crm/activities.jsonl"))[0]["id"]] == activity["id"]
        run_here("bulk", "undo", done["job"], "--yes", env=dict(double.env)).ok()
        assert run_here("activities", "list", env=dict(double.env)).ok().json() == []
    finally:
        double.close()


def test_an_undo_restores_an_activity_whose_change_got_no_answer(crm: RunningService) -> None:
    assert crm
    double = TestService()
    try:
        at_double = dict(double.env)
        run_here("activities", "create", "--title", "Call", "--summary", "old", env=at_double).ok()
        run_here("org", "pull", "crm", env=at_double).ok()
        [line] = lines_of(Path("crm/activities.jsonl"))
        write_lines(Path("crm/activities.jsonl"), [line | {"summary": "new"}])
        double.faults("PATCH /api/v1/activities/* [nth=1] -> drop=after")
        run_here("org", "apply", "crm", "--edited", "--max-wait", "0", env=at_double).exits(6)
        done = run_here("org", "apply", "crm", "--edited", "--settle", "0", env=at_double).ok().json()
        run_here("bulk", "undo", done["job"], "--yes", env=at_double).ok()
        assert [activity["summary"] for activity in run_here("activities", "list", env=at_double).ok().json()] == ["old"]
    finally:
        double.close()


@pytest.mark.parametrize(("state", "stops"), [(RowState.IN_DOUBT, True), (RowState.FAILED, False)])
def test_rows_in_doubt_end_an_apply_and_refused_ones_do_not(state: RowState, stops: bool) -> None:
    counts = dict.fromkeys(RowState, 0) | {state: 2}
    summary = Summary(job="j", object="people", mode="create", counts=counts, requests=1, elapsed=0, files={})
    result = ImportResult("records/people.jsonl", summary, error=PartialError("2 rows were not written"))
    with pytest.raises(PartialError) if stops else nullcontext() as error:
        raise_unfinished(result, "crm")
    assert not stops or str(error.value.hint).startswith("crmctl org apply crm looks again; with --new")
