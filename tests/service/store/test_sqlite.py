"""Behaviour of SQLite only: its file, its lock, its versions."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from functools import partial
from pathlib import Path

import pytest

from crmctl.errors import ConfigError
from crmctl.service.faults import OutcomeUnknown, Unavailable
from crmctl.service.store import keys, members, objects, records
from crmctl.service.store.engine import Tx, open_engine
from crmctl.service.store.record_tables import load_schema
from crmctl.service.store.sqlite import SqliteEngine
from tests.service.store.conftest import Store, new_id


def test_another_process_can_write(sqlite_store: Store, sqlite_path: Path) -> None:
    other = open_engine(str(sqlite_path))
    _, secret = other.write(lambda tx: keys.create_key(tx, name="other", scopes=None, ids=new_id, now=0.0))
    assert sqlite_store.read(lambda tx: keys.find_key(tx, secret)) is not None
    other.close()


def test_what_a_reader_remembers_ends_with_any_commit(sqlite_store: Store, sqlite_path: Path) -> None:
    people = sqlite_store.standard("people")

    def slugs() -> set[str]:
        return set(sqlite_store.read(lambda tx: load_schema(tx, people)).attributes)

    before = slugs()
    assert slugs() == before
    add = partial(objects.create_attribute, object_id=people, ids=new_id, now=0.0)
    sqlite_store.engine.write(lambda tx: add(tx, new=objects.NewAttribute(name="one", slug="one", type="text")))
    assert slugs() == before | {"one"}
    other = open_engine(str(sqlite_path))
    other.write(lambda tx: add(tx, new=objects.NewAttribute(name="two", slug="two", type="text")))
    assert slugs() == before | {"one", "two"}
    other.write(lambda tx: records.create_record(tx, people, {"email": "ada@acme.com"}, ids=new_id, now=0.0))
    assert sqlite_store.total(people) == 1
    other.close()


def test_after_a_failed_fsync_the_change_may_have_happened(sqlite_store: Store) -> None:
    def fail(tx: Tx) -> None:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
        raise error

    with pytest.raises(OutcomeUnknown, match="may have happened"):
        sqlite_store.engine.write(fail)


def test_a_transaction_sees_its_own_changes_and_one_snapshot(sqlite_store: Store, sqlite_path: Path) -> None:
    people = sqlite_store.standard("people")
    add = partial(objects.create_attribute, object_id=people, ids=new_id, now=0.0)

    def add_and_look(tx: Tx) -> None:
        assert "one" not in load_schema(tx, people).attributes
        add(tx, new=objects.NewAttribute(name="one", slug="one", type="text"))
        assert "one" in load_schema(tx, people).attributes

    sqlite_store.engine.write(add_and_look)

    def look_twice(tx: Tx) -> None:
        known = load_schema(tx, people)
        other = open_engine(str(sqlite_path))
        other.write(lambda tx: add(tx, new=objects.NewAttribute(name="two", slug="two", type="text")))
        other.close()
        assert load_schema(tx, people) == known

    sqlite_store.read(look_twice)
    assert "two" in sqlite_store.read(lambda tx: load_schema(tx, people)).attributes


def test_a_lock_held_too_long_raises_unavailable(sqlite_store: Store, sqlite_path: Path) -> None:
    impatient = SqliteEngine(sqlite_path, busy_seconds=0.05)

    def wait_for_the_other(_: Tx) -> None:
        with pytest.raises(Unavailable):
            impatient.write(lambda tx: tx.execute("DELETE FROM member"))

    sqlite_store.engine.write(wait_for_the_other)
    impatient.write(lambda tx: tx.execute("DELETE FROM member"))
    impatient.close()


def test_a_closed_engine_is_unavailable(tmp_path: Path) -> None:
    engine = open_engine(tmp_path / "deep" / "er" / "crm.db")
    engine.close()
    with pytest.raises(Unavailable):
        engine.read(members.get_organisation)
    with pytest.raises(Unavailable):
        engine.write(members.get_organisation)
    engine.close()
    assert [path.name for path in (tmp_path / "deep" / "er").iterdir()] == ["crm.db"]


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "crm.db"
    path.write_text("Dear diary, " * 500)
    with pytest.raises(ConfigError, match="cannot open"):
        open_engine(path)
    assert path.read_text().startswith("Dear diary")


def test_an_old_sqlite_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 37, 2))
    with pytest.raises(ConfigError, match="too old"):
        open_engine(tmp_path / "crm.db")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_loses_only_the_failed_write(sqlite_store: Store) -> None:
    things = sqlite_store.object("things", {"slug": "text", "type": "text"})
    kept = sqlite_store.create(things, text="kept")
    pages = sqlite_store.rows("PRAGMA page_count")[0][0]
    assert isinstance(sqlite_store.engine, SqliteEngine)
    sqlite_store.engine._writer.execute(f"PRAGMA max_page_count = {pages + 2}")
    with pytest.raises(Unavailable, match="full; nothing was written"):
        sqlite_store.create(things, text="x" * 100_000)
    assert sqlite_store.find(things) == [kept]
    sqlite_store.engine._writer.execute("PRAGMA max_page_count = 1000000")
    assert sqlite_store.create(things, text="x" * 100_000)["data"]["text"] == "x" * 100_000
    assert sqlite_store.total(things) == 2


def test_a_reader_sees_one_moment_and_cannot_write(sqlite_store: Store) -> None:
    things = sqlite_store.object("things")

    def look_twice(tx: Tx) -> tuple[int, int]:
        before = records.count_records(tx, things)
        worker = threading.Thread(target=sqlite_store.create, args=(things,))
        worker.start()
        worker.join()
        return before, records.count_records(tx, things)

    assert sqlite_store.read(look_twice) == (0, 0)
    assert sqlite_store.total(things) == 1
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        sqlite_store.read(lambda tx: tx.execute("DELETE FROM organisation"))
    assert sqlite_store.read(members.get_organisation) is not None


def test_a_deadline_and_a_single_statement_cost_no_further_statements(tmp_path: Path) -> None:
    """Each statement releases the interpreter to other threads and waits to get it back, so many small ones are slow under load."""
    with contextlib.closing(SqliteEngine(tmp_path / "crm.db")) as engine:
        engine.write(lambda tx: tx.execute("CREATE TABLE seen (id INTEGER)"), within=20)
        statements: list[str] = []
        engine._writer.set_trace_callback(statements.append)
        for within in (19.9, 19.2):
            engine.write(lambda tx: tx.execute("INSERT INTO seen VALUES (1)"), within=within)
        assert statements == ["BEGIN IMMEDIATE", "INSERT INTO seen VALUES (1)", "COMMIT"] * 2
        statements.clear()
        engine.write(lambda tx: tx.execute("DELETE FROM seen"), within=19.5, single=True)
        assert statements == ["DELETE FROM seen"]
        assert engine.read(lambda tx: tx.all("SELECT id FROM seen"), single=True) == []
