"""Merges by chance on a real service, taken apart again: fields, references and activities have to be as before.

`python benchmarks/merge_undo.py --runs 1000 [--first SEED] [--kills]`; with `--kills` a process is killed (SIGKILL) before and after every
write of the apply and of the undo of each world, and goes on.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.support.merges import World, apply, merge_context, newest_job, resume, unmerge  # noqa: E402
from tests.support.service import RunningService, running_service  # noqa: E402


def one_run(service: RunningService, folder: Path, seed: int) -> list[str]:
    """What is not as it was, in words."""
    chance = random.Random(seed)
    with merge_context(service.base_url, service.key, folder / f"state{seed}") as context:
        world = World.make(context.service, f"w{seed}")
        groups = world.fill(chance, chance.randint(1, 4))
        before = world.snapshot()
        merges = world.plan(chance, groups, folder / "plan", service.base_url)
        applied = apply(context, folder / "plan")
        if applied.error is not None:
            return [f"{seed}: {applied.error.message}"]
        world.check_merged(merges)
        taken = unmerge(context)
        after = world.snapshot()
        wrong = [f"{seed}: {taken.error.message}"] if taken.error is not None else []
        return wrong + [f"{seed}: {name} differs" for name in {*before, *after} if before.get(name) != after.get(name)]


def kills(service: RunningService, folder: Path, seed: int) -> tuple[int, list[str]]:
    """Deaths, and what is not as it was."""
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
        return died, [] if world.snapshot() == before else [f"{name}: not as before"]


def _go_on(context: Any, act: Callable[[Any], Any]) -> None:
    done = act(context)
    if done.error is not None:
        raise SystemExit(f"job {newest_job(context).id}: {done.error.message}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--kills", action="store_true")
    given = parser.parse_args()
    begun, wrong, deaths = time.perf_counter(), [], 0
    with tempfile.TemporaryDirectory() as scratch, running_service(Path(scratch) / "service") as service:
        for seed in range(given.first, given.first + given.runs):
            if given.kills:
                died, found = kills(service, Path(scratch), seed)
                deaths, wrong = deaths + died, wrong + found
            else:
                wrong += one_run(service, Path(scratch), seed)
    what = f"{deaths} deaths in {given.runs} worlds" if given.kills else f"{given.runs} merges, each taken apart again"
    print(f"{what}, seeds from {given.first}: {len(wrong)} not as before, {time.perf_counter() - begun:.0f} s", *wrong, sep="\n")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
