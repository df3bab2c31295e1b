"""One service process: routes, health and readiness, listening, shutdown."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from crmctl.clock import Clock, SystemClock
from crmctl.errors import UsageError, reason
from crmctl.frozen import frozen
from crmctl.models.jsontext import Json
from crmctl.service.console.visits import CONSOLE, make_link
from crmctl.service.context import Context, ServiceSettings, new_id, open_data
from crmctl.service.faults import Busy
from crmctl.service.files import endpoints as serving
from crmctl.service.files.storage import open_storage
from crmctl.service.http.connections import Connection, Connections, ListeningServer, raise_file_limit
from crmctl.service.http.edge import PAGE_ROUTES, READY_PATH, Edge, Metrics, is_page, stranger
from crmctl.service.http.endpoint import NamedRoute, build_document, route
from crmctl.service.http.json_answers import JsonAnswer
from crmctl.service.jobs.worker import Job, RequestLogWriter, Worker
from crmctl.service.oidc import token_endpoint as oidc
from crmctl.service.routes.interface import ENDPOINTS
from crmctl.service.store import keys, members
from crmctl.service.store.engine import Engine
from crmctl.service.store.logs import LoggedRequest
from crmctl.service.store.tx import Ids, Tx

if TYPE_CHECKING:
    from crmctl.service.testdouble.double import TestDouble


def create_app(context: Context, metrics: Metrics | None = None, keep: Callable[[LoggedRequest], None] | None = None) -> Edge:
    """Return the service as an ASGI application on an opened engine. It counts in `metrics`; `keep` feeds the request log."""
    metrics = metrics or Metrics()
    # A service whose storage does not work must not start.
    open_storage(context.settings)

    @cache
    def document() -> Json:
        return build_document(endpoint for endpoint, _ in ENDPOINTS)

    # A request tries the routes in turn, so those of records, which most requests are for, come first.
    endpoints = sorted(ENDPOINTS, key=lambda pair: "/records" not in pair[0].path)
    routes: list[BaseRoute] = [route(context, endpoint, handler) for endpoint, handler in endpoints]
    routes += [*probes(context, metrics, document), *serving.routes(context), *oidc.routes(context), _Pages(context, document)]

    return Edge(Router(routes, redirect_slashes=False), context, metrics, keep)


class _Pages(BaseRoute):
    """All pages of the console and the portal. They take long to import, so the first visit loads them."""

    def __init__(self, context: Context, document: Callable[[], Json]) -> None:
        self._context = context
        self._document = document
        self._router: Router | None = None

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        return (Match.FULL if is_page(scope["path"]) else Match.NONE), {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._router is None:
            self._router = await asyncio.to_thread(self._load)
        scope[PAGE_ROUTES] = self._router.routes
        await self._router(scope, receive, send)

    def _load(self) -> Router:
        from crmctl.service.console.routing import page_routes

        return Router(page_routes(self._context, self._document), redirect_slashes=False)


READY_SECONDS = 1.0
"""How long a readiness check counts: strangers must not make the database write as often as they like."""

REFUSED_SECONDS = 10.0
"""How long the service is not ready after the storage refused a request. A probe may fit where a record does not."""

_READY_WITHIN = 2.0


def probes(context: Context, metrics: Metrics, document: Callable[[], Json]) -> list[NamedRoute]:
    """Return the routes without a key that the settings allow. `document` returns the OpenAPI document."""
    readiness = _Readiness(context)

    # On the event loop, so that the process answers even when threads and locks wait.
    async def healthz(_request: Request) -> Response:
        return JsonAnswer({"status": "ok"})

    async def readyz(_request: Request) -> Response:
        await readiness.check()
        return JsonAnswer({"status": "ready"})

    def show_openapi(_request: Request) -> Response:
        return JsonAnswer(document())

    def show_metrics(_request: Request) -> Response:
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    docs = [NamedRoute("/openapi.json", show_openapi)] if context.settings.docs else []
    shown = [NamedRoute("/metrics", show_metrics)] if context.settings.metrics else []
    return [NamedRoute("/healthz", healthz), NamedRoute(READY_PATH, readyz), *shown, *docs]


class _Readiness:
    """Checks at most once a second whether the database can be read and written."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._lock = asyncio.Lock()
        self._tried_at: float | None = None
        self._problem: Exception | None = None

    async def check(self) -> None:
        """Raise the problem of the database, also after it refused a request. A busy database is ready."""
        work = self._context.work
        if work.refusal is not None and self._context.clock.monotonic() - work.refused_at < REFUSED_SECONDS:
            raise work.refusal
        async with self._lock:
            now = self._context.clock.monotonic()
            if self._tried_at is None or now - self._tried_at >= READY_SECONDS:
                self._problem = await self._context.work.run(self._try)
                self._tried_at = now
        if self._problem is not None:
            raise self._problem

    def _try(self) -> Exception | None:
        engine, now = self._context.engine, self._context.clock.now()
        try:
            engine.read(members.get_organisation, within=_READY_WITHIN)
            engine.write(lambda tx: keys.put_value(tx, "probe", str(now)), within=_READY_WITHIN)
        except Busy:
            return None
        except Exception as error:
            return error
        return None


STOP_SECONDS = 10
"""How long requests in flight may take to finish after a signal."""


@frozen
class Ready:
    """A listening service. `api_key` exists only at the first start; `console_url` works once, within ten minutes."""

    base_url: str
    port: int
    api_key: str | None
    console_url: str

    def document(self, *, with_key: bool = True) -> Json:
        document = {"baseUrl": self.base_url, "consoleUrl": self.console_url}
        return document | {"apiKey": self.api_key} if with_key and self.api_key else document


def make_first_key(engine: Engine, clock: Clock, ids: Ids) -> str | None:
    """Create a full-access key if the service never had one. No command can show it again."""

    def make(tx: Tx) -> str | None:
        # Of two processes that start together, one must wait.
        tx.one(f"SELECT id FROM organisation{tx.dialect.for_update}")
        if keys.list_keys(tx):
            return None
        return keys.create_key(tx, name="First key", scopes=None, ids=ids, now=clock.now())[1]

    return engine.write(make)


def open_console(engine: Engine, address: str, clock: Clock) -> str:
    """Store the address that clients use, and return a console link on it."""

    def make(tx: Tx) -> str:
        keys.put_value(tx, keys.ADDRESS, address)
        return make_link(tx, address, CONSOLE, now=clock.now()).url

    return engine.write(make)


class Server:
    """A service in this process. `run` blocks until `stop` is called or, on the main thread, a signal arrives."""

    def __init__(
        self, settings: ServiceSettings, *, clock: Clock | None = None, ids: Ids = new_id, double: TestDouble | None = None
    ) -> None:
        """Raises UsageError when the address cannot be bound, ConfigError when the data cannot be opened."""
        clock, ids = (double.clock, double.clock.new_id) if double else (clock or SystemClock(), ids)
        # The address first: otherwise a first start could fail after it created its only key.
        self._socket = bind(settings.host, settings.port)
        try:
            self.engine = open_data(settings, clock, ids)
        except BaseException:
            self._socket.close()
            raise
        api_key = make_first_key(self.engine, clock, ids)
        settings = replace(settings, port=self._socket.getsockname()[1])
        self.settings = settings
        console_url = open_console(self.engine, settings.address, clock)
        self.ready = Ready(settings.address, settings.port, api_key, console_url)
        self._context = Context(settings, self.engine, clock, ids)
        self._metrics = Metrics()
        self._requests = RequestLogWriter(self.engine) if settings.kept.requests else None
        app = create_app(self._context, self._metrics, self._requests.add if self._requests else None)
        self._double = double
        self._app: ASGIApp = app if double is None else double.around(self._context, app, create_app)
        self._uvicorn: ListeningServer | None = None

    def run(self, ready: Callable[[Ready], None]) -> None:
        """Serve, and call `ready` once requests are answered. Returns when the requests in flight are finished."""
        most = raise_file_limit(self.settings.connections)
        registry = Connections(most, self.settings.head_timeout, lambda: stranger(self._context).headers())
        if self._double is not None:
            registry.on_stop = self._double.end_delays
        workers: list[Worker] = []

        def work() -> None:
            workers.append(Worker(self._jobs()))

        # The libraries of jobs take as long to import as those of requests.
        starting = threading.Thread(target=work, name="jobs", daemon=True)

        def started() -> None:
            ready(self.ready)
            starting.start()

        self._uvicorn = ListeningServer(self._socket, _config(self._app, has_date=self._double is None), registry, started)
        try:
            self._uvicorn.run()
        finally:
            self._socket.close()
            if starting.ident is not None:
                starting.join()
            for worker in workers:
                worker.stop()
            self.engine.close()

    def _jobs(self) -> list[Job]:
        from crmctl.service.background import Figures, jobs

        self._metrics.figures = Figures(self._context, self._requests).read
        own = [Job(self._requests.work, 1.0, self._requests.close)] if self._requests else []
        if not self.settings.background:
            return own
        # Jobs run in any order, so that seeded ids would not repeat.
        context = self._context if self._double is None else replace(self._context, ids=new_id)
        return own + jobs(context)

    def stop(self) -> None:
        """Ask `run` to finish, from any thread."""
        if self._uvicorn is not None:
            self._uvicorn.stop()


def _config(app: ASGIApp, *, has_date: bool) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=Connection,
        loop="auto",
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=has_date,
        timeout_graceful_shutdown=STOP_SECONDS,
    )


def bind(host: str, port: int) -> socket.socket:
    """Open a listening socket; port 0 takes a free one. Raises UsageError."""
    # asyncio switches off Nagle's delay only if the protocol is named.
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
            hint = "stop what listens there, or choose another: --port 0 takes a free one"
            raise UsageError(f"port {port} on {host} is in use", hint=hint) from error
        raise UsageError(f"cannot listen on {host} port {port}: {reason(error)}", hint="--host, --port") from error
