"""Measure webhook deliveries per second: `crmctl serve`, records created in hundreds, and a fast local receiver.

    python benchmarks/delivery_rate.py [--events 5000] [--engine sqlite|postgresql] [--endpoints 1]

Measures from the first arrival to the last, and the service's processor time per delivery, which limits the rate of two cores. Exits with 1
if an event does not arrive or the rate is below 500 per second.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import re
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.measuring import processor_seconds, started_service

from crmctl.clock import SystemClock
from crmctl.service.context import new_id
from crmctl.service.store import webhooks
from crmctl.service.store.engine import open_engine

TARGET = 500.0
BATCH = 100
LONGEST = 600.0
_LENGTH = re.compile(rb"(?i)\r\ncontent-length: *([0-9]+)")
_ID = re.compile(rb"(?i)\r\nwebhook-id: *([^\r]+)")


def receive(told: Connection, expected: int) -> None:
    """Receive in a separate process: print the port, and after `count` different deliveries the number of requests and the seconds."""
    seen: set[tuple[bytes, bytes]] = set()
    moments: list[float] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length, event = _LENGTH.search(head), _ID.search(head)
                assert length is not None
                assert event is not None
                await reader.readexactly(int(length[1]))
                seen.add((head.partition(b"\r\n")[0], event[1]))
                moments.append(time.monotonic())
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
                await writer.drain()
                if len(seen) >= expected:
                    done.set()
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=512)
        told.send(server.sockets[0].getsockname()[1])
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LONGEST):
                await done.wait()
        told.send((len(seen), len(moments), moments[-1] - moments[0] if moments else 0.0))

    done = asyncio.Event()
    asyncio.run(run())


def measure(engine_name: str, events: int, endpoints: int) -> bool:
    told, telling = multiprocessing.Pipe()
    receiver = multiprocessing.Process(target=receive, args=(telling, events * endpoints), daemon=True)
    receiver.start()
    port = told.recv()
    with (
        tempfile.TemporaryDirectory() as folder,
        started_service(engine_name, Path(folder)) as (service, address),
        service.client() as client,
    ):
        engine = open_engine(address)
        for number in range(endpoints):
            url = f"http://127.0.0.1:{port}/hook/{number}"
            engine.write(lambda tx, url=url: webhooks.create_endpoint(tx, url=url, ids=new_id, now=SystemClock().now()))  # type: ignore[misc]
        engine.close()
        people = next(each["id"] for each in client.get("/api/v1/objects").json()["objects"] if each["slug"] == "people")
        before = processor_seconds(service.process.pid)
        for start in range(0, events, BATCH):
            rows = [{"data": {"name": f"Person {number}", "score": number}} for number in range(start, min(start + BATCH, events))]
            client.post(f"/api/v1/objects/{people}/records/bulk", json={"mode": "create", "records": rows}).raise_for_status()
        arrived, requests, seconds = told.recv()
        spent = processor_seconds(service.process.pid) - before
        service.kill()
    receiver.join()
    wanted = events * endpoints
    rate = arrived / seconds if seconds else 0.0
    print(
        f"{engine_name}, {endpoints} endpoint{'s' * (endpoints > 1)}: {arrived:,} of {wanted:,} deliveries in {seconds:.1f} s: "
        f"{rate:.0f} a second, "
        f"{1000 * spent / max(1, arrived):.2f} ms of processor time each; {requests - arrived} came twice",
        flush=True,
    )
    return arrived == wanted and rate >= TARGET


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=5000)
    parser.add_argument("--engine", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--endpoints", type=int, default=1)
    given = parser.parse_args()
    return 0 if measure(given.engine, given.events, given.endpoints) else 1


if __name__ == "__main__":
    sys.exit(main())
