"""Measure rows per second and memory of `crmctl bulk import` against a bare csv + json + httpx loop, both into the null sink."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from measuring import CRMCTL, private_environment
from null_sink import COLUMNS, OBJECT_ID

BARE_LOOP = f"""
import csv, json, sys, httpx

client = httpx.Client(headers={{"Authorization": "Bearer bare", "Content-Type": "application/json"}})
address = sys.argv[2] + "/api/v1/objects/{OBJECT_ID}/records/bulk"


def send(records):
    client.post(address, content=json.dumps({{"mode": "create", "records": records}})).raise_for_status()


with open(sys.argv[1], newline="", encoding="utf-8") as file:
    batch = []
    for row in csv.DictReader(file):
        batch.append({{"data": row}})
        if len(batch) == 100:
            send(batch)
            batch = []
    if batch:
        send(batch)
"""
LEAST_SHARE = 0.65
MOST_GROWTH = 1.25


@dataclass(frozen=True)
class Run:
    """Cost of a program: seconds by the clock, seconds of processor time, and peak memory in MiB."""

    seconds: float
    processor: float
    mebibytes: float

    @classmethod
    def best(cls, runs: Sequence[Run]) -> Run:
        """Return the least of each over several runs."""
        return cls(min(one.seconds for one in runs), min(one.processor for one in runs), min(one.mebibytes for one in runs))


def shares(bare: Run, ours: Run) -> tuple[float, float]:
    """Ratios to the bare loop's speed, by the clock and in processor time."""
    return bare.seconds / ours.seconds, bare.processor / ours.processor


def write_rows(path: Path, rows: int) -> None:
    """Write a CSV with one column per attribute of the sink; equal numbers of rows give equal files."""
    chance = random.Random(1)
    with path.open("w", encoding="utf-8") as file:
        file.write(",".join(COLUMNS) + "\n")
        for number in range(rows):
            day = f"19{chance.randrange(10, 100)}-{chance.randrange(1, 13):02}-{chance.randrange(1, 29):02}"
            yes = chance.choice(["true", "false"])
            notes = chance.choice(["", "Met at the fair", '"Asked for a quote, twice"', "Überweisung offen"])
            person = f"Person {number},person{number}@example.com,Engineer {number % 50}"
            file.write(f"{person},{chance.randrange(1000)},{day},{yes},https://example.com/{number},{notes}\n")


def run(command: Sequence[str], env: Mapping[str, str]) -> Run:
    """Run a program to its end. Raise CalledProcessError with its output if it fails."""
    start = time.perf_counter()
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(command, env=dict(env), stdin=subprocess.DEVNULL, stdout=said, stderr=said)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, command, said.read())
    kibibytes = usage.ru_maxrss / 1024 if sys.platform == "darwin" else usage.ru_maxrss
    return Run(time.perf_counter() - start, usage.ru_utime + usage.ru_stime, kibibytes / 1024)


@contextlib.contextmanager
def null_sink() -> Iterator[str]:
    """Start the sink in its own process; yield its address."""
    script = Path(__file__).with_name("null_sink.py")
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def measure(rows: int, rounds: int, env: Mapping[str, str], sink: str, folder: Path) -> tuple[Run, Run]:
    """Measure the bare loop and crmctl in turns, on a file of that many rows; return the best of each."""
    file = folder / f"{rows}.csv"
    write_rows(file, rows)
    bare = [sys.executable, "-c", BARE_LOOP, str(file), sink]
    ours = [CRMCTL, "bulk", "import", "people", str(file), "--again", "--quiet"]
    pairs = [(run(bare, env), run(ours, env)) for _ in range(rounds)]
    file.unlink()
    return Run.best([bare for bare, _ in pairs]), Run.best([ours for _, ours in pairs])


def main() -> None:
    """Print throughput and memory for growing files; exit with 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[20_000, 100_000], help="sizes of the files (add 1000000 for the long run)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each, of which the best counts (default: 3)")
    options = parser.parse_args()
    results = {}
    with private_environment() as env, null_sink() as sink, tempfile.TemporaryDirectory() as folder:
        connected = {**env, "CRMCTL_BASE_URL": sink, "CRMCTL_API_KEY": "benchmark"}
        for rows in options.rows:
            results[rows] = measure(rows, options.rounds if rows < 1_000_000 else 1, connected, sink, Path(folder))
            bare, ours = results[rows]
            by_clock, by_processor = shares(bare, ours)
            print(
                f"{rows:>9,} rows: crmctl {rows / ours.seconds:9,.0f} rows/s, {ours.processor:.2f} s processor, {ours.mebibytes:6.1f} MiB; "
                f"bare loop {rows / bare.seconds:9,.0f} rows/s, {bare.processor:.2f} s, {bare.mebibytes:6.1f} MiB; "
                f"share {by_clock:.2f} by the clock, {by_processor:.2f} in processor time (target {LEAST_SHARE})",
                flush=True,
            )
    found = [shares(bare, ours) for bare, ours in results.values()]
    growth = results[max(results)][1].mebibytes / results[min(results)][1].mebibytes
    least = [round(min(side), 3) for side in zip(*found, strict=True)]
    print(json.dumps({"leastShares": least, "memoryGrowth": round(growth, 3), "targets": [LEAST_SHARE, MOST_GROWTH]}))
    sys.exit(min(found[-1]) < LEAST_SHARE or growth > MOST_GROWTH)


if __name__ == "__main__":
    main()
