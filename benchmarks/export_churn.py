"""Export from a service under constant change: 1,000 seeds per order of ties, lost records, and the cost in requests."""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.support.churn import TIES, Churn, ChurningService, export_under_churn

SEEDS = 1000
RECORDS = 20_000
NAIVE = RECORDS // 100 + 1
RESULT = ROOT / "benchmarks" / "results" / "export_churn.md"
MILD, DELETING = Churn(0.2, 0.2), Churn(0.2, 0.2, 0.1)
LIMITS = {
    "a stable order, any group": ("arrival", (1, 10, 100, 250), (203, 208)),
    "no order, unique times": ("random", (1,), (205, 221)),
    "no order, groups of 10": ("random", (10,), (223, 243)),
    "no order, groups of 98": ("random", (98,), (205, 226)),
    "no order, groups of 100": ("random", (100,), (1492, 1492)),
    "no order, groups of 250": ("random", (250,), (2042, 2042)),
}
"""Situations of the design's table: order of ties, group sizes, and the requests without and with deletions."""


def random_service(seed: int, ties: str) -> ChurningService:
    """Draw group sizes near those of pages, any churn, late commits, services with and without totals and filters on time."""
    chance = random.Random(f"{ties}-{seed}")
    churn = Churn(chance.choice([0, 0.5, 3]), chance.choice([0, 0.5, 5]), chance.choice([0, 0.3, 2, 10]), chance.choice([0, 0.3]))
    count, group = chance.choice([0, 1, 50, 99, 100, 101, 300, 700]), chance.choice([1, 2, 3, 10, 50, 98, 99, 100, 101, 150, 250])
    return ChurningService(seed, count, group, ties, churn, gives_total=chance.random() < 0.7, filters_time=chance.random() < 0.5)


def completeness(seeds: int) -> Iterator[str]:
    yield "| order of ties | exports | records lost | stale | invented | flagged unstable | requests over plain paging, mean |"
    yield "|---|---|---|---|---|---|---|"
    for ties in TIES:
        lost = stale = invented = flagged = asked = naive = 0
        for seed in range(seeds):
            service = random_service(seed, ties)
            outcome = export_under_churn(service, prune=seed % 4 == 0)
            unstable = "unstable_ties" in outcome.state.flags
            lost, stale, invented = lost + len(outcome.lost), stale + len(outcome.stale), invented + len(outcome.invented)
            flagged += unstable
            asked, naive = asked + outcome.sweep_requests, naive + service.count // 100 + 1
        yield f"| {ties} | {seeds:,} | {lost} | {stale} | {invented} | {flagged} | {asked / naive:.2f} times |"


def costs() -> Iterator[str]:
    yield "| situation | main pass, mild / with deletions | design table | passes over changes | kept |"
    yield "|---|---|---|---|---|"
    for name, (ties, groups, most) in LIMITS.items():
        sweeps, extras = [], []
        for churn in (MILD, DELETING):
            outcomes = [export_under_churn(ChurningService(1, RECORDS, group, ties, churn)) for group in groups]
            assert not any(outcome.lost or outcome.stale for outcome in outcomes)
            sweeps.append(max(outcome.sweep_requests for outcome in outcomes))
            extras.append(max(outcome.requests - outcome.sweep_requests for outcome in outcomes))
        kept = "yes" if all(took <= limit * 1.05 for took, limit in zip(sweeps, most, strict=True)) else "NO"
        yield f"| {name} | {sweeps[0]:,} / {sweeps[1]:,} | {most[0]:,} / {most[1]:,} | +{extras[0]} / +{extras[1]} | {kept} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS, help="exports per order of ties")
    arguments = parser.parse_args()
    started = time.perf_counter()
    lines = [
        "# Exports under churn", "", f"`python benchmarks/export_churn.py --seeds {arguments.seeds}`. Every export is compared with what",
        "the service knows: a record that existed from beginning to end must be in it once, as new as the last pass over changes.", "",
        "## Completeness", "", *completeness(arguments.seeds), "", "## Requests", "",
        f"{RECORDS:,} records, {NAIVE} requests by plain paging. Kept: within 5 % of the design's table.", "", *costs(),
    ]  # fmt: skip
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text("\n".join(lines) + "\n")
    print("\n".join(lines), f"\n{time.perf_counter() - started:.0f} s", sep="\n")


if __name__ == "__main__":
    main()
