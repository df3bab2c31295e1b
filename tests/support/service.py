"""The embedded service for tests: in a thread of the test (`running_service`), or as the installed program (`service_process`).

with running_service(tmp_path) as service:
    service.client.get("/api/v1/objects")
"""

from __future__ import annotations

import json
import queue
import signal
import ssl
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from crmctl import Client
from crmctl.clock import Clock, SystemClock
from crmctl.service.context import DATABASE_FILE, ServiceSettings, new_id
from crmctl.service.server import Ready, Server
from crmctl.service.store import keys, webhooks
from tests.support.cli import start_crmctl
from tests.support.databases import organised_file
from tests.support.patience import PATIENCE
from tests.support.warm_program import WarmProcess


def make_key(
    engine: Any, scopes: Iterable[str] | None = None, *, clock: Clock | None = None, expires_in: float | None = None, name: str = "test"
) -> str:
    """Return the secret of a new key; `scopes` None means full access."""
    now = (clock or SystemClock()).now()
    allowed = None if scopes is None else frozenset(scopes)
    expires_at = None if expires_in is None else now + expires_in
    return engine.write(lambda tx: keys.create_key(tx, name=name, scopes=allowed, expires_at=expires_at, ids=new_id, now=now))[1]


def listen(engine: Any) -> None:
    """Create an endpoint for all events, at an address where nothing listens."""
    engine.write(lambda tx: webhooks.create_endpoint(tx, url="http://127.0.0.1:9/", ids=new_id, now=0.0))


@dataclass
class RunningService:
    """A service in a thread. `client` sends the full-access `key`; `log` has one entry per finished request."""

    base_url: str
    key: str
    client: httpx.Client
    engine: Any
    clock: Clock
    log: list[Mapping[str, Any]]
    data_dir: Path
    _server: Server
    _thread: threading.Thread

    @property
    def settings(self) -> ServiceSettings:
        return self._server.settings

    @property
    def port(self) -> int:
        """The bound port, for a service whose `base_url` is a proxy's."""
        return self._server.ready.port

    def client_with(self, key: str | None) -> httpx.Client:
        """Return a client with another key, or none; the caller closes it."""
        return make_client(self.base_url, key)

    def key_for(self, scopes: Iterable[str] | None = None, *, expires_in: float | None = None) -> str:
        """Return the secret of another key of this service."""
        return make_key(self.engine, scopes, clock=self.clock, expires_in=expires_in)

    def object_id(self, slug: str) -> str:
        objects = self.client.get("/api/v1/objects").json()["objects"]
        return next(crm_object["id"] for crm_object in objects if crm_object["slug"] == slug)

    def listen(self) -> None:
        """Ask for all events from here on: events without a receiver have no body."""
        listen(self.engine)

    def outbox(self) -> list[tuple[str, Any]]:
        """Return the events so far, in order: type, and payload if the event had a receiver."""
        rows = self.engine.read(lambda tx: tx.all("SELECT type, payload FROM change_log ORDER BY sequence"))
        return [(kind, payload and json.loads(payload)) for kind, payload in rows]

    def stop(self) -> None:
        """Finish requests in flight and close everything; calling it again is harmless."""
        self.client.close()
        self._server.stop()
        self._thread.join(timeout=PATIENCE)
        assert not self._thread.is_alive(), "the service did not stop"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()


def make_client(base_url: str, key: str | None) -> httpx.Client:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return httpx.Client(base_url=base_url, headers=headers, timeout=PATIENCE, trust_env=False, verify=_certificates())


@cache
def _certificates() -> ssl.SSLContext:
    """Loading the machine's certificates takes longer than most requests of a test."""
    return ssl.create_default_context()


def opened(service: RunningService) -> Client:
    return Client(base_url=service.base_url, api_key=service.key)


def running_service(
    data_dir: Path,
    *,
    rate_limit: int = 0,
    rate_window: int = 60,
    clock: Clock | None = None,
    database_url: str | None = None,
    **settings: Any,
) -> RunningService:
    """Start a service on a free port, on existing data or else on a copy of a new organisation.

    `settings` are further fields of ServiceSettings.
    """
    log: list[Mapping[str, Any]] = []
    clock = clock or SystemClock()
    chosen = ServiceSettings(
        data_dir=data_dir,
        database_url=database_url,
        port=0,
        rate_limit=rate_limit,
        rate_window=rate_window,
        request_log=log.append,
        **settings,
    )
    if database_url is None and not (file := data_dir / DATABASE_FILE).exists():
        data_dir.mkdir(parents=True, exist_ok=True)
        file.write_bytes(organised_file())
    server = Server(chosen, clock=clock)
    outcome: queue.Queue[Ready | BaseException] = queue.Queue()

    def run() -> None:
        try:
            server.run(outcome.put)
        except BaseException as error:
            outcome.put(error)

    thread = threading.Thread(target=run, name="service", daemon=True)
    thread.start()
    ready = outcome.get(timeout=PATIENCE)
    if isinstance(ready, BaseException):
        raise ready
    key = ready.api_key or make_key(server.engine, clock=clock)
    return RunningService(ready.base_url, key, make_client(ready.base_url, key), server.engine, clock, log, data_dir, server, thread)


@dataclass
class ServiceProcess:
    """`crmctl serve` as a process. `ready` is its line on stdout; `key` is from that line, or from the start before."""

    process: subprocess.Popen[str] | WarmProcess
    ready: dict[str, str]
    arguments: Sequence[str]
    stderr_path: Path
    key: str = field(default="")

    @property
    def base_url(self) -> str:
        return self.ready["baseUrl"]

    @property
    def stderr(self) -> str:
        return self.stderr_path.read_text(encoding="utf-8")

    def client(self) -> httpx.Client:
        return make_client(self.base_url, self.key)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send the signal and wait. Return the exit code."""
        self.process.send_signal(number)
        return self.wait()

    def kill(self) -> None:
        self.process.kill()
        self.wait()

    def wait(self) -> int:
        code = self.process.wait(timeout=PATIENCE)
        if self.process.stdout:
            self.process.stdout.close()
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.kill()
        else:
            self.wait()


def crmctl_program() -> str:
    """Return the path of this interpreter's installed `crmctl`."""
    return str(Path(sysconfig.get_path("scripts")) / ("crmctl.exe" if sys.platform == "win32" else "crmctl"))


def service_process(
    data_dir: Path, *options: str, key: str = "", env: Mapping[str, str] | None = None, stderr_path: Path | None = None
) -> ServiceProcess:
    """Start `crmctl serve`, on a free port unless `options` name one, and wait for its ready line. Pass the `key` of existing data."""
    port = () if "--port" in options else ("--port", "0")
    arguments = [crmctl_program(), "serve", "--data", str(data_dir), *port, *options]
    data_dir.parent.mkdir(parents=True, exist_ok=True)
    stderr_path = stderr_path or data_dir.parent / f"{data_dir.name}.stderr"
    with stderr_path.open("a", encoding="utf-8") as stderr:
        process = start_crmctl(*arguments[1:], env=env, stdin=subprocess.DEVNULL, stderr=stderr)
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        code = process.wait(timeout=PATIENCE)
        process.stdout.close()
        raise AssertionError(f"crmctl serve ended with {code}: {stderr_path.read_text(encoding='utf-8')}")
    ready = json.loads(line)
    return ServiceProcess(process, ready, arguments, stderr_path, ready.get("apiKey", key))
