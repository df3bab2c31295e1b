"""Count the requests of large imports: an undisturbed one, and one that loses an early request.

`python benchmarks/import_requests.py [ROWS]` imports ROWS rows (100,000) into a test double of the embedded service, once for each case,
with the installed command line. Prints the requests of the summary and the service's count. Exits with 1 if they differ, or if a row is
missing or exists twice without a message.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import httpx

COUNTS = "* /api/v1/* [nth=1000000000] -> delay=1s"
"""A fault that never happens: the double counts the requests that match it."""

BULK = "POST /api/v1/objects/*/records/bulk"
CASES = {
    "no fault": (),
    "no fault, by key": (),
    "the second request never arrives": (f"{BULK} [nth=2] -> drop=before",),
    "the answer to the second request is lost": (f"{BULK} [nth=2] -> drop=after",),
    "the second request is refused for now (429), but carried out": (f"{BULK} [nth=2] -> status=429 retry-after=1 after",),
}


def crmctl(*words: str) -> list[str]:
    return [sys.executable, "-m", "crmctl", *words]


def run(case: str, rows: int) -> bool:
    """Import the rows in one case, print its figures, and return whether they are right."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        faults = [word for rule in (COUNTS, *CASES[case]) for word in ("--fault", rule)]
        double = stack.enter_context(
            subprocess.Popen(
                crmctl("serve", "--ephemeral", "--rate-limit", "0", *faults), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        )
        stack.callback(double.terminate)
        assert double.stdout is not None
        ready = json.loads(double.stdout.readline())
        path = folder / "people.csv"
        path.write_text("email,score\n" + "".join(f"p{n}@acme.com,{n}\n" for n in range(rows)))
        places = {f"CRMCTL_{name}_DIR": str(folder / name) for name in ("CONFIG", "STATE", "CACHE")}
        environment = os.environ | {"CRMCTL_BASE_URL": ready["baseUrl"], "CRMCTL_API_KEY": ready["apiKey"]} | places
        words = ["bulk", "import", "people", str(path), *(["--key", "email"] if "by key" in case else [])]
        begun = time.perf_counter()
        done = subprocess.run(crmctl(*words), env=environment, capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - begun
        summary = json.loads(done.stdout)
        counted = httpx.get(f"{ready['baseUrl']}/_test/faults").json()[0]["matched"]
        counting = crmctl("records", "count", "people", "-q", "count", "-o", "json")
        there = int(subprocess.run(counting, env=environment, capture_output=True, text=True, check=True).stdout)
    batches = -(-rows // 100)
    print(
        f"| {case} | {summary['requests']:,} | {summary['requests'] - batches:,} | {counted:,} | {done.returncode} | {seconds:.0f} s |",
        flush=True,
    )
    named = summary["duplicates"] + summary["inDoubt"]
    is_exact = summary["created"] == there == rows or (done.returncode == 10 and rows <= there <= rows + named)
    if not is_exact or counted != summary["requests"]:
        print(f"{case}: {there:,} records, {summary}\n{done.stderr}", file=sys.stderr)
    return is_exact and counted == summary["requests"]


def main(rows: int) -> int:
    print("| case | requests | beyond the batches | as the service counts | exit code | time |\n|---|---|---|---|---|---|")
    return min(1, sum(not run(case, rows) for case in CASES))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000))
