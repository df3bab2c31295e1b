"""Every single fault and every pair of them on an injected clock, then real kill -9 of the client and of the service; counts every row.

`python benchmarks/fault_runs.py [--part N/M] [--clients 200] [--services 50] [--record]`; ends with 1 when a row is wrong.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.killing import kill_clients, kill_services
from tests.support.faultruns import Outcome, Scenario, pairs, play, singles

RESULTS = Path(__file__).with_name("results") / "fault_runs.md"
HEAD = "| runs of | number | rows lost | rows doubled | rows in doubt, named | duplicates, named | seconds |\n|---|---|---|---|---|---|---|"


def line(name: str, outcomes: Sequence[Outcome], seconds: float) -> str:
    sums = [sum(getattr(one, field) for one in outcomes) for field in ("lost", "doubled", "in_doubt", "duplicates")]
    return f"| {name} | {len(outcomes):,} | {' | '.join(f'{number:,}' for number in sums)} | {seconds:.0f} |"


def timed(work: Callable[[], list[Outcome]]) -> tuple[list[Outcome], float]:
    started = time.perf_counter()
    return work(), time.perf_counter() - started


def sweep(scenarios: Sequence[Scenario]) -> list[Outcome]:
    outcomes = []
    for scenario in scenarios:
        outcome = play(scenario)
        if not outcome.is_right:
            print(f"WRONG {scenario}: {outcome}", file=sys.stderr)
        outcomes.append(outcome)
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", default="1/1", help="every M-th scenario, from the N-th")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--services", type=int, default=50)
    parser.add_argument("--record", action="store_true", help=f"write {RESULTS.name}")
    given = parser.parse_args()
    number, parts = map(int, given.part.split("/"))
    works: dict[str, Callable[[], list[Outcome]]] = {
        "single faults, simulated": lambda: sweep(singles()[number - 1 :: parts]),
        "pairs of faults, simulated": lambda: sweep(pairs()[number - 1 :: parts]),
        "the client killed, real": lambda: kill_clients(given.clients),
        "the service killed, real": lambda: kill_services(given.services),
    }
    table, right = [HEAD], True
    for name, work in works.items():
        outcomes, seconds = timed(work)
        right = right and all(outcome.is_right for outcome in outcomes)
        table.append(line(name, outcomes, seconds))
        print(table[-1], flush=True)
    if given.record:
        what = f"`benchmarks/fault_runs.py --part {given.part} --clients {given.clients} --services {given.services}`"
        RESULTS.write_text(f"# Faults and kills\n\nThe last result of {what}:\n\n" + "\n".join(table) + "\n")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
