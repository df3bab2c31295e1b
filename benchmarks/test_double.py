"""Measure the test double: processor time until `serve --ephemeral` is ready, and a reset at 1,000 records."""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path

from crmctl.double_client import TestService

STARTS, RESETS, RECORDS = 9, 50, 1000


def cpu_seconds(pid: int) -> float:
    """Return the processor time of a running process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure_start() -> float:
    service = TestService()
    try:
        return cpu_seconds(service.pid)
    finally:
        service.close()


def measure_resets() -> list[float]:
    service = TestService()
    try:
        rows = [{"name": f"Person {number}", "email": f"p{number}@example.com", "score": number} for number in range(RECORDS)]
        service.client.bulk.import_records("people", rows, mirror="never")
        service.control("PUT", "/snapshots/full")
        seconds = []
        for number in range(RESETS):
            service.client.records("people").create({"name": f"More {number}"})
            started = time.perf_counter()
            service.restore("full")
            seconds.append(time.perf_counter() - started)
        return seconds
    finally:
        service.close()


def main() -> None:
    start, reset = statistics.median(measure_start() for _ in range(STARTS)), statistics.median(measure_resets())
    print(f"start   {start:.2f} s of processor time until ready (median of {STARTS}; at most 0.40)")
    print(f"reset   {1000 * reset:.1f} ms at {RECORDS:,} records, HTTP included (median of {RESETS}; at most 5.0)")


if __name__ == "__main__":
    main()
