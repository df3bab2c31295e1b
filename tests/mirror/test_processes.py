"""Syncs in processes of their own: killed anywhere, two at once, with other readers of the file."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest

from crmctl.models.jsontext import dumps
from tests.support.cli import run_crmctl, start_crmctl
from tests.support.fakecrm import FakeCrm
from tests.support.historyserver import WAIT_SECONDS, Barrier, serve_history
from tests.support.historyservice import MINUTE, HistoryService, Manners

ENDLESS = {"CRMCTL_TIMEOUT": "120"}


def sync(fake: FakeCrm, *options: str) -> Mapping[str, object]:
    [result] = run_crmctl("mirror", "sync", *options, env=fake.env).ok().json()
    assert isinstance(result, dict)
    return result


def kill_at(fake: FakeCrm, barrier: Barrier, request: int) -> None:
    """Start a sync and kill it while it waits for the answer to its n-th request; with fewer requests, it ends."""
    barrier.arm(request, cuts=True)
    with start_crmctl("mirror", "sync", env={**fake.env, **ENDLESS}) as process:
        while process.poll() is None and not barrier.reached.wait(0.05):
            pass
        process.kill()
        process.communicate(timeout=WAIT_SECONDS)
    barrier.go_on.set()
    barrier.at = None


def test_a_sync_that_is_killed_anywhere_loses_nothing_but_itself() -> None:
    chance, service, barrier = random.Random(38), HistoryService(38, Manners(gives_date=True)), Barrier()
    for _ in range(40):
        service.create(20)
        service.advance(MINUTE)
    service.advance(60 * MINUTE)
    with serve_history(service, barrier) as fake:
        kill_at(fake, barrier, 9)
        asked = len(fake.asked)
        assert sync(fake)["records"] == 800
        again = [each.query for each in fake.asked[asked:] if each.query.get("order") == "asc"]
        assert min(int(query["offset"]) for query in again) > 0, "the pages that were read are not read again"
        for _ in range(3):
            service.advance(60 * MINUTE)
            service.update(service.some(0.02))
            service.delete(service.some(0.02))
            service.create(3)
            before = contents(fake)
            kill_at(fake, barrier, chance.randrange(4, 12))
            assert contents(fake) in (before, truth(service))
            result = sync(fake)
            assert result["proven"]
            assert contents(fake) == truth(service)


def test_two_syncs_at_once_are_one_after_the_other() -> None:
    service, barrier = HistoryService(5), Barrier()
    service.create(50)
    with serve_history(service, barrier) as fake:
        sync(fake)
        barrier.arm(3)
        with start_crmctl("mirror", "sync", env={**fake.env, **ENDLESS}) as first:
            assert barrier.reached.wait(WAIT_SECONDS)
            assert run_crmctl("mirror", "sync", "--lock-wait", "0", env=fake.env).exits(8).error()["code"] == "sync_running"
            assert run_crmctl("mirror", "sql", "SELECT count(*) AS n FROM people", env=fake.env).ok().json() == [{"n": 50}]
            barrier.go_on.set()
            first.communicate(timeout=WAIT_SECONDS)
            assert first.returncode == 0


LEAVES_A_JOURNAL = """
import os, sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("PRAGMA journal_mode = DELETE")
db.execute("PRAGMA cache_size = 1")
db.execute("BEGIN IMMEDIATE")
db.execute("DELETE FROM people")
numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 999)"
db.execute(f"CREATE TABLE more AS {numbers} SELECT hex(randomblob(500)) FROM n")
os._exit(0)
"""
"""Leave a file as a power failure does: a started write, and a journal to roll it back."""


def test_the_first_reader_rolls_back_an_unfinished_write() -> None:
    service = HistoryService(5)
    service.create(50)
    with serve_history(service, Barrier()) as fake:
        sync(fake)
        path = Path(run_crmctl("mirror", "path", "-o", "ids", env=fake.env).ok().out.strip())
        for command in (("status",), ("sql", "SELECT count(*) AS records FROM people")):
            subprocess.run([sys.executable, "-c", LEAVES_A_JOURNAL, path], check=True)
            assert path.with_name(f"{path.name}-journal").stat().st_size > 0
            with pytest.raises(sqlite3.OperationalError):
                contents(fake)
            assert '"records":50' in run_crmctl("mirror", *command, "-o", "json", env=fake.env).ok().out.replace(" ", "")
            assert contents(fake) == truth(service)


def contents(fake: FakeCrm) -> dict[str, str]:
    """Read the content of the mirror with plain SQLite."""
    path = run_crmctl("mirror", "path", "-o", "ids", env=fake.env).ok().out.strip()
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        return dict(db.execute("SELECT id, _data FROM people"))


def truth(service: HistoryService) -> dict[str, str]:
    return {one: dumps(row.wire()) for one, row in service.rows.items()}
