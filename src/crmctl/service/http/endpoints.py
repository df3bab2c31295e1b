"""How one endpoint is declared: method, path, scope, shapes. Around each handler: scope check, query and body, one transaction, the answer.

A handler is a plain function `handler(tx, call) -> document`; it runs on a thread, inside a transaction that is committed before the
answer leaves, and that ends without a trace when the request's time is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel
from pydantic.alias_generators import to_snake
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route, Router
from starlette.types import Scope

from crmctl.service.context import Context
from crmctl.service.http import bodies, errors
from crmctl.service.http.answers import JsonAnswer
from crmctl.service.http.concurrency import LARGE, FairLimiter
from crmctl.service.http.parameters import Filters, Parameter, read_query
from crmctl.service.shapes import Body
from crmctl.service.store import actors
from crmctl.service.store.keys import ApiKey
from crmctl.service.store.records import ANY_VERSION, version_of
from crmctl.service.store.stamp import Stamp

PREFIX = "/api/v1"

LONG_SECONDS = 120.0
"""For what goes through all records of an object."""

_VERSION = re.compile(r'(W/)?"([!#-~\x80-\xff]*)"')

SLOWEST = 8 * 1024
"""Bytes a second at which a body must come, on the average of all of it."""


class NamedRoute(Route):
    """Says which route was taken: logs and metrics name it."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, found = super().matches(scope)
        return match, {**found, "route": self}


@dataclass(frozen=True)
class Endpoint:
    """What one route is: `body` is None where none is read, `optional_body` allows it to be empty."""

    method: str
    path: str
    summary: str
    answers: type[BaseModel]
    scope: str
    name: str
    tag: str
    status: int = 200
    writes: bool = False
    body: type[Body] | None = None
    optional_body: bool = False
    query: Sequence[Parameter] = ()
    filters: Filters | None = None
    conflicts: bool = False
    is_long: bool = False
    is_addition: bool = False
    """Not of the interface: marked so in the document."""
    is_versioned: bool = False
    """The answer is a record, with its version as ETag; requests that change one may name versions as If-Match."""
    in_transaction: bool = True
    """Without: the handler is called with the call alone and takes its transactions from the engine itself."""


@dataclass(frozen=True)
class Call:
    """One admitted request, as a handler sees it."""

    context: Context
    key: ApiKey
    path: dict[str, Any]
    query: dict[str, Any] = field(default_factory=dict)
    body: dict[str, Any] = field(default_factory=dict)
    within: float = LONG_SECONDS
    """Seconds left for a transaction that the handler takes from the engine itself."""
    only_if: Collection[str] = (ANY_VERSION,)
    """The versions of If-Match."""

    def fields(self) -> dict[str, Any]:
        """The body's fields as the arguments of a store function."""
        return {to_snake(name): value for name, value in self.body.items()}

    def stamp(self) -> Stamp:
        """What store functions that create things take besides: where ids come from and what time it is."""
        return {"ids": self.context.ids, "now": self.now()}

    def now(self) -> float:
        return self.context.clock.now()

    def id(self, name: str) -> str:
        """A UUID of the path, in lower case."""
        return str(self.path[name])


Handler = Callable[..., Any]
"""Takes `(tx: Tx, call: Call)`; only the call where an endpoint is not `in_transaction`."""


class Endpoints:
    """The endpoints of one noun; `router` goes into the application."""

    def __init__(self, context: Context, tag: str) -> None:
        self.context = context
        self.tag = tag
        self.router = Router()
        self.endpoints: list[Endpoint] = []

    def add(self, method: str, path: str, *, answers: type[BaseModel], scope: str, **options: Any) -> Callable[[Handler], Handler]:
        """Decorator: registers a handler. The first line of its docstring is the summary; `options` are the other fields of Endpoint."""

        def register(handler: Handler) -> Handler:
            summary = (handler.__doc__ or "").split("\n", 1)[0].rstrip(".")
            options.setdefault("writes", method != "GET")
            endpoint = Endpoint(method, path, summary, answers, scope, getattr(handler, "__name__", path), self.tag, **options)
            self.endpoints.append(endpoint)
            self.router.routes.append(NamedRoute(PREFIX + path, _bind(self.context, endpoint, handler), methods=[method]))
            return handler

        return register


def _bind(context: Context, endpoint: Endpoint, handler: Handler) -> Callable[[Request], Any]:
    allowed = max(context.settings.request_timeout, LONG_SECONDS if endpoint.is_long else 0)

    def run(call: Call, is_alone: bool) -> Response:
        if not endpoint.in_transaction:
            document = handler(call)
        elif endpoint.writes:
            document = context.engine.write(lambda tx: handler(tx, call), within=call.within, by=actors.key(call.key.id))
        else:
            document = context.engine.read(lambda tx: handler(tx, call), within=call.within, helped=is_alone)
        versioned = endpoint.is_versioned and "updatedAt" in document
        return JsonAnswer(document, endpoint.status, {"ETag": f'"{version_of(document)}"'} if versioned else None)

    async def work(request: Request, query: dict[str, Any], raw: bytes) -> Response:
        key = request.state.standing.key
        end = context.clock.monotonic() + allowed
        only_if = read_versions(request.headers.getlist("if-match")) if endpoint.is_versioned and endpoint.writes else (ANY_VERSION,)

        def left() -> float:
            return max(0.001, end - context.clock.monotonic())

        def start(is_alone: bool) -> Response:
            body = bodies.read_shape(endpoint.body, raw, optional=endpoint.optional_body) if endpoint.body else {}
            return run(Call(context, key, request.path_params, query, body, left(), only_if), is_alone)

        async with contextlib.AsyncExitStack() as places:
            if len(raw) > LARGE:
                await places.enter_async_context(context.work.large_bodies.place(key.id, left()))
            is_alone = await places.enter_async_context(_places(context, endpoint, query).place(key.id, left()))
            return await context.work.run(lambda: start(is_alone))

    async def answer(request: Request) -> Response:
        if not request.state.standing.key.allows(endpoint.scope):
            raise errors.insufficient_scope(endpoint.scope)
        query = read_query(request.scope["query_string"], endpoint.query, endpoint.filters)
        if not endpoint.body:
            return await work(request, query, b"")
        with context.work.body() as count:
            raw = await read_body(request, context.settings.body_limit, context.settings.body_timeout, count)
            return await work(request, query, raw)

    return answer


def _places(context: Context, endpoint: Endpoint, query: dict[str, Any]) -> FairLimiter:
    """Reading what may be slow must not keep others from reading what is not."""
    if endpoint.writes and endpoint.in_transaction:
        return context.work.writes
    is_search = not endpoint.in_transaction or endpoint.body is not None or query.get("filters") or query.get("offset", 0) > 0
    return context.work.searches if is_search else context.work.reads


def read_versions(headers: Sequence[str]) -> Collection[str]:
    """The versions that an If-Match header names; any where there is none. Raises a 400 for what is no list of them."""
    if not headers:
        return (ANY_VERSION,)
    said = ",".join(headers).strip()
    if said == ANY_VERSION:
        return (ANY_VERSION,)
    named = _VERSION.findall(said)
    if not named or _VERSION.sub("", said).strip(" \t,"):
        raise errors.bad_request("If-Match must be the ETag of an answer, with its quotation marks, or *", field="If-Match")
    # A weak one, W/"...", names no version, for If-Match compares strongly; and "*" in quotation marks is no version of ours.
    return {text for weak, text in named if not weak and text != ANY_VERSION}


async def read_body(request: Request, limit: int, timeout: float, count: Callable[[int], None] = lambda _: None) -> bytes:
    """The whole body; `count` is told of each piece. Raises what body_chunks and `count` raise."""
    received = bytearray()
    async for chunk in body_chunks(request, limit, timeout):
        count(len(chunk))
        received += chunk
    return bytes(received)


async def body_chunks(request: Request, limit: int, timeout: float) -> AsyncIterator[bytes]:
    """The body as it arrives.

    Raises a 413 over `limit` bytes, before any of it is read where the length was declared; a 408 for a pause over `timeout` seconds, and
    for a body that takes longer than that and SLOWEST allow.
    """
    declared = request.headers.get("content-length", "0")
    if re.fullmatch("[0-9]+", declared) and (len(declared) > 18 or int(declared) > limit):
        raise errors.body_too_large(limit)
    received = 0
    started = asyncio.get_running_loop().time()
    chunks = aiter(request.stream())
    while True:
        left = started + timeout + received / SLOWEST - asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(min(timeout, left)):
                chunk = await anext(chunks)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise errors.body_too_slow() from None
        received += len(chunk)
        if received > limit:
            raise errors.body_too_large(limit)
        yield chunk
