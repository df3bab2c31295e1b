"""Health, readiness, metrics and the OpenAPI document. They need no API key."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Router

from crmctl.models.jsontext import Json
from crmctl.service.context import Context
from crmctl.service.faults import Busy
from crmctl.service.http.answers import JsonAnswer
from crmctl.service.http.edge import READY_PATH, Metrics
from crmctl.service.http.endpoint import NamedRoute
from crmctl.service.store import keys, members

READY_SECONDS = 1.0
"""How long a readiness check counts: strangers must not make the database write as often as they like."""

REFUSED_SECONDS = 10.0
"""How long the service is not ready after the storage refused a request. A probe may fit where a record does not."""

_READY_WITHIN = 2.0


def router(context: Context, metrics: Metrics, document: Callable[[], Json]) -> Router:
    """Return the routes that the settings allow. `document` returns the OpenAPI document."""
    readiness = _Readiness(context)

    # On the event loop, so that the process answers even when threads and locks wait.
    async def healthz(_request: Request) -> Response:
        return JsonAnswer({"status": "ok"})

    async def readyz(_request: Request) -> Response:
        await readiness.check()
        return JsonAnswer({"status": "ready"})

    def show_openapi(_request: Request) -> Response:
        return JsonAnswer(document())

    docs = [NamedRoute("/openapi.json", show_openapi)] if context.settings.docs else []
    shown = metrics_routes(metrics) if context.settings.metrics is True else []
    return Router([NamedRoute("/healthz", healthz), NamedRoute(READY_PATH, readyz), *shown, *docs])


def metrics_routes(metrics: Metrics) -> list[NamedRoute]:
    def show_metrics(_request: Request) -> Response:
        return Response(metrics.render(), media_type=CONTENT_TYPE_LATEST)

    return [NamedRoute("/metrics", show_metrics)]


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
