"""The outermost layer, around routing and all: admission, rate headers on every answer, HEAD, unforeseen errors, the request log.

Pure ASGI. Whatever happens inside, one JSON answer with the rate headers leaves here.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from crmctl.service.context import Context
from crmctl.service.http.admission import Admission, Standing
from crmctl.service.http.endpoints import PREFIX
from crmctl.service.http.errors import answer_for
from crmctl.service.http.observing import Finished

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
        exchange = _Exchange(self.admission.stranger(), send)
        started = self.context.clock.monotonic()
        inner = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope
        inner["state"] = {**scope.get("state", {}), "standing": exchange.standing}
        try:
            if scope["path"].startswith(f"{PREFIX}/"):
                await run_in_threadpool(self.admission.admit, exchange.standing, Headers(scope=scope).get("authorization"))
            await self.app(inner, receive, exchange.send)
        except ClientDisconnect:
            exchange.status = CLIENT_GONE
        except Exception as error:
            await self._fail(error, exchange, scope, receive)
        finally:
            self.observe(
                Finished(
                    at=self.context.clock.now(),
                    method=scope["method"],
                    path=scope["path"],
                    route=getattr(inner.get("route"), "path_format", None),
                    status=exchange.status,
                    seconds=self.context.clock.monotonic() - started,
                    key_id=exchange.standing.key_id,
                )
            )

    async def _fail(self, error: Exception, exchange: _Exchange, scope: Scope, receive: Receive) -> None:
        answer = answer_for(error)
        if answer.status_code >= 500:
            traceback.print_exception(error, file=sys.stderr)
        if exchange.status is not None:
            raise error
        await answer(scope, receive, exchange.send)


class _Exchange:
    """One request under way: puts the rate headers on its answer and remembers the status."""

    def __init__(self, standing: Standing, send: Send) -> None:
        self.standing = standing
        self.status: int | None = None
        self._send = send

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message = {**message, "headers": [*message.get("headers", ()), *self.standing.headers()]}
        await self._send(message)
