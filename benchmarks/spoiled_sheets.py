"""Read thousands of randomly damaged tables, and count correct, named and refused rows."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.support.sheetreading import read_sheet
from tests.support.spoiledsheets import spoiled_sheet

RESULT = ROOT / "benchmarks" / "results" / "spoiled_sheets.md"
HEAD = """# Spoiled tables

`python benchmarks/spoiled_sheets.py --seeds {seeds}`. A seed makes rows and spoils them in up to six ways (`tests/support/`).
Silent corruption is a row that is imported otherwise than it was made, or that is missing without being named.

| tables | rows | exact | named with their line | tables refused with a reason | silently corrupted | rejected without a reason | seconds |
|---|---|---|---|---|---|---|---|
| {tables:,} | {rows:,} | {exact:,} | {named:,} | {refused:,} | {corrupted} | {unreasoned} | {seconds:.0f} |

| spoiled by | tables | refused |
|---|---|---|
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10_000)
    seeds = parser.parse_args().seeds
    totals: Counter[str] = Counter(corrupted=0, unreasoned=0)
    done: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(seeds):
            sheet = spoiled_sheet(seed)
            outcome = read_sheet(sheet, Path(folder) / "sheet.csv")
            done.update(sheet.done)
            refused.update(sheet.done if outcome.refusal else ())
            totals.update(tables=1, rows=len(sheet.rows), exact=outcome.exact, named=outcome.named, refused=outcome.refusal is not None)
            for fault in outcome.faults:
                totals["unreasoned" if "without" in fault else "corrupted"] += 1
                print(f"seed {seed} ({', '.join(sheet.done)}): {fault[:300]}", file=sys.stderr)
    text = HEAD.format(seeds=seeds, seconds=time.perf_counter() - started, **totals)
    text += "".join(f"| {name.replace('_', ' ')} | {count:,} | {refused[name]:,} |\n" for name, count in sorted(done.items()))
    print(text)
    if totals["corrupted"] or totals["unreasoned"]:
        raise SystemExit(1)
    RESULT.write_text(text)


if __name__ == "__main__":
    main()
