"""Measure bulk create and filtered lists of the service's storage, each as a ratio to a plain baseline of the same run.

    python benchmarks/service_store.py [RECORDS] [sqlite|postgresql]        (default 100000 and sqlite)

The database goes to a temporary directory; PostgreSQL's server programs are started there, with fsync on. Baselines, on the same engine:
`executemany` of the same documents as JSON text into one table, 100 rows per transaction, as durable as the service's; and, for lists, a
full scan of that table that counts the same matches with the engine's own JSON functions.
"""

from __future__ import annotations

import contextlib
import random
import re
import sqlite3
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crmctl.models import jsontext
from crmctl.service.store import members, objects, records
from crmctl.service.store.condition_sql import read_condition
from crmctl.service.store.engine import Engine, open_engine
from crmctl.service.store.sqlite import PRAGMAS
from crmctl.values.filters import Condition

BATCH = 100
REPEATS = 7

# Name, conditions, paging, and the same conditions as SQL on the baseline's JSON.
LISTS: list[tuple[str, list[tuple[str, str, str]], dict[str, Any], str]] = [
    ("no filter, first page", [], {}, "1 = 1"),
    ("no filter, middle page", [], {"offset": 0.5}, "1 = 1"),
    ("email equals (1 match)", [("email", "equals", "person.5@example.com")], {}, "text(email) = 'person.5@example.com'"),
    ("status equals (20 %)", [("status", "equals", "customer")], {}, "text(status) = 'customer'"),
    ("subscribed isTrue (50 %)", [("subscribed", "isTrue", "true")], {}, "truth(subscribed)"),
    ("score greaterThan (0.1 %)", [("score", "greaterThan", "998")], {}, "number(score) > 998"),
    ("score greaterThan (50 %)", [("score", "greaterThan", "499")], {}, "number(score) > 499"),
    ("score > 50 %, deep page", [("score", "greaterThan", "499")], {"offset": 0.25}, "number(score) > 499"),
    ("status notEquals (80 %)", [("status", "notEquals", "customer")], {}, "text(status) <> 'customer'"),
    ("birthday lessThan (10 %)", [("birthday", "lessThan", "1956-01-01")], {}, "text(birthday) < '1956-01-01'"),
    ("title contains, no index", [("job_title", "contains", "ENGINEER 7")], {}, "lower(text(job_title)) LIKE '%engineer 7%'"),
    (
        "status and score",
        [("status", "equals", "new"), ("score", "lessThan", "10")],
        {},
        "text(status) = 'new' AND number(score) < 10",
    ),
]


def new_id() -> str:
    return str(uuid.uuid4())


def documents(count: int) -> Iterator[dict[str, Any]]:
    """Yield people as a CRM holds them: ten attributes filled."""
    chance = random.Random(1)
    statuses = ("new", "contacted", "qualified", "customer", "inactive")
    for n in range(count):
        yield {
            "name": {"first": f"First{n % 977}", "last": f"Last{n % 7919}"},
            "email": f"person.{n}@example.com",
            "phone": f"+49 30 {n:08d}",
            "job_title": f"Engineer {chance.randrange(100)}",
            "birthday": f"{chance.randrange(1950, 2010)}-{chance.randrange(1, 13):02d}-{chance.randrange(1, 29):02d}",
            "address": {"street": f"{n} Main Street", "city": "Berlin"},
            "tags": ["imported", f"batch{n % 10}"],
            "subscribed": n % 2 == 0,
            "status": chance.choice(statuses),
            "score": chance.randrange(1000),
        }


def batches(count: int) -> Iterator[list[dict[str, Any]]]:
    batch: list[dict[str, Any]] = []
    for document in documents(count):
        batch.append(document)
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


@dataclass(frozen=True)
class Database:
    """An engine: the place of the service's data, and a plain connection for the baseline, with the engine's SQL for the same things."""

    url: str
    connection: Any
    mark: str
    table: str
    reads: Mapping[str, str]
    size: str

    def scan(self, condition: str) -> str:
        """Return the condition of a list, on the baseline's table."""
        for name, expression in self.reads.items():
            condition = re.sub(rf"{name}\((\w+)\)", expression, condition)
        return f"SELECT count(*) FROM record WHERE {condition}"


@contextlib.contextmanager
def sqlite_database() -> Iterator[Database]:
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(sqlite3.connect(f"{folder}/plain.db", isolation_level=None)) as plain:
        for pragma in ("PRAGMA journal_mode = WAL", *PRAGMAS):
            plain.execute(pragma)
        table = "CREATE TABLE record (seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, data TEXT NOT NULL)"
        reads = {"truth": r"data ->> '$.\1' = 1", "number": r"data ->> '$.\1'", "text": r"data ->> '$.\1'"}
        size = "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"
        yield Database(f"{folder}/crm.db", plain, "?", table, reads, size)


ORDINARY = {"autovacuum": "on", "shared_buffers": "128MB"}
"""Set PostgreSQL up as its package does; the tests use other settings."""


@contextlib.contextmanager
def postgres_database() -> Iterator[Database]:
    import psycopg

    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.support.postgres import private_server

    with private_server(**ORDINARY) as server, psycopg.connect(server.create_database(), autocommit=True) as plain:
        table = "CREATE TABLE record (seq BIGSERIAL PRIMARY KEY, id TEXT NOT NULL UNIQUE, data TEXT NOT NULL)"
        reads = {
            "truth": r"(data::jsonb ->> '\1') = 'true'",
            "number": r"(data::jsonb ->> '\1')::numeric",
            "text": r"(data::jsonb ->> '\1')",
        }
        yield Database(server.create_database(), plain, "%s", table, reads, "SELECT pg_database_size(current_database())")


ENGINES = {"sqlite": sqlite_database, "postgresql": postgres_database}


def fill_baseline(database: Database, count: int) -> float:
    plain = database.connection
    plain.execute(database.table)
    spent = 0.0
    for batch in batches(count):
        start = time.perf_counter()
        plain.execute("BEGIN")
        rows = [(new_id(), jsontext.dumps(document)) for document in batch]
        plain.cursor().executemany(f"INSERT INTO record (id, data) VALUES ({database.mark}, {database.mark})", rows)
        plain.execute("COMMIT")
        spent += time.perf_counter() - start
    return spent


def fill_service(url: str, count: int) -> tuple[Engine, str, float, list[float]]:
    engine = open_engine(url)
    engine.write(lambda tx: members.initialise(tx, new_id, time.time()))
    people = engine.read(lambda tx: objects.find_object_by_slug(tx, "people"))
    assert people is not None
    times = []
    for batch in batches(count):
        items = [{"data": document} for document in batch]
        start = time.perf_counter()
        outcome = engine.write(
            lambda tx, items=items: records.bulk_write(tx, people["id"], "create", items, ids=new_id, now=time.time())  # type: ignore[misc]
        )
        times.append(time.perf_counter() - start)
        assert outcome["failed"] == []
    return engine, people["id"], sum(times), times


def median_ms(call: Callable[[], object], repeats: int = REPEATS) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1000


def main(count: int, name: str) -> None:
    with ENGINES[name]() as database:
        plain = fill_baseline(database, count)
        engine, people, spent, times = fill_service(database.url, count)
        print(f"{name}: {count:,} records of 10 attributes, {BATCH} a transaction, each on disk when it is answered")
        print(f"  plain executemany of JSON {count / plain:10,.0f} rows/s")
        print(f"  bulk create               {count / spent:10,.0f} rows/s   {spent / plain:.2f} x the time of the baseline")
        slowest = sorted(times)[len(times) * 99 // 100]
        print(f"  one bulk create of {BATCH}     median {statistics.median(times) * 1000:.1f} ms, p99 {slowest * 1000:.1f} ms")
        size = engine.read(lambda tx: tx.all(database.size))[0][0]
        plain_size = database.connection.execute(database.size).fetchone()[0]
        print(f"  size of the database      {size / 2**20:10,.0f} MB   {size / plain_size:.2f} x")
        if name == "postgresql":
            engine.write(lambda tx: tx.execute("ANALYZE"))
        print(f"{'list of 50 with total':28} {'ms':>9} {'matches':>10} {'scan ms':>9} {'ratio':>8}")
        for title, conditions, paging, scan in LISTS:
            read: list[Condition] = [read_condition(*condition) for condition in conditions]
            page = {key: int(share * count) for key, share in paging.items()}
            ours = median_ms(
                lambda read=read, page=page: engine.read(lambda tx: records.list_records(tx, people, read, records.Paging(**page)))
            )  # type: ignore[misc]
            total = engine.read(lambda tx, read=read: records.count_records(tx, people, read))  # type: ignore[misc]
            sql = database.scan(scan)
            scanned = median_ms(lambda sql=sql: database.connection.execute(sql).fetchone(), 3)  # type: ignore[misc]
            assert database.connection.execute(sql).fetchone()[0] == total, title
            print(f"  {title:26} {ours:9.2f} {total:10,} {scanned:9.1f} {ours / scanned:8.4f}")
        engine.close()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000, sys.argv[2] if len(sys.argv) > 2 else "sqlite")
