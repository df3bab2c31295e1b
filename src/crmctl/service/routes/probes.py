"""What operators and tools ask: is it alive, is it ready, its metrics, its OpenAPI document and a page to read it. No API key needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Router

from crmctl.service.context import Context
from crmctl.service.faults import Busy
from crmctl.service.http.answers import JsonAnswer
from crmctl.service.http.docs_page import render_docs
from crmctl.service.http.endpoints import NamedRoute
from crmctl.service.http.metrics import Metrics
from crmctl.service.store import organisation, service_values

READY_SECONDS = 1.0
"""How long an answer of the readiness check stands: strangers must not make the database write as often as they like."""

_READY_WITHIN = 2.0


def router(context: Context, metrics: Metrics, document: Callable[[], dict[str, Any]]) -> Router:
    """`document` gives the OpenAPI document. Metrics and docs are there as far as the settings say."""
    routes = _health(context)
    if context.settings.metrics is True:
        routes.append(_metrics(metrics))
    if context.settings.docs:
        routes += _docs(document)
    return Router(routes)


def metrics_router(metrics: Metrics) -> Router:
    """The metrics alone, for an address of their own."""
    return Router([_metrics(metrics)])


def _health(context: Context) -> list[NamedRoute]:
    readiness = _Readiness(context)

    # On the event loop: whatever threads and locks wait for, this process answers.
    async def healthz(_request: Request) -> Response:
        return JsonAnswer({"status": "ok"})

    async def readyz(_request: Request) -> Response:
        await readiness.check()
        return JsonAnswer({"status": "ready"})

    return [NamedRoute("/healthz", healthz), NamedRoute("/readyz", readyz)]


def _metrics(metrics: Metrics) -> NamedRoute:
    def show_metrics(_request: Request) -> Response:
        return Response(metrics.render(), media_type=CONTENT_TYPE_LATEST)

    return NamedRoute("/metrics", show_metrics)


def _docs(document: Callable[[], dict[str, Any]]) -> list[NamedRoute]:
    def show_openapi(_request: Request) -> Response:
        return JsonAnswer(document())

    def show_docs(_request: Request) -> Response:
        return HTMLResponse(render_docs(document()), headers={"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"})

    return [NamedRoute("/openapi.json", show_openapi), NamedRoute("/docs", show_docs)]


class _Readiness:
    """Whether the database can be read and written, tried out at most once a second, whoever asks."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._lock = asyncio.Lock()
        self._tried_at: float | None = None
        self._problem: Exception | None = None

    async def check(self) -> None:
        """Raises Unavailable, or what else is wrong. A database that others keep busy is well."""
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
            engine.read(organisation.get_organisation, within=_READY_WITHIN)
            engine.write(lambda tx: service_values.put_probe(tx, now), within=_READY_WITHIN)
        except Busy:
            return None
        except Exception as error:
            return error
        return None
