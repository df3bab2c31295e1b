"""Play random histories of a service with syncs in between, and check that the mirror never holds a wrong state.

`python benchmarks/mirror_histories.py [--count 20000] [--part N/M] [--save FILE]` plays every M-th history on an injected clock, in one
process; `--processes` plays 200 with real ones. `--sum FILE...` adds up saved results. Exits with 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.mirror_processes import real
from tests.support.mirrorhistories import Tally, play

MEMORY = Path("/dev/shm")
"""A place in memory: these kills end a process, not a machine."""

SHOWN = 10


def simulated(seeds: range) -> Tally:
    tally = Tally()
    for seed in seeds:
        folder = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None, prefix="histories-"))
        try:
            play(seed, folder, tally)
        except Exception as error:
            tally.wrong.append(f"seed {seed}: {type(error).__name__}: {error}")
        finally:
            shutil.rmtree(folder)
    return tally


def show(tally: Tally, seconds: float) -> None:
    syncs = f"{tally.syncs:,} syncs, {tally.interrupted:,} more interrupted"
    print(f"{tally.histories:,} histories, {syncs}, {tally.requests:,} requests, {seconds:.0f} s")
    print(f"wrong: {len(tally.wrong)}; not proven, and said so: {tally.unproven}")
    print(f"wrong in the {tally.lagging:,} whose pages come from replicas that are behind: {len(tally.behind)}")
    for reason, count in tally.anew.most_common():
        print(f"{count:>8,} read anew: {reason}")
    for problem in (tally.wrong + tally.behind)[:SHOWN]:
        print(problem[:600])


def saved(paths: list[Path]) -> tuple[Tally, float]:
    """Add up all saved results."""
    whole, seconds = Tally(), 0.0
    for document in (json.loads(line) for path in paths for line in path.read_text().splitlines()):
        seconds += document.pop("seconds")
        whole.add(Tally(**{**document, "anew": Counter(document["anew"])}))
    return whole, seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, help="20,000; of real processes 200")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--part", default="1/1", help="every M-th history, from the N-th")
    parser.add_argument("--processes", action="store_true", help="installed programs, kill -9, and databases put back")
    parser.add_argument("--save", type=Path, help="append what they came to to this file")
    parser.add_argument("--sum", type=Path, nargs="+", metavar="FILE", help="add up what was saved; plays nothing")
    given = parser.parse_args()
    if given.sum:
        tally, seconds = saved(given.sum)
    else:
        number, parts = map(int, given.part.split("/"))
        count = given.count or (200 if given.processes else 20_000)
        begun = time.perf_counter()
        tally = (real if given.processes else simulated)(range(given.first + number - 1, given.first + count, parts))
        seconds = time.perf_counter() - begun
        if given.save is not None:
            with given.save.open("a") as file:
                file.write(json.dumps({**vars(tally), "seconds": seconds}) + "\n")
    show(tally, seconds)
    return 1 if tally.wrong or not tally.histories else 0


if __name__ == "__main__":
    raise SystemExit(main())
