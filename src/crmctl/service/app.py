"""Puts the service together: routes, edge, errors, documentation. A further noun is one line in `_NOUNS`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Router

from crmctl.service.console import routing as pages
from crmctl.service.context import Context
from crmctl.service.files import endpoints as serving
from crmctl.service.http.admission import Admission
from crmctl.service.http.edge import Edge
from crmctl.service.http.errors import answer_for
from crmctl.service.http.metrics import Finished, Metrics, observer
from crmctl.service.http.openapi import build_document
from crmctl.service.routes import (
    activities,
    attributes,
    files,
    members,
    objects,
    probes,
    record_history,
    records,
    reports,
    webhooks,
    workflows,
)
from crmctl.service.routes.probes import metrics_router
from crmctl.service.store.request_log import LoggedRequest

_NOUNS = (
    objects.router,
    attributes.router,
    records.router,
    record_history.router,
    members.router,
    activities.router,
    files.router,
    webhooks.router,
    reports.router,
    workflows.router,
)


def create_app(context: Context, metrics: Metrics | None = None, keep: Callable[[LoggedRequest], None] | None = None) -> Starlette:
    """The whole service as an ASGI application on an opened, initialised engine. It counts in `metrics`; `keep` is the request log's."""
    nouns = [noun(context) for noun in _NOUNS]
    metrics = metrics or Metrics()

    @cache
    def document() -> dict[str, Any]:
        return build_document(endpoint for noun in nouns for endpoint in noun.endpoints)

    routers = [
        *(noun.router for noun in nouns),
        probes.router(context, metrics, document),
        *pages.routers(context, document),
        serving.router(context),
    ]
    return _application(routers, context, observer(metrics, context.settings.request_log, keep))


def create_metrics_app(context: Context, metrics: Metrics) -> Starlette:
    """The metrics alone, for an address of their own. What is asked there is not counted."""
    return _application([metrics_router(metrics)], context, lambda _: None)


def _application(routers: list[Router], context: Context, observe: Callable[[Finished], None]) -> Starlette:
    """With errors in the service's own form for what no route takes."""
    routes = [route for router in routers for route in router.routes]

    async def refuse(request: Request, error: Exception) -> Response:
        answer = answer_for(error)
        if isinstance(error, HTTPException) and error.status_code == 405:
            answer.headers["Allow"] = ", ".join(_allowed_methods(routes, request))
        return answer

    edge = Middleware(Edge, context=context, admission=Admission(context, context.engine.rate_windows()), observe=observe)
    app = Starlette(routes=routes, middleware=[edge], exception_handlers={HTTPException: refuse})
    app.router.redirect_slashes = False
    return app


def _allowed_methods(routes: list[Any], request: Request) -> list[str]:
    """Every method this path takes; the framework itself names only those of the first route that fits."""
    methods = {method for route in routes if route.matches(request.scope)[0] is not Match.NONE for method in route.methods}
    return sorted(methods | ({"HEAD"} if "GET" in methods else set()))
