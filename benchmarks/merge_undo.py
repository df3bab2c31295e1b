"""Merge at random on the service, undo the merges, and compare fields, references and activities with the state before.

`python benchmarks/merge_undo.py --runs 1000 [--first SEED] [--part 2/10] [--save FILE] [--postgresql URL]`: the service's application runs
in this process, on SQLite in memory or on an empty PostgreSQL database. FILE gets a line for each run; recorded runs are not repeated, and
the sum covers all lines. With `--kills`, the benchmark kills a process (SIGKILL) before and after every write of the apply and the undo of
each world, resumes it, and serves over a socket.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.support.answeringapp import ORIGIN, answering_app, quick_folder
from tests.support.merges import MergeContext, World, apply, merge_context, newest_job, resume, unmerge
from tests.support.outcomes import error_of
from tests.support.service import RunningService, running_service

from crmctl.client.crm import Crm


def one_run(crm: Crm, folder: Path, seed: int) -> list[str]:
    """Return the differences in words."""
    chance, state = random.Random(seed), folder / f"state{seed}"
    context = MergeContext(crm, ORIGIN, state)
    world = World.make(crm, f"w{seed}", people=seed % 3 == 0)
    groups = world.fill(chance, chance.randint(1, 4))
    before = world.snapshot()
    merges = world.plan(chance, groups, folder / "plan", ORIGIN, by_hand=seed % 2 == 1)
    applied = apply(context, folder / "plan")
    if error_of(applied) is not None:
        return [str(error_of(applied))]
    world.check_merged(merges)
    taken = unmerge(context)
    after = world.snapshot()
    wrong = [str(error_of(taken))] if error_of(taken) is not None else []
    wrong += [f"{name} differs" for name in {*before, *after} if before.get(name) != after.get(name)]
    world.remove()
    shutil.rmtree(state)
    return wrong


def kills(service: RunningService, folder: Path, seed: int) -> tuple[int, list[str]]:
    """Play kills; return the differences."""
    deaths, wrong = 0, []
    for action in ("apply", "undo"):
        for when in ("before", "after"):
            at = 1
            while True:
                died, found = _killed(service, folder, f"{seed}-{action}-{when}-{at}", (action, at, when, seed))
                wrong += found
                if not died:
                    break
                deaths, at = deaths + 1, at + 1
    return deaths, wrong


def _killed(service: RunningService, folder: Path, name: str, point: tuple[str, int, str, int]) -> tuple[bool, list[str]]:
    action, at, when, seed = point
    chance, plan, state = random.Random(seed), folder / f"{name}.plan", folder / name
    with merge_context(service.base_url, service.key, state) as context:
        world = World.make(context.service, f"k{name.replace('-', '_')}")
        groups = world.fill(chance, 1)
        before = world.snapshot()
        merges = world.plan(chance, groups, plan, service.base_url)
        if action == "undo":
            apply(context, plan)
        given = map(str, (state, service.base_url, service.key, action, at, when, plan))
        died = subprocess.run([sys.executable, "-m", "tests.support.mergechild", *given], cwd=ROOT, check=False).returncode < 0
        if action == "apply":
            _go_on(context, resume)
            world.check_merged(merges)
        _go_on(context, unmerge)
        after = world.snapshot()
        world.remove()
        return died, [] if after == before else ["not as before"]


def _go_on(context: Any, act: Callable[[Any], Any]) -> None:
    done = act(context)
    if error_of(done) is not None:
        raise SystemExit(f"job {newest_job(context).id}: {error_of(done)}")


def _make(seeds: list[int], given: argparse.Namespace, keep: Callable[[int, int, list[str]], None]) -> None:
    """Play the runs of these seeds."""
    if given.kills:
        with tempfile.TemporaryDirectory() as scratch, running_service(Path(scratch) / "service") as service:
            for seed in seeds:
                keep(seed, *kills(service, Path(scratch), seed))
    else:
        with quick_folder() as scratch, answering_app(Path(scratch) / "service", given.postgresql) as crm:
            for seed in seeds:
                keep(seed, 0, one_run(crm, Path(scratch), seed))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--part", default="1/1")
    parser.add_argument("--save", type=Path)
    parser.add_argument("--postgresql")
    parser.add_argument("--kills", action="store_true")
    given = parser.parse_args()
    part, parts = map(int, given.part.split("/"))
    text = given.save.read_text() if given.save and given.save.exists() else ""
    lines = [json.loads(line) for line in text.splitlines()]
    made = {line["seed"] for line in lines}
    seeds = [seed for seed in range(given.first, given.first + given.runs) if seed % parts == part - 1 and seed not in made]

    def keep(seed: int, deaths: int, wrong: list[str]) -> None:
        lines.append({"seed": seed, "deaths": deaths, "wrong": wrong})
        if given.save:
            with given.save.open("a") as file:
                file.write(json.dumps(lines[-1]) + "\n")

    begun = time.process_time()
    _make(seeds, given, keep)
    wrong = [f"{line['seed']}: {', '.join(line['wrong'])}" for line in lines if line["wrong"]]
    what = (
        f"{sum(line['deaths'] for line in lines)} deaths in {len(lines)} worlds"
        if given.kills
        else f"{len(lines)} merges, each taken apart again"
    )
    print(f"{what}: {len(wrong)} not as before; {len(seeds)} now, {time.process_time() - begun:.0f} s of this process", *wrong, sep="\n")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
