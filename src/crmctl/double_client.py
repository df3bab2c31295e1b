"""A test double as tests see it: a process, its client and its controls."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from functools import cached_property
from pathlib import Path
from typing import Any

from crmctl.api import Client
from crmctl.client.transport import Request, send_once
from crmctl.errors import RejectedError, ServiceError, UsageError
from crmctl.frozen import frozen

STOP_SECONDS = 30
WAIT_SECONDS = 60.0


class TestService:
    """A test double in a process of its own. `url` and `key` are for the program under test."""

    __test__ = False

    def __init__(self, *options: str) -> None:
        """Start `crmctl serve --ephemeral` with these options. Raises UsageError when it does not start; it says why on stderr."""
        command = [sys.executable, "-m", "crmctl", "serve", "--ephemeral", *options]
        # The double ends when its stdin closes, so that it does not outlive a killed owner.
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8")  # noqa: S603
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self._end()
            raise UsageError(f"the test double does not start (exit code {self.process.returncode}); its error is on stderr")
        ready = json.loads(line)
        self.url: str = ready["baseUrl"]
        self.key: str = ready["apiKey"]
        self.data = Path(ready["data"])
        """The data directory, for `crmctl service ... --data`."""
        self._home = self.data.parent / "client"
        self.clock, self.webhooks = ServiceClock(self), DeliveredEvents(self)

    @property
    def env(self) -> dict[str, str]:
        """Variables for a crmctl under test: address, key, and folders of its own, which a reset or restore empties."""
        homes = {f"CRMCTL_{kind}_DIR": str(self._home / kind.lower()) for kind in ("CONFIG", "STATE", "CACHE")}
        return {"CRMCTL_BASE_URL": self.url, "CRMCTL_API_KEY": self.key, **homes}

    @cached_property
    def client(self) -> Client:
        return Client(environ=os.environ | self.env)

    @property
    def requests(self) -> list[Any]:
        """The requests since the reset, oldest first: method, path, query, body, status, fault."""
        return list(self.control("GET", "/requests"))

    def faults(self, *rules: str) -> None:
        """Let requests fail, as `crmctl serve --fault RULE` does."""
        for rule in rules:
            self.control("POST", "/faults", {"rule": rule})

    def reset(self) -> None:
        """Return to the state, the clock and the rules of the start."""
        self._return_to("/reset")

    def save(self, name: str) -> None:
        self.control("PUT", f"/snapshots/{name}")

    def restore(self, name: str) -> None:
        self._return_to(f"/snapshots/{name}")

    def _return_to(self, path: str) -> None:
        """Also empty the folders of clients: a job that they remember has never been for this state."""
        self.control("POST", path)
        shutil.rmtree(self._home, ignore_errors=True)

    def control(self, method: str, path: str, body: Any = None, seconds: float = WAIT_SECONDS) -> Any:
        """Send a request to `/_test`. Raises RejectedError when it is refused."""
        content = None if body is None else json.dumps(body).encode()
        request = Request(method, f"{self.url}/_test{path}", body=content, timeout=seconds + WAIT_SECONDS)
        answer = send_once(request, environ={})
        document = json.loads(answer.body)
        if answer.status >= 400:
            raise RejectedError(document["message"])
        return document

    def close(self) -> None:
        if "client" in self.__dict__:
            self.client.close()
        self.process.terminate()
        self._end()

    def _end(self) -> None:
        try:
            self.process.communicate(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()


@frozen
class ServiceClock:
    service: TestService

    def set(self, moment: str) -> str:
        """Move the clock: `2026-05-01T09:00:00Z`, or `in 2h` from now. Returns its new time."""
        return str(self.service.control("PUT", "/clock", {"now": moment})["now"])


@frozen
class DeliveredEvents:
    service: TestService

    def wait(self, count: int, seconds: float = WAIT_SECONDS) -> list[Any]:
        """Return all deliveries, oldest first, as soon as there are so many. Raises ServiceError when they do not come in time."""
        deliveries = list(self.service.control("GET", f"/deliveries?count={count}&timeout={math.ceil(seconds)}", seconds=seconds))
        if len(deliveries) < count:
            raise ServiceError(f"{len(deliveries)} of {count} deliveries came within {seconds:g} seconds")
        return deliveries
