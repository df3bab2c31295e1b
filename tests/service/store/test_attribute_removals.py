"""Removal of deleted attributes: they disappear at once, their values piece by piece, also after a crash."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from crmctl.models import jsontext
from crmctl.service.faults import BadRequest, Busy, Held, NotFound
from crmctl.service.jobs import worker
from crmctl.service.jobs.worker import after_removal, take_piece
from crmctl.service.store import objects, record_history, records
from crmctl.service.store.engine import open_engine
from crmctl.service.store.objects import NewAttribute, take_out
from tests.service.store.conftest import Store, new_id, opened

PIECE = 4
COUNT = 22


@pytest.fixture(autouse=True)
def _pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "PIECE", PIECE)


@pytest.fixture
def things(store: Store) -> str:
    made = store.object(
        "things", {"slug": "code", "type": "text", "is_unique": True}, {"slug": "n", "type": "number"}, {"slug": "t", "type": "text"}
    )
    for n in range(COUNT):
        store.create(made, code=f"Code {n}" if n % 5 else "", n=n, t='"code":1')
    return made


def delete(store: Store, things: str, slug: str = "code") -> None:
    store.engine.write(lambda tx: objects.delete_attribute(tx, things, store.attribute(things, slug)["id"]))


def remove_piece(store: Store) -> bool:
    return store.engine.write(take_out)


def remove_all(store: Store) -> int:
    pieces = 0
    while remove_piece(store):
        pieces += 1
    return pieces


def raw(store: Store, things: str) -> list[tuple[Any, ...]]:
    number = store.rows("SELECT number FROM crm_object WHERE id = ?", things)[0][0]
    return store.rows(f"SELECT * FROM record_{number} ORDER BY seq")


def versions(store: Store, things: str) -> list[str]:
    return [records.version_of(record) for record in store.find(things)]


def test_a_deleted_attribute_disappears_at_once_and_pieces_change_nothing_visible(store: Store, things: str) -> None:
    before = versions(store, things)
    delete(store, things)
    seen = store.find(things)
    assert [record["data"] for record in seen] == [{"n": n, "t": '"code":1'} for n in range(COUNT)]
    assert all(one != other for one, other in zip(before, versions(store, things), strict=True))
    assert store.read(lambda tx: records.get_record(tx, things, seen[1]["id"])) == seen[1]
    listed = store.read(lambda tx: records.write_list(tx, things, (), records.Paging(order="asc", limit=COUNT)))
    assert jsontext.loads(listed) == {"records": seen, "pagination": {"total": COUNT, "limit": COUNT, "offset": 0}}
    with pytest.raises(BadRequest, match="code"):
        store.total(things, ("code", "isNotEmpty", "true"))
    with pytest.raises(BadRequest, match="code"):
        store.create(things, code="x")
    assert b"Code 1" in repr(raw(store, things)).encode()
    pieces = 0
    while remove_piece(store):
        pieces += 1
        assert store.find(things) == seen
    assert pieces > COUNT // PIECE
    number = store.rows("SELECT number FROM attribute_removal WHERE is_vacant = 1")[0][0]
    assert all("Code" not in str(row) and '"code":"' not in str(row) for row in raw(store, things))
    assert store.rows("SELECT * FROM unique_value WHERE attribute = ?", number) == []


def test_a_crash_in_a_piece_loses_only_that_piece(database: str, store: Store, things: str) -> None:
    seen = store.find(things)
    delete(store, things)
    for _ in range(3):
        remove_piece(store)
        with contextlib.suppress(KeyboardInterrupt):
            store.engine.write(_crash_after_a_piece)
        with contextlib.closing(open_engine(database)) as restarted:
            restarted.write(take_out)
            found = restarted.read(lambda tx: records.list_records(tx, things, page=records.Paging(order="asc", limit=100)))[0]
            assert [record["data"] for record in found] == [{"n": n, "t": '"code":1'} for n in range(COUNT)]
    with contextlib.closing(open_engine(database)) as restarted:
        while restarted.write(take_out):
            pass
    assert [record["updatedAt"] for record in store.find(things)] == [record["updatedAt"] for record in seen]
    assert "Code" not in repr(raw(store, things))


def _crash_after_a_piece(tx: Any) -> None:
    take_out(tx)
    raise KeyboardInterrupt


def test_records_can_be_written_during_a_removal(store: Store, things: str) -> None:
    made = store.find(things)
    delete(store, things)
    remove_piece(store)
    remove_piece(store)
    for place in (1, COUNT - 1):
        known = records.version_of(store.find(things)[place])
        changed = store.write(records.update_record, things, made[place]["id"], {"n": 100}, [known])
        assert changed["data"] == {"n": 100, "t": '"code":1'}
        history = store.read(lambda tx, place=place: record_history.read_history(tx, things, made[place]["id"]))
        assert [change["attributeSlug"] for change in history.changes[0]["changes"]] == ["n"]
    store.write(records.delete_record, things, made[COUNT - 2]["id"])
    gone = store.read(lambda tx: record_history.read_history(tx, things, made[COUNT - 2]["id"]))
    assert {change["attributeSlug"] for change in gone.changes[0]["changes"]} == {"n", "t"}
    late = store.create(things, n=7)
    before = store.find(things)
    remove_all(store)
    assert store.find(things) == before
    assert before[-1]["id"] == late["id"]
    assert "Code" not in repr(raw(store, things))


def test_the_slug_is_free_after_the_removal_and_reuses_the_columns(store: Store, things: str) -> None:
    columns = len(raw(store, things)[0])
    delete(store, things)
    new = NewAttribute(name="Code", slug="code", type="number")
    with pytest.raises(Held, match="still being taken out"):
        store.write(objects.create_attribute, things, new)
    made = after_removal(store.engine, lambda tx: objects.create_attribute(tx, things, new, ids=new_id, now=store.clock.now()), within=60)
    assert store.find(things, ("code", "isNotEmpty", "true")) == []
    assert [record["data"] for record in store.find(things)] == [{"n": n, "t": '"code":1'} for n in range(COUNT)]
    remove_all(store)
    store.write(objects.create_attribute, things, NewAttribute(name="Another", type="text", is_unique=True))
    store.create(things, code=5, another="x")
    assert len(raw(store, things)[0]) == columns + 2
    assert len(store.find(things, ("code", "equals", "5"), ("another", "equals", "x"))) == 1
    delete(store, things)
    remove_all(store)
    assert store.read(lambda tx: objects.get_attribute(tx, things, store.attribute(things, "another")["id"]))
    assert made["type"] == "number"


def test_several_attributes_are_removed_at_once(store: Store, things: str) -> None:
    for slug in ("code", "t", "n"):
        delete(store, things, slug)
    assert {repr(record["data"]) for record in store.find(things)} == {"{}"}
    remove_all(store)
    assert {row[-6:] for row in raw(store, things)} == {(None,) * 6}


def test_a_deleted_object_leaves_nothing_behind(store: Store, things: str) -> None:
    table = f"record_{store.rows('SELECT number FROM crm_object WHERE id = ?', things)[0][0]}"
    is_sqlite = store.engine.read(lambda tx: tx.dialect.engine) == "sqlite"
    names = "SELECT name FROM sqlite_master" if is_sqlite else "SELECT relname FROM pg_class"
    other = store.object("others", {"slug": "code", "type": "text", "is_unique": True})
    kept = store.create(other, code="Code 1")
    delete(store, things)
    remove_piece(store)
    store.engine.write(lambda tx: objects.delete_object(tx, things))
    for call in (objects.get_object, records.list_records, objects.delete_object):
        with pytest.raises(NotFound):
            store.engine.write(lambda tx, call=call: call(tx, things))
    assert not [name for (name,) in store.rows(names) if name == table or name.startswith(f"{table}_")]
    assert store.rows("SELECT record_id FROM unique_value") == [(kept["id"],)]
    assert store.rows("SELECT * FROM attribute_removal") == []
    assert not remove_piece(store)


@pytest.mark.needs("initdb", "postgres")
def test_an_index_in_use_is_removed_later(postgres: Any, postgres_template: str) -> None:
    url = postgres.create_database(postgres_template)
    try:
        for store in _opened(url):
            things = store.object("things", {"slug": "n", "type": "number"})
            store.create(things, n=1)
            delete(store, things, "n")

            def read_long(tx: Any) -> bool:
                records.list_records(tx, things)  # noqa: B023
                return take_piece(store.engine)  # noqa: B023

            assert not store.read(read_long)
            store.create(things)
            while take_piece(store.engine):
                pass
            assert not store.read(objects.is_removal_waiting)
    finally:
        postgres.drop_database(url)


@pytest.mark.needs("initdb", "postgres")
def test_a_table_in_a_backup_changes_afterwards_without_blocking_others(
    postgres: Any, postgres_template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "AGAIN_SECONDS", 0.1)
    url = postgres.create_database(postgres_template)
    try:
        for store in _opened(url):
            things = store.object("things")
            store.create(things)
            new = NewAttribute(name="Code", type="text")

            def step(tx: Any) -> Any:
                return objects.create_attribute(tx, things, new, ids=new_id, now=store.clock.now())  # noqa: B023

            with ThreadPoolExecutor() as pool:

                def read_long(tx: Any) -> Future[Any]:
                    records.list_records(tx, things)  # noqa: B023
                    with pytest.raises(Busy):
                        after_removal(store.engine, step, within=0.5)  # noqa: B023
                    later = pool.submit(after_removal, store.engine, step, within=60)  # noqa: B023
                    store.create(things)  # noqa: B023
                    assert not later.done()
                    return later

                store.read(read_long).result(60)

            def delete_meanwhile(tx: Any) -> None:
                records.list_records(tx, things)  # noqa: B023
                with pytest.raises(Busy):
                    store.engine.write(lambda tx: objects.delete_object(tx, things))  # noqa: B023

            store.read(delete_meanwhile)
            store.engine.write(lambda tx: objects.delete_object(tx, things))  # noqa: B023
            assert store.read(lambda tx: objects.find_object_by_slug(tx, "things")) is None
    finally:
        postgres.drop_database(url)


def _opened(url: str) -> Iterator[Store]:
    with opened(url) as store:
        yield store
