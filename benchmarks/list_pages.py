"""Measure a page of 100 by `updated_at` and `created_at`, also far down a long list; exits with 1 above 30 ms.

    python benchmarks/list_pages.py [RECORDS | DATABASE]        (default 1000000; or a copy of a service's SQLite file)

First changes 1 % of the records, so that the two orders differ. Measures the store's answer with its total: the median of five, in
processor time, which does not depend on other load.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.service_store import fill_service, new_id

from crmctl.service.store import objects, records
from crmctl.service.store.engine import Engine, open_engine

MOST_MS = 30.0
PAGE = 100
REPEATS = 5
SHARES = (0.0, 0.001, 0.1, 0.5, 0.9, 1.0)


def change_some(engine: Engine, people: str, total: int) -> None:
    """Change one record in a hundred, spread evenly."""
    chance = random.Random(total)
    for _ in range(max(1, total // 100 // PAGE)):
        offset = chance.randrange(max(1, total - PAGE))
        found = engine.read(lambda tx, offset=offset: records.list_records(tx, people, (), records.Paging(limit=PAGE, offset=offset)))[0]  # type: ignore[misc]
        items = [{"id": one["id"], "data": {"job_title": f"Changed {chance.random()}"}} for one in found]
        engine.write(lambda tx, items=items: records.bulk_write(tx, people, "upsert", items, ids=new_id, now=time.time()))  # type: ignore[misc]


def processor_ms(call: Callable[[], object]) -> float:
    taken = []
    for _ in range(REPEATS):
        begun = time.process_time()
        call()
        taken.append((time.process_time() - begun) * 1000)
    return statistics.median(taken)


def measure(engine: Engine, people: str) -> bool:
    """Print the table; return whether every page met the target."""
    total = engine.read(lambda tx: records.count_records(tx, people))
    change_some(engine, people, total)
    print(f"{total:,} records, milliseconds of processor time for a page of {PAGE} with its total")
    print("| list | order | " + " | ".join(f"{int(share * (total - PAGE)):,}" for share in SHARES) + " |")
    print("|---" * (len(SHARES) + 2) + "|")
    slowest = 0.0
    for sort in ("updated_at", "created_at"):
        for order in ("desc", "asc"):
            taken = []
            for share in SHARES:
                page = records.Paging(sort, order, PAGE, int(share * (total - PAGE)))
                taken.append(processor_ms(lambda page=page: engine.read(lambda tx: records.list_records(tx, people, (), page))))  # type: ignore[misc]
            slowest = max(slowest, *taken)
            print(f"| {sort} | {order} | " + " | ".join(f"{one:.1f}" for one in taken) + " |", flush=True)
    print(f"the slowest {slowest:.1f} ms, target {MOST_MS:g}: {'kept' if slowest <= MOST_MS else 'MISSED'}")
    return slowest <= MOST_MS


def main(what: str) -> int:
    if what.isdigit():
        with tempfile.TemporaryDirectory() as folder:
            engine, people, _, _ = fill_service(f"sqlite:///{folder}/service.db", int(what))
            kept = measure(engine, people)
            engine.close()
    else:
        engine = open_engine(f"sqlite:///{Path(what).resolve()}")
        found = engine.read(lambda tx: objects.find_object_by_slug(tx, "people"))
        assert found is not None
        kept = measure(engine, found["id"])
        engine.close()
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "1000000"))
