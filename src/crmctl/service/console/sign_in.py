"""The pages around all others: leaving, ending every session, static files, and what is not there."""

from __future__ import annotations

from http import HTTPStatus

from fastapi import APIRouter
from starlette.responses import Response

from crmctl.service.console.pages import ConsolePage, Pages, Redirect, Visit
from crmctl.service.console.templates import STATIC, static_file
from crmctl.service.http.errors import Refusal
from crmctl.service.store.service_values import LINKS, replace_signing_key
from crmctl.service.store.sessions import close_all_sessions, close_session
from crmctl.service.store.tx import Tx

_FOR_GOOD = "public, max-age=31536000, immutable"


def add_pages(pages: Pages) -> None:
    """Signing out, in either area."""

    @pages.post("/sign-out")
    def sign_out(tx: Tx, visit: Visit) -> ConsolePage | Redirect:
        close_session(tx, visit.session)
        return Redirect("")


def add_console_pages(pages: Pages) -> None:
    """Signing everybody out, which is the console's."""

    @pages.get("/sign-out-everywhere")
    def confirm_everywhere(_tx: Tx, _visit: Visit) -> ConsolePage:
        values = {
            "title": "Sign out everywhere",
            "text": "Every open session of the console and the portal ends, this one too, and links that were not opened yet become void.",
            "action": "/sign-out-everywhere",
            "button": "Sign out everywhere",
            "back": "",
            "section": "overview",
        }
        return ConsolePage("confirm.html", values)

    @pages.post("/sign-out-everywhere")
    def sign_out_everywhere(tx: Tx, _visit: Visit) -> Redirect:
        close_all_sessions(tx)
        replace_signing_key(tx, LINKS)
        return Redirect("")


def add_nowhere(pages: Pages) -> None:
    """What is at no other page's address; to be added last."""

    @pages.get("/{rest:path}")
    def nowhere(_tx: Tx, _visit: Visit) -> ConsolePage:
        return ConsolePage("error.html", {"message": "there is no page at this address", "code": 404}, HTTPStatus.NOT_FOUND)


def static_router() -> APIRouter:
    """Stylesheet, script and icon; no session needed."""
    routes = APIRouter(prefix="/console/static", include_in_schema=False)

    @routes.get("/{name}")
    def show_static(name: str) -> Response:
        if name not in STATIC:
            raise Refusal(HTTPStatus.NOT_FOUND, "not_found", "there is nothing at this path")
        headers = {"Cache-Control": _FOR_GOOD, "X-Content-Type-Options": "nosniff"}
        return Response(static_file(name), media_type=STATIC[name], headers=headers)

    return routes
