"""Measure the processor time of one request in the service's process: get by id, `equals`, and a list of 50.

    python benchmarks/request_cost.py CHECKOUT [CHECKOUT ...]

Starts a throw-away service of each checkout with this interpreter, fills it with the same 2,000 people, and asks them in turns, so that a
busy machine slows all alike. Prints the median of the rounds in milliseconds, one column for each checkout. Linux only.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import httpx

PEOPLE, ROUNDS, REQUESTS = 2_000, 9, 300


class Service:
    """A running service, filled with people."""

    def __init__(self, checkout: str, data: str, stack: ExitStack) -> None:
        command = [sys.executable, "-m", "crmctl", "serve", "--data", data, "--port", "0", "--rate-limit", "0"]
        environment = os.environ | {"PYTHONPATH": str(Path(checkout).resolve() / "src")}
        self._process = stack.enter_context(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL))
        stack.callback(self._process.terminate)
        assert self._process.stdout is not None
        ready = json.loads(self._process.stdout.readline())
        headers = {"Authorization": f"Bearer {ready['apiKey']}"}
        self._client = stack.enter_context(httpx.Client(base_url=ready["baseUrl"] + "/api/v1", headers=headers))
        people = next(each for each in self._client.get("/objects").json()["objects"] if each["slug"] == "people")
        records = f"/objects/{people['id']}/records"
        for start in range(0, PEOPLE, 100):
            rows = [{"data": {"email": f"p{number}@acme.com", "score": number % 50}} for number in range(start, start + 100)]
            assert self._client.post(f"{records}/bulk", json={"records": rows}).json()["created"] == 100
        one = self._client.get(records, params={"limit": 1}).json()["records"][0]
        self.paths = {
            "get by id": f"{records}/{one['id']}",
            "equals": f"{records}?filter[email][equals]={one['data']['email']}",
            "list of 50": f"{records}?limit=50",
        }

    def milliseconds(self, path: str) -> float:
        """Return the processor time of one request."""
        begun = self._ticks()
        for _ in range(REQUESTS):
            assert self._client.get(path).status_code == 200
        return (self._ticks() - begun) * 1000 / os.sysconf("SC_CLK_TCK") / REQUESTS

    def _ticks(self) -> int:
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])


def main(checkouts: list[str]) -> int:
    if not checkouts:
        print(__doc__)
        return 2
    with ExitStack() as stack:
        services = [Service(checkout, stack.enter_context(tempfile.TemporaryDirectory()), stack) for checkout in checkouts]
        print("| milliseconds of processor time | " + " | ".join(Path(checkout).resolve().name for checkout in checkouts) + " |")
        print("|---" * (len(checkouts) + 1) + "|")
        for name in services[0].paths:
            rounds = [[service.milliseconds(service.paths[name]) for service in services] for _ in range(ROUNDS)]
            medians = [statistics.median(column) for column in zip(*rounds, strict=True)]
            print(f"| {name} | " + " | ".join(f"{median:.2f}" for median in medians) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
