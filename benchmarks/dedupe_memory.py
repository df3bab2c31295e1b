"""Measure the peak memory of finding duplicates: `python benchmarks/dedupe_memory.py --records 100000 1000000`.

Seeded people, one in eleven of them twice with a mistake, compared by rules like those of the guide, grouped, and stored as in a plan. Each
size runs in its own process, next to the memory the process had before the first record.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

RULES = ["email", "name~0.92,phone", "name~0.9,address~0.8"]
KINDS = {"name": "name", "email": "email", "phone": "phone_number", "address": "text"}
SYLLABLES = ["ba", "ce", "di", "fo", "gu", "ha", "je", "ki", "lo", "mu", "na", "pe", "ri", "so", "tu", "va", "we", "xi", "yo", "zu"]


def people(count: int, seed: int = 13) -> Iterator[dict[str, Any]]:
    """Yield records; every eleventh repeats the one before it with a mistake."""
    from benchmarks.dedupe_figures import spoil

    chance = random.Random(seed)

    def word(length: int) -> str:
        return "".join(chance.choices(SYLLABLES, k=length))

    last: dict[str, Any] = {}
    for number in range(count):
        if number % 11 == 10:
            yield {**last, "name": spoil(last["name"], chance), "email": None if number % 2 else last["email"]}
            continue
        last = {
            "name": f"{word(2)} {word(3)}", "email": f"{word(2)}.{number}@{word(2)}.com", "phone": f"+4420{chance.randrange(10**8):08}",
            "address": f"{chance.randrange(200)} {word(3)} street {word(2)}",
        }  # fmt: skip
        yield last


def measure(count: int) -> dict[str, Any]:
    from crmctl.dedupe.candidates import MatchCandidates
    from crmctl.dedupe.merge_plan import GroupCounts, find_groups
    from crmctl.dedupe.rules import parse_rules
    from crmctl.models.resources import Attribute

    rules = parse_rules(RULES, [Attribute(id=slug, slug=slug, type=kind) for slug, kind in KINDS.items()], "people")
    before, begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with MatchCandidates(rules, 10) as candidates:
        for number, person in enumerate(people(count)):
            candidates.add(str(number), person, person)
        candidates.compare()
        found = sum(
            len([candidates.record(member) for member in group.members]) - 1 for group in find_groups(candidates, GroupCounts(), 10)
        )
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return {
            "records": count, "duplicates": found, "compared": candidates.compared, "before": round(before / 1024),
            "most": round(most / 1024), "processor": round(time.process_time() - begun),
        }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, nargs="+", default=[100_000])
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(given.one)))
        return
    print("| records | duplicates | pairs compared | MB before | MB at most | processor |\n|---|---|---|---|---|---|")
    for count in given.records:
        done = subprocess.run([sys.executable, __file__, "--one", str(count)], capture_output=True, text=True, check=True)
        print("| " + " | ".join(f"{value:,}" for value in json.loads(done.stdout).values()) + " |", flush=True)


if __name__ == "__main__":
    main()
