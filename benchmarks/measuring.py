"""Helpers of the benchmarks: interleaved runs, medians, verdicts against a target, throw-away services."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.service import ServiceProcess

CRMCTL = str(Path(sys.executable).with_name("crmctl"))


@dataclass(frozen=True)
class Comparison:
    """One measurement against a baseline; `target` is the highest allowed ratio, or None."""

    name: str
    seconds: float
    baseline: str
    baseline_seconds: float
    target: float | None

    @property
    def ratio(self) -> float:
        return self.seconds / self.baseline_seconds

    def line(self) -> str:
        """Return a line with both times, the ratio, the target and whether it is met."""
        verdict = "" if self.target is None else f"  target {self.target:g}: {'kept' if self.ratio <= self.target else 'MISSED'}"
        times = f"{self.seconds * 1000:8.1f} ms against {self.baseline_seconds * 1000:8.1f} ms"
        return f"{self.name:42} {times}  ratio {self.ratio:5.2f}{verdict}   ({self.baseline})"


def interleaved_medians(commands: Mapping[str, Sequence[str]], runs: int, env: Mapping[str, str]) -> dict[str, float]:
    """Return median wall seconds of each command. Runs alternate, so that other load affects all alike; the first round only warms up."""
    taken: dict[str, list[float]] = {name: [] for name in commands}
    for turn in range(runs + 1):
        for name, command in commands.items():
            start = time.perf_counter()
            subprocess.run(command, env=dict(env), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=True)
            if turn:
                taken[name].append(time.perf_counter() - start)
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


@contextlib.contextmanager
def private_environment() -> Iterator[dict[str, str]]:
    """Return this environment with a home and crmctl folders of its own, and byte code written as on any other machine."""
    with tempfile.TemporaryDirectory() as folder:
        ours = {name: value for name, value in os.environ.items() if not name.startswith("CRMCTL_") and name != "PYTHONDONTWRITEBYTECODE"}
        own = {f"CRMCTL_{kind}_DIR": f"{folder}/{kind.lower()}" for kind in ("CONFIG", "STATE", "CACHE")}
        yield {**ours, **own, "HOME": folder, "PYTHON_KEYRING_BACKEND": "keyring.backends.null.Keyring"}


@contextlib.contextmanager
def embedded_service(env: Mapping[str, str], *options: str) -> Iterator[dict[str, str]]:
    """Start `crmctl serve` without a rate limit on a free port; yield the environment with its address and key."""
    with tempfile.TemporaryDirectory() as data:
        command = [CRMCTL, "serve", "--data", data, "--port", "0", "--rate-limit", "0", *options]
        with subprocess.Popen(command, env=dict(env), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            ready = json.loads(process.stdout.readline())
            try:
                yield {**env, "CRMCTL_BASE_URL": ready["baseUrl"], "CRMCTL_API_KEY": ready["apiKey"]}
            finally:
                process.terminate()


@contextlib.contextmanager
def started_service(engine: str, folder: Path) -> Iterator[tuple[ServiceProcess, str]]:
    """Start a service without a rate limit on its own database; yield it with the database's address."""
    from tests.support.postgres import private_server
    from tests.support.service import service_process

    from crmctl.service.context import DATABASE_FILE

    with contextlib.ExitStack() as stack:
        url = stack.enter_context(private_server(autovacuum="on")).create_database() if engine == "postgresql" else None
        options = ("--database-url", url) if url else ()
        service = stack.enter_context(service_process(folder / "data", "--dev", "--rate-limit", "0", *options))
        yield service, url or str(folder / "data" / DATABASE_FILE)


def cluster_seconds(url: str) -> float:
    """Return the processor time of all processes, also ended ones, of the local PostgreSQL with this database."""
    import psycopg

    with psycopg.connect(url) as connection:
        first = _stat(connection.info.backend_pid)[1]
    numbers = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    spent = sum(int(field) for field in _stat(int(first))[11:15])
    for number in numbers:
        with contextlib.suppress(OSError):
            fields = _stat(number)
            spent += int(fields[11]) + int(fields[12]) if fields[1] == first else 0
    return spent / os.sysconf("SC_CLK_TCK")


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def processor_seconds(pid: int) -> float:
    """Return the processor time of one process and its threads, in user and system mode."""
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
