"""Compare start-up, import throughput and memory with another commit, in processor seconds of alternating runs."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from import_throughput import Run, null_sink, run, write_rows
from measuring import CRMCTL, embedded_service, private_environment
from startup import fill

MOST = 1.05
"""The highest ratio that is not "worse": two runs of one program differ as much."""
COMMANDS: dict[str, Sequence[str]] = {
    "--version": ("--version",),
    "--help": ("--help",),
    "bulk import --help": ("bulk", "import", "--help"),
    "records list people -o json": ("records", "list", "people", "-o", "json"),
}


def best_of_each(programs: Mapping[str, str], options: Sequence[str], rounds: int, env: Mapping[str, str]) -> dict[str, Run]:
    """Return the least that each program needed; they alternate, and the first round only warms up."""
    runs: dict[str, list[Run]] = {name: [] for name in programs}
    for turn in range(rounds + 1):
        for name, program in programs.items():
            one = run([program, *options], env)
            if turn:
                runs[name].append(one)
    return {name: Run.best(of) for name, of in runs.items()}


def main() -> None:
    """Print a line for each command and size; exit with 1 if this commit needs over `MOST` times the other's time or memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", help="the other commit's crmctl, installed with the same Python")
    parser.add_argument("--rows", type=int, nargs="+", default=[20_000, 100_000], help="sizes of the imported files")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each, of which the best counts (default: 5)")
    options = parser.parse_args()
    programs = {"other": options.other, "this": CRMCTL}
    results: dict[str, dict[str, Run]] = {}
    with private_environment() as env, tempfile.TemporaryDirectory() as folder:
        with embedded_service(env) as connected:
            fill(connected)
            for name, words in COMMANDS.items():
                results[name] = best_of_each(programs, words, 4 * options.rounds, connected)
        with null_sink() as sink:
            for rows in options.rows:
                file = Path(folder) / f"{rows}.csv"
                write_rows(file, rows)
                words = ("bulk", "import", "people", str(file), "--again", "--quiet")
                sent = {**env, "CRMCTL_BASE_URL": sink, "CRMCTL_API_KEY": "benchmark"}
                results[f"import of {rows:,} rows"] = best_of_each(programs, words, options.rounds, sent)
    worst = 0.0
    for name, runs in results.items():
        ours, theirs = runs["this"], runs["other"]
        time, memory = ours.processor / theirs.processor, ours.mebibytes / theirs.mebibytes
        worst = max(worst, time, memory)
        print(
            f"{name:30} {ours.processor:7.3f} s against {theirs.processor:7.3f} s, ratio {time:.2f};"
            f" {ours.mebibytes:6.1f} MiB against {theirs.mebibytes:6.1f} MiB, ratio {memory:.2f}"
        )
    sys.exit(worst > MOST)


if __name__ == "__main__":
    main()
