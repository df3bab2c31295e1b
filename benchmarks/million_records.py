"""Measure lists of a million records, and the wait of writers while an attribute and then the object is deleted.

    python benchmarks/million_records.py [--records 1000000] [--engine sqlite|postgresql] [--data FILE|postgresql://...]

The store creates 20,000 people, SQL the others. Lists are the best of three: in this process's time on SQLite, which runs in it, and by the
clock on PostgreSQL. Two writers create companies, one after the other, for half a minute each: while the service deletes an indexed
attribute with its values, and while it deletes the object. Exits with 1 if two wide ranges take over 0.5 s, a page by a time over 30 ms, or
a writer waits over 1 s. `--data` takes a database made by this benchmark, which loses its people.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.service_store import ENGINES, fill_service, new_id

from crmctl.service.jobs.worker import take_piece
from crmctl.service.store import objects, records
from crmctl.service.store.condition_sql import read_condition
from crmctl.service.store.engine import Engine, Tx, open_engine

SEED = 20_000
SECONDS = 30.0
WIDE = [("score", "greaterThan", "100"), ("birthday", "greaterThan", "1960-01-01")]
LISTS: list[tuple[str, list[tuple[str, str, str]], dict[str, Any], float | None]] = [
    ("two wide ranges", WIDE, {}, 0.5),
    ("two wide ranges, far down", WIDE, {"offset": 0.3}, None),
    ("contains, many match", [("job_title", "contains", "GINEER 7")], {}, None),
    ("contains, none matches", [("job_title", "contains", "zebra")], {}, None),
    ("contains, indexed, one matches", [("email", "contains", "person.77@")], {}, None),
    ("begins with, few match", [("name", "startsWith", "First5 Last5")], {}, None),
    ("100 by updated_at", [], {"sort": "updated_at", "limit": 100}, 0.03),
    ("100 by updated_at, the middle", [], {"sort": "updated_at", "limit": 100, "offset": 0.5}, 0.03),
    ("100 by created_at, the middle", [], {"limit": 100, "offset": 0.5}, 0.03),
]
ROW_IDS = {
    "sqlite": "lower(hex(randomblob(4))||'-'||hex(randomblob(2))||'-4000-8000-'||hex(randomblob(6)))",
    "postgresql": "gen_random_uuid()::text",
}


def multiply(tx: Tx, name: str, count: int) -> None:
    """Copies of the first object, whose table holds SEED records, with other ids, e-mail addresses and times."""
    if name == "postgresql":
        tx.execute("SET LOCAL statement_timeout = 0")
    number, object_id = tx.all("SELECT number, id FROM crm_object WHERE slug = 'people'")[0]
    table = f"record_{number}"
    numbers = dict(tx.all("SELECT slug, number FROM attribute WHERE object_id = ?", (object_id,)))
    email = f"c{numbers['email']}"
    columns = ["created_at", "updated_at", "data", *(f"{kind}{each}" for each in numbers.values() for kind in "cx")]
    indexes = tx.all(
        "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL AND tbl_name = ?"
        if name == "sqlite"
        else "SELECT indexname, indexdef FROM pg_indexes WHERE tablename = ? AND substr(indexdef, 8, 6) <> 'UNIQUE'",
        (table,),
    )
    for index, _ in indexes:
        tx.execute(f"DROP INDEX {index}")
    for copy in range(1, count // SEED):
        taken = {each: each for each in columns}
        taken |= {each: f"{each} + {copy * 10**8}" for each in ("created_at", "updated_at")}
        taken |= {each: f"replace({each}, '@example.com', '.{copy}@example.com')" for each in ("data", email)}
        values = ", ".join(taken.values())
        tx.execute(f"INSERT INTO {table} (id, {', '.join(taken)}) SELECT {ROW_IDS[name]}, {values} FROM {table} WHERE seq <= {SEED}")
    tx.execute(f"INSERT INTO unique_value SELECT {numbers['email']}, {email}, id FROM {table} WHERE seq > {SEED}")
    tx.execute(f"UPDATE record_total SET total = {count} WHERE object_id = ?", (object_id,))
    for _, definition in indexes:
        tx.execute(definition)


def settle(name: str, url: str) -> None:
    """Do what PostgreSQL does by itself within minutes."""
    if name == "postgresql":
        import psycopg

        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")


def time_lists(engine: Engine, people: str, count: int, clock: Callable[[], float]) -> bool:
    kept = True
    for title, conditions, paging, most in LISTS:
        read = [read_condition(*condition) for condition in conditions]
        page = records.Paging(**{key: int(value * count) if key == "offset" else value for key, value in paging.items()})
        taken = []
        for _ in range(3):
            start = clock()
            total = engine.read(lambda tx, read=read, page=page: records.list_records(tx, people, read, page))[1]  # type: ignore[misc]
            taken.append(clock() - start)
        kept = kept and (most is None or min(taken) <= most)
        print(f"  {title:32} {1000 * min(taken):8.1f} ms of {total:,}", flush=True)
    return kept


@contextlib.contextmanager
def writers(engine: Engine, waits: list[float]) -> Iterator[None]:
    leaving = threading.Event()
    companies = engine.read(lambda tx: tx.all("SELECT id FROM crm_object WHERE slug = 'companies'"))[0][0]

    def write() -> None:
        while not leaving.wait(0.01):
            start = time.perf_counter()
            engine.write(lambda tx: records.create_record(tx, companies, {"name": "While others delete"}, ids=new_id, now=time.time()))
            waits.append(time.perf_counter() - start)

    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        leaving.set()
        for thread in threads:
            thread.join()


def time_deletion(engine: Engine, what: str, delete: Callable[[Tx], None]) -> bool:
    waits: list[float] = []
    with writers(engine, waits):
        start = time.perf_counter()
        engine.write(delete)
        deleted, pieces = time.perf_counter() - start, 0
        while time.perf_counter() - start < SECONDS and take_piece(engine):
            pieces += 1
        took = time.perf_counter() - start
    ordered = sorted(waits)
    print(
        f"  {what} deleted in {deleted:.2f} s, {pieces} pieces of what it left in {took:.0f} s; {len(ordered)} writes waited "
        f"{ordered[len(ordered) // 2]:.3f} s in the median, {ordered[len(ordered) * 99 // 100]:.2f} s in 99 of 100 cases, "
        f"{ordered[-1]:.2f} s at most",
        flush=True,
    )
    return ordered[-1] <= 1.0


def time_deletions(engine: Engine, people: str) -> list[bool]:
    """Standard objects cannot be deleted, so turn this one into a custom object without references."""
    found = engine.read(lambda tx: objects.list_attributes(tx, people))
    score = next(each["id"] for each in found if each["slug"] == "score")
    engine.write(lambda tx: tx.execute("UPDATE crm_object SET type = 'custom' WHERE id = ?", (people,)))
    for each in engine.read(lambda tx: objects.referring_attributes(tx, people)):
        engine.write(lambda tx, each=each: objects.delete_attribute(tx, each["objectId"], each["id"]))  # type: ignore[misc]
    return [
        time_deletion(engine, "an attribute", lambda tx: objects.delete_attribute(tx, people, score)),
        time_deletion(engine, "the object", lambda tx: objects.delete_object(tx, people)),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--engine", choices=sorted(ENGINES), default="sqlite")
    parser.add_argument("--data")
    given = parser.parse_args()
    name = "postgresql" if "://" in (given.data or "") else given.engine
    with contextlib.nullcontext(None) if given.data else ENGINES[name]() as made:
        if made:
            start = time.perf_counter()
            engine = fill_service(made.url, SEED)[0]
            engine.write(lambda tx: multiply(tx, name, given.records))
            settle(name, made.url)
            print(f"{name}: {given.records:,} records, made in {time.perf_counter() - start:.0f} s", flush=True)
        else:
            engine = open_engine(given.data)
        [[people]] = engine.read(lambda tx: tx.all("SELECT id FROM crm_object WHERE slug = 'people'"))
        clock = time.process_time if name == "sqlite" else time.perf_counter
        kept = [time_lists(engine, people, given.records, clock), *time_deletions(engine, people)]
        engine.close()
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
