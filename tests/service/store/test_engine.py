"""The engine itself: transactions, threads, other processes, being killed, and versions of the database."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from crmctl.errors import ConfigError
from crmctl.models import jsontext
from crmctl.service.faults import Fault, NotFound, Unavailable
from crmctl.service.store import keys, organisation, records
from crmctl.service.store.engine import Tx, open_engine
from crmctl.service.store.migrations import MIGRATIONS, Migration, migrate
from crmctl.service.store.sqlite import SqliteEngine
from tests.service.store.conftest import Store, new_id


def test_a_reader_sees_one_moment_and_cannot_write(store: Store) -> None:
    things = store.object("things")

    def look_twice(tx: Tx) -> tuple[int, int]:
        before = records.count_records(tx, things)
        worker = threading.Thread(target=store.create, args=(things,))
        worker.start()
        worker.join()
        return before, records.count_records(tx, things)

    assert store.read(look_twice) == (0, 0)
    assert store.total(things) == 1
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        store.read(lambda tx: tx.execute("DELETE FROM organisation"))
    assert store.read(organisation.get_organisation) is not None


def test_a_fault_rolls_back_and_the_engine_goes_on(store: Store) -> None:
    def fail(tx: Tx) -> None:
        tx.execute("DELETE FROM member")
        raise NotFound("gone")

    for call in (store.engine.write, store.engine.write):
        with pytest.raises(NotFound):
            call(fail)
    assert len(store.rows("SELECT * FROM member")) == 1
    store.object("things")


def test_threads_lose_nothing(store: Store) -> None:
    things = store.object("things", {"slug": "code", "type": "number", "is_unique": True})
    refused: list[Fault] = []

    def work() -> None:
        for n in range(25):
            try:
                store.create(things, code=n)
            except Fault as fault:
                refused.append(fault)
            store.find(things, ("code", "equals", str(n)))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.total(things) == 25
    assert len(refused) == 75
    assert all(fault.error == "conflict" for fault in refused)


def test_another_process_can_write_meanwhile(store: Store) -> None:
    other = open_engine(str(store.path))
    _, secret = other.write(lambda tx: keys.create_key(tx, name="other", scopes=None, ids=new_id, now=0.0))
    assert store.read(lambda tx: keys.find_key(tx, secret)) is not None
    other.close()


def test_a_lock_held_for_too_long_is_unavailable(store: Store) -> None:
    impatient = SqliteEngine(store.path, busy_seconds=0.05)

    def wait_for_the_other(_: Tx) -> None:
        with pytest.raises(Unavailable):
            impatient.write(lambda tx: tx.execute("DELETE FROM member"))

    store.engine.write(wait_for_the_other)
    impatient.write(lambda tx: tx.execute("DELETE FROM member"))
    impatient.close()


def test_a_closed_engine_says_so(tmp_path: Path) -> None:
    engine = open_engine(tmp_path / "deep" / "er" / "crm.db")
    engine.close()
    with pytest.raises(Unavailable):
        engine.read(organisation.get_organisation)
    with pytest.raises(Unavailable):
        engine.write(organisation.get_organisation)
    engine.close()
    assert [path.name for path in (tmp_path / "deep" / "er").iterdir()] == ["crm.db"]


def test_addresses_of_a_database(tmp_path: Path) -> None:
    open_engine(f"sqlite:///{tmp_path}/a.db").close()
    assert (tmp_path / "a.db").exists()
    for address in ("postgresql://localhost/crm", "sqlite://", "sqlite://host/a.db", "mysql://x"):
        with pytest.raises(ConfigError):
            open_engine(address)


_WRITER = """
import sys, uuid
from crmctl.service.store import objects, records
from crmctl.service.store.engine import open_engine

engine = open_engine(sys.argv[1])
ids = lambda: str(uuid.uuid4())
things = engine.read(lambda tx: objects.find_object_by_slug(tx, "things"))["id"]
number = 0
while True:
    items = [{"data": {"code": number + n}} for n in range(20)]
    engine.write(lambda tx: records.bulk_write(tx, things, "create", items, ids=ids, now=1.0))
    number += 20
    print(number, flush=True)
"""


def test_killed_in_the_middle_of_writes_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "crm.db"
    for attempt in range(3):
        store = Store(open_engine(path), path)
        if store.write(organisation.initialise):
            store.object("things", {"slug": "code", "type": "number", "is_unique": True})
        things = store.standard("things")
        store.write(records.bulk_delete, things, [each["id"] for each in store.find(things)][:100])
        store.engine.write(lambda tx, things=things: _empty(tx, things))
        store.engine.close()

        child = subprocess.Popen([sys.executable, "-c", _WRITER, str(path)], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        acknowledged = 0
        while acknowledged < 200 + attempt * 60:
            acknowledged = int(child.stdout.readline())
        child.kill()
        acknowledged = int((child.stdout.read().split() or [acknowledged])[-1])
        child.wait()
        child.stdout.close()

        store = Store(open_engine(path), path)
        codes = [each["data"]["code"] for each in store.find(things)]
        assert len(codes) >= acknowledged
        assert len(codes) % 20 == 0
        assert sorted(codes) == list(range(len(codes)))
        assert store.total(things) == len(codes)
        assert {owner for _, owner in store.rows("SELECT key, record_id FROM unique_value")} == {each["id"] for each in store.find(things)}
        events = [
            jsontext.loads(payload)["recordId"] for (payload,) in store.rows("SELECT payload FROM outbox WHERE type = 'record.created'")
        ]
        assert sorted(events) == sorted(each["id"] for each in store.find(things))
        assert store.rows("PRAGMA integrity_check") == [("ok",)]
        store.engine.close()


def _empty(tx: Tx, things: str) -> None:
    while found := records.list_records(tx, things, limit=100)[0]:
        records.bulk_delete(tx, things, [each["id"] for each in found], ids=new_id, now=1.0)
    tx.execute("DELETE FROM outbox")


def test_an_older_database_is_brought_up_to_date(store: Store) -> None:
    people = store.standard("people")
    made = store.create(people, email="a@x.org")

    def add_a_column(tx: Tx) -> None:
        tx.execute("ALTER TABLE member ADD COLUMN title TEXT")

    newer = (*MIGRATIONS, Migration("titles of members", add_a_column))
    migrate(store.engine, newer)
    migrate(store.engine, newer)
    assert store.rows("SELECT title FROM member") == [(None,)]
    assert store.rows("SELECT version, name FROM schema_version ORDER BY version")[-1] == (len(newer), "titles of members")
    assert store.find(people) == [made]


def test_a_newer_database_is_refused_and_left_alone(store: Store) -> None:
    newer = (*MIGRATIONS, Migration("from the future", lambda tx: None))
    migrate(store.engine, newer)
    with pytest.raises(ConfigError, match=f"version {len(newer)}") as caught:
        open_engine(store.path)
    assert caught.value.hint is not None
    assert "upgrade" in caught.value.hint


def test_a_migration_that_fails_changes_nothing(store: Store) -> None:
    def fail(tx: Tx) -> None:
        tx.execute("DROP TABLE member")
        raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        migrate(store.engine, (*MIGRATIONS, Migration("bad", fail)))
    assert len(store.rows("SELECT * FROM member")) == 1
    open_engine(store.path).close()


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "crm.db"
    path.write_text("Dear diary, " * 500)
    with pytest.raises(ConfigError, match="cannot open"):
        open_engine(path)
    assert path.read_text().startswith("Dear diary")


def test_two_processes_that_start_at_once_set_up_one_organisation(tmp_path: Path) -> None:
    path = tmp_path / "crm.db"
    outcomes: list[Any] = []

    def start() -> None:
        engine = open_engine(path)
        outcomes.append(engine.write(lambda tx: organisation.initialise(tx, new_id, 1.0)))
        engine.close()

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 4
    assert sum(outcome is not None for outcome in outcomes) == 1


def test_an_old_sqlite_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 37, 2))
    with pytest.raises(ConfigError, match="too old"):
        open_engine(tmp_path / "crm.db")
    assert list(tmp_path.iterdir()) == []


def test_the_disk_running_full_loses_only_the_write_that_failed(store: Store) -> None:
    things = store.object("things", {"slug": "text", "type": "text"})
    kept = store.create(things, text="kept")
    pages = store.rows("PRAGMA page_count")[0][0]
    assert isinstance(store.engine, SqliteEngine)
    store.engine._writer.execute(f"PRAGMA max_page_count = {pages + 2}")
    with pytest.raises(sqlite3.OperationalError, match="full"):
        store.create(things, text="x" * 100_000)
    assert store.find(things) == [kept]
    store.engine._writer.execute("PRAGMA max_page_count = 1000000")
    assert store.create(things, text="x" * 100_000)["data"]["text"] == "x" * 100_000
    assert store.total(things) == 2
