"""Endpoints: how one is declared, answered and documented."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from dataclasses import field
from functools import partial
from http import HTTPStatus
from typing import Any

from pydantic.alias_generators import to_snake
from pydantic.json_schema import models_json_schema
from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Scope

from crmctl.frozen import frozen
from crmctl.models.jsontext import Json
from crmctl.service.context import Context
from crmctl.service.faults import Body, Busy, Fault, Forbidden
from crmctl.service.http import json_answers, schemas
from crmctl.service.http.json_answers import JsonAnswer
from crmctl.service.http.schemas import ERROR, REFERENCE, SHAPES, UUID_PATTERN, Parameter, document_parameters, read_query
from crmctl.service.http.turns import LARGE, MOST_ANSWER_BYTES, FairLimiter
from crmctl.service.store import logs
from crmctl.service.store.keys import ApiKey
from crmctl.service.store.records import ANY_VERSION, version_of
from crmctl.service.store.tx import Stamp
from crmctl.values.operators import Operator
from crmctl.version import __version__

PREFIX = "/api/v1"

LONG_SECONDS = 120.0
"""Time limit of requests that read or change all records of an object."""

_VERSION = re.compile(r'(W/)?"([!#-~\x80-\xff]*)"')

SHORT = 50
"""Most records of a short read."""

SLOWEST = 8 * 1024
"""Lowest average speed of a request body, in bytes a second."""


class _Id(Convertor[str]):
    """The id of a resource in a path: a UUID with its dashes, in either case."""

    regex = UUID_PATTERN

    def convert(self, value: str) -> str:
        return value.lower()

    def to_string(self, value: str) -> str:
        return value


# Starlette's own takes UUIDs without dashes, too.
register_url_convertor("uuid", _Id())


class NamedRoute(Route):
    """A route that logs and metrics can name, by its `template`: its path without the kinds of its parameters."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **more: Any) -> None:
        super().__init__(path, endpoint, **more)
        self.template = re.sub(r":\w+}", "}", path)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        # Starlette's pattern ends in $, which also matches before a line break at the end.
        if scope["type"] == "http" and scope["path"].endswith("\n"):
            return Match.NONE, {}
        match, child = super().matches(scope)
        return match, {**child, "route": self}


@frozen
class Endpoint:
    """One method of one path. Without `body` none is read; `optional_body` allows an empty one."""

    method: str
    path: str
    summary: str
    answers: Json
    """The reference to a shape (see schemas)."""
    scope: str
    name: str
    status: int = 200
    writes: bool = False
    body: type[Body] | None = None
    optional_body: bool = False
    query: Sequence[Parameter] = ()
    filters: bool = False
    conflicts: bool = False
    is_long: bool = False
    group: str = ""
    """The group in the document, by default the noun of the scope."""
    is_addition: bool = False
    """Whether it extends the interface; the document marks it."""
    is_versioned: bool = False
    """Whether the answer is a record with its version as ETag, which If-Match and If-None-Match may name."""
    is_short: bool = False
    """Whether a read takes little time unless its query says otherwise."""
    in_transaction: bool = True
    """If not, the handler gets the call alone and opens its own transactions."""

    @property
    def tag(self) -> str:
        return self.group or self.scope.partition(":")[0]


@frozen
class Call:
    context: Context
    key: ApiKey
    path: Json
    query: Json = field(default_factory=dict)
    body: Json = field(default_factory=dict)
    within: float = LONG_SECONDS
    """Seconds left for a transaction that the handler opens itself."""
    only_if: Collection[str] = (ANY_VERSION,)
    """The versions of If-Match."""

    def fields(self) -> Json:
        return {to_snake(name): value for name, value in self.body.items()}

    def stamp(self) -> Stamp:
        """Return the source of ids and the time for store functions that create something."""
        return {"ids": self.context.ids, "now": self.now()}

    def now(self) -> float:
        return self.context.clock.now()

    def id(self, name: str) -> str:
        return str(self.path[name])


Handler = Callable[..., Any]
"""Takes `(tx: Tx, call: Call)`; only the call where an endpoint is not `in_transaction`."""


def route(context: Context, endpoint: Endpoint, handler: Handler) -> NamedRoute:
    """Return the route that admits, bounds and answers the requests of an endpoint."""
    allowed = max(context.settings.request_timeout, LONG_SECONDS if endpoint.is_long else 0)

    def run(request: Request, call: Call, is_alone: bool) -> Response:
        if not endpoint.in_transaction:
            document = handler(call)
        elif endpoint.writes:
            document = context.engine.write(lambda tx: handler(tx, call), within=call.within, by=logs.key(call.key.id))
        else:
            document = context.engine.read(lambda tx: handler(tx, call), within=call.within, helped=is_alone)
        headers = {}
        if endpoint.is_versioned and "updatedAt" in document:
            headers["ETag"] = etag = f'"{version_of(document)}"'
            if not endpoint.writes and is_known(request, etag):
                return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
        answer = JsonAnswer(document, endpoint.status, headers)
        answer.sending = partial(context.work.sending, call.key.id)
        return answer

    async def work(request: Request, query: Json, raw: bytes) -> Response:
        key = request.state.standing.key
        end = context.clock.monotonic() + allowed
        only_if = read_versions(request.headers.getlist("if-match")) if endpoint.is_versioned and endpoint.writes else (ANY_VERSION,)

        def left() -> float:
            return max(0.001, end - context.clock.monotonic())

        def start(is_alone: bool, most: float = math.inf) -> Response:
            body = schemas.read_shape(endpoint.body, raw, optional=endpoint.optional_body) if endpoint.body else {}
            return run(request, Call(context, key, request.path_params, query, body, min(left(), most), only_if), is_alone)

        async def take_turn() -> Response:
            async with _places(context, endpoint, query).place(key.id, left()) as is_alone:
                if not endpoint.writes and context.work.answer_bytes[key.id] > MOST_ANSWER_BYTES:
                    raise Busy("clients of this key have yet to take large answers; nothing was done, try again")
                if endpoint.is_short and _is_short(query):
                    return await context.work.read(lambda most: start(is_alone, most))
                return await context.work.run(lambda: start(is_alone))

        if len(raw) <= LARGE:
            return await take_turn()
        async with context.work.large_bodies.place(key.id, left()):
            return await take_turn()

    async def answer(request: Request) -> Response:
        if not request.state.standing.key.allows(endpoint.scope):
            details = {"requiredScope": endpoint.scope}
            raise Forbidden(f"this API key lacks the scope {endpoint.scope}", details, error="insufficient_scope")
        query = read_query(request.scope["query_string"], endpoint.query, endpoint.filters)
        if not endpoint.body:
            return await work(request, query, b"")
        with context.work.body() as count:
            raw = await read_body(request, context.settings.body_limit, context.settings.body_timeout, count)
            return await work(request, query, raw)

    return NamedRoute(PREFIX + endpoint.path, answer, methods=[endpoint.method])


def _is_short(query: Json) -> bool:
    """Whether a read of this query mostly takes less time than a thread: a page near the start of a list, all of it or equal to a value."""
    is_equality = all(condition["operator"] == Operator.EQUALS for condition in query.get("filters", ()))
    return is_equality and query.get("offset", 0) <= SHORT and query.get("limit", 0) <= SHORT


def _places(context: Context, endpoint: Endpoint, query: Json) -> FairLimiter:
    """Return the queue of an endpoint. Slow reads have one of their own, so that they do not delay quick ones."""
    if endpoint.writes and endpoint.in_transaction:
        return context.work.writes
    is_search = not endpoint.in_transaction or endpoint.body is not None or query.get("filters") or query.get("offset", 0) > 0
    return context.work.searches if is_search else context.work.reads


def read_versions(headers: Sequence[str]) -> Collection[str]:
    """Return the versions that If-Match names; any version without the header. Raises a 400 when it is malformed."""
    text = ",".join(headers).strip()
    if not headers or text == ANY_VERSION:
        return (ANY_VERSION,)
    etags = _VERSION.findall(text)
    if not etags or _VERSION.sub("", text).strip(" \t,"):
        raise json_answers.bad_request("If-Match must be the ETag of an answer, with its quotation marks, or *", field="If-Match")
    # If-Match compares strongly, so that a weak ETag, W/"...", names no version; nor does "*" in quotation marks.
    return {version for weak, version in etags if not weak and version != ANY_VERSION}


def is_known(request: Request, etag: str) -> bool:
    """Whether If-None-Match names this ETag, so that a 304 answers the request."""
    text = ",".join(request.headers.getlist("if-none-match")).strip()
    return text == ANY_VERSION or etag in text


async def read_body(request: Request, limit: int, timeout: float, count: Callable[[int], None] = lambda _: None) -> bytes:
    """Return the whole body. Calls `count` with the length of each piece; raises what body_chunks and `count` raise."""
    received = bytearray()
    async for chunk in body_chunks(request, limit, timeout):
        count(len(chunk))
        received += chunk
    return bytes(received)


async def body_chunks(request: Request, limit: int, timeout: float) -> AsyncIterator[bytes]:
    """Yield the body as it arrives.

    Raises a 415 for a compressed body; a 413 over `limit` bytes, before reading when the length was declared; a 408 for a pause over
    `timeout` seconds and for a body slower than SLOWEST.
    """
    if request.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        message, headers = "the request body must not be compressed; send it without Content-Encoding", {"Accept-Encoding": "identity"}
        raise Fault(message, error="unsupported_media_type", status=HTTPStatus.UNSUPPORTED_MEDIA_TYPE, headers=headers)
    declared = request.headers.get("content-length", "0")
    if re.fullmatch("[0-9]+", declared) and (len(declared) > 18 or int(declared) > limit):
        raise json_answers.body_too_large(limit)
    received = 0
    started = asyncio.get_running_loop().time()
    chunks = aiter(request.stream())
    while True:
        seconds = started + timeout + received / SLOWEST - asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(min(timeout, seconds)):
                chunk = await anext(chunks)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise json_answers.too_slow("the request body") from None
        received += len(chunk)
        if received > limit:
            raise json_answers.body_too_large(limit)
        yield chunk


TITLE = "Customer Records Service"
DESCRIPTION = "Objects, attributes, records, members, activities, reports and workflows over JSON. Every endpoint needs an API key."

RATE_HEADERS = {
    "X-RateLimit-Limit": {"description": "Requests allowed in a window.", "schema": {"type": "integer"}},
    "X-RateLimit-Remaining": {"description": "Requests left in this window.", "schema": {"type": "integer"}},
    "X-RateLimit-Reset": {"description": "When the window ends, Unix seconds.", "schema": {"type": "integer"}},
}
RETRY_AFTER = {"Retry-After": {"description": "Whole seconds to wait.", "schema": {"type": "integer", "minimum": 1}}}
ETAG = {"ETag": {"description": "The record's version, for If-Match. An addition to the interface.", "schema": {"type": "string"}}}


def _version_header(name: str, description: str, **schema: str) -> Json:
    text = f"{description} An addition to the interface."
    return {"name": name, "in": "header", "required": False, "description": text, "schema": {"type": "string"} | schema, "x-addition": True}


IF_MATCH = _version_header(
    "If-Match",
    "Change the record only if it still has this version (the ETag of an answer), else 412.",
    pattern='^("[!#-~]*"|[*])$',
)
IF_NONE_MATCH = _version_header("If-None-Match", "Answer 304 without a body if the record still has this version (the ETag of an answer).")
_MEANINGS = {
    400: "Bad request: details.field names what is at fault",
    401: "No valid API key",
    403: "The key lacks the scope, or this cannot be changed",
    404: "Not found",
    405: "The path does not take this method",
    408: "The body did not arrive in time",
    409: "Conflict with what is stored",
    412: "Changed since: none of the versions in If-Match is the record's",
    413: "The body is over the limit",
    415: "The body is compressed",
    429: "Rate limited",
    431: "The address and the headers are over the limit",
    500: "Internal server error",
    503: "The storage did not answer in time; nothing was written",
}


def describe(endpoint: Endpoint) -> Json:
    refusals = {400, 401, 403, 405, 429, 431, 500, 503}
    refusals |= {404} if "{" in endpoint.path else set()
    refusals |= {408, 413, 415} if endpoint.body else set()
    refusals |= {409} if endpoint.conflicts else set()
    changes_version = endpoint.is_versioned and endpoint.writes and endpoint.method != "POST"
    refusals |= {412} if changes_version else set()
    headers = RATE_HEADERS | (ETAG if endpoint.is_versioned and endpoint.method != "DELETE" else {})
    succeeds = {"description": "Successful Response", "content": _json(endpoint.answers), "headers": headers}
    responses = {str(endpoint.status): succeeds}
    for status in sorted(refusals):
        headers = RATE_HEADERS | (RETRY_AFTER if status in (429, 503) else {})
        responses[str(status)] = {"content": _json(ERROR), "description": _MEANINGS[status], "headers": headers}
    is_conditional = endpoint.is_versioned and not endpoint.writes
    if is_conditional:
        responses["304"] = {"description": "Not changed: the record still has the version in If-None-Match", "headers": RATE_HEADERS | ETAG}
    names = re.findall(r"\{(\w+)", endpoint.path)
    parameters = [{"name": name, "in": "path", "required": True, "schema": {"type": "string", "format": "uuid"}} for name in names]
    versions = [IF_MATCH] if changes_version else [IF_NONE_MATCH] if is_conditional else []
    operation: Json = {
        "tags": [endpoint.tag],
        "summary": endpoint.summary,
        "operationId": endpoint.name,
        "parameters": parameters + document_parameters(endpoint.query, endpoint.filters) + versions,
        "responses": responses,
        "security": [{"apiKey": []}],
        "x-required-scope": endpoint.scope,
    }
    if endpoint.is_addition:
        operation |= {"x-addition": True, "description": "An addition to the interface: no client of it needs this."}
    if endpoint.body:
        operation["requestBody"] = {
            "required": not endpoint.optional_body,
            "content": _json({"$ref": REFERENCE.format(model=endpoint.body.__name__)}),
        }
    return operation


def _json(schema: Json) -> Json:
    return {"application/json": {"schema": schema}}


def build_document(endpoints: Iterable[Endpoint]) -> Json:
    paths: dict[str, Json] = {}
    models: dict[str, type[Body]] = {}
    for endpoint in endpoints:
        template = re.sub(r":\w+}", "}", PREFIX + endpoint.path)
        paths.setdefault(template, {})[endpoint.method.lower()] = describe(endpoint)
        if endpoint.body:
            models[endpoint.body.__name__] = endpoint.body
    _, shapes = models_json_schema([(body, "validation") for body in models.values()], ref_template=REFERENCE)
    return {
        "openapi": "3.1.0",
        "info": {"title": TITLE, "description": DESCRIPTION, "version": __version__},
        "paths": paths,
        "components": {
            "schemas": dict(sorted((SHAPES | shapes["$defs"]).items())),
            "securitySchemes": {"apiKey": {"type": "http", "scheme": "bearer", "description": "Authorization: Bearer <API_KEY>"}},
        },
    }
