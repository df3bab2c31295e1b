"""What operators and tools ask: is it alive, is it ready, its metrics, its OpenAPI document and a page to read it. No API key needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import HTMLResponse, Response

from crmctl.service.context import Context
from crmctl.service.faults import Busy
from crmctl.service.http.answers import JsonAnswer
from crmctl.service.http.docs_page import render_docs
from crmctl.service.http.metrics import Metrics
from crmctl.service.store import organisation, service_values

READY_SECONDS = 1.0
"""How long an answer of the readiness check stands: strangers must not make the database write as often as they like."""

_READY_WITHIN = 2.0


def router(context: Context, metrics: Metrics, document: Callable[[], dict[str, Any]]) -> APIRouter:
    """`document` gives the OpenAPI document. Metrics and docs are there as far as the settings say."""
    routes = APIRouter(include_in_schema=False)
    _add_health(routes, context)
    if context.settings.metrics is True:
        _add_metrics(routes, metrics)
    if context.settings.docs:
        _add_docs(routes, document)
    return routes


def metrics_router(metrics: Metrics) -> APIRouter:
    """The metrics alone, for an address of their own."""
    routes = APIRouter(include_in_schema=False)
    _add_metrics(routes, metrics)
    return routes


def _add_health(routes: APIRouter, context: Context) -> None:
    readiness = _Readiness(context)

    # On the event loop: whatever threads and locks wait for, this process answers.
    @routes.get("/healthz")
    async def healthz() -> Response:
        return JsonAnswer({"status": "ok"})

    @routes.get("/readyz")
    async def readyz() -> Response:
        await readiness.check()
        return JsonAnswer({"status": "ready"})


def _add_metrics(routes: APIRouter, metrics: Metrics) -> None:
    @routes.get("/metrics")
    def show_metrics() -> Response:
        return Response(metrics.render(), media_type=CONTENT_TYPE_LATEST)


def _add_docs(routes: APIRouter, document: Callable[[], dict[str, Any]]) -> None:
    @routes.get("/openapi.json")
    def show_openapi() -> Response:
        return JsonAnswer(document())

    @routes.get("/docs")
    def show_docs() -> Response:
        return HTMLResponse(render_docs(document()), headers={"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"})


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
