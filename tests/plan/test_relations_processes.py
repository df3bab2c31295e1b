"""Parents, rows and links in a process that is killed at every step: each record is there once, and refers to the one it should."""

from __future__ import annotations

import signal
from contextlib import closing
from pathlib import Path

import pytest

from crmctl.clock import SystemClock
from crmctl.write.database import RowState
from crmctl.write.jobs import JobStore, summarize
from tests.support.bulkserver import BulkServer
from tests.support.warm_program import run_module

ROWS, GHOSTS = 130, 20


def managers() -> dict[str, str | None]:
    """Everybody of the file: rings of three, and every fifth has a manager who is neither in the file nor there."""
    found: dict[str, str | None] = {}
    for n in range(ROWS):
        ring = n - n % 3 + (n + 1) % 3
        found[f"p{n}@x.com"] = f"ghost{n % GHOSTS}@x.com" if n % 5 == 0 else f"p{min(ring, ROWS - 1)}@x.com" if n % 7 else None
    return found


def run(folder: Path, server: BulkServer, point: str, *keys: str) -> int:
    return run_module("tests.support.relationchild", folder, server.origin, point, *keys)


POINTS = ["begun:1", "begun:2", "begun:4", "answered:1", "answered:4", "settled:1", "settled:3", "begin:4"]


@pytest.mark.parametrize("point", [*POINTS, "know_parents:2", "name_rows:1", "name_rows:2"])
def test_a_killed_import_makes_and_links_everybody_once(tmp_path: Path, point: str) -> None:
    everybody = managers()
    lines = [f"{email},{manager or ''}\n" for email, manager in everybody.items()]
    (tmp_path / "people.csv").write_text("Email,Manager\n" + "".join(lines), encoding="utf-8")
    keys = ("email",) if point.endswith(("1", "4")) else ()
    with BulkServer() as server:
        assert run(tmp_path, server, point, *keys) == -signal.SIGKILL
        ended = run(tmp_path, server, "never", *keys)
        if point == "begun:1":  # nobody can tell: the only request so far may be under way, and nothing newer shows
            assert (ended, server.records) == (10, [])
            return
        assert ended == 0
        people = {record["id"]: record["data"] for record in server.records}
    ghosts = {manager for manager in everybody.values() if manager is not None and manager.startswith("ghost")}
    assert sorted(data["email"] for data in people.values()) == sorted([*everybody, *ghosts])
    for data in people.values():
        boss = people[data["manager"]]["email"] if data.get("manager") else None
        assert boss == everybody.get(data["email"])
    clock = SystemClock()
    store = JobStore(tmp_path / "state", clock)
    (job,) = store.list()
    with closing(store.open(job)) as journal:
        summary = summarize(journal)
    assert (summary.counts[RowState.CREATED], summary.rows) == (ROWS, ROWS)
