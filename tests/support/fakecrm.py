"""A strict stand-in for the service over real sockets: functions answer its routes, so that tests control state and time.

with FakeCrm({"GET /reports": lambda request: {"reports": []}}) as fake:
    run_crmctl("reports", "list", env=fake.env)
"""

from __future__ import annotations

import json as jsonlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

KEY = "crs_test_key"
API = "/api/v1"


@dataclass(frozen=True)
class FakeRequest:
    """One request, header names in lower case."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return jsonlib.loads(self.body)


@dataclass(frozen=True)
class Answer:
    """A status with a JSON document or a raw `body`; `date` replaces the Date header, in Unix seconds; `cut` closes the connection."""

    status: int = 200
    json: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    date: float | None = None
    body: bytes = b""
    cut: bool = False


Route = Callable[[FakeRequest], Any]
"""Returns an Answer, or the JSON of a 200."""


class FakeCrm:
    """Fails at the end if a request matched no route, or lacked the key or sent it where it must not.

    Routes are `METHOD /path` below the API; paths outside of it start with `//` and must come without the key. The last part of a path may
    be `*`; outside the API, the whole path.
    """

    def __init__(self, routes: Mapping[str, Route]) -> None:
        self.routes = dict(routes)
        self.asked: list[FakeRequest] = []
        self.problems: list[str] = []
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _serve(self) -> None:
                fake._serve(self)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve

            def log_message(self, *arguments: Any) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.origin = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=[0.01], daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)
        if kind is None:
            assert self.problems == []

    @property
    def env(self) -> dict[str, str | None]:
        return {"CRMCTL_BASE_URL": self.origin, "CRMCTL_API_KEY": KEY}

    def of(self, route: str) -> list[FakeRequest]:
        """Return the requests of one route, in order."""
        with self._lock:
            return [asked for asked in self.asked if f"{asked.method} {asked.path}" == route]

    def _serve(self, handler: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(handler.path)
        inside = parts.path.startswith(f"{API}/")
        path = parts.path.removeprefix(API) if inside else f"/{parts.path}"
        length = int(handler.headers.get("content-length") or 0)
        body = handler.rfile.read(length)
        if len(body) < length:
            handler.close_connection = True  # half a request does not count
            return
        headers = {name.lower(): value for name, value in handler.headers.items()}
        asked = FakeRequest(handler.command, path, dict(parse_qsl(parts.query, keep_blank_values=True)), headers, body)
        with self._lock:
            self.asked.append(asked)
        answer = self._answer(asked, inside)
        if answer.cut:
            handler.close_connection = True
            return
        content = answer.body if answer.json is None else jsonlib.dumps(answer.json).encode()
        handler.send_response_only(answer.status)
        given = {"Date": formatdate(answer.date, usegmt=True), "Content-Type": "application/json", "Content-Length": str(len(content))}
        for name, value in {**given, **answer.headers}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(content)

    def _answer(self, asked: FakeRequest, inside: bool) -> Answer:
        if (asked.headers.get("authorization") == f"Bearer {KEY}") is not inside:
            self.problems.append(f"{asked.method} {asked.path}: the key is {'missing' if inside else 'not allowed here'}")
        every = f"{asked.method} {asked.path.rpartition('/')[0]}/*" if inside else f"{asked.method} //*"
        route = self.routes.get(f"{asked.method} {asked.path}") or self.routes.get(every)
        if route is None:
            self.problems.append(f"unexpected {asked.method} {asked.path}")
            return Answer(404, {"error": "not_found", "message": "no such route"})
        given = route(asked)
        return given if isinstance(given, Answer) else Answer(200, given)
