"""The outermost layer, around routing and all: admission, rate headers on every answer, HEAD, unforeseen errors, the request log.

Pure ASGI. Whatever happens inside, one JSON answer with the rate headers leaves here.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import secrets
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from crmctl.clock import Clock
from crmctl.service.context import Context
from crmctl.service.failures import FAILURES
from crmctl.service.faults import Unavailable
from crmctl.service.http.admission import Admission, RequestAuth, stranger
from crmctl.service.http.connections import HEAD_LIMIT
from crmctl.service.http.endpoints import PREFIX
from crmctl.service.http.errors import answer_for, head_too_large, two_lengths
from crmctl.service.http.metrics import Finished

_REQUEST_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:=/+-]{0,99}")

CLIENT_GONE = 499
"""Logged, never sent: the client went away before there was an answer."""


class Edge:
    """ASGI middleware; `observe` is told of every finished request."""

    def __init__(self, app: ASGIApp, context: Context, admission: Admission, observe: Callable[[Finished], None]) -> None:
        self.app = app
        self.context = context
        self.admission = admission
        self.observe = observe

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        inner = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope
        exchange = _Exchange(inner, scope["method"], stranger(self.context), self.context.clock, self.observe)
        inner["state"] = {
            **scope.get("state", {}),
            "standing": exchange.standing,
            "request_id": exchange.request_id,
            "method": scope["method"],
        }
        answer = exchange.sender(send)
        try:
            _check_head(scope)
            if scope["path"].startswith(f"{PREFIX}/"):
                authorization = Headers(scope=scope).get("authorization")
                await self.context.work.admit(lambda: self.admission.admit(exchange.standing, authorization))
            await self.app(inner, receive, answer)
        except asyncio.CancelledError:
            # The service stops and waits no longer; what became of the request is open.
            if exchange.status is None:
                await answer_for(RuntimeError())(scope, receive, answer)
            raise
        except ClientDisconnect:
            exchange.status = CLIENT_GONE
        except Exception as error:
            refusal = answer_for(error)
            if refusal.status_code >= 500:
                FAILURES.tell(error, briefly=isinstance(error, Unavailable), about=f"request {exchange.request_id}")
            if exchange.status is not None:
                raise
            await refusal(scope, receive, answer)
        finally:
            exchange.finish()


def _check_head(scope: Scope) -> None:
    """Raises a 400 for a request whose length is said twice, a 431 for one whose address and headers are too large."""
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    names = {name for name, _ in headers}
    if b"transfer-encoding" in names and (b"content-length" in names or scope["http_version"] != "1.1"):
        raise two_lengths()
    if sum(len(name) + len(value) + 4 for name, value in headers) + len(scope["raw_path"]) + len(scope["query_string"]) > HEAD_LIMIT:
        raise head_too_large(HEAD_LIMIT)


def _request_id(scope: Scope) -> str:
    """The one that a proxy or the client gave it, so that their logs and ours can be read together; else a new one."""
    given = Headers(scope=scope).get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)


def _address(scope: Scope) -> str | None:
    """Where a request came from; of one that a proxy on this machine passed on, where the proxy had it from."""
    peer: str | None = scope["client"][0] if scope.get("client") else None
    if peer not in ("127.0.0.1", "::1"):
        return peer
    last = Headers(scope=scope).get("x-forwarded-for", "").rpartition(",")[2].strip()
    try:
        return str(ipaddress.ip_address(last))
    except ValueError:
        return peer


class _Exchange:
    """One request under way: puts the rate headers on its answer, remembers the status, and is told of once."""

    def __init__(self, scope: Scope, method: str, standing: RequestAuth, clock: Clock, observe: Callable[[Finished], None]) -> None:
        self.scope = scope
        self.method = method
        self.standing = standing
        self.clock = clock
        self.started = clock.monotonic()
        self.status: int | None = None
        self.request_id = _request_id(scope)
        self._observe: Callable[[Finished], None] | None = observe

    def sender(self, send: Send) -> Send:
        async def forward(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.status = message["status"]
                own = [(b"x-request-id", self.request_id.encode()), *self.standing.headers()]
                message = {**message, "headers": [*message.get("headers", ()), *own]}
            elif not message.get("more_body"):
                # Before the last byte leaves: who has the whole answer finds the request in the log and in the metrics.
                self.finish()
            await send(message)

        return forward

    def finish(self) -> None:
        observe, self._observe = self._observe, None
        if observe is None:
            return
        observe(
            Finished(
                at=self.clock.now(),
                method=self.method,
                path=self.scope["path"],
                route=getattr(self.scope.get("route"), "path_format", None),
                status=self.status,
                seconds=self.clock.monotonic() - self.started,
                key_id=self.standing.key_id,
                request_id=self.request_id,
                address=_address(self.scope),
            )
        )
