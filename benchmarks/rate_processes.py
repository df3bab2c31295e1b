"""Run imports and a reader as processes with one key against limiters in real time.

`python benchmarks/rate_processes.py [--window 60] [--windows 3] [--record]`; exits with 1 if the service refused a request without need,
the processes used too little of the limit, or the reader waited too long.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.measuring import CRMCTL
from tests.client.ratesim import FixedWindow, Limiter, SlidingWindow, TokenBucket
from tests.support.limitedsink import LimitedSink

LIMIT = 100
LEAST_SHARE = 0.98
LONGEST_WAIT = 2.0
RESULTS = Path(__file__).with_name("results") / "rate_processes.md"
HEAD = (
    "| limiter | processes | requests | refused | share of the limit used | reader: commands | median | longest |\n"
    "|---|---|---|---|---|---|---|---|"
)
LIMITERS: Mapping[str, Callable[[float], Limiter]] = {
    "fixed windows": lambda window: FixedWindow(LIMIT, window, aligned=True),
    "sliding window": lambda window: SlidingWindow(LIMIT, window, rounding=math.ceil),
    "token bucket": lambda window: TokenBucket(LIMIT, window),
}


@dataclass(frozen=True)
class Measured:
    """Result: `share` of the limit over whole windows after the first; `waits` of the reader's commands in seconds, beyond the quickest
    one.
    """

    limiter: str
    processes: int
    requests: int
    refused: int
    share: float
    waits: list[float]

    @property
    def is_kept(self) -> bool:
        no_refusals = not self.refused or self.limiter == "token bucket"
        return no_refusals and self.share >= LEAST_SHARE and max(self.waits) < LONGEST_WAIT

    def line(self) -> str:
        waits = f"{len(self.waits)} | {statistics.median(self.waits):.2f} s | {max(self.waits):.2f} s"
        return f"| {self.limiter} | {self.processes} | {self.requests} | {self.refused} | {self.share:.1%} | {waits} |"


def measure(name: str, window: float, windows: int, imports: int) -> Measured:
    """Run `imports` importing processes and a reader for that many windows after the first."""
    with tempfile.TemporaryDirectory() as folder, LimitedSink(LIMITERS[name](window)) as sink:
        own = {f"CRMCTL_{kind}_DIR": f"{folder}/{kind.lower()}" for kind in ("CONFIG", "STATE", "CACHE")}
        env = {**os.environ, **own, "CRMCTL_BASE_URL": sink.origin, "CRMCTL_API_KEY": "benchmark"}
        started = [_import(Path(folder), number, env, windows) for number in range(imports)]
        begin = time.time() + window
        begin = math.ceil(begin / window) * window
        end = begin + windows * window
        waits: list[float] = []
        pauses = random.Random(name)
        while time.time() < end:
            at = time.perf_counter()
            read = [CRMCTL, "records", "list", "people", "--limit", "1", "--quiet"]
            subprocess.run(read, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
            if time.time() > begin:
                waits.append(time.perf_counter() - at)
            time.sleep(pauses.uniform(0.05, 0.15) * window)
        for process in started:
            process.kill()
            process.wait()
        first = next(one.at for one in sink.asked if one.at >= begin - window) if name == "sliding window" else begin
        used = sum(one.accepted for one in sink.asked if first <= one.at < first + windows * window)
        quickest = min(waits)
        return Measured(name, imports + 1, len(sink.asked), sink.refused, used / (LIMIT * windows), [wait - quickest for wait in waits])


def _import(folder: Path, number: int, env: Mapping[str, str], windows: int) -> subprocess.Popen[bytes]:
    """Start an import that lasts longer than the measurement."""
    file = folder / f"{number}.csv"
    rows = LIMIT * LIMIT * (windows + 3)
    file.write_text("email,score\n" + "".join(f"p{number}-{n}@acme.com,{n}\n" for n in range(rows)))
    command = [CRMCTL, "bulk", "import", "people", str(file), "--quiet"]
    return subprocess.Popen(command, env=dict(env), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--window", type=float, default=60.0, help="seconds")
    parser.add_argument("--windows", type=int, default=3, help="how many are measured, after the first")
    parser.add_argument("--imports", type=int, nargs="+", default=[2, 7], help="processes that import, beside the reader")
    parser.add_argument("--only", choices=[*LIMITERS], nargs="+", default=[*LIMITERS], help="limiters, all at once")
    parser.add_argument("--record", action="store_true", help=f"write {RESULTS.name}")
    given = parser.parse_args()
    print(HEAD)
    before = os.getloadavg()[1]
    table, kept = [HEAD], True
    for imports in given.imports:
        with ThreadPoolExecutor(len(given.only)) as threads:
            runs = [threads.submit(measure, name, given.window, given.windows, imports) for name in given.only]
        for measured in (run.result() for run in runs):
            kept = kept and measured.is_kept
            table.append(measured.line())
            print(table[-1], flush=True)
    if given.record:
        what = f"`benchmarks/rate_processes.py --window {given.window:g} --windows {given.windows}`"
        about = (
            "Waits of the reader are beyond its quickest command, which is nearly all start-up. The machine's load (of five minutes) was "
            f"{before:.1f} before and {os.getloadavg()[1]:.1f} after, on {os.cpu_count()} cores."
        )
        RESULTS.write_text(
            f"# One key, several processes\n\nThe last result of {what}, {LIMIT} requests a window. {about}\n\n" + "\n".join(table) + "\n"
        )
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
