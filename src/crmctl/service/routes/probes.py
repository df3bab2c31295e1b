"""What operators and tools ask: is it alive, is it ready, its metrics, its OpenAPI document and a page to read it. No API key needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import HTMLResponse, Response

from crmctl.service.context import Context
from crmctl.service.http.answers import Answer
from crmctl.service.http.docs_page import render_docs
from crmctl.service.http.observing import Metrics
from crmctl.service.store import organisation


def router(context: Context, metrics: Metrics, document: Callable[[], dict[str, Any]]) -> APIRouter:
    """`document` gives the OpenAPI document."""
    routes = APIRouter(include_in_schema=False)

    @routes.get("/healthz")
    def healthz() -> Response:
        return Answer({"status": "ok"})

    @routes.get("/readyz")
    def readyz() -> Response:
        context.engine.read(organisation.get_organisation)
        return Answer({"status": "ready"})

    @routes.get("/metrics")
    def show_metrics() -> Response:
        return Response(metrics.render(), media_type=CONTENT_TYPE_LATEST)

    @routes.get("/openapi.json")
    def show_openapi() -> Response:
        return Answer(document())

    @routes.get("/docs")
    def show_docs() -> Response:
        return HTMLResponse(render_docs(document()), headers={"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"})

    return routes
