"""How a page is declared, and the checks around each."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC
from functools import partial
from http import HTTPStatus
from urllib.parse import urlencode, urlsplit

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse

from crmctl.frozen import frozen
from crmctl.models.jsontext import Json
from crmctl.service.console.conditions_form import operators_in_words
from crmctl.service.console.visits import (
    CONSOLE,
    ConsolePage,
    Download,
    Outcome,
    Redirect,
    UploadedFile,
    Visit,
    fields_of,
    form_parts,
    in_zone,
    read_link,
    render,
)
from crmctl.service.context import Context
from crmctl.service.faults import FAILURES, BadRequest, Conflict, Fault, Forbidden, OverQuota
from crmctl.service.http.endpoint import NamedRoute, read_body
from crmctl.service.http.json_answers import answer_for
from crmctl.service.http.turns import FairLimiter
from crmctl.service.store import objects, preferences
from crmctl.service.store.members import SESSION_SECONDS, ConsoleSession, MemberRole, find_session, new_token, open_session
from crmctl.service.store.tx import Tx

MOST_OBJECTS = 12
"""The most objects that the navigation shows; the list of objects has all."""

GROUPS = ("Work", "Automation", "Administration")


@frozen
class NavigationLink:
    """One link of a group; it is the current one on every page below its path."""

    group: str
    path: str
    text: str
    needs: MemberRole = MemberRole.VIEWER


def navigation_for(visit: Visit, links: Sequence[NavigationLink]) -> list[tuple[str, list[NavigationLink]]]:
    if visit.area != CONSOLE:
        return [("", [NavigationLink("", "/webhooks", "Endpoints")])]
    records = [
        NavigationLink("Records", f"/records/{crm_object['slug']}", crm_object["pluralName"]) for crm_object in visit.objects[:MOST_OBJECTS]
    ]
    if len(visit.objects) > MOST_OBJECTS:
        records.append(NavigationLink("Records", "/objects", f"All {len(visit.objects)} objects"))
    groups = [("", [NavigationLink("", "", "Overview")]), ("Records", records)]
    allowed = ((group, [link for link in links if link.group == group and visit.may(link.needs)]) for group in GROUPS)
    return groups + [(group, chosen) for group, chosen in allowed if chosen]


def _current(visit: Visit, groups: Sequence[tuple[str, Sequence[NavigationLink]]]) -> NavigationLink | None:
    """Return the link to this page, or to the list that it belongs to."""
    links = [link for _, chosen in groups for link in chosen]
    leading = [link for link in links if visit.place == link.path or (link.path and visit.place.startswith(f"{link.path}/"))]
    return max(leading, key=lambda link: len(link.path), default=None)


ZONE_COOKIE = "crm_zone"
"""The browser's time zone; the script sets it."""

FORM_LIMIT = 64 * 1024
"""Bytes of an ordinary form; most have a few kilobytes."""
LARGE_FORM = 4 * 1024 * 1024
"""Bytes of a form with all data of a record, or with a definition."""
LARGEST_FILE = 20 * 1024 * 1024
"""Bytes of a file from the browser; larger ones need the command line."""
FILE_FORM = LARGEST_FILE + 64 * 1024

PAGE_SECONDS = 20.0
"""How long a page may wait for its turn, and for the database."""

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

Fields = Mapping[str, list[str]]
Handler = Callable[..., Outcome]
"""Takes `(tx, visit)`; only `visit` where it takes its transactions from the engine itself."""


@frozen
class PageRoute:
    """One address of an area and the least role it needs. A slow page may read many records."""

    method: str
    path: str
    handler: Handler
    needs: MemberRole
    is_slow: bool = False
    in_transaction: bool = True
    form_limit: int = FORM_LIMIT
    back: Handler | None = None
    """The page with the form; it shows the form again if the service refuses it."""


def page_at(path: str, handler: Handler, needs: MemberRole = MemberRole.VIEWER, *, is_slow: bool = False) -> PageRoute:
    """Return the route of a page. Its handler runs in a reading transaction."""
    return PageRoute("GET", path, handler, needs, is_slow)


def form_at(
    path: str,
    handler: Handler,
    needs: MemberRole = MemberRole.ADMIN,
    *,
    in_transaction: bool = True,
    form_limit: int = FORM_LIMIT,
    back: Handler | None = None,
) -> PageRoute:
    """Return the route of a form, which needs the session's token. Its handler runs in a writing transaction, or in none.

    The default role is admin, so that a form without a declared role opens nothing. A refusal rolls everything back and leads `back`.
    """
    return PageRoute("POST", path, handler, needs, False, in_transaction, form_limit, back)


class Pages:
    """The pages of one area: CONSOLE or PORTAL."""

    def __init__(self, context: Context, area: str, routes: Sequence[PageRoute], navigation: Sequence[NavigationLink] = ()) -> None:
        self.context = context
        self.area = area
        self.routes = routes
        self.navigation = navigation
        public = urlsplit(context.settings.address)
        self._base = public.path.rstrip("/")
        self._cookie_name = f"crm_{area}_{hashlib.sha256(context.settings.address.encode()).hexdigest()[:8]}"
        self._entry_name = f"{self._cookie_name}_entry"
        # Not the prefix "__Host-": it needs HTTPS, and the path "/", where the API and uploaded files live.
        # Lax and not Strict, so that links in mails and chats open their page. Every change needs the session's token.
        self._cookie_options: Json = {
            "path": f"{self._base}/{area}",
            "httponly": True,
            "samesite": "lax",
            "secure": public.scheme == "https",
        }

    def served(self) -> list[NamedRoute]:
        """Return the routes for the application."""
        return [NamedRoute(f"/{self.area}{route.path}", partial(self._serve, route), methods=[route.method]) for route in self.routes]

    async def _serve(self, route: PageRoute, request: Request) -> Response:
        context = self.context
        try:
            raw = await read_body(request, route.form_limit, context.settings.body_timeout) if route.method == "POST" else b""
            client = request.cookies.get(self._cookie_name) or _address(request)
            async with self._places(route).place(client, PAGE_SECONDS):
                return await context.work.run(lambda: self._answer(request, route, raw))
        except Fault as error:
            return self._failure(error)
        except Exception as error:
            FAILURES.tell(error, about=f"request {request.state.request_id}")
            message = f"the service failed to show this; its log says why, under request {request.state.request_id}"
            return self._failure(Fault(message))

    def _places(self, route: PageRoute) -> FairLimiter:
        """Return the limiter of a page. Slow pages have one of their own, so that fast pages never wait for them."""
        work = self.context.work
        if route.is_slow or not route.in_transaction:
            return work.searches
        return work.writes if route.method == "POST" else work.reads

    def _answer(self, request: Request, route: PageRoute, raw: bytes) -> Response:
        fields, files = form_parts(raw, request.headers.get("content-type", ""))
        queries = fields_of(request.scope["query_string"])
        if any("\0" in text for sent in (queries, fields) for texts in sent.values() for text in texts):
            raise BadRequest("a NUL character is not allowed")
        if route.method == "GET" and "link" in queries and request.state.method != "HEAD":
            return self._enter(request, queries["link"][0])
        engine = self.context.engine
        # The session comes first: each change is stored with its actor.
        visit = engine.read(lambda tx: self._visit(tx, request, queries, fields, files), within=PAGE_SECONDS)
        with in_zone(visit.zone):
            try:
                return self._visited(request, route, visit)
            except Fault as error:
                return self._failure(error, visit)

    def _visited(self, request: Request, route: PageRoute, visit: Visit) -> Response:
        """Raises Fault."""
        if visit.session.role is MemberRole.NOBODY and route.needs is not MemberRole.NOBODY:
            # The requested page opens after signing in.
            query = f"?{request.url.query}" if visit.place and request.url.query else ""
            values = {"next": f"{visit.place}{query}" if request.method == "GET" else "", "email": ""}
            return self._response(ConsolePage("welcome.html", values, HTTPStatus.FORBIDDEN), visit, request)
        if not visit.may(route.needs):
            giver = "an owner" if route.needs is MemberRole.OWNER else "an admin"
            mine = visit.session.role.label
            raise Forbidden(f"this needs the role {route.needs.label} of the organization; yours is {mine}, and {giver} can change it")
        if route.method == "POST" and not visit.session.owns(visit.text("token")):
            raise Forbidden("this form was not sent by a page of this session; open the page again")
        try:
            outcome = _outcome(visit, route)
        except (BadRequest, Conflict, OverQuota) as error:
            if (back := route.back) is None:
                raise
            visit = replace(visit, error=error)
            shown = visit
            outcome = self.context.engine.read(lambda tx: back(tx, shown), within=PAGE_SECONDS)
        return self._response(outcome, visit, request)

    def _visit(self, tx: Tx, request: Request, queries: Fields, fields: Fields, files: Mapping[str, UploadedFile]) -> Visit:
        """Return the visit of a signed-in visitor, or of a visitor whose temporary session only serves the sign-in form."""
        token = request.cookies.get(self._cookie_name, "")
        session = find_session(tx, self.area, token, now=self.context.clock.now()) if token else None
        crm_objects = objects.list_objects(tx) if session and self.area == CONSOLE else []
        if session is None:
            session = ConsoleSession(request.cookies.get(self._entry_name) or new_token())
        agent = request.headers.get("user-agent", "")
        chosen = preferences.get_settings(tx)
        zone = preferences.zone_of(request.cookies.get(ZONE_COOKIE, "")) or preferences.zone_of(chosen["timeZone"]) or UTC
        place = request.url.path.partition(f"/{self.area}")[2].rstrip("/")
        about = (crm_objects, _address(request), agent, files, zone, chosen["currency"], place)
        return Visit(self.context, self.area, session, request.path_params, queries, fields, *about)

    def _response(self, outcome: Outcome, visit: Visit, request: Request) -> Response:
        home = f"{self._base}/{self.area}"
        match outcome:
            case Redirect():
                mark = "&" if "?" in outcome.path else "?"
                notice = f"{mark}{urlencode({'notice': outcome.notice})}" if outcome.notice else ""
                answer: Response = RedirectResponse(f"{home}{outcome.path}{notice}", HTTPStatus.SEE_OTHER, HEADERS)
                if outcome.token:
                    answer.set_cookie(self._cookie_name, outcome.token, max_age=SESSION_SECONDS, **self._cookie_options)
                return answer
            case Download():
                named = {"Content-Disposition": f'attachment; filename="{outcome.name}"'} if outcome.name else {}
                if isinstance(outcome.body, bytes):
                    return Response(outcome.body, media_type=outcome.media_type, headers=HEADERS | named)
                return StreamingResponse(outcome.body, media_type=outcome.media_type, headers=HEADERS | named)
        answer = self._page(outcome, visit)
        if visit.session.role is MemberRole.NOBODY and self._entry_name not in request.cookies:
            answer.set_cookie(self._entry_name, visit.session.token, **self._cookie_options)
        return answer

    def _enter(self, request: Request, link: str) -> Response:
        """Open a session. A page, not a redirect: a browser that came from elsewhere would follow that without the new cookie."""

        def enter(tx: Tx) -> str:
            now = self.context.clock.now()
            key_id = read_link(tx, self.area, link, now=now)
            agent = request.headers.get("user-agent", "")
            return open_session(tx, self.area, key_id=key_id, address=_address(request), agent=agent, now=now)

        token = self.context.engine.write(enter)
        answer = self._page(ConsolePage("opening.html"), None)
        answer.headers["Refresh"] = f"0; url={self._base}/{self.area}"
        answer.set_cookie(self._cookie_name, token, max_age=SESSION_SECONDS, **self._cookie_options)
        return answer

    def _failure(self, error: Fault, visit: Visit | None = None) -> Response:
        answer = answer_for(error)
        page = self._page(ConsolePage("error.html", {"message": error.message, "code": answer.status_code}, answer.status_code), visit)
        page.headers.update({name: value for name, value in answer.headers.items() if name in ("retry-after", "connection")})
        return page

    def _page(self, page: ConsolePage, visit: Visit | None) -> Response:
        navigation = navigation_for(visit, self.navigation) if visit and visit.session.role is not MemberRole.NOBODY else []
        values = {
            "area": self.area,
            "base": self._base,
            "home": f"{self._base}/{self.area}",
            "is_console": self.area == CONSOLE,
            "visit": visit,
            "navigation": navigation,
            "current": _current(visit, navigation) if visit else None,
            "notice": visit.query.get("notice") if visit else None,
            "error": visit.error.message if visit and visit.error else None,
            **page.values,
        }
        values["error"] = operators_in_words(values["error"]) if values["error"] else None
        refused = answer_for(visit.error).status_code if visit and visit.error else HTTPStatus.BAD_REQUEST
        status = page.status or (refused if values["error"] else HTTPStatus.OK)
        answer = HTMLResponse(render(page.template, values), status, HEADERS)
        if page.refresh is not None:
            answer.headers["Refresh"] = str(page.refresh)
        return answer


def _outcome(visit: Visit, route: PageRoute) -> Outcome:
    engine, handler = visit.context.engine, route.handler
    if not route.in_transaction:
        return handler(visit)
    if route.method == "POST":
        return engine.write(lambda tx: handler(tx, visit), within=PAGE_SECONDS, by=visit.actor)
    return engine.read(lambda tx: handler(tx, visit), within=PAGE_SECONDS)


def _address(request: Request) -> str:
    return request.client.host if request.client else ""
