"""The outermost layer: admission, rate headers, metrics and unexpected errors."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import math
import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from itertools import chain
from typing import Any
from urllib.parse import unquote

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from starlette.requests import ClientDisconnect
from starlette.routing import Match, Router
from starlette.types import Message, Receive, Scope, Send

from crmctl.clock import Clock
from crmctl.service.context import Context
from crmctl.service.faults import FAILURES, BadRequest, OutcomeUnknown, Unavailable, shown
from crmctl.service.http.connections import HEAD_LIMIT
from crmctl.service.http.endpoint import PREFIX
from crmctl.service.http.json_answers import CLOSE, answer_for, head_too_large, rate_limited, unauthorized
from crmctl.service.store import keys
from crmctl.service.store.keys import UNLIMITED, ApiKey
from crmctl.service.store.logs import LoggedRequest
from crmctl.service.store.tx import to_micros, to_wire
from crmctl.service.store.webhooks import FIGURES


@dataclass
class RequestAuth:
    """The caller of a request: its key once known, and the figures of the rate headers (`reset` in Unix seconds)."""

    limit: int
    remaining: int
    reset: float
    key: ApiKey | None = None

    def headers(self) -> list[tuple[bytes, bytes]]:
        figures = {b"limit": self.limit, b"remaining": self.remaining, b"reset": math.ceil(self.reset)}
        return [(b"x-ratelimit-" + name, b"%d" % figure) for name, figure in figures.items()]


def stranger(context: Context) -> RequestAuth:
    """Return the figures of a request without a known key: an untouched window."""
    limit = context.settings.rate_limit or UNLIMITED
    return RequestAuth(limit, limit, context.clock.now() + context.settings.rate_window)


MOST_PATH = 1000
"""Most characters of a path in the request log."""

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class Metrics:
    """Metrics of one service. The registry is its own, because two services may share a process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(self)
        self.figures: Callable[[], Mapping[str, float]] = dict
        """Returns the figures of the database."""
        labels = ["method", "route", "status"]
        requests = Counter("crm_requests", "Requests answered.", labels, registry=self.registry)
        seconds = Histogram("crm_request_seconds", "Time to answer.", ["method", "route"], buckets=SECONDS, registry=self.registry)

        # Finding the metrics of labels takes longer than counting in them.
        @cache
        def metrics_of(method: str, route: str, status: str) -> tuple[Counter, Histogram]:
            return requests.labels(method, route, status), seconds.labels(method, route)

        self._metrics_of = metrics_of

    def count(self, finished: LoggedRequest) -> None:
        # Only known routes and methods become labels, so that strangers cannot grow the table.
        method = "any" if finished.route == NO_ROUTE else finished.method
        requests, seconds = self._metrics_of(method, finished.route, str(finished.status))
        requests.inc()
        seconds.observe(finished.micros / 1_000_000)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        for name, value in self.figures().items():
            yield GaugeMetricFamily(f"crm_{name}", FIGURES[name][0], value=value)


READY_PATH = "/readyz"
UNLOGGED = frozenset({"/healthz", READY_PATH, "/metrics"})
"""Requests that machines send every few seconds are not kept."""
ASSETS = "/console/static/{name}"
"""Files that browsers fetch along with a page are kept only when refused."""


def is_page(path: str) -> bool:
    """Whether a page may have this path: the front door, or one below the console or the portal."""
    return path == "/" or path.startswith(("/console", "/portal"))


_REQUEST_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:=/+-]{0,99}")

_ADDRESS = re.compile(rb"https?://[^/]*", re.IGNORECASE)

CLIENT_GONE = 499
"""Logged, never sent: the client disconnected before there was an answer."""

NO_ROUTE = "none"


class Edge:
    """The application: it admits requests to the routes of a router, answers all errors, counts finished requests in `metrics`, and hands
    them to `keep` and the request log."""

    def __init__(self, router: Router, context: Context, metrics: Metrics, keep: Callable[[LoggedRequest], None] | None) -> None:
        self.router = router
        self.context = context
        self.windows = context.engine.rate_windows()
        self.metrics = metrics
        self.keep = keep

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope = _origin_form(scope)
        method = scope["method"]
        # With an "app", the router raises what it refuses.
        inner = {**scope, "method": "GET" if method == "HEAD" else method, "app": self}
        exchange = _Exchange(inner, method, stranger(self.context), self.context.clock, self._observe)
        inner["state"] = {"standing": exchange.standing, "request_id": exchange.request_id, "method": method}
        answer = exchange.sender(send)
        try:
            _check_head(scope)
            if scope["path"].startswith(f"{PREFIX}/"):
                authorization = ", ".join(_values(scope, b"authorization"))
                await self.context.work.admit(lambda within: self._admit(exchange.standing, authorization, within))
            await self.router(inner, receive, answer)
        except asyncio.CancelledError:
            # The service stops without waiting any longer; the outcome of the request is open.
            if exchange.status is None:
                stopped = OutcomeUnknown("the service stopped before it had answered; a change may have happened")
                await answer_for(stopped)(scope, receive, answer)
            raise
        except ClientDisconnect:
            exchange.status = CLIENT_GONE
        except Exception as error:
            if type(error) is Unavailable and scope["path"] != READY_PATH:
                self.context.work.refused_at, self.context.work.refusal = self.context.clock.monotonic(), error
            refusal = answer_for(error)
            if refusal.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
                refusal.headers["Allow"] = ", ".join(_allowed_methods(inner.get(PAGE_ROUTES, self.router.routes), inner))
            if refusal.status_code >= 500:
                FAILURES.tell(error, about=f"request {exchange.request_id}")
            if exchange.status is not None:
                raise
            await refusal(scope, receive, answer)
        finally:
            exchange.finish()

    def _observe(self, exchange: _Exchange) -> None:
        finished, log = exchange.logged(), self.context.settings.request_log
        self.metrics.count(finished)
        is_usual = finished.route in UNLOGGED or (finished.route == ASSETS and finished.status in (200, 304))
        if self.keep is not None and not is_usual:
            self.keep(finished)
        if log is None:
            return
        # A log that cannot be written, on a full disk for example, must not change the answer.
        with contextlib.suppress(OSError, ValueError):
            log(
                {
                    "time": to_wire(finished.at)[:-4] + "Z",
                    "method": shown(exchange.method),
                    "path": shown(exchange.scope["path"], MOST_PATH),
                    "status": finished.status,
                    "ms": finished.micros / 1000,
                    "keyId": finished.key_id,
                    "requestId": finished.request_id,
                    "address": finished.address,
                }
            )

    def _admit(self, standing: RequestAuth, authorization: str, within: float | None = None) -> None:
        """Fill in `standing`. Raises a 401 without a valid key, a 429 when the window is used up, Busy after `within` seconds."""
        scheme, _, secret = authorization.strip().partition(" ")
        if not authorization:
            raise unauthorized("this request needs an API key: Authorization: Bearer <API_KEY>")
        # Two headers, joined by a comma, name no key: a proxy might check the other one.
        if scheme.lower() != "bearer" or not secret.strip() or "," in secret:
            raise unauthorized("there must be one Authorization header: Bearer <API_KEY>")
        key = self.context.engine.read(lambda tx: keys.find_key(tx, secret.strip()), single=True, within=within)
        now = self.context.clock.now()
        if key is None:
            raise unauthorized("this API key is not valid: unknown or revoked")
        if key.is_expired(now):
            raise unauthorized("this API key has expired")
        standing.key = key
        state = self.windows.take(key.id, standing.limit, self.context.settings.rate_window, now, within)
        standing.remaining, standing.reset = state.remaining, state.reset
        if not state.allowed:
            raise rate_limited(state.reset - now)


def _origin_form(scope: Scope) -> Scope:
    """Return the scope with `http://host` removed from its path, as clients send it that think they talk to a proxy."""
    address = None if scope["raw_path"].startswith(b"/") else _ADDRESS.match(scope["raw_path"])
    if address is None:
        return scope
    raw_path: bytes = scope["raw_path"][address.end() :] or b"/"
    return {**scope, "raw_path": raw_path, "path": unquote(raw_path.decode("ascii"))}


PAGE_ROUTES = "crmctl.page_routes"
"""Entry of a request's scope: the routes of the pages, where one of them answers."""


def _allowed_methods(routes: list[Any], scope: Scope) -> list[str]:
    """Return every method of this path. Starlette names only those of the first route that matches."""
    methods = {method for route in routes if route.matches(scope)[0] is not Match.NONE for method in route.methods}
    return sorted(methods | ({"HEAD"} if "GET" in methods else set()))


def _check_head(scope: Scope) -> None:
    """Raise a 400 for another HTTP, an encoded body or an unclear host, a 431 when the address and headers are too large."""
    version, headers = scope["http_version"], scope["headers"]
    if not version.startswith("1."):
        raise BadRequest(f"this connection speaks HTTP/1.1, not HTTP/{version}", headers=CLOSE)
    hosts = sum(name == b"host" for name, _ in headers)
    if hosts > 1 or (not hosts and version == "1.1"):
        raise BadRequest("a request must have one Host header", headers=CLOSE)
    if any(name == b"transfer-encoding" and (value.lower() != b"chunked" or version != "1.1") for name, value in headers):
        # A proxy could read it as a different request.
        raise BadRequest("Transfer-Encoding must be chunked, in a request of HTTP/1.1", headers=CLOSE)
    if sum(map(len, chain.from_iterable(headers))) + 4 * len(headers) + len(scope["raw_path"]) + len(scope["query_string"]) > HEAD_LIMIT:
        raise head_too_large(HEAD_LIMIT)


def _values(scope: Scope, name: bytes) -> list[str]:
    """Return the values of every header with this name. Three of Starlette's Headers would take a twentieth of a request."""
    return [value.decode("latin-1") for header, value in scope["headers"] if header == name]


def _request_id(scope: Scope) -> str:
    """Return the id that a proxy or the client gave the request, so that their logs match ours, or a new one."""
    request_id = next(iter(_values(scope, b"x-request-id")), "")
    return request_id if _REQUEST_ID.fullmatch(request_id) else f"{random.getrandbits(64):016x}"


def client_address(scope: Scope) -> str | None:
    """Return the client's address; behind a proxy on this machine, the one that the proxy reports."""
    peer: str | None = scope["client"][0] if scope.get("client") else None
    reported = _values(scope, b"x-forwarded-for")
    if peer not in ("127.0.0.1", "::1") or not reported:
        return peer
    try:
        return str(ipaddress.ip_address(reported[-1].rpartition(",")[2].strip()))
    except ValueError:
        return peer


class _Exchange:
    """A request under way: adds the rate headers to its answer, notes the status, and reports it once. `method` is as sent."""

    def __init__(self, scope: Scope, method: str, standing: RequestAuth, clock: Clock, observe: Callable[[_Exchange], None]) -> None:
        self.scope = scope
        self.method = method
        self.standing = standing
        self.clock = clock
        self.started = clock.monotonic()
        self.status: int | None = None
        self.request_id = _request_id(scope)
        self._observe: Callable[[_Exchange], None] | None = observe

    def sender(self, send: Send) -> Send:
        async def forward(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.status = message["status"]
                own = [(b"x-request-id", self.request_id.encode()), *self.standing.headers()]
                message = {**message, "headers": [*message.get("headers", ()), *own]}
            elif not message.get("more_body"):
                # Before the last byte: a client with the whole answer finds the request in the log and the metrics.
                self.finish()
            await send(message)

        return forward

    def finish(self) -> None:
        observe, self._observe = self._observe, None
        if observe is not None:
            observe(self)

    def logged(self) -> LoggedRequest:
        return LoggedRequest(
            at=to_micros(self.clock.now()),
            request_id=self.request_id,
            key_id=self.standing.key.id if self.standing.key else None,
            method=self.method if self.method in METHODS else "other",
            route=getattr(self.scope.get("route"), "template", NO_ROUTE),
            status=self.status,
            micros=round((self.clock.monotonic() - self.started) * 1_000_000),
            address=client_address(self.scope),
        )
