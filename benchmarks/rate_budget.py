"""Simulate limiters of every kind and print the share of the limit that the rate budget uses.

Run it from the project's root: `python -m benchmarks.rate_budget [--window 3] [--limit 7 --window 1 --latency 0.03]`. Takes minutes and no
network. Exits with 1 if the service refused a request.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator

from tests.client.ratesim import START, FixedWindow, Limiter, Rounding, SlidingWindow, TokenBucket, World, share_used

WORKERS = (1, 2, 4, 8)
"""Workers at once from the first request on. Limits below this number are left out, because crmctl does not know them yet."""
STARTS = (0.004, 0.2, 0.45, 0.8)
"""The start of the work, as a share of the window."""


def limiters(limit: int, window: float) -> Iterator[tuple[str, Rounding, Callable[[Rounding], Limiter]]]:
    """Every kind with every rounding of Reset: name, rounding, and a function that makes a fresh one."""
    kinds: dict[str, Callable[[Rounding], Limiter]] = {
        f"aligned, phase {phase:g}": lambda rounding, phase=phase: FixedWindow(limit, window, aligned=True, rounding=rounding, phase=phase)  # type: ignore[misc]
        for phase in (0.0, 0.37, 0.9)
    }
    kinds["begins with a request"] = lambda rounding: FixedWindow(limit, window, aligned=False, rounding=rounding)
    kinds["sliding"] = lambda rounding: SlidingWindow(limit, window, rounding=rounding)
    kinds["sliding, reset runs ahead"] = lambda rounding: SlidingWindow(limit, window, rounding=rounding, running=True)
    for name, make in kinds.items():
        for rounding in (math.floor, math.ceil):
            yield name, rounding, make
    yield "token bucket", math.ceil, lambda _: TokenBucket(limit, window)


def measure(make: Callable[[Rounding], Limiter], rounding: Rounding, workers: int, window: float, latency: float) -> tuple[float, int]:
    """Return the worst used share over the starting moments, and all refusals."""
    shares, refused = [], 0
    for start in STARTS if window < 10 else STARTS[:2]:
        world = World(make(rounding), workers=workers, latency=latency, jitter=latency * 0.4, start=START + start * window)
        world.run(seconds=(20 if window < 2 else 10 if window < 10 else 5) * window)
        shares.append(share_used(world))
        refused += len(world.refused)
    return min(shares), refused


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--window", type=float, action="append", help="seconds; default 60 and 3")
    parser.add_argument("--limit", type=int, default=100, help="requests a window; default 100")
    parser.add_argument("--latency", type=float, help="seconds; default 0.05, in windows below ten seconds 0.01")
    arguments = parser.parse_args()
    every, workers = 0, [each for each in WORKERS if each < arguments.limit]
    print(f"| window | limiter | Reset | {' | '.join(f'{each} at once' for each in workers)} | refused |")
    print("|---|---|---|" + "---|" * (len(workers) + 1))
    for window in arguments.window or (60.0, 3.0):
        latency = arguments.latency or (0.05 if window >= 10 else 0.01)
        for name, rounding, make in limiters(arguments.limit, window):
            measured = [measure(make, rounding, each, window, latency) for each in workers]
            refused = sum(count for _, count in measured)
            every += refused
            print(
                f"| {window:g} s | {name} | {rounding.__name__} | {' | '.join(f'{share:.1%}' for share, _ in measured)} | {refused} |",
                flush=True,
            )
    return 1 if every else 0


if __name__ == "__main__":
    raise SystemExit(main())
