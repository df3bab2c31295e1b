"""Measure a service's answers while clients abuse it, and the cost of counting requests.

    python benchmarks/hostile_clients.py [CONNECTIONS]        (default 1200)

Half-sent requests, writers that wait for one lock, large bodies of small values: for each, the median and the slowest of many `/healthz`
and `/members`, the growth of the service's memory and of its stderr. Then requests per second with and without a rate limit, alternating.
"""

from __future__ import annotations

import contextlib
import resource
import socket
import sqlite3
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.service import ServiceProcess, service_process

TARGET_MS = 100.0
ASKED = 200
PATHS = ("/healthz", "/members")


def answer_times(service: ServiceProcess, path: str) -> tuple[float, float]:
    """Return median and slowest of ASKED answers, each on its own connection, in milliseconds."""
    taken = []
    headers = {"Authorization": f"Bearer {service.key}", "Connection": "close"}
    with httpx.Client(base_url=service.base_url, headers=headers, timeout=120, trust_env=False) as client:
        for _ in range(ASKED):
            start = time.perf_counter()
            client.get(path).raise_for_status()
            taken.append((time.perf_counter() - start) * 1000)
    return statistics.median(taken), max(taken)


def memory_mb(service: ServiceProcess) -> float:
    """Return the peak of resident memory."""
    status = Path(f"/proc/{service.process.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) / 1024


@contextlib.contextmanager
def half_sent(service: ServiceProcess, count: int) -> Iterator[None]:
    host, _, port = service.base_url.removeprefix("http://").partition(":")
    with contextlib.ExitStack() as opened:
        for _ in range(count):
            connection = opened.enter_context(socket.create_connection((host, int(port)), timeout=60))
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n")
        yield


@contextlib.contextmanager
def waiting_writers(service: ServiceProcess, database: Path, count: int) -> Iterator[None]:
    headers = {"Authorization": f"Bearer {service.key}"}
    with httpx.Client(base_url=service.base_url, headers=headers, timeout=120, limits=httpx.Limits(), trust_env=False) as client:
        objects = client.get("/api/v1/objects").json()["objects"]
        path = f"/api/v1/objects/{objects[0]['id']}/records"
        with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            writers = [threading.Thread(target=client.post, args=[path], kwargs={"json": {"data": {}}}) for _ in range(count)]
            for writer in writers:
                writer.start()
            yield
            other.execute("ROLLBACK")
        for writer in writers:
            writer.join()


@contextlib.contextmanager
def large_bodies(service: ServiceProcess, count: int) -> Iterator[None]:
    body = b"[" + b"1," * 4_000_000 + b"1]"
    headers = {"Authorization": f"Bearer {service.key}"}
    with httpx.Client(base_url=service.base_url, headers=headers, timeout=120, limits=httpx.Limits(), trust_env=False) as client:
        senders = [threading.Thread(target=client.post, args=["/api/v1/objects"], kwargs={"content": body}) for _ in range(count)]
        for sender in senders:
            sender.start()
        yield
        for sender in senders:
            sender.join()


def misuse(folder: Path, connections: int) -> bool:
    """Print the effect of each abuse; return whether every target is met."""
    kept = True
    with service_process(folder / "data", "--rate-limit", "0") as service:
        database = folder / "data" / "service.db"
        cases = [
            ("nothing", contextlib.nullcontext()),
            (f"{connections} half-sent requests", half_sent(service, connections)),
            ("60 writers waiting for a lock", waiting_writers(service, database, 60)),
            ("12 bodies of 8 MB, 4,000,000 values each", large_bodies(service, 12)),
        ]
        for name, misused in cases:
            before = memory_mb(service)
            with misused:
                health, members = answer_times(service, "/healthz"), answer_times(service, "/api/v1/members")
            grown, stderr = memory_mb(service) - before, len(service.stderr)
            kept = kept and health[0] < TARGET_MS
            times = "  ".join(
                f"{path} {median:6.1f} (at most {most:6.1f}) ms" for path, (median, most) in zip(PATHS, (health, members), strict=True)
            )
            print(f"{name:41} {times}  memory +{grown:.0f} MB  stderr {stderr} bytes")
    return kept


def counting(folder: Path) -> None:
    """Measure requests per second without a limit and with one that is never reached."""
    speeds: dict[str, list[float]] = {"no limit": [], "a limit": []}
    with (
        service_process(folder / "free", "--rate-limit", "0") as free,
        service_process(folder / "counted", "--rate-limit", "1000000") as counted,
        free.client() as one,
        counted.client() as other,
    ):
        for _ in range(9):
            for name, client in (("no limit", one), ("a limit", other)):
                start = time.perf_counter()
                for _ in range(200):
                    client.get("/api/v1/members").raise_for_status()
                speeds[name].append(200 / (time.perf_counter() - start))
    without, with_limit = (statistics.median(each) for each in speeds.values())
    print(f"requests a second: {without:.0f} uncounted, {with_limit:.0f} counted: ratio {with_limit / without:.2f}")


def main() -> int:
    """Return 0 if every target is met."""
    connections = int(sys.argv[1]) if len(sys.argv) > 1 else 1200
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(connections + 500, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),) * 2)
    with tempfile.TemporaryDirectory() as folder:
        kept = misuse(Path(folder), connections)
        counting(Path(folder))
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
