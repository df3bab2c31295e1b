"""Bulk create and filtered lists of the service's storage, each as a ratio to a plain baseline measured in the same run.

    python benchmarks/service_store.py [RECORDS]        (default 100000; the database goes to a temporary directory)

Baselines: `executemany` of the same documents as JSON text into one table with the same pragmas and 100 rows a transaction; and, for lists,
a full scan of that table that counts the same matches with SQLite's JSON functions.
"""

from __future__ import annotations

import random
import sqlite3
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from crmctl.models import jsontext
from crmctl.models.filters import Condition
from crmctl.service.store import objects, organisation, records
from crmctl.service.store.engine import Engine, open_engine
from crmctl.service.store.sqlite import PRAGMAS
from crmctl.service.values.conditions import read_condition

BATCH = 100
REPEATS = 7

# Name, conditions, and the same as SQL on the baseline's JSON text.
LISTS: list[tuple[str, list[tuple[str, str, str]], dict[str, Any], str]] = [
    ("no filter, first page", [], {}, "1"),
    ("no filter, middle page", [], {"offset": 0.5}, "1"),
    ("email equals (1 match)", [("email", "equals", "person.5@example.com")], {}, "data ->> '$.email' = 'person.5@example.com'"),
    ("status equals (20 %)", [("status", "equals", "customer")], {}, "data ->> '$.status' = 'customer'"),
    ("subscribed isTrue (50 %)", [("subscribed", "isTrue", "true")], {}, "data ->> '$.subscribed' = 1"),
    ("score greaterThan (0.1 %)", [("score", "greaterThan", "998")], {}, "data ->> '$.score' > 998"),
    ("score greaterThan (50 %)", [("score", "greaterThan", "499")], {}, "data ->> '$.score' > 499"),
    ("score > 50 %, deep page", [("score", "greaterThan", "499")], {"offset": 0.25}, "data ->> '$.score' > 499"),
    ("status notEquals (80 %)", [("status", "notEquals", "customer")], {}, "data ->> '$.status' <> 'customer'"),
    ("birthday lessThan (10 %)", [("birthday", "lessThan", "1956-01-01")], {}, "data ->> '$.birthday' < '1956-01-01'"),
    ("title contains, no index", [("job_title", "contains", "ENGINEER 7")], {}, "lower(data ->> '$.job_title') LIKE '%engineer 7%'"),
    (
        "status and score",
        [("status", "equals", "new"), ("score", "lessThan", "10")],
        {},
        "data ->> '$.status' = 'new' AND data ->> '$.score' < 10",
    ),
]


def new_id() -> str:
    return str(uuid.uuid4())


def documents(count: int) -> Iterator[dict[str, Any]]:
    """People as a CRM holds them: ten attributes filled."""
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


def fill_baseline(path: Path, count: int) -> tuple[sqlite3.Connection, float]:
    connection = sqlite3.connect(path, isolation_level=None)
    for pragma in PRAGMAS:
        connection.execute(pragma)
    connection.execute("CREATE TABLE record (seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, data TEXT NOT NULL)")
    spent = 0.0
    for batch in batches(count):
        start = time.perf_counter()
        connection.execute("BEGIN IMMEDIATE")
        rows = [(new_id(), jsontext.dumps(document)) for document in batch]
        connection.executemany("INSERT INTO record (id, data) VALUES (?, ?)", rows)
        connection.execute("COMMIT")
        spent += time.perf_counter() - start
    return connection, spent


def fill_service(path: Path, count: int) -> tuple[Engine, str, float, list[float]]:
    engine = open_engine(path)
    engine.write(lambda tx: organisation.initialise(tx, new_id, time.time()))
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


def main(count: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        baseline, plain = fill_baseline(Path(folder) / "plain.db", count)
        engine, people, spent, times = fill_service(Path(folder) / "crm.db", count)
        print(f"{count:,} records of 10 attributes, {BATCH} a transaction, synchronous=FULL")
        print(f"  plain executemany of JSON {count / plain:10,.0f} rows/s")
        print(f"  bulk create               {count / spent:10,.0f} rows/s   {spent / plain:.2f} x the time of the baseline")
        slowest = sorted(times)[len(times) * 99 // 100]
        print(f"  one bulk create of {BATCH}     median {statistics.median(times) * 1000:.1f} ms, p99 {slowest * 1000:.1f} ms")
        plain_size, size = (sum(each.stat().st_size for each in Path(folder).glob(f"{name}.db*")) for name in ("plain", "crm"))
        print(f"  size of the database      {size / 2**20:10,.0f} MB   {size / plain_size:.2f} x")
        print(f"{'list of 50 with total':28} {'ms':>9} {'matches':>10} {'scan ms':>9} {'ratio':>8}")
        for name, conditions, paging, scan in LISTS:
            read: list[Condition] = [read_condition(*condition) for condition in conditions]
            page = {key: int(share * count) for key, share in paging.items()}
            ours = median_ms(lambda read=read, page=page: engine.read(lambda tx: records.list_records(tx, people, read, **page)))  # type: ignore[misc]
            total = engine.read(lambda tx, read=read: records.count_records(tx, people, read))  # type: ignore[misc]
            sql = f"SELECT count(*) FROM record WHERE {scan}"
            scanned = median_ms(lambda sql=sql: baseline.execute(sql).fetchone(), 3)  # type: ignore[misc]
            assert baseline.execute(sql).fetchone()[0] == total, name
            print(f"  {name:26} {ours:9.2f} {total:10,} {scanned:9.1f} {ours / scanned:8.4f}")
        engine.close()
        baseline.close()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)
