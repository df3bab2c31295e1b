"""Kill real processes: `crmctl bulk import` and `resume` at random moments and at every step, and the service behind them."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.measuring import CRMCTL
from tests.support.faultruns import Outcome
from tests.support.service import ServiceProcess, service_process

from crmctl.clock import SystemClock
from crmctl.write.database import RowState
from crmctl.write.jobs import JobInfo, JobStore

ROWS = 1500
TRIES = 12
PATIENCE = 0.5
"""Seconds before a job is resumed; each time longer, so that no moment of the machine decides a run."""

STRIDE = 7
"""An import has about 2,100 steps; runs are this far apart."""

AT_A_STEP = """
import os, signal, sqlite3, sys

left = int(sys.argv.pop(1))

def step():
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)

def connect(*arguments, open=sqlite3.connect, **options):
    connection = open(*arguments, **options)
    connection.set_trace_callback(lambda statement: step())
    return connection

def hear(event, arguments):
    if event in ("os.mkdir", "os.rename", "os.remove", "socket.connect"):
        step()
    elif event == "open" and not str(arguments[0]).endswith((".py", ".pyc", ".so")):
        step()

sys.argv[0] = "crmctl"
sqlite3.connect = connect
from crmctl.main import main

sys.addaudithook(hear)
sys.exit(main())
"""
"""Run the program and kill it before its n-th step: a file or folder it opens, makes, renames or removes, a connection, an SQL statement.
"""


@dataclass
class Run:
    """One file imported by real processes; `story` holds commands and output, for runs that end wrong."""

    folder: Path
    service: ServiceProcess
    tag: str
    story: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.file = self.folder / f"{self.tag}.csv"
        self.file.write_text("email,score\n" + "".join(f"{self.tag}-{n}@acme.com,{n}\n" for n in range(ROWS)))
        self.env = {
            **os.environ,
            "CRMCTL_BASE_URL": self.service.base_url,
            "CRMCTL_API_KEY": self.service.key,
            **{f"CRMCTL_{kind}_DIR": str(self.folder / f"{self.tag}-{kind.lower()}") for kind in ("STATE", "CONFIG", "CACHE")},
        }

    def start(self, *program: str) -> subprocess.Popen[bytes]:
        """Return the next command of the job: the import as long as no job exists, then its resumption."""
        begun = ["bulk", "resume", "--last"] if self.jobs() else ["bulk", "import", "people", str(self.file)]
        command = [*(program or (CRMCTL,)), *begun, "--settle", "1", "--timeout", "5"]
        self.story.append(" ".join(begun))
        return subprocess.Popen(command, env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def finish(self, process: subprocess.Popen[bytes]) -> int:
        said = process.communicate()
        self.story.append(f"-> {process.returncode}: {b' '.join(said).decode(errors='replace')}")
        return process.returncode

    def jobs(self) -> list[JobInfo]:
        return JobStore(self.folder / f"{self.tag}-state", SystemClock()).list()

    def outcome(self) -> Outcome:
        """Resume until nothing is left to do; then count every row on the service. A missing row must be named as in doubt."""
        for turn in range(TRIES):
            jobs = self.jobs()
            if jobs and not any(job.is_resumable for job in jobs):
                break
            time.sleep(PATIENCE * turn)
            self.finish(self.start())
        jobs = self.jobs()
        self.story += [str(job.to_document()) for job in jobs]
        in_doubt = sum(job.counts[RowState.IN_DOUBT] for job in jobs)
        there = self._there()
        missing = sum(f"{self.tag}-{n}@acme.com" not in there for n in range(ROWS))
        outcome = Outcome(max(0, missing - in_doubt), sum(there.values()) - len(there), in_doubt, 0, 0)
        accounted = len(jobs) == 1 and jobs[0].counts[RowState.CREATED] + in_doubt == sum(jobs[0].counts.values()) == ROWS
        if not outcome.is_right or not accounted:
            print(f"{self.tag} {outcome}:", *self.story, sep="\n  ", file=sys.stderr, flush=True)
        return outcome

    def _there(self) -> Counter[str]:
        there: Counter[str] = Counter()
        with self.service.client() as client:
            objects = client.get("/api/v1/objects").json()["objects"]
            people = next(one["id"] for one in objects if one["slug"] == "people")
            for offset in range(0, ROWS * 3, 100):
                query = {"filter[email][startsWith]": f"{self.tag}-", "limit": "100", "offset": str(offset), "order": "asc"}
                rows = client.get(f"/api/v1/objects/{people}/records", params=query).json()["records"]
                there.update(row["data"]["email"] for row in rows)
                if len(rows) < 100:
                    break
        return there


def kill_clients(numbers: Sequence[int]) -> Iterator[Outcome]:
    """Kill the client of each import one to three times; then resume it to the end."""
    with _service() as (folder, service):
        whole = _duration(folder, service)
        for number in numbers:
            chance = random.Random(number)
            run = Run(folder, service, f"run{number}")
            for _ in range(chance.randint(1, 3)):
                client = run.start()
                wait(client, chance.random() * whole)
                client.kill()
                if run.finish(client) != -signal.SIGKILL:
                    break
            yield run.outcome()


def kill_at_steps(numbers: Sequence[int]) -> Iterator[Outcome]:
    """Kill the client of each import before one of its steps; then resume it to the end."""
    with _service() as (folder, service):
        for number in numbers:
            run = Run(folder, service, f"step{number}")
            run.finish(run.start(sys.executable, "-c", AT_A_STEP, str(number * STRIDE + 1)))
            yield run.outcome()


def kill_services(numbers: Sequence[int]) -> Iterator[Outcome]:
    """Kill the service during each import and restart it on the same data and port."""
    with _service() as (folder, service):
        whole = _duration(folder, service)
        for number in numbers:
            chance = random.Random(-1 - number)
            run = Run(folder, service, f"run{number}")
            client = run.start()
            wait(client, chance.random() * whole)
            restart(service, folder)
            run.finish(client)
            yield run.outcome()


def _duration(folder: Path, service: ServiceProcess) -> float:
    """Return the seconds of an import on this machine today; kills come within them."""
    started = time.monotonic()
    run = Run(folder, service, "whole")
    run.finish(run.start())
    return time.monotonic() - started


@contextmanager
def _service() -> Iterator[tuple[Path, ServiceProcess]]:
    """Yield a folder with a service that ends with the block, whichever process it is by then."""
    with tempfile.TemporaryDirectory() as folder:
        service = service_process(Path(folder) / "data", "--rate-limit", "0")
        try:
            yield Path(folder), service
        finally:
            service.kill()


def restart(service: ServiceProcess, folder: Path, meanwhile: Callable[[], None] = lambda: None) -> None:
    """Replace the process behind the address; run an act in between."""
    port = service.base_url.rsplit(":", 1)[1]
    service.kill()
    meanwhile()
    service.process = service_process(folder / "data", "--port", port, "--rate-limit", "0", key=service.key).process


def wait(process: Any, seconds: float) -> None:
    """Wait for a time, or until the process ends."""
    until = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < until:
        time.sleep(0.005)
