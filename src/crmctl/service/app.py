"""Puts the service together: routes, edge, errors, documentation. A further noun is one line in `_NOUNS`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Router

from crmctl.service.console import routing as pages
from crmctl.service.context import Context
from crmctl.service.files import endpoints as serving
from crmctl.service.http.admission import Admission
from crmctl.service.http.edge import Edge
from crmctl.service.http.errors import answer_for
from crmctl.service.http.metrics import Metrics, observer
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
from crmctl.version import __version__

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


def create_app(context: Context, metrics: Metrics | None = None, keep: Callable[[LoggedRequest], None] | None = None) -> FastAPI:
    """The whole service as an ASGI application on an opened, initialised engine. It counts in `metrics`; `keep` is the request log's."""
    settings, engine = context.settings, context.engine
    app = _application(
        "Customer Records Service",
        "Objects, attributes, records, members, activities, reports and workflows over JSON. Every endpoint needs an API key.",
    )
    nouns = [noun(context) for noun in _NOUNS]
    metrics = metrics or Metrics()

    @cache
    def document() -> dict[str, Any]:
        return build_document(app, [endpoint for noun in nouns for endpoint in noun.endpoints])

    routers = [
        *(noun.router for noun in nouns),
        probes.router(context, metrics, document),
        *pages.routers(context, document),
        serving.router(context),
    ]
    app.openapi = document  # type: ignore[method-assign]
    _include(app, routers)
    observe = observer(metrics, settings.request_log, keep)
    app.add_middleware(Edge, context=context, admission=Admission(context, engine.rate_windows()), observe=observe)
    return app


def create_metrics_app(context: Context, metrics: Metrics) -> FastAPI:
    """The metrics alone, for an address of their own. What is asked there is not counted."""
    app = _application("Metrics", "")
    _include(app, [metrics_router(metrics)])
    app.add_middleware(Edge, context=context, admission=Admission(context, context.engine.rate_windows()), observe=lambda _: None)
    return app


def _application(title: str, description: str) -> FastAPI:
    return FastAPI(
        title=title,
        version=__version__,
        description=description,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )


def _include(app: FastAPI, routers: list[Router]) -> None:
    """With errors in the service's own form for what no route takes. Routes and not routers: an included router makes its routes anew."""
    for router in routers:
        app.router.routes.extend(router.routes)

    @app.exception_handler(HTTPException)
    async def refuse(request: Request, error: HTTPException) -> Response:
        answer = answer_for(error)
        if error.status_code == 405:
            answer.headers["Allow"] = ", ".join(_allowed_methods([route for router in routers for route in router.routes], request))
        return answer


def _allowed_methods(routes: list[Any], request: Request) -> list[str]:
    """Every method this path takes; the framework itself names only those of the first route that fits."""
    methods = {method for route in routes if route.matches(request.scope)[0] is not Match.NONE for method in route.methods}
    return sorted(methods | ({"HEAD"} if "GET" in methods else set()))
