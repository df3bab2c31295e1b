"""Compare the start-up of crmctl with that of its libraries alone, by medians of interleaved runs."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from measuring import CRMCTL, Comparison, embedded_service, interleaved_medians, private_environment

ONE_COMMAND = """
import typer

app = typer.Typer()


@app.command()
def main(name: str, loud: bool = False) -> None:
    "Greet somebody."
    print(name.upper() if loud else name)


app()
"""
RECORDS = 50


def commands(folder: Path) -> dict[str, list[str]]:
    """Commands to measure, by name; gh if it is installed."""
    program = folder / "one_command.py"
    program.write_text(ONE_COMMAND)
    measured = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "crmctl --version": [CRMCTL, "--version"],
        "import crmctl": [sys.executable, "-c", "import crmctl"],
        "from crmctl import Client": [sys.executable, "-c", "from crmctl import Client"],
        "one-command Typer program --help": [sys.executable, str(program), "--help"],
        "crmctl --help": [CRMCTL, "--help"],
        "import typer": [sys.executable, "-c", "import typer"],
        "import typer, httpx, pydantic": [sys.executable, "-c", "import typer, httpx, pydantic"],
        "crmctl records list people -o json": [CRMCTL, "records", "list", "people", "-o", "json"],
        "crmctl __complete records list": [CRMCTL, "__complete", "records", "list", ""],
    }
    gh = shutil.which("gh")
    return {**measured, "gh --version": [gh, "--version"]} if gh else measured


def fill(env: Mapping[str, str]) -> None:
    """Create some people to list, and a warm schema cache."""
    for number in range(RECORDS):
        data = f'{{"name": "Person {number}", "email": "person{number}@example.com"}}'
        subprocess.run([CRMCTL, "records", "create", "people", "--data", data], env=dict(env), stdout=subprocess.DEVNULL, check=True)
    subprocess.run([CRMCTL, "records", "list", "people", "--fields", "id"], env=dict(env), stdout=subprocess.DEVNULL, check=True)


def comparisons(medians: Mapping[str, float]) -> list[Comparison]:
    """Pairs to compare, with the highest allowed ratio."""
    pairs: list[tuple[str, str, float | None]] = [
        ("crmctl --version", "python -c pass", 2.0),
        ("import crmctl", "python -c pass", 1.5),
        ("from crmctl import Client", "import typer, httpx, pydantic", None),
        ("crmctl --help", "one-command Typer program --help", 1.0),
        ("crmctl records list people -o json", "import typer, httpx, pydantic", 1.5),
        ("crmctl records list people -o json", "import typer", None),
        ("crmctl __complete records list", "python -c pass", None),
        ("crmctl --version", "gh --version", None),
        ("crmctl --help", "gh --version", None),
    ]
    known = [pair for pair in pairs if pair[0] in medians and pair[1] in medians]
    return [Comparison(name, medians[name], baseline, medians[baseline], target) for name, baseline, target in known]


def main() -> None:
    """Print one line per comparison; exit with 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=15, help="runs of each command (default: 15)")
    runs = parser.parse_args().runs
    with private_environment() as env, embedded_service(env) as connected:
        fill(connected)
        medians = interleaved_medians(commands(Path(env["HOME"])), runs, connected)
    results = comparisons(medians)
    print("\n".join(result.line() for result in results))
    sys.exit(any(result.target is not None and result.ratio > result.target for result in results))


if __name__ == "__main__":
    main()
