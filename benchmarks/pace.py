"""Compare imports at a tight limit with their least possible time: every attribute type, one and two imports at once.

`python benchmarks/pace.py [--rows 10000] [--rounds 3] [--record]`; exits with 1 if the service refused a request or more than a tenth of
the time was lost. The least time is that of the same imports without a limit, or what the windows require, if that is longer.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.measuring import CRMCTL, private_environment
from tests.journeys.contacts import make_object, write_csv
from tests.support.service import RunningService, running_service

LIMIT, WINDOW = 100, 3
MOST = 1.1
RESULTS = Path(__file__).with_name("results") / "pace.md"
HEAD = (
    "| imports | requests | refused | without a limit | least by the windows | at the limit | over the least |\n"
    "|---|---|---|---|---|---|---|"
)


@dataclass(frozen=True)
class Pace:
    """Return the seconds from the first to the last request of all imports, as the service saw them."""

    requests: int
    refused: int
    seconds: float

    @property
    def least(self) -> float:
        """Return the time that windows require: this many must end before the last request may come."""
        return float((self.requests - 1) // LIMIT * WINDOW)


@contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def measure(imports: int, rows: int, *, limited: bool) -> Pace:
    limits = {"rate_limit": LIMIT, "rate_window": WINDOW} if limited else {}
    with (
        private_environment() as env,
        tempfile.TemporaryDirectory() as folder,
        _inside(Path(folder)),
        running_service(Path(folder) / "service", **limits) as service,
    ):
        connected = {**env, "CRMCTL_BASE_URL": service.base_url, "CRMCTL_API_KEY": service.key}
        _, person = make_object(service)
        files = [Path(f"file{number}-.csv") for number in range(imports)]
        for file in files:
            write_csv(file, rows, person, prefix=file.stem)
        service.log.clear()
        command = [CRMCTL, "bulk", "import", "contacts", "--again", "--quiet"]
        runs = [subprocess.Popen([*command, str(file)], env=connected, stdout=subprocess.DEVNULL) for file in files]
        assert [run.wait() for run in runs] == [0] * imports
        return _pace(service)


def _pace(service: RunningService) -> Pace:
    moments = [datetime.fromisoformat(entry["time"]).timestamp() for entry in service.log]
    return Pace(len(moments), sum(entry["status"] == 429 for entry in service.log), max(moments) - min(moments))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3, help="runs of each, of which the quickest counts")
    parser.add_argument("--record", action="store_true", help=f"write {RESULTS.name}")
    given = parser.parse_args()
    table, kept = [HEAD], True
    print(HEAD)
    for imports in (1, 2):
        pairs = [[measure(imports, given.rows, limited=limited) for limited in (False, True)] for _ in range(given.rounds)]
        free, paced = (min((pair[side] for pair in pairs), key=lambda one: one.seconds) for side in (0, 1))
        refused = sum(pair[1].refused for pair in pairs)
        share = paced.seconds / max(free.seconds, paced.least)
        kept = kept and not refused and share <= MOST
        seconds = f"{free.seconds:.2f} s | {paced.least:.0f} s | {paced.seconds:.2f} s"
        table.append(f"| {imports} | {paced.requests} | {refused} | {seconds} | {share - 1:+.1%} |")
        print(table[-1], flush=True)
    if given.record:
        about = f"{given.rows:,} rows of every attribute type for each import, {LIMIT} requests in {WINDOW} s"
        text = f"`python benchmarks/pace.py`: {about}; the quickest of {given.rounds} runs."
        RESULTS.write_text("\n\n".join(["# The pace of imports at a tight limit", text, "\n".join(table)]) + "\n")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
