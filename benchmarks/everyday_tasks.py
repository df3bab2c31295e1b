"""Measure the tasks of docs/guides/everyday-tasks.md and write their requests and seconds into the page.

    python benchmarks/everyday_tasks.py

Starts an embedded service without a rate limit and types the commands of the page, in order, into a bash with the installed crmctl.
tests/docs/test_everyday_tasks.py follows the page, too; it fails if a task needs many more requests, but ignores the seconds.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.isolation import FOLDERS, KNOWN
from tests.support.pages import open_shell
from tests.support.service import running_service
from tests.support.tasks import HEADING, MEASURE, PAGE, carry_out

RUNS = 3


def main() -> None:
    runs = [measure() for _ in range(RUNS)]
    text = MEASURE.sub("", PAGE.read_text(encoding="utf-8"))
    for number in runs[0]:
        requests = max(run[number][0] for run in runs)
        line = f"*{requests} request{'' if requests == 1 else 's'}, {min(run[number][1] for run in runs):.1f} s*"
        print(f"{number:3}  {line}")
        text = HEADING.sub(
            lambda heading, line=line, number=number: f"{heading[0]}\n\n{line}" if int(heading[1]) == number else heading[0], text
        )
    PAGE.write_text(text, encoding="utf-8")


def measure() -> dict[int, tuple[int, float]]:
    """Return the requests and seconds of each task of one run."""
    with tempfile.TemporaryDirectory() as folder:
        folders = {name: str(Path(folder, place)) for name, place in FOLDERS.items()}
        with running_service(Path(folder, "crm")) as service:
            known = {"CRMCTL_BASE_URL": service.base_url, "CRMCTL_API_KEY": service.key, **KNOWN, **folders}
            with open_shell(Path(folder), known) as shell:
                return {task.number: (requests, seconds) for task, requests, seconds in carry_out(shell, service)}


if __name__ == "__main__":
    main()
