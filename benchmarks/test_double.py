"""Measure the test double: processor time until `serve --ephemeral` is ready, a reset at 1,000 records, and runs with equal seeds.

Exits with 1 if a target is missed. Measures processor time, too, because a busy machine delays everything.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import httpx

from crmctl.double_client import TestService

STARTS, RESETS, RECORDS, SEEDS, REQUESTS = 9, 200, 1000, 20, 100
START_SECONDS, RESET_SECONDS = 0.4, 0.005


def cpu_seconds(pid: int) -> float:
    """Return the processor time of a running process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure_start() -> float:
    service = TestService()
    try:
        return cpu_seconds(service.process.pid)
    finally:
        service.close()


def measure_resets() -> tuple[float, float]:
    """Return the median of a reset with its request, and the service's processor time for one."""
    service = TestService()
    try:
        rows = [{"name": f"Person {number}", "email": f"p{number}@example.com", "score": number} for number in range(RECORDS)]
        service.client.bulk.import_records("people", rows, mirror="never")
        service.save("full")
        seconds, spent = [], 0.0
        for number in range(RESETS):
            service.client.records("people").create({"name": f"More {number}"})
            before, started = cpu_seconds(service.process.pid), time.perf_counter()
            service.restore("full")
            seconds.append(time.perf_counter() - started)
            spent += cpu_seconds(service.process.pid) - before
        return statistics.median(seconds), spent / RESETS
    finally:
        service.close()


def run_of(seed: int) -> list[Any]:
    """Return everything a client sees of a run with random faults: statuses, ids, times, and the requests that the double recorded."""
    service = TestService("--seed", str(seed))
    try:
        with httpx.Client(base_url=service.url, headers={"Authorization": f"Bearer {service.key}"}, trust_env=False) as client:
            path = f"/api/v1/objects/{client.get('/api/v1/objects').json()['objects'][0]['id']}/records"
            service.faults("* /api/v1/* [p=0.3] -> status=500 after", "POST /api/v1/* [p=0.2] -> twice")
            answers = [client.request(choice, path, json=body) for choice, body in [("POST", {"data": {}}), ("GET", None)] * REQUESTS]
            return [*((answer.status_code, answer.content) for answer in answers), *service.requests]
    finally:
        service.close()


def main() -> int:
    start, (reset, spent) = statistics.median(measure_start() for _ in range(STARTS)), measure_resets()
    print(f"start   {start:.2f} s of processor time until ready (median of {STARTS}; at most {START_SECONDS})")
    print(
        f"reset   {1000 * spent:.1f} ms of processor time at {RECORDS:,} records (mean of {RESETS}), {1000 * reset:.1f} ms with its request"
    )
    runs = [run_of(seed) for seed in range(SEEDS)]
    repeated = sum(run_of(seed) == run for seed, run in enumerate(runs))
    distinct = len({repr(run) for run in runs})
    print(f"seeds   {repeated} of {SEEDS} runs of {2 * REQUESTS} requests repeat every answer; {distinct} of {SEEDS} seeds differ")
    return not (start <= START_SECONDS and min(reset, spent) <= RESET_SECONDS and repeated == distinct == SEEDS)


if __name__ == "__main__":
    sys.exit(main())
