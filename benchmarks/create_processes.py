"""Measure how bulk create scales with processes of the service on one PostgreSQL: rows per second, and processor time per row.

    python benchmarks/create_processes.py [--rows 20000] [--processes 4] [--core-share 0.15]

One client per process sends batches of 100 rows of seven attributes, as in bulk_create.py. The clock shows the gain only on idle cores; the
processor time of services and database shows the cost of more processes. Exits with 1 below 2.5 times the rows of one.

A machine with too few cores can imitate more that are slower: with `--core-share`, the kernel (cgroups version 1, as root) gives each
service that share of a core, and the database the same for each service. Four services on two cores need a share of at most 0.2.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.bulk_create import bodies, rows
from benchmarks.measuring import CRMCTL, processor_seconds
from benchmarks.service_store import BATCH
from tests.support.postgres import private_server
from tests.support.service import make_client

TARGET = 2.5


@contextmanager
def running_service(data: str, database: str) -> Iterator[tuple[dict[str, str], int]]:
    """Yield the service's ready line and its process."""
    command = [CRMCTL, "serve", "--data", data, "--port", "0", "--rate-limit", "0", "--database-url", database]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, stdin=quiet, stdout=subprocess.PIPE, stderr=quiet, text=True) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline()), process.pid
        finally:
            process.terminate()


PERIOD = 20_000
"""Microseconds in which a confined process may use its share."""


@contextmanager
def confined(process: int, cores: float) -> Iterator[None]:
    """Let a process and those that it starts from now on use so many cores, such as 0.15, until the block ends."""
    group = Path(tempfile.mkdtemp(prefix="crmctl-", dir="/sys/fs/cgroup/cpu"))
    (group / "cpu.cfs_period_us").write_text(str(PERIOD))
    (group / "cpu.cfs_quota_us").write_text(str(int(PERIOD * cores)))
    (group / "cgroup.procs").write_text(str(process))
    try:
        yield
    finally:
        (group / "cpu.cfs_quota_us").write_text("-1")
        while group.exists():
            with suppress(OSError):  # busy while one of its processes ends
                for each in (group / "cgroup.procs").read_text().split():
                    (group.parent / "cgroup.procs").write_text(each)
                group.rmdir()


def measure(processes: int, count: int, core_share: float | None) -> tuple[float, float]:
    """Return rows per second by the clock, and microseconds of processor time per row."""
    used = _processor_seconds()
    with ExitStack() as stack:
        cluster = stack.enter_context(private_server(autovacuum="on"))
        if core_share is not None:
            assert cluster.process is not None
            stack.enter_context(confined(cluster.process.pid, processes * core_share))
        database = cluster.create_database()
        data = stack.enter_context(tempfile.TemporaryDirectory())
        services = [stack.enter_context(running_service(data, database)) for _ in range(processes)]
        if core_share is not None:
            for _, process in services:
                stack.enter_context(confined(process, core_share))
        key = services[0][0]["apiKey"]
        clients = [stack.enter_context(make_client(ready["baseUrl"], key)) for ready, _ in services]
        objects = {each["slug"]: each["id"] for each in clients[0].get("/api/v1/objects").json()["objects"]}
        company = clients[0].post(f"/api/v1/objects/{objects['companies']}/records", json={"data": {"name": "Acme"}}).json()
        requests = bodies(rows(count, 7, [company["id"]]))
        path, headers = f"/api/v1/objects/{objects['people']}/records/bulk", {"content-type": "application/json"}

        def send(place: int) -> None:
            for body in requests[place::processes]:
                answer = clients[place].post(path, content=body, headers=headers)
                assert answer.json()["created"] == BATCH, answer.text

        used += sum(processor_seconds(process) for _, process in services)  # their start-up
        start = time.perf_counter()
        with ThreadPoolExecutor(processes) as pool:
            list(pool.map(send, range(processes)))
        seconds = time.perf_counter() - start
    return count / seconds, 1e6 * (_processor_seconds() - used) / count


def _processor_seconds() -> float:
    """Return the processor time of this process's ended children, including the database."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--core-share", type=float, help="share of a core for each service, such as 0.15 (default: no limit)")
    options = parser.parse_args()
    count = options.rows - options.rows % BATCH
    figures = {number: measure(number, count, options.core_share) for number in (1, options.processes)}
    for number, (rate, cost) in figures.items():
        print(f"{number} processes: {rate:,.0f} rows a second by the clock, {cost:.0f} us of processor time a row, database included")
    gain = figures[options.processes][0] / figures[1][0]
    print(f"{gain:.2f} times the rows (target {TARGET})")
    return 0 if gain >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
