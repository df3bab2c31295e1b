"""Random jobs against a service that alters values, answers wrongly, lists late and has another writer; counts every row.

`python benchmarks/answer_runs.py [imports|changes] [--plays N] [--seed S] [--part N/M] [--senders N] [--rows N]`. Imports create rows;
changes are imports by key, deletions, feeds, undos and parents. Exits with 1 if a row is lost, doubled or misnamed, or a person's value is
overwritten.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support import answerruns, changeruns

SUMS = ("lost", "doubled", "misnamed", "false_success", "in_doubt", "duplicates")
CAMPAIGNS: dict[str, tuple[Callable[..., Iterator[Any]], Callable[[Any], Any]]] = {
    "imports": (answerruns.plays, answerruns.play),
    "changes": (changeruns.change_plays, changeruns.play_change),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("campaign", nargs="?", choices=[*CAMPAIGNS], default="imports")
    parser.add_argument("--plays", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--part", default="1/1", help="every M-th play, from the N-th")
    parser.add_argument("--senders", type=int, default=1, help="requests at once; with several, a play differs each time")
    parser.add_argument("--rows", type=int, help="rows of each import (default: 23), in batches of 40 to 100")
    options = parser.parse_args()
    if options.rows and options.campaign != "imports":
        parser.error("--rows is for imports")
    number, parts = map(int, options.part.split("/"))
    sums: Counter[str] = Counter()
    wrong, started = 0, time.perf_counter()
    plays, play = CAMPAIGNS[options.campaign]
    for index, told in enumerate(plays(options.plays, options.seed, *filter(None, [options.rows]))):
        if index % parts != number - 1:
            continue
        try:
            outcome = play(replace(told, senders=options.senders))
        except Exception as error:
            print(f"CRASH {told}: {error!r}", file=sys.stderr)
            traceback.print_exc()
            wrong += 1
            continue
        sums.update({name: int(getattr(outcome, name)) for name in SUMS if hasattr(outcome, name)})
        sums["plays"] += 1
        sums[getattr(told, "kind", "creations")] += 1
        sums["rows"] += outcome.rows
        if told.lists == "current":
            sums["rows, lists tell the truth"] += outcome.rows
            sums["in doubt, lists tell the truth"] += outcome.in_doubt
        if not outcome.is_right:
            wrong += 1
            print(f"WRONG {told}: {outcome}", file=sys.stderr)
    print({**sums, "wrong plays": wrong, "seconds": round(time.perf_counter() - started)}, flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
