"""Compare 40 events to a healthy endpoint through `crmctl serve`, alone and while other endpoints hang, drip or are dead.

`python benchmarks/webhook_isolation.py [--runs 3] [--engine sqlite|postgresql]`; exits with 1 if a ratio is over 1.5.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.measuring import started_service
from tests.support.receiver import SLOW_HANDSHAKE, ByteReceiver, Received, Receiver, drip

from crmctl.clock import SystemClock
from crmctl.service.context import new_id
from crmctl.service.store import webhooks
from crmctl.service.store.engine import open_engine

EVENTS = 40
TARGET = 1.5
KINDS = (
    "alone",
    "one that hangs",
    "one that drips a byte every 5 s",
    "one that is dead",
    "one that drips its TLS handshake",
    "one that redirects",
    "18 that hang",
)


@contextmanager
def neighbours(kind: str) -> Iterator[list[str]]:
    """Return the addresses of the other endpoints."""
    leaving = threading.Event()

    def hang(_request: Received, _number: int) -> int | None:
        leaving.wait(120)
        return None

    with ExitStack() as stack:
        stack.callback(leaving.set)
        if kind == "one that drips a byte every 5 s":
            yield [stack.enter_context(ByteReceiver(drip(b"HTTP/1.1 200 OK\r\nx: ", b"a", 5))).url]
        elif kind == "one that drips its TLS handshake":
            yield [stack.enter_context(ByteReceiver(drip(*SLOW_HANDSHAKE, 5))).url.replace("http:", "https:")]
        elif kind == "one that redirects":
            yield [stack.enter_context(Receiver(lambda _request, _number: 302)).url]
        elif kind == "one that is dead":
            yield ["http://127.0.0.1:9/hook"]
        else:
            count = {"alone": 0, "one that hangs": 1}.get(kind, 18)
            yield [stack.enter_context(Receiver(hang)).url for _ in range(count)]


def measure(kind: str, engine_name: str) -> float:
    """Return the seconds from the first event to the last arrival at the healthy endpoint."""
    with tempfile.TemporaryDirectory() as folder, neighbours(kind) as urls, Receiver() as healthy:
        clock = SystemClock()
        with started_service(engine_name, Path(folder)) as (service, address), service.client() as client:
            engine = open_engine(address)
            for url in (*urls, healthy.url):
                engine.write(lambda tx, url=url: webhooks.create_endpoint(tx, url=url, ids=new_id, now=clock.now()))  # type: ignore[misc]
            engine.close()
            people = next(each["id"] for each in client.get("/api/v1/objects").json()["objects"] if each["slug"] == "people")
            start = time.perf_counter()
            for _ in range(EVENTS):
                client.post(f"/api/v1/objects/{people}/records", json={"data": {}}).raise_for_status()
            healthy.wait_for(EVENTS, 300)
            taken = time.perf_counter() - start
            service.kill()
            return taken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--engine", choices=("sqlite", "postgresql"), default="sqlite")
    given = parser.parse_args()
    taken: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(given.runs):
        for kind in KINDS:
            taken[kind].append(measure(kind, given.engine))
    alone, worst = statistics.median(taken["alone"]), 0.0
    print("| beside | seconds | ratio |\n|---|---|---|")
    for kind, times in taken.items():
        ratio = statistics.median(times) / alone
        worst = max(worst, ratio)
        print(f"| {kind} | {statistics.median(times):.2f} | {ratio:.2f} |")
    print(f"\nworst {worst:.2f}, target {TARGET}")
    return int(worst > TARGET)


if __name__ == "__main__":
    sys.exit(main())
