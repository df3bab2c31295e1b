"""One service process: binds, opens the data, sets up the organisation at the first start, serves until told to stop.

Used by `crmctl serve`, by the demo and by tests; knows nothing of terminals.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

import uvicorn

from crmctl.clock import Clock, SystemClock
from crmctl.errors import UsageError, reason
from crmctl.service.app import create_app, create_metrics_app
from crmctl.service.background import Figures, jobs
from crmctl.service.console.links import CONSOLE, make_link
from crmctl.service.context import Context, Ids
from crmctl.service.data import new_id, open_data
from crmctl.service.http.admission import stranger
from crmctl.service.http.connections import HEAD_LIMIT, Connection, Connections
from crmctl.service.http.listener import ListeningServer, raise_file_limit
from crmctl.service.http.metrics import Metrics
from crmctl.service.jobs.request_log import RequestLogWriter
from crmctl.service.jobs.worker import Worker
from crmctl.service.settings import Address, ServiceSettings
from crmctl.service.store import keys, organisation, service_values
from crmctl.service.store.engine import Engine
from crmctl.service.store.tx import Tx

KEEP_ALIVE_SECONDS = 75
"""Longer than clients keep idle connections, so that it is the client who closes them and no request meets a closing one."""

STOP_SECONDS = 10
"""How long requests in flight may take to finish after a signal."""


@dataclass(frozen=True)
class Ready:
    """A service that listens; `api_key` only at the first start on its data. `console_url` opens the console for the next ten minutes;
    `metrics_url` is there when metrics have an address of their own."""

    base_url: str
    port: int
    api_key: str | None
    console_url: str
    metrics_url: str | None = None

    def document(self, *, with_key: bool = True) -> dict[str, Any]:
        """`{"baseUrl", "consoleUrl", "metricsUrl", "apiKey"}`, the last two only where there is one, the key only where it is wanted."""
        document = {"baseUrl": self.base_url, "consoleUrl": self.console_url}
        document |= {"metricsUrl": self.metrics_url} if self.metrics_url else {}
        return document | {"apiKey": self.api_key} if with_key and self.api_key else document


def make_first_key(engine: Engine, clock: Clock, ids: Ids) -> str | None:
    """A full-access key where there has never been a key, shown by nothing again; None afterwards."""

    def make(tx: Tx) -> str | None:
        # Processes that start together must not both find that there is none.
        organisation.hold_organisation(tx)
        if keys.list_keys(tx):
            return None
        return keys.create_key(tx, name="First key", scopes=None, ids=ids, now=clock.now())[1]

    return engine.write(make)


def open_console(engine: Engine, address: str, clock: Clock) -> str:
    """Remember the address that clients use, and give a link to the console on it."""

    def make(tx: Tx) -> str:
        service_values.put_address(tx, address)
        return make_link(tx, address, CONSOLE, now=clock.now()).url

    return engine.write(make)


class Server:
    """A service in this process. `run` blocks until `stop` is called or, on the main thread, a signal arrives."""

    def __init__(self, settings: ServiceSettings, *, clock: Clock | None = None, ids: Ids = new_id) -> None:
        """Raises UsageError when the address cannot be bound, ConfigError when the data cannot be opened."""
        clock = clock or SystemClock()
        # The address first: a first start that fails on it must not have shown its only key to nobody.
        self._socket = bind(settings.host, settings.port)
        self._metrics_socket: socket.socket | None = None
        try:
            if isinstance(settings.metrics, Address):
                self._metrics_socket = bind(settings.metrics.host, settings.metrics.port, option="--metrics")
            self.engine = open_data(settings, clock, ids)
        except BaseException:
            self._close_sockets()
            raise
        api_key = make_first_key(self.engine, clock, ids)
        settings = replace(settings, port=self._socket.getsockname()[1])
        self.settings = settings
        console_url = open_console(self.engine, settings.address, clock)
        self.ready = Ready(settings.address, settings.port, api_key, console_url, self._metrics_url())
        self._context = Context(settings, self.engine, clock, ids)
        self._metrics = Metrics()
        self._requests = RequestLogWriter(self._context) if settings.kept.requests else None
        self._metrics.figures = Figures(self._context, self._requests).read
        self._app = create_app(self._context, self._metrics, self._requests.add if self._requests else None)
        self._uvicorn: _Uvicorn | None = None

    def _metrics_url(self) -> str | None:
        if self._metrics_socket is None:
            return None
        host, port = self._metrics_socket.getsockname()[:2]
        return f"http://[{host}]:{port}/metrics" if ":" in host else f"http://{host}:{port}/metrics"

    def run(self, ready: Callable[[Ready], None]) -> None:
        """Serve; `ready` is called once, when requests are answered. Requests in flight are finished before this returns."""
        most = raise_file_limit(self.settings.connections)
        registry = Connections(most, self.settings.head_timeout, lambda: stranger(self._context).headers())
        listeners = [(self._socket, _config(self._app))]
        if self._metrics_socket is not None:
            listeners.append((self._metrics_socket, _config(create_metrics_app(self._context, self._metrics))))
        self._uvicorn = _Uvicorn(listeners, registry, lambda: ready(self.ready))
        own = [self._requests] if self._requests else []
        worker = Worker([*own, *(jobs(self._context) if self.settings.background else [])])
        try:
            worker.start()
            self._uvicorn.run()
        finally:
            self._close_sockets()
            worker.stop()
            self.engine.close()

    def _close_sockets(self) -> None:
        for each in (self._socket, self._metrics_socket):
            if each is not None:
                each.close()

    def stop(self) -> None:
        """Ask `run` to finish; from any thread."""
        if self._uvicorn is not None:
            self._uvicorn.stop()


def serve(settings: ServiceSettings, ready: Callable[[Ready], None]) -> None:
    """Run a service in this process until SIGTERM or SIGINT. Raises what Server raises."""
    Server(settings).run(ready)


def _config(app: Any) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=Connection,
        loop="asyncio",
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=STOP_SECONDS,
        h11_max_incomplete_event_size=HEAD_LIMIT,
    )


def bind(host: str, port: int, *, option: str = "--port") -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises UsageError that names the option."""
    # The protocol is named because asyncio switches Nagle's delay off only where it is.
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if os.name == "posix":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(2048)
        return listener
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            hint = "stop what listens there, or choose another" + (": --port 0 takes a free one" if option == "--port" else f": {option}")
            raise UsageError(f"port {port} on {host} is in use", hint=hint) from error
        hint = "--host, --port" if option == "--port" else option
        raise UsageError(f"cannot listen on {host} port {port}: {reason(error)}", hint=hint) from error


class _Uvicorn(ListeningServer):
    """Ends quietly on a signal instead of raising it once more."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        self.stop()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
