"""Play every single fault and every pair on an injected clock, then real kills of client and service; count every row.

`python benchmarks/fault_runs.py [--only KIND] [--part N/M] [--save FILE]` plays; `--record FILE...` adds up saved results. Exits with 1 if
a row is wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.killing import kill_at_steps, kill_clients, kill_services
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from tests.support.faultruns import Outcome, Scenario, fault_pairs, play, single_faults
from tests.support.importmachine import Imports

RESULTS = Path(__file__).with_name("results") / "fault_runs.md"
SUMS = ("lost", "doubled", "wronged", "in_doubt", "duplicates")
WRONG = ("lost", "doubled", "wronged")
HEAD = (
    "| runs of | number | rows lost | rows doubled | called duplicates, and none | rows in doubt, named | duplicates, named | seconds |\n"
    "|---|---|---|---|---|---|---|---|"
)


@dataclass(frozen=True)
class Kind:
    """Runs of one kind: their number, and a function that plays some of them."""

    count: int
    play: Callable[[Sequence[int]], Iterable[Outcome]]


def sweep(scenarios: Callable[[], list[Scenario]]) -> Callable[[Sequence[int]], Iterator[Outcome]]:
    def some(numbers: Sequence[int]) -> Iterator[Outcome]:
        found = scenarios()
        for number in numbers:
            outcome = play(found[number])
            if not outcome.is_right:
                print(f"WRONG {found[number]}: {outcome}", file=sys.stderr)
            yield outcome

    return some


def machine(numbers: Sequence[int]) -> Iterator[Outcome]:
    """Play runs of the state machine, each of up to 25 steps; raise the error of a broken invariant."""
    fixed = {"deadline": None, "database": None, "phases": [Phase.generate], "suppress_health_check": list(HealthCheck)}
    wishes = settings(max_examples=len(numbers), stateful_step_count=25, **fixed)
    run_state_machine_as_test(Imports, settings=wishes)
    yield from [Outcome(0, 0, 0, 0, 0)] * len(numbers)


def kinds(clients: int, services: int, steps: int, machines: int) -> Mapping[str, Kind]:
    return {
        "single faults, simulated": Kind(len(single_faults()), sweep(single_faults)),
        "pairs of faults, simulated": Kind(len(fault_pairs()), sweep(fault_pairs)),
        "several jobs, faults, deaths, strangers, repair and undo in any order, simulated": Kind(machines, machine),
        "the client killed at random, real": Kind(clients, kill_clients),
        "the client killed at each of its steps, real": Kind(steps, kill_at_steps),
        "the service killed at random, real": Kind(services, kill_services),
    }


def line(name: str, sums: Mapping[str, float]) -> str:
    return f"| {name} | {sums['number']:,} | {' | '.join(f'{sums[one]:,}' for one in SUMS)} | {sums['seconds']:.0f} |"


def play_part(name: str, kind: Kind, part: str, save: Path | None) -> bool:
    """Play every M-th run of a kind; return whether all were right."""
    number, parts = map(int, part.split("/"))
    sums: Counter[str] = Counter()
    started = time.perf_counter()
    for outcome in kind.play(range(number - 1, kind.count, parts)):
        sums += Counter({"number": 1, **{one: asdict(outcome)[one] for one in SUMS}})
    done = {**dict.fromkeys(("number", *SUMS), 0), **sums, "seconds": time.perf_counter() - started}
    print(line(name, done), flush=True)
    if save is not None:
        with save.open("a") as file:
            file.write(json.dumps({"kind": name, **done}) + "\n")
    return not any(done[one] for one in WRONG)


def record(files: Sequence[Path]) -> bool:
    """Write the table of all saved results; return whether all were right."""
    every: dict[str, Counter[str]] = {}
    for entry in (json.loads(text) for file in files for text in file.read_text().splitlines()):
        every.setdefault(entry.pop("kind"), Counter()).update(entry)
    known = [name for name in kinds(0, 0, 0, 0) if name in every]
    table = "\n".join([HEAD, *(line(name, every[name]) for name in known)])
    RESULTS.write_text(f"# Faults and kills\n\nThe last results of `benchmarks/fault_runs.py`, played in parts and summed up:\n\n{table}\n")
    print(table)
    return not any(sums[one] for sums in every.values() for one in WRONG)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="the kind that begins so")
    parser.add_argument("--part", default="1/1", help="every M-th run, from the N-th")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--services", type=int, default=50)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--machines", type=int, default=2000)
    parser.add_argument("--save", type=Path, help="append sums to this file")
    parser.add_argument("--record", type=Path, nargs="+", metavar="FILE", help=f"write {RESULTS.name} from saved sums; plays nothing")
    given = parser.parse_args()
    if given.record:
        return 0 if record(given.record) else 1
    counts = kinds(given.clients, given.services, given.steps, given.machines)
    chosen = {name: kind for name, kind in counts.items() if name.startswith(given.only or "")}
    right = [play_part(name, kind, given.part, given.save) for name, kind in chosen.items() if kind.count]
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main())
