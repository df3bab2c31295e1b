"""Removal of deleted objects: they disappear at once, their contents piece by piece, also after a crash."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys

import pytest

from crmctl.service.context import Context, ServiceSettings
from crmctl.service.faults import NotFound
from crmctl.service.jobs.worker import Removals
from crmctl.service.store import objects, records
from tests.service.store.conftest import Store, new_id
from tests.support.patience import PATIENCE

PIECE, COUNT = 4, 22

DYING = f"""
import os, signal, sys
from crmctl.service.store import objects
from crmctl.service.store.engine import open_engine  # noqa: E402

def die(tx):
    assert objects.take_out(tx)
    os.kill(os.getpid(), signal.SIGKILL)

objects.PIECE = {PIECE}
engine = open_engine(sys.argv[1])
engine.write(objects.take_out)
engine.write(die)
"""


@pytest.fixture(autouse=True)
def _pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "PIECE", PIECE)


@pytest.fixture
def things(store: Store) -> str:
    made = store.object("things", {"slug": "code", "type": "text", "is_unique": True}, {"slug": "n", "type": "number"})
    for n in range(COUNT):
        store.create(made, code=f"Code {n}", n=n)
    return made


def table_of(store: Store, things: str) -> str:
    return f"record_{store.rows('SELECT number FROM crm_object WHERE id = ?', things)[0][0]}"


def tables(store: Store) -> set[str]:
    is_sqlite = store.engine.read(lambda tx: tx.dialect.engine) == "sqlite"
    return {row[0] for row in store.rows("SELECT name FROM sqlite_master" if is_sqlite else "SELECT relname FROM pg_class")}


def count_rows(store: Store, table: str) -> int:
    left = store.rows(f"SELECT count(*) FROM {table}")[0][0] if table in tables(store) else 0
    return int(left) + int(store.rows("SELECT count(*) FROM unique_value")[0][0])


def remove_piece(store: Store) -> bool:
    return store.engine.write(objects.take_out)


def delete(store: Store, things: str) -> None:
    store.engine.write(lambda tx: objects.delete_object(tx, things))


def leftovers(store: Store) -> list[tuple[object, ...]]:
    return store.rows("SELECT number FROM attribute_removal UNION ALL SELECT number FROM object_removal")


def test_a_deleted_object_disappears_at_once_and_every_piece_is_bounded(store: Store, things: str) -> None:
    table = table_of(store, things)
    delete(store, things)
    again = store.object("things", {"slug": "code", "type": "text", "is_unique": True})
    kept = store.create(again, code="Code 1")
    counts = [count_rows(store, table)]
    while remove_piece(store):
        for call in (objects.get_object, records.list_records, objects.delete_object):
            with pytest.raises(NotFound):
                store.engine.write(lambda tx, call=call: call(tx, things))
        assert store.find(again) == [kept]
        counts.append(count_rows(store, table))
    assert max(before - after for before, after in itertools.pairwise(counts)) <= PIECE
    assert (counts[0], counts[-1]) == (2 * COUNT + 1, 1)
    assert not [name for name in tables(store) if name == table or name.startswith(f"{table}_")]
    assert leftovers(store) == []


def test_a_kill_in_a_piece_loses_only_that_piece(database: str, store: Store, things: str) -> None:
    table = table_of(store, things)
    delete(store, things)
    for _ in range(2):
        before = count_rows(store, table)
        done = subprocess.run([sys.executable, "-c", DYING, database], env=os.environ, capture_output=True, timeout=PATIENCE, check=False)
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert count_rows(store, table) <= before
    job = Removals(Context(ServiceSettings(), store.engine, store.clock, new_id))
    while job.run_once():
        pass
    assert table not in tables(store)
    assert count_rows(store, table) == 0
    assert leftovers(store) == []


def test_an_unfinished_attribute_removal_ends_with_its_object(store: Store, things: str) -> None:
    store.engine.write(lambda tx: objects.delete_attribute(tx, things, store.attribute(things, "code")["id"]))
    remove_piece(store)
    delete(store, things)
    while remove_piece(store):
        pass
    assert store.rows("SELECT count(*) FROM unique_value") == [(0,)]
    assert leftovers(store) == []
