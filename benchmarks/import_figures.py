"""Measure the journal's cost, the resumption of a killed import of a million rows, and memory.

`python benchmarks/import_figures.py [--rows 100000] [--killed-rows 1000000] [--record]`; exits with 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Event

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.import_throughput import null_sink, write_rows
from benchmarks.measuring import CRMCTL, private_environment
from benchmarks.null_sink import COLUMNS
from tests.client.ratesim import FixedWindow
from tests.support.limitedsink import LimitedSink
from tests.support.service import service_process

MOST_OVERHEAD = 0.15
MOST_SECONDS = 2.0
MOST_GROWTH = 1.25
UNLIMITED = 10_000_000
RESULTS = Path(__file__).with_name("results") / "import_figures.md"

WITHOUT_JOURNAL = """
import sys
from crmctl.write.journal import Journal
for step in ("begin", "settle"):
    setattr(Journal, step, lambda *arguments, **options: None)
sys.argv[0] = "crmctl"
from crmctl.main import main
sys.exit(main())
"""
"""Run the same import without recording its batches. It ends as if no row had been sent."""


def cost(program: list[str], file: Path, env: Mapping[str, str], into: str = "people") -> tuple[float, float, float]:
    """Processor seconds, wall seconds and MiB of one import."""
    command = [*program, "bulk", "import", into, str(file), "--again", "--quiet", "-o", "json"]
    started = time.perf_counter()
    process = subprocess.Popen(command, env=dict(env), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, _, usage = os.wait4(process.pid, 0)
    process.returncode = 0
    return usage.ru_utime + usage.ru_stime, time.perf_counter() - started, usage.ru_maxrss / 1024


@contextmanager
def _into_nothing(env: Mapping[str, str]) -> Iterator[tuple[Mapping[str, str], str]]:
    with null_sink() as sink:
        yield {**env, "CRMCTL_BASE_URL": sink, "CRMCTL_API_KEY": "benchmark"}, "people"


@contextmanager
def _into_the_service(env: Mapping[str, str]) -> Iterator[tuple[Mapping[str, str], str]]:
    """Serve without a rate limit, with an object that has the columns of the sink."""
    with tempfile.TemporaryDirectory() as folder:
        service = service_process(Path(folder) / "data", "--rate-limit", "0", env=env)
        try:
            with service.client() as client:
                body = {"slug": "guests", "singularName": "Guest", "pluralName": "Guests", "description": ""}
                made = client.post("/api/v1/objects", json=body).json()["id"]
                for slug, kind in COLUMNS.items():
                    attribute = {"name": slug, "type": "text" if kind == "url" else kind, "isRequired": False, "isUnique": False}
                    client.post(f"/api/v1/objects/{made}/attributes", json=attribute).raise_for_status()
            yield {**env, "CRMCTL_BASE_URL": service.base_url, "CRMCTL_API_KEY": service.key}, "guests"
        finally:
            service.kill()


TARGETS = {"null sink": _into_nothing, "our own service": _into_the_service}


def journal_overhead(target: str, rows: int, rounds: int) -> tuple[float, float, str]:
    """Return the journal's share of an unlimited import, by processor time and by the clock; medians of alternating runs."""
    with private_environment() as env, TARGETS[target](env) as (connected, into), tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.csv"
        write_rows(file, rows)
        bare = [sys.executable, "-c", WITHOUT_JOURNAL]
        pairs = [(cost([CRMCTL], file, connected, into), cost(bare, file, connected, into)) for _ in range(rounds + 1)][1:]
    processor, clock = (statistics.median(ours[at] - without[at] for ours, without in pairs) for at in (0, 1))
    whole = [statistics.median(ours[at] for ours, _ in pairs) for at in (0, 1)]
    text = f"{rows:,} rows: {processor:.2f} of {whole[0]:.2f} s of processor time, {clock:.2f} of {whole[1]:.2f} s by the clock"
    return processor / whole[0], clock / whole[1], text


def resume_after_kill(rows: int) -> tuple[float, str]:
    """Return the seconds from `bulk resume` to its first bulk request, after a kill in the middle of the import."""
    with private_environment() as env, tempfile.TemporaryDirectory() as folder, _watched_sink() as sink:
        connected = {**env, "CRMCTL_BASE_URL": sink.origin, "CRMCTL_API_KEY": "benchmark"}
        file = Path(folder) / "rows.csv"
        write_rows(file, rows)
        _run_until(sink, rows // 200, [CRMCTL, "bulk", "import", "people", str(file), "--quiet"], connected)
        sent = sum(one.writes for one in sink.asked)
        sink.asked.clear()
        sink.next_write.clear()
        started = time.time()
        _run_until(sink, 1, [CRMCTL, "bulk", "resume", "--last", "--quiet", "--settle", "1"], connected)
        first = next(one.at for one in sink.asked if one.writes) - started
    return first, f"{rows:,} rows, killed after {sent:,} requests: the first bulk request of `bulk resume` left after {first:.2f} s"


class _WatchedSink(LimitedSink):
    """Sets an event at the n-th write from now."""

    def __init__(self) -> None:
        super().__init__(FixedWindow(UNLIMITED, 60, aligned=True), COLUMNS)
        self.next_write, self.awaited = Event(), 0

    def answer(self, method: bytes, path: bytes, body: bytes) -> bytes:
        found = super().answer(method, path, body)
        self.awaited -= method == b"POST"
        if self.awaited == 0:
            self.next_write.set()
        return found


@contextmanager
def _watched_sink() -> Iterator[_WatchedSink]:
    with _WatchedSink() as sink:
        assert isinstance(sink, _WatchedSink)
        yield sink


def _run_until(sink: _WatchedSink, writes: int, command: list[str], env: Mapping[str, str]) -> None:
    """Run a program and kill it at the n-th write."""
    sink.awaited = writes
    process = subprocess.Popen(command, env=dict(env), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not sink.next_write.wait(0.05):
        assert process.poll() is None, "the program ended before it was killed"
    process.send_signal(signal.SIGKILL)
    process.wait()


def memory(rows: list[int]) -> tuple[float, str]:
    """Return the additional memory of the largest file over the smallest."""
    with private_environment() as env, null_sink() as sink, tempfile.TemporaryDirectory() as folder:
        connected = {**env, "CRMCTL_BASE_URL": sink, "CRMCTL_API_KEY": "benchmark"}
        taken = []
        for count in rows:
            file = Path(folder) / f"{count}.csv"
            write_rows(file, count)
            taken.append(cost([CRMCTL], file, connected)[2])
            file.unlink()
    named = " / ".join(f"{count:,}" for count in rows)
    return taken[-1] / taken[0], f"resident memory of {named} rows: {' / '.join(f'{one:.1f}' for one in taken)} MiB"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--killed-rows", type=int, default=1_000_000)
    parser.add_argument("--memory-rows", type=int, nargs="+", default=[20_000, 100_000, 1_000_000])
    parser.add_argument("--record", action="store_true", help=f"write {RESULTS.name}")
    given = parser.parse_args()
    table = ["| figure | measured | target | kept |", "|---|---|---|---|"]

    def tell(name: str, text: str, value: float, shown: str, target: float, wanted: str) -> bool:
        table.append(f"| {name}: {shown} | {text} | {wanted} | {'yes' if value <= target else 'NO'} |")
        print(table[-1], flush=True)
        return value <= target

    first, text = resume_after_kill(given.killed_rows)
    kept = tell("going on after a kill", text, first, f"{first:.2f} s", MOST_SECONDS, "within 2 s")
    for target in TARGETS:
        processor, clock, text = journal_overhead(target, given.rows, given.rounds)
        shown = f"{clock:.1%} by the clock, {processor:.1%} of the processor time"
        kept &= tell(f"the journal's share, into {target}", text, clock, shown, MOST_OVERHEAD, "under 15 %")
    growth, text = memory(given.memory_rows)
    kept &= tell("memory", text, growth, f"{growth:.2f} times", MOST_GROWTH, "1.25 times")
    if given.record:
        RESULTS.write_text("# Figures of large imports\n\nThe last result of `benchmarks/import_figures.py`:\n\n" + "\n".join(table) + "\n")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
