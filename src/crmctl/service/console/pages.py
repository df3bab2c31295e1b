"""How one page is declared, and what surrounds each: the session, the form's token, one transaction, the template, the headers.

A page is a plain function `page(tx, visit) -> ConsolePage | Redirect`. What a page shows is in the modules of their subjects.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from crmctl.service.console.links import CONSOLE, read_link
from crmctl.service.console.templates import render
from crmctl.service.context import Context
from crmctl.service.faults import Fault, Forbidden
from crmctl.service.http.endpoints import read_body
from crmctl.service.http.errors import Refusal, answer_for
from crmctl.service.store import actors
from crmctl.service.store.sessions import SESSION_SECONDS, ConsoleSession, find_session, open_session
from crmctl.service.store.stamp import Stamp
from crmctl.service.store.tx import Tx

FORM_LIMIT = 64 * 1024
"""Bytes of a form; the longest real one has a few kilobytes."""

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


@dataclass(frozen=True)
class ConsolePage:
    """A template and its values; `refresh` asks the browser to look again after that many seconds."""

    template: str
    values: Mapping[str, Any] = field(default_factory=dict)
    status: int = 200
    refresh: int | None = None


@dataclass(frozen=True)
class Redirect:
    """Go on to a page of the same area; `notice` is the name of a sentence that page shows."""

    path: str
    notice: str | None = None


@dataclass(frozen=True)
class Visit:
    """One request for a page, by somebody who is signed in."""

    context: Context
    area: str
    session: ConsoleSession
    path: Mapping[str, Any]
    query: Mapping[str, str]
    form: Mapping[str, list[str]]

    def id(self, name: str) -> str:
        """A UUID of the path."""
        return str(self.path[name])

    def text(self, name: str) -> str:
        """A field of the form without surrounding blanks; the empty string where it was not sent."""
        return self.form.get(name, [""])[0].strip()

    def chosen(self, name: str) -> list[str]:
        """The boxes ticked under one name."""
        return self.form.get(name, [])

    def number(self, name: str, default: int) -> int:
        """A positive whole number of the query, the default for anything else."""
        text = self.query.get(name, "")
        return max(1, int(text)) if text.isascii() and text.isdigit() and len(text) < 10 else default

    def now(self) -> float:
        return self.context.clock.now()

    def stamp(self) -> Stamp:
        return {"ids": self.context.ids, "now": self.now()}


Handler = Callable[..., ConsolePage | Redirect]
"""Takes `(tx, visit)`; only `visit` where it takes its transactions from the engine itself."""


class Pages:
    """The pages of one area (CONSOLE or PORTAL); `router` goes into the application."""

    def __init__(self, context: Context, area: str) -> None:
        self.context = context
        self.area = area
        self.router = APIRouter(prefix=f"/{area}", include_in_schema=False)
        public = urlsplit(context.settings.address)
        self._base = public.path.rstrip("/")
        self._cookie_name = f"crm_{area}_{hashlib.sha256(context.settings.address.encode()).hexdigest()[:8]}"
        # Not the prefix "__Host-": it needs HTTPS, and the path "/", where the API and uploaded files live.
        # Lax and not Strict, so that a link in a mail or a chat opens what it names. What changes something needs the session's token.
        self._cookie_options: dict[str, Any] = {
            "path": f"{self._base}/{area}",
            "httponly": True,
            "samesite": "lax",
            "secure": public.scheme == "https",
        }

    def get(self, path: str) -> Callable[[Handler], Handler]:
        """Decorator: registers what a page shows. It runs in a reading transaction."""
        return self._register("GET", path)

    def post(self, path: str, *, in_transaction: bool = True) -> Callable[[Handler], Handler]:
        """Decorator: registers what a form does, and only with the session's own token. It runs in a writing transaction, or in none."""
        return self._register("POST", path, in_transaction)

    def _register(self, method: str, path: str, in_transaction: bool = True) -> Callable[[Handler], Handler]:
        def register(handler: Handler) -> Handler:
            async def answer(request: Request) -> Response:
                try:
                    raw = await read_body(request, FORM_LIMIT, self.context.settings.body_timeout) if method == "POST" else b""
                    return await run_in_threadpool(self._answer, request, handler, in_transaction, _fields(raw))
                except (Fault, Refusal) as error:
                    return self._failure(error)

            self.router.add_api_route(path, answer, methods=[method], name=handler.__name__)
            return handler

        return register

    def _answer(self, request: Request, handler: Handler, in_transaction: bool, form: Mapping[str, list[str]]) -> Response:
        query = {name: values[0] for name, values in _fields(request.scope["query_string"]).items()}
        if request.method == "GET" and "link" in query:
            return self._enter(query["link"])
        engine = self.context.engine

        def run(tx: Tx) -> tuple[Visit | None, ConsolePage | Redirect | None]:
            visit = self._admit(tx, request, query, form)
            if visit is None:
                return None, ConsolePage("welcome.html", status=HTTPStatus.FORBIDDEN)
            return visit, handler(tx, visit) if in_transaction else None

        is_writing = request.method == "POST" and in_transaction
        visit, outcome = engine.write(run, by=actors.OPERATOR) if is_writing else engine.read(run)
        if outcome is None:
            outcome = handler(visit)
        if isinstance(outcome, Redirect):
            notice = f"?{urlencode({'notice': outcome.notice})}" if outcome.notice else ""
            return RedirectResponse(f"{self._base}/{self.area}{outcome.path}{notice}", HTTPStatus.SEE_OTHER, HEADERS)
        return self._page(outcome, visit)

    def _admit(self, tx: Tx, request: Request, query: Mapping[str, str], form: Mapping[str, list[str]]) -> Visit | None:
        """None for somebody who is not signed in. Raises Forbidden for a form that no page of the session sent."""
        token = request.cookies.get(self._cookie_name, "")
        session = find_session(tx, self.area, token, now=self.context.clock.now())
        if session is None:
            return None
        visit = Visit(self.context, self.area, session, request.path_params, query, form)
        if request.method == "POST" and not session.owns(visit.text("token")):
            raise Forbidden("this form was not sent by a page of this session; open the page again")
        return visit

    def _enter(self, link: str) -> Response:
        """Open a session. A page, not a redirect: a browser that came from elsewhere would follow that without the new cookie."""

        def enter(tx: Tx) -> ConsoleSession:
            now = self.context.clock.now()
            return open_session(tx, self.area, read_link(tx, self.area, link, now=now), now=now)

        session = self.context.engine.write(enter)
        answer = self._page(ConsolePage("opening.html"), None)
        answer.headers["Refresh"] = f"0; url={self._base}/{self.area}"
        answer.set_cookie(self._cookie_name, session.token, max_age=SESSION_SECONDS, **self._cookie_options)
        return answer

    def _failure(self, error: Fault | Refusal) -> Response:
        answer = answer_for(error)
        page = self._page(ConsolePage("error.html", {"message": error.message, "code": answer.status_code}, answer.status_code), None)
        page.headers.update({name: value for name, value in answer.headers.items() if name in ("retry-after", "connection")})
        return page

    def _page(self, page: ConsolePage, visit: Visit | None) -> Response:
        values = {
            "area": self.area,
            "base": self._base,
            "home": f"{self._base}/{self.area}",
            "is_console": self.area == CONSOLE,
            "visit": visit,
            "notice": visit.query.get("notice") if visit else None,
            **page.values,
        }
        answer = HTMLResponse(render(page.template, values), page.status, HEADERS)
        if page.refresh is not None:
            answer.headers["Refresh"] = str(page.refresh)
        return answer


def _fields(encoded: bytes) -> dict[str, list[str]]:
    """Fields of a form or a query. Raises Forbidden for more than any page of this service has."""
    try:
        return parse_qs(encoded.decode("ascii", "replace"), keep_blank_values=True, max_num_fields=200, errors="replace")
    except ValueError as error:
        raise Forbidden("this form has too many fields") from error
