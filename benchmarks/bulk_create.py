"""Bulk create over HTTP: rows for each second of the service's own processor time, batches of 100, beside a plain loop in the same run.

    python benchmarks/bulk_create.py [--rows 20000] [--engine sqlite|postgresql] [--attributes 7|10]

Seven attributes: name, e-mail (unique), phone, text, number, select and a reference; ten: those of service_store.py. The baseline is
what that file has: `executemany` of the same documents as JSON into one table, as durable, here in SQLite. Ends with 1 below the target.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.delivery_rate import started
from benchmarks.measuring import processor_seconds
from benchmarks.service_store import BATCH, documents, fill_baseline, sqlite_database

TARGET = 12_000
COMPANIES = 1000
_SEVEN = ("name", "email", "phone", "job_title", "score", "status")


def rows(count: int, attributes: int, companies: list[str]) -> Iterator[dict[str, Any]]:
    for number, document in enumerate(documents(count)):
        if attributes == 7:
            document = {slug: document[slug] for slug in _SEVEN} | {"company": companies[number * 7919 % len(companies)]}
        yield document


def bodies(documents: Iterator[dict[str, Any]]) -> list[bytes]:
    """Requests as a client writes them."""
    items = [{"data": document} for document in documents]
    return [
        json.dumps({"mode": "create", "records": items[start : start + BATCH]}, separators=(",", ":")).encode()
        for start in range(0, len(items), BATCH)
    ]


def measure(engine: str, count: int, attributes: int) -> bool:
    headers = {"content-type": "application/json"}
    with tempfile.TemporaryDirectory() as folder, started(engine, Path(folder)) as (service, _), service.client() as client:
        objects = {each["slug"]: each["id"] for each in client.get("/api/v1/objects").json()["objects"]}
        names = iter([{"name": f"Company {number}"} for number in range(COMPANIES)])
        for body in bodies(names):
            client.post(f"/api/v1/objects/{objects['companies']}/records/bulk", content=body, headers=headers).raise_for_status()
        pages = range(0, COMPANIES, 100)
        found = [client.get(f"/api/v1/objects/{objects['companies']}/records", params={"limit": 100, "offset": at}).json() for at in pages]
        companies = [record["id"] for page in found for record in page["records"]]
        requests = bodies(rows(count, attributes, companies))
        before, start = processor_seconds(service.process.pid), time.perf_counter()
        for body in requests:
            answer = client.post(f"/api/v1/objects/{objects['people']}/records/bulk", content=body, headers=headers)
            assert answer.json() == {"created": BATCH, "updated": 0, "failed": []}, answer.text
        spent, took = processor_seconds(service.process.pid) - before, time.perf_counter() - start
    with sqlite_database() as database:
        own = time.process_time()
        fill_baseline(database, count)
        plain = time.process_time() - own
    print(
        f"{engine}, {count:,} rows of {attributes} attributes over HTTP: {count / spent:,.0f} rows a processor second "
        f"({1e6 * spent / count:.0f} us a row, {count / took:,.0f} rows a second by the clock); the plain loop {count / plain:,.0f}, "
        f"ratio {spent / plain:.1f}",
        flush=True,
    )
    return count / spent >= TARGET


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--engine", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--attributes", type=int, choices=(7, 10), default=7)
    given = parser.parse_args()
    return 0 if measure(given.engine, given.rows - given.rows % BATCH, given.attributes) else 1


if __name__ == "__main__":
    sys.exit(main())
