"""Measure bulk create over HTTP: rows per second of the service's processor time, in batches of 100, against a plain loop.

    python benchmarks/bulk_create.py [--rows 20000] [--engine sqlite|postgresql] [--attributes 7|10] [--beside PROGRAM]

Seven attributes: name, e-mail (unique), phone, text, number, select and a reference; ten: those of service_store.py. The baseline is that
of service_store.py: `executemany` of the same documents as JSON into one table, equally durable, on SQLite. Exits with 1 below the target:
12,000 rows, or 1.5 times those of another commit's crmctl (`--beside`, as in two_commits.py; both take turns).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.measuring import CRMCTL, processor_seconds
from benchmarks.service_store import BATCH, documents, fill_baseline, sqlite_database
from tests.support.postgres import private_server
from tests.support.service import make_client

TARGET = 12_000
TIMES = 1.5
"""Target as a ratio to the rows of 84bf201 (about 8,000 a second), which does not depend on the machine's speed of the moment."""

COMPANIES = 1000
_SEVEN = ("name", "email", "phone", "job_title", "score", "status")


def rows(count: int, attributes: int, companies: list[str]) -> Iterator[dict[str, Any]]:
    for number, document in enumerate(documents(count)):
        if attributes == 7:
            document = {slug: document[slug] for slug in _SEVEN} | {"company": companies[number * 7919 % len(companies)]}
        yield document


def bodies(documents: Iterator[dict[str, Any]]) -> list[bytes]:
    """Return request bodies as a client writes them."""
    items = [{"data": document} for document in documents]
    return [
        json.dumps({"mode": "create", "records": items[start : start + BATCH]}, separators=(",", ":")).encode()
        for start in range(0, len(items), BATCH)
    ]


class Subject:
    """`crmctl serve` of a commit, with companies to refer to, and the requests to send."""

    def __init__(self, stack: ExitStack, program: str, engine: str, count: int, attributes: int) -> None:
        command = [program, "serve", "--data", stack.enter_context(tempfile.TemporaryDirectory()), "--port", "0", "--rate-limit", "0"]
        if engine == "postgresql":
            command += ["--database-url", stack.enter_context(private_server(autovacuum="on")).create_database()]
        quiet = subprocess.DEVNULL
        self.process = stack.enter_context(subprocess.Popen(command, stdin=quiet, stdout=subprocess.PIPE, stderr=quiet, text=True))
        stack.callback(self.process.kill)
        assert self.process.stdout is not None
        ready = json.loads(self.process.stdout.readline())
        self.client = stack.enter_context(make_client(ready["baseUrl"], ready["apiKey"]))
        self.objects = {each["slug"]: each["id"] for each in self.client.get("/api/v1/objects").json()["objects"]}
        for body in bodies(iter([{"name": f"Company {number}"} for number in range(COMPANIES)])):
            self.create("companies", body)
        path = f"/api/v1/objects/{self.objects['companies']}/records"
        pages = [self.client.get(path, params={"limit": 100, "offset": at}).json() for at in range(0, COMPANIES, 100)]
        self.requests = bodies(rows(count, attributes, [record["id"] for page in pages for record in page["records"]]))
        self.clock = 0.0

    def create(self, slug: str, body: bytes) -> None:
        path = f"/api/v1/objects/{self.objects[slug]}/records/bulk"
        answer = self.client.post(path, content=body, headers={"content-type": "application/json"})
        assert answer.json() == {"created": BATCH, "updated": 0, "failed": []}, answer.text


def measure(programs: Sequence[str], engine: str, count: int, attributes: int) -> float:
    """Measure the programs in turns. Return rows per processor second of the first one, or its ratio to the second."""
    with ExitStack() as stack:
        subjects = [Subject(stack, program, engine, count, attributes) for program in programs]
        before = [processor_seconds(subject.process.pid) for subject in subjects]
        for number in range(count // BATCH):
            for subject in subjects:
                start = time.perf_counter()
                subject.create("people", subject.requests[number])
                subject.clock += time.perf_counter() - start
        spent = [processor_seconds(subject.process.pid) - had for subject, had in zip(subjects, before, strict=True)]
    with sqlite_database() as database:
        own = time.process_time()
        fill_baseline(database, count)
        plain = time.process_time() - own
    for program, subject, seconds in zip(programs, subjects, spent, strict=True):
        print(
            f"{program}: {engine}, {count:,} rows of {attributes} attributes over HTTP: {count / seconds:,.0f} rows a processor second "
            f"({1e6 * seconds / count:.0f} us a row, {count / subject.clock:,.0f} rows a second by the clock); the plain loop "
            f"{count / plain:,.0f}, ratio {seconds / plain:.1f}",
            flush=True,
        )
    if len(spent) == 1:
        return count / spent[0]
    print(f"{spent[1] / spent[0]:.2f} times the rows of the other commit")
    return spent[1] / spent[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--engine", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--attributes", type=int, choices=(7, 10), default=7)
    parser.add_argument("--beside", metavar="PROGRAM", help="another commit's crmctl, installed with the same Python, that takes turns")
    given = parser.parse_args()
    programs = [CRMCTL, *([given.beside] if given.beside else [])]
    figure = measure(programs, given.engine, given.rows - given.rows % BATCH, given.attributes)
    return 0 if figure >= (TIMES if given.beside else TARGET) else 1


if __name__ == "__main__":
    sys.exit(main())
