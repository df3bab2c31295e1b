"""Transactions, threads, other processes, kills and database versions."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from crmctl.errors import ConfigError
from crmctl.models import jsontext
from crmctl.service.faults import Busy, Fault, NotFound
from crmctl.service.store import members, objects, records
from crmctl.service.store.engine import FIRST, MIGRATIONS, TABLES, Migration, Tx, migrate, newest_version, open_engine, upgrade
from crmctl.service.store.record_tables import load_schema
from tests.service.store.conftest import Store, new_id, opened
from tests.support.databases import ENGINES, fresh_database

DELETED_OBJECTS = 30
"""The version whose migration drops the tables of deleted objects."""


def test_a_fault_rolls_back_and_the_engine_keeps_working(store: Store) -> None:
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


def test_addresses_of_a_database(tmp_path: Path) -> None:
    open_engine(f"sqlite:///{tmp_path}/a.db").close()
    assert (tmp_path / "a.db").exists()
    for address in ("sqlite://", "sqlite://host/a.db", "mysql://me:secret@host/x", "postgresql://me:secret@host:port:x/crm"):
        with pytest.raises(ConfigError) as refused:
            open_engine(address)
        assert "secret" not in refused.value.message


_WRITER = """
import sys, uuid
from crmctl.service.store import objects, records
from crmctl.service.store.engine import open_engine  # noqa: E402

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


def test_a_kill_during_writes_loses_no_acknowledged_write(database: str) -> None:
    with opened(database) as store:
        store.object("things", {"slug": "code", "type": "number", "is_unique": True})
    for attempt in range(3):
        store = Store(open_engine(database))
        things = store.standard("things")
        store.write(records.bulk_delete, things, [record["id"] for record in store.find(things)][:100])
        store.engine.write(lambda tx, things=things: _empty(tx, things))
        store.engine.close()

        child = subprocess.Popen([sys.executable, "-c", _WRITER, database], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        acknowledged = 0
        while acknowledged < 200 + attempt * 60:
            acknowledged = int(child.stdout.readline())
        child.kill()
        acknowledged = int((child.stdout.read().split() or [acknowledged])[-1])
        child.wait()
        child.stdout.close()

        store = Store(open_engine(database))
        # Waits for the killed process's transaction: the database may not have noticed yet that its connection is dead.
        store.engine.write(lambda tx, things=things: load_schema(tx, things, tx.dialect.own_object))
        codes = [record["data"]["code"] for record in store.find(things)]
        assert len(codes) >= acknowledged
        assert len(codes) % 20 == 0
        assert sorted(codes) == list(range(len(codes)))
        assert store.total(things) == len(codes)
        assert {owner for _, owner in store.rows("SELECT key, record_id FROM unique_value")} == {
            record["id"] for record in store.find(things)
        }
        events = [
            jsontext.loads(payload)["recordId"] for (payload,) in store.rows("SELECT payload FROM change_log WHERE type = 'record.created'")
        ]
        assert sorted(events) == sorted(record["id"] for record in store.find(things))
        store.engine.close()


def _empty(tx: Tx, things: str) -> None:
    while found := records.list_records(tx, things, page=records.Paging(limit=100))[0]:
        records.bulk_delete(tx, things, [record["id"] for record in found], ids=new_id, now=1.0)
    tx.execute("DELETE FROM change_log")


def test_an_older_database_is_migrated(store: Store) -> None:
    people = store.standard("people")
    made = store.create(people, email="a@x.org")

    newer = (*MIGRATIONS, Migration("titles of members", ["ALTER TABLE member ADD COLUMN title TEXT"]))
    migrate(store.engine, newer)
    migrate(store.engine, newer)
    assert store.rows("SELECT title FROM member") == [(None,)]
    assert store.rows("SELECT version, name FROM schema_version ORDER BY version")[-1] == (newest_version(newer), "titles of members")
    assert store.find(people) == [made]


def layout(tx: Tx) -> set[tuple[str, ...]]:
    """Return columns and indexes of every table."""
    if tx.dialect.engine == "sqlite":
        columns = 'SELECT m.name, c.name, c.type, c."notnull", c.dflt_value, c.pk FROM sqlite_master AS m, pragma_table_info(m.name) AS c'
        indexes = "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"
    else:
        columns = (
            "SELECT table_name, column_name, data_type, is_nullable, column_default, collation_name, is_identity "
            "FROM information_schema.columns WHERE table_schema = 'public'"
        )
        indexes = "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'"
    return {tuple(map(str, row)) for row in tx.all(columns) + tx.all(indexes)}


@pytest.mark.parametrize("version", range(FIRST, DELETED_OBJECTS - 1))
def test_an_old_database_gets_the_tables_of_a_new_one(empty_database: str, version: int) -> None:
    with contextlib.closing(open_engine(empty_database)) as engine:
        new = engine.read(layout)

        def go_back(tx: Tx) -> None:
            for name in (*TABLES, "schema_version"):
                tx.execute(f"DROP TABLE {name}")
            upgrade(tx, MIGRATIONS[: version - FIRST + 1])

        engine.write(go_back)
        assert engine.read(layout) != new
    with contextlib.closing(open_engine(empty_database)) as engine:
        assert engine.read(layout) == new


def test_an_upgrade_drops_the_tables_of_deleted_objects(store: Store, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "PIECE", 0)
    things, others = (store.object(slug, {"slug": "code", "type": "text", "is_unique": True}) for slug in ("things", "others"))
    kept = [store.create(made, code="Code 1") for made in (things, others)][1]
    ((number,),) = store.rows("SELECT number FROM crm_object WHERE id = ?", things)

    def delete_as_before(tx: Tx) -> None:
        objects.delete_attribute(tx, things, code)
        tx.execute("CREATE TABLE object_removal (number INTEGER PRIMARY KEY, is_indexed INTEGER NOT NULL)")
        tx.execute("INSERT INTO object_removal (number, is_indexed) VALUES (?, 1)", (number,))
        tx.execute("DELETE FROM crm_object WHERE id = ?", (things,))
        tx.execute("DELETE FROM schema_version WHERE version = ?", (DELETED_OBJECTS,))

    code = store.attribute(things, "code")["id"]
    store.engine.write(delete_as_before)
    assert len(store.rows("SELECT record_id FROM unique_value")) == 2
    with contextlib.closing(open_engine(database)) as engine:
        assert not {f"record_{number}", "object_removal"} & {row[0] for row in engine.read(layout)}
    assert store.find(others) == [kept]
    assert store.rows("SELECT record_id FROM unique_value") == [(kept["id"],)]
    assert store.rows("SELECT * FROM attribute_removal") == []


def test_a_newer_database_is_refused_unchanged(store: Store, database: str) -> None:
    newer = (*MIGRATIONS, Migration("from the future", ()))
    migrate(store.engine, newer)
    with pytest.raises(ConfigError, match=f"version {newest_version(newer)}") as caught:
        open_engine(database)
    assert caught.value.hint is not None
    assert "upgrade" in caught.value.hint


def test_a_database_older_than_the_first_release_is_refused_unchanged(store: Store, database: str) -> None:
    store.engine.write(lambda tx: tx.execute("UPDATE schema_version SET version = version - ?", (FIRST,)))
    with pytest.raises(ConfigError, match=f"from version {FIRST} on") as caught:
        open_engine(database)
    assert caught.value.hint is not None
    assert "org pull" in caught.value.hint
    assert len(store.rows("SELECT * FROM member")) == 1


def test_a_failed_migration_changes_nothing(store: Store, database: str) -> None:
    def fail(tx: Tx) -> None:
        tx.execute("DROP TABLE member")
        raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        migrate(store.engine, (*MIGRATIONS, Migration("bad", [fail])))
    assert len(store.rows("SELECT * FROM member")) == 1
    open_engine(database).close()


@pytest.fixture(params=ENGINES)
def empty_database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database without tables."""
    with fresh_database(request, tmp_path, is_empty=True) as url:
        yield url


def test_processes_that_start_together_set_up_one_organisation(empty_database: str) -> None:
    outcomes: list[Any] = []

    def start() -> None:
        engine = open_engine(empty_database)
        outcomes.append(engine.write(lambda tx: members.initialise(tx, new_id, 1.0)))
        engine.close()

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 4
    assert outcomes.count(True) == 1


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n WHERE i < 0"


def test_a_transaction_over_its_time_limit_stops_and_changes_nothing(store: Store) -> None:
    things = store.object("things", {"slug": "text", "type": "text"})

    def write_and_search(tx: Tx) -> None:
        records.create_record(tx, things, {"text": "never"}, ids=new_id, now=0.0)
        tx.all(ENDLESS)

    for transact, fn in ((store.engine.read, lambda tx: tx.all(ENDLESS)), (store.engine.write, write_and_search)):
        with pytest.raises(Busy, match="nothing was done"):
            transact(fn, within=0.2)
    assert store.total(things) == 0
    # The connections still work, also without a limit.
    assert store.create(things, text="kept")["data"] == {"text": "kept"}
    assert store.engine.read(lambda tx: records.count_records(tx, things), within=30) == 1
    assert store.total(things) == 1


@pytest.mark.parametrize(("count", "width"), [(0, 3), (1, 3), (3, 3), (243, 3), (101, 700)])
def test_rows_inserted_together_are_stored_unchanged(store: Store, count: int, width: int) -> None:
    """Also when the rows together have more values than an engine takes in one statement."""
    names = ", ".join(f"c{number}" for number in range(width))
    rows = [
        tuple(None if (row + column) % 3 == 0 else row if column == 1 else f"({row}?" for column in range(width)) for row in range(count)
    ]

    def work(tx: Tx) -> list[Any]:
        tx.execute(f"CREATE TABLE given ({names.replace(',', ' TEXT,').replace('c1 TEXT', 'c1 INTEGER')} TEXT)")
        tx.execute_many(f"INSERT INTO given ({names}) VALUES ({', '.join('?' * width)})", rows)
        return tx.all(f"SELECT {names} FROM given")

    assert store.engine.write(work) == rows


def test_a_row_that_violates_a_constraint_rolls_back_the_others(store: Store) -> None:
    store.engine.write(lambda tx: tx.execute("CREATE TABLE given (value INTEGER NOT NULL)"))
    with pytest.raises(Exception, match=r"(?i)not.null"):
        store.engine.write(lambda tx: tx.execute_many("INSERT INTO given (value) VALUES (?)", [(1,), (2,), (3,), (None,)]))
    assert store.rows("SELECT * FROM given") == []
