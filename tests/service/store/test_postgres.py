"""Behaviour of PostgreSQL only: concurrent writers, several processes, and a server that stops."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from crmctl.errors import ConfigError
from crmctl.models import jsontext
from crmctl.service.faults import Conflict, Fault, NotFound, OutcomeUnknown, Unavailable
from crmctl.service.http.json_answers import answer_for
from crmctl.service.server import make_first_key
from crmctl.service.store import activities, change_log, keys, objects, records
from crmctl.service.store.engine import Tx, open_engine
from crmctl.service.store.postgres import PostgresEngine
from tests.service.store.conftest import Store, new_id, opened
from tests.support.clock import FakeClock

pytestmark = pytest.mark.needs("initdb", "postgres")

Stores = tuple[Store, Store]


@pytest.fixture
def url(postgres: Any, postgres_template: str) -> Iterator[str]:
    made = postgres.create_database(postgres_template)
    yield made
    postgres.drop_database(made)


@pytest.fixture
def two(url: str) -> Iterator[Stores]:
    """Two engines on one database, as in two processes."""
    with opened(url) as one, opened(url) as other:
        yield one, other


def run_together(*calls: Callable[[], Any]) -> list[Any]:
    """Run the calls at once. Return the result or fault of each."""
    barrier = threading.Barrier(len(calls))

    def run(call: Callable[[], Any]) -> Any:
        barrier.wait()
        try:
            return call()
        except Fault as fault:
            return fault

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


def test_a_reader_sees_one_moment_and_cannot_write(two: Stores) -> None:
    one, other = two
    things = one.object("things")

    def look_twice(tx: Tx) -> tuple[int, int]:
        before = records.count_records(tx, things)
        other.create(things)
        return before, records.count_records(tx, things)

    assert one.read(look_twice) == (0, 0)
    assert one.total(things) == 1
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        one.read(lambda tx: tx.execute("DELETE FROM organisation"))


def test_an_exclusive_read_uses_no_parallel_workers(two: Stores) -> None:
    def helpers(tx: Tx) -> Any:
        return tx.all("SELECT current_setting('max_parallel_workers_per_gather')")

    engine = two[0].engine
    usual = engine.read(helpers)
    assert usual != [("0",)]
    assert engine.read(helpers, within=5.0, helped=False) == [("0",)]
    assert engine.read(helpers) == usual


def test_one_of_several_writers_gets_a_unique_value(two: Stores) -> None:
    things = two[0].object("things", {"slug": "code", "type": "text", "is_unique": True})
    for n in range(10):
        outcomes = run_together(*[lambda store=store, n=n: store.create(things, code=f"c{n}") for store in two * 2])
        refused = [outcome for outcome in outcomes if isinstance(outcome, Fault)]
        assert [type(fault) for fault in refused] == [Conflict] * 3
    assert two[0].total(things) == 10


def test_a_bulk_request_that_loses_a_race_reports_the_row(two: Stores) -> None:
    things = two[0].object("things", {"slug": "code", "type": "number", "is_unique": True})
    rows = [[{"data": {"code": n}} for n in order] for order in (range(60), range(59, -1, -1))]
    outcomes = run_together(
        *[
            lambda store=store, mine=mine: store.write(records.bulk_write, things, "create", mine)
            for store, mine in zip(two, rows, strict=True)
        ]
    )
    assert sum(outcome["created"] for outcome in outcomes) == 60
    assert sum(len(outcome["failed"]) for outcome in outcomes) == 60
    assert two[0].total(things) == 60


def test_a_failed_transaction_logs_nothing(two: Stores, caplog: pytest.LogCaptureFixture) -> None:
    def fail(tx: Tx) -> None:
        for _ in range(3):
            tx.execute_many("INSERT INTO unique_value (attribute, key, record_id) VALUES (?, ?, ?)", [(1, "key", "id")])

    with pytest.raises(psycopg.errors.UniqueViolation):
        two[0].engine.write(fail)
    assert caplog.messages == []


def test_changes_of_the_same_records_in_any_order_all_happen(two: Stores) -> None:
    """Totals, unique values and events stay exact while four writers swap values of the same records."""
    things = two[0].object("things", {"slug": "code", "type": "text", "is_unique": True}, {"slug": "n", "type": "number"})
    made = [two[0].create(things, code=f"c{n}", n=0)["id"] for n in range(6)]

    def change(store: Store, seed: int) -> int:
        chance = random.Random(seed)
        done = 0
        for _ in range(15):
            order = chance.sample(made, 6)
            items = [
                {"id": record_id, "data": {"n": seed, "code": chance.choice([f"c{chance.randrange(8)}", None])}} for record_id in order
            ]
            done += store.write(records.bulk_write, things, "upsert", items)["updated"]
            fresh = store.create(things, n=seed)
            store.write(records.bulk_delete, things, [fresh["id"]])
        return done

    done = sum(run_together(*[lambda store=store, seed=seed: change(store, seed) for seed, store in enumerate(two * 2)]))
    found = two[0].find(things)
    assert two[0].total(things) == len(found) == 6
    held = {(record["id"], record["data"]["code"]) for record in found if "code" in record["data"]}
    assert {(owner, key) for key, owner in two[0].rows("SELECT key, record_id FROM unique_value")} == held
    events = [(kind, jsontext.loads(payload)) for kind, payload in two[0].rows("SELECT type, payload FROM change_log ORDER BY sequence")]
    assert len([kind for kind, _ in events if kind == "record.updated"]) == done
    last = {event["recordId"]: event["data"] for kind, event in events if kind in ("record.created", "record.updated")}
    assert {record["id"]: record["data"] for record in found} == {record: last[record] for record in made}


def test_attributes_change_while_others_read_and_write(two: Stores) -> None:
    one, other = two
    things = one.object("things", {"slug": "kept", "type": "number"})
    stop = threading.Event()
    written = []

    def write() -> None:
        while not stop.is_set():
            written.append(other.write(records.bulk_write, things, "create", [{"data": {"kept": 1}}] * 20)["created"])

    def read() -> None:
        while not stop.is_set():
            found, total = other.read(lambda tx: records.list_records(tx, things, page=records.Paging(limit=5)))
            assert len(found) == min(5, total)

    with ThreadPoolExecutor(4) as pool:
        busy = [pool.submit(write), pool.submit(write), pool.submit(read)]
        try:
            for n in range(8):
                one.write(
                    objects.create_attribute,
                    things,
                    objects.NewAttribute(name=f"Late {n}", slug=f"late_{n}", type="number", is_unique=n % 2 == 0),
                )
                one.create(things, **{f"late_{n}": n})
                late = one.attribute(things, f"late_{n}")["id"]
                one.engine.write(lambda tx, late=late: objects.delete_attribute(tx, things, late))
        finally:
            stop.set()
        for future in busy:
            future.result()
    assert one.total(things) == sum(written) + 8 == len(one.find(things, ("created_at", "isNotEmpty", "true")))
    assert all(record["data"] in ({"kept": 1}, {}) for record in one.find(things))


def test_writers_of_a_deleted_object_get_not_found(two: Stores) -> None:
    one, other = two
    for _ in range(5):
        things = one.object("things", {"slug": "n", "type": "number"})
        outcomes = run_together(
            lambda things=things: one.engine.write(lambda tx: objects.delete_object(tx, things)),
            *[lambda things=things: other.create(things, n=1)] * 3,
        )
        assert outcomes[0] is None
        assert all(isinstance(outcome, (dict, NotFound)) for outcome in outcomes[1:])
        assert one.rows("SELECT * FROM record_total WHERE object_id = ?", things) == []


def test_prepared_statements_survive_a_change_of_their_table(two: Stores) -> None:
    one, other = two
    things = one.object("things")
    number = one.rows("SELECT number FROM crm_object WHERE id = ?", things)[0][0]
    for n in range(3):
        for _ in range(8):
            other.create(things)
            assert len(other.rows(f"SELECT * FROM record_{number} LIMIT 1")[0]) == 5 + 2 * n
        one.write(objects.create_attribute, things, objects.NewAttribute(name=f"a{n}", type="text"))


def test_numbers_stay_unchanged_when_an_attribute_is_deleted(two: Stores) -> None:
    store = two[0]
    things = store.object("things", {"slug": "gone", "type": "text"}, {"slug": "n", "type": "number"}, {"slug": "t", "type": "text"})
    store.engine.write(
        lambda tx: records.create_record(
            tx, things, jsontext.loads('{"n": 1.50e+300, "gone": "x\\"gone\\":", "t": "\\u00e9\\n\\"gone\\":"}'), ids=new_id, now=0.0
        )
    )
    gone = store.attribute(things, "gone")["id"]
    store.engine.write(lambda tx: objects.delete_attribute(tx, things, gone))
    number = store.rows("SELECT number FROM crm_object WHERE id = ?", things)[0][0]
    (data,) = store.rows(f"SELECT data FROM record_{number}")[0]
    assert data == jsontext.dumps(jsontext.loads('{"n": 1.50e+300, "t": "\\u00e9\\n\\"gone\\":"}'))


def test_a_first_start_of_several_processes_shows_one_key(two: Stores) -> None:
    made = run_together(*[lambda store=store: make_first_key(store.engine, FakeClock(), new_id) for store in two * 3])
    assert len([secret for secret in made if secret]) == 1
    assert len(two[0].read(keys.list_keys)) == 1


def test_concurrent_deletions_delete_once(two: Stores) -> None:
    people = two[0].standard("people")
    for _ in range(5):
        activity, record = two[0].write(activities.create_activity, {"title": "Call"}, created_by=None)["id"], two[0].create(people)["id"]
        for delete in (
            lambda store, activity=activity: store.write(activities.delete_activity, activity),
            lambda store, record=record: store.write(records.delete_record, people, record),
        ):
            outcomes = run_together(*[lambda store=store, delete=delete: delete(store) for store in two * 2])
            assert sorted(type(outcome).__name__ for outcome in outcomes) == ["NoneType", "NotFound", "NotFound", "NotFound"]
    assert two[0].rows(
        "SELECT type, count(*) FROM change_log WHERE type IN ('activity.deleted', 'record.deleted') GROUP BY type ORDER BY type"
    ) == [
        ("activity.deleted", 5),
        ("record.deleted", 5),
    ]


def test_each_event_is_handed_over_once(two: Stores) -> None:
    for n in range(300):
        two[0].engine.write(lambda tx, n=n: change_log.append_event(tx, "record.created", {"n": n}, ids=new_id, now=0.0))
    taken: list[str] = []

    def take(store: Store) -> None:
        while events := store.engine.write(lambda tx: change_log.take_waiting(tx, 7)):
            taken.extend(event.id for event in events)

    run_together(*[lambda store=store: take(store) for store in two * 2])
    while events := two[0].engine.write(lambda tx: change_log.take_waiting(tx, 100)):
        taken.extend(event.id for event in events)
    assert len(taken) == len(set(taken)) == 300


def test_rate_windows_are_exact_across_engines_and_forgotten(two: Stores) -> None:
    windows = [store.engine.rate_windows() for store in two]
    now = 1_800_000_000.0
    outcomes = run_together(*[lambda mine=mine: [mine.take("key", 50, 60, now + 59.9) for _ in range(20)] for mine in windows * 2])
    states = [state for mine in outcomes for state in mine]
    assert sorted(state.remaining for state in states if state.allowed) == list(range(50))
    assert {state.remaining for state in states if not state.allowed} == {0}
    assert {state.reset for state in states} == {1_800_000_060}
    assert windows[0].take("other", 50, 60, now).remaining == 49
    assert windows[1].take("key", 50, 60, now + 60).remaining == 49
    windows[1].take("key", 50, 60, now + 7200)
    assert two[0].rows("SELECT key_id, ends_at, taken FROM rate_window") == [("key", 1_800_007_260, 1)]


def test_closed_connections_are_replaced_without_an_error(two: Stores, postgres: Any, url: str) -> None:
    store = two[0]
    things = store.object("things")
    for n in range(3):
        postgres.end_connections(url)
        assert store.total(things) == n
        postgres.end_connections(url)
        store.create(things)


def test_a_transaction_is_repeated_after_losing_its_connection(two: Stores, postgres: Any, url: str) -> None:
    things = two[0].object("things")
    runs = []

    def write(tx: Tx) -> None:
        runs.append(1)
        records.create_record(tx, things, {}, ids=new_id, now=0.0)
        if len(runs) == 1:
            postgres.end_connections(url)

    two[0].engine.write(write)
    assert len(runs) == 2
    assert two[0].total(things) == 1


@pytest.mark.parametrize("is_noticed", [True, False])
def test_a_commit_without_an_answer_is_looked_up(two: Stores, monkeypatch: pytest.MonkeyPatch, is_noticed: bool) -> None:
    """The connection breaks after the database committed and before it answers; a repeated write would happen twice. psycopg may not have
    noticed the end of the connection."""
    things = two[0].object("things")
    engine = two[0].engine
    assert isinstance(engine, PostgresEngine)
    real = psycopg.Pipeline.__exit__
    broken: list[int] = []

    def lose(pipeline: Any, *arguments: Any) -> None:
        real(pipeline, *arguments)
        if not broken:
            broken.append(1)
            if is_noticed:
                pipeline._conn.close()
            raise psycopg.OperationalError("cannot exit pipeline mode while busy")

    monkeypatch.setattr(psycopg.Pipeline, "__exit__", lose)
    made = two[0].create(things)
    assert broken
    assert two[1].find(things) == [made]


def test_a_commit_that_cannot_be_looked_up_may_have_happened(two: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    things = two[0].object("things")
    real = psycopg.Pipeline.__exit__

    with monkeypatch.context() as patch:

        def lose(pipeline: Any, *arguments: Any) -> None:
            real(pipeline, *arguments)
            patch.setattr(two[0].engine, "_pool_seconds", 0.0)  # no time to look it up
            raise psycopg.OperationalError("the connection is lost")

        patch.setattr(psycopg.Pipeline, "__exit__", lose)
        with pytest.raises(OutcomeUnknown) as raised:
            two[0].create(things)
    answer = answer_for(raised.value)
    assert answer.status_code == 500  # a 503 would say that nothing was done
    assert b'"error":"outcome_unknown"' in answer.body
    assert b"may have happened" in answer.body
    assert two[1].total(things) == 1


def test_a_stopped_server_is_unavailable_until_it_restarts(caplog: pytest.LogCaptureFixture) -> None:
    from tests.support.postgres import private_server

    with private_server() as server:
        url = server.create_database()
        with opened(url):
            """Set up."""
        store = Store(PostgresEngine(url, pool_seconds=0.5))
        things = store.object("things")
        kept = store.create(things)
        for number in (signal.SIGINT, signal.SIGQUIT):
            server.stop(number)
            for call in (store.engine.read, store.engine.write):
                with pytest.raises(Unavailable):
                    call(lambda tx: records.count_records(tx, things))
            server.start()
            assert store.find(things) == [kept]
        store.engine.close()
    assert not caplog.records


def test_a_lock_held_too_long_raises_unavailable(two: Stores, url: str) -> None:
    impatient = open_engine(f"{url}?options=-c%20lock_timeout%3D50ms")

    def hold(tx: Tx) -> None:
        tx.execute("UPDATE organisation SET name = 'mine'")
        with pytest.raises(Unavailable):
            impatient.write(lambda tx: tx.execute("UPDATE organisation SET name = 'theirs'"))

    two[0].engine.write(hold)
    impatient.close()


def test_a_closed_engine_is_unavailable(url: str) -> None:
    engine = open_engine(url)
    engine.close()
    for call in (engine.read, engine.write):
        with pytest.raises(Unavailable):
            call(keys.list_keys)
    engine.close()


def test_errors_of_opening_do_not_show_the_password(postgres: Any, url: str) -> None:
    for address in (
        url.replace(":", "x:", 1),
        f"{url}_absent",
        "postgresql://me:geheim@127.0.0.1:1/crm",
        "postgresql://me:geheim@[::1/crm",
    ):
        with pytest.raises(ConfigError) as refused:
            open_engine(address)
        assert "geheim" not in refused.value.message
    postgres._administer("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE_PROVIDER libc LOCALE 'C' TEMPLATE template0")
    with pytest.raises(ConfigError, match="UTF8"):
        open_engine(postgres.url("latin"))


_HOLDER = """
import sys, time
from crmctl.service.store.engine import open_engine  # noqa: E402
engine = open_engine(sys.argv[1])
def hold(tx):
    tx.execute("UPDATE organisation SET name = 'killed'")
    print("holding", flush=True)
    time.sleep(60)
engine.write(hold)
"""


def test_locks_of_a_killed_process_are_released_at_once(two: Stores, url: str) -> None:
    with subprocess.Popen([sys.executable, "-c", _HOLDER, url], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "holding\n"
        child.kill()
        two[0].engine.write(lambda tx: tx.execute("UPDATE organisation SET name = 'free'"))
    assert two[0].rows("SELECT name FROM organisation") == [("free",)]


def test_record_tables_are_vacuumed_early(two: Stores) -> None:
    store = two[0]
    number = store.rows("SELECT number FROM crm_object WHERE id = ?", store.object("things"))[0][0]
    settings = "SELECT reloptions FROM pg_class WHERE relname = ?"
    [[made]] = store.rows(settings, f"record_{number}")
    assert made == ["autovacuum_vacuum_insert_scale_factor=0.02"]
