"""The test double as a process of the installed program."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.support.cli import start_crmctl
from tests.support.patience import PATIENCE
from tests.support.service import make_client


class Double:
    """A running `crmctl serve --ephemeral`."""

    def __init__(self, line: str) -> None:
        self.ready = json.loads(line)
        self.url = self.ready["baseUrl"]
        self.client = make_client(self.url, self.ready["apiKey"])
        self.objects = {crm_object["slug"]: crm_object["id"] for crm_object in self.client.get("/api/v1/objects").json()["objects"]}

    def control(self, method: str, path: str, body: Any = None) -> httpx.Response:
        return self.client.request(method, f"/_test/{path}", json=body)

    def fault(self, rule: str) -> None:
        self.control("DELETE", "faults")
        assert self.control("POST", "faults", {"rule": rule}).status_code == 200, rule

    def people(self) -> str:
        return f"/api/v1/objects/{self.objects['people']}/records"

    def create(self, **data: Any) -> httpx.Response:
        return self.client.post(self.people(), json={"data": data})

    def count(self) -> int:
        return int(self.client.get(self.people()).json()["pagination"]["total"])


@contextmanager
def ephemeral(*options: str, env: Mapping[str, str] | None = None) -> Iterator[Double]:
    with start_crmctl("serve", "--ephemeral", *options, env=env) as process:
        line = process.stdout.readline()
        assert line, process.stderr.read()
        double = Double(line)
        try:
            yield double
        finally:
            double.client.close()
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert not Path(double.ready["data"]).exists()
