"""Random histories of a service and syncs of a mirror in between: does the mirror ever hold what the service never held?

python benchmarks/mirror_histories.py --count 20000 --first 0
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support.mirrorhistories import Tally, play


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    tally, begun = Tally(), time.process_time()
    for seed in range(given.first, given.first + given.count):
        folder = Path(tempfile.mkdtemp())
        try:
            play(seed, folder, tally)
        finally:
            shutil.rmtree(folder)
    print(f"{given.count:,} histories, {tally.syncs:,} syncs, {tally.requests:,} requests, {time.process_time() - begun:.0f} s")
    print(f"wrong: {len(tally.wrong)}; not proven, and said so: {tally.unproven}")
    for reason, count in sorted(tally.anew.items(), key=lambda item: -item[1]):
        print(f"{count:>8,} read anew: {reason}")
    for problem in tally.wrong[:10]:
        print(problem[:600])
    return 1 if tally.wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
