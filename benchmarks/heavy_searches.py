"""Measure other keys' answers during 45 heavy searches of one key: a real `crmctl serve` on loopback, on either engine.

    python benchmarks/heavy_searches.py [--records 200000] [--engine sqlite|postgresql] [--searches 45] [--data DIR|postgresql://...]

`--data` takes the directory or the database address of a service that already holds records. Another key reads a record, a page of a list
and a search of its own, and writes a record, in turn; first alone, so that the two can be compared on a busy machine. Exits with 1 if one
of them took a second, or a search got another status than 200 or 503.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.service_store import ORDINARY, fill_service
from tests.support.service import make_client, make_key, service_process

from crmctl.service.context import DATABASE_FILE
from crmctl.service.store.engine import open_engine

TARGET = 1.0
SECONDS, SECONDS_ALONE = 15.0, 5.0
HEAVY = {
    "filters": [
        {"attributeSlug": "job_title", "operator": "contains", "value": "neer 7"},
        {"attributeSlug": "score", "operator": "greaterThan", "value": "100"},
        {"attributeSlug": "birthday", "operator": "greaterThan", "value": "1960-01-01"},
    ]
}


@contextlib.contextmanager
def served(engine: str, data: str | None, count: int) -> Iterator[tuple[str, str, str]]:
    """Serve records; yield the address and the secrets of two keys."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if data and "://" in data:
            address = data
        elif engine == "postgresql":
            from tests.support.postgres import private_server

            address = stack.enter_context(private_server(**ORDINARY)).create_database()
        else:
            folder = Path(data) if data else folder
            address = str(folder / DATABASE_FILE)
        if not data:
            filled = fill_service(address, count)[0]
            if engine == "postgresql":
                filled.write(lambda tx: tx.execute("ANALYZE"))
            filled.close()
        with contextlib.closing(open_engine(address)) as opened:
            secrets = [make_key(opened, name=name) for name in ("heavy", "other")]
        options = ("--database-url", address) if "://" in address else ()
        service = stack.enter_context(service_process(folder, "--rate-limit", "0", *options))
        yield service.base_url, *secrets


def search(client: httpx.Client, path: str, leaving: threading.Event, outcomes: Counter[int]) -> None:
    while not leaving.is_set():
        outcomes[client.post(f"{path}/search", json=HEAVY).status_code] += 1


def _ask_in_turn(asked: dict[str, Callable[[], Any]], seconds: float) -> dict[str, list[float]]:
    taken: dict[str, list[float]] = {name: [] for name in asked}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for name, ask in asked.items():
            start = time.perf_counter()
            ask().raise_for_status()
            taken[name].append(time.perf_counter() - start)
    return taken


def measure(base_url: str, heavy: str, other: str, searches: int) -> bool:
    leaving, outcomes = threading.Event(), Counter[int]()
    with make_client(base_url, other) as client:
        people = next(one["id"] for one in client.get("/api/v1/objects").json()["objects"] if one["slug"] == "people")
        path = f"/api/v1/objects/{people}/records"
        known = client.get(path, params={"limit": 1}).json()["records"][0]["id"]
        clients = [make_client(base_url, heavy) for _ in range(searches)]
        threads = [threading.Thread(target=search, args=(each, path, leaving, outcomes), daemon=True) for each in clients]
        asked: dict[str, Callable[[], Any]] = {
            "a record": lambda: client.get(f"{path}/{known}"),
            "a page": lambda: client.get(path, params={"limit": 50}),
            "a search": lambda: client.post(f"{path}/search", json={"filters": HEAVY["filters"][1:2], "limit": 10}),
            "a new record": lambda: client.post(path, json={"data": {"name": "While others search"}}),
        }
        alone = _ask_in_turn(asked, SECONDS_ALONE)
        for thread in threads:
            thread.start()
        taken = _ask_in_turn(asked, SECONDS)
        leaving.set()
        for thread, each in zip(threads, clients, strict=True):
            thread.join()
            each.close()
    print(f"beside {searches} searches (answered: {', '.join(f'{count} x {status}' for status, count in sorted(outcomes.items()))})")
    for name, times in taken.items():
        median, median_alone = statistics.median(times), statistics.median(alone[name])
        compared = f"alone {median_alone * 1000:7.1f} ms and {max(alone[name]) * 1000:7.1f} ms: {median / median_alone:4.1f} times"
        print(f"  {name:14} median {median * 1000:7.1f} ms  at most {max(times) * 1000:7.1f} ms  ({len(times)} times; {compared})")
    return max(map(max, taken.values())) < TARGET and set(outcomes) <= {200, 503}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--engine", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--searches", type=int, default=45)
    parser.add_argument("--data")
    given = parser.parse_args()
    with served(given.engine, given.data, given.records) as service:
        return 0 if measure(*service, given.searches) else 1


if __name__ == "__main__":
    sys.exit(main())
