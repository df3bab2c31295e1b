"""The service without a socket or a thread: its application answers the caller directly, on a folder in memory if possible.

For thousands of runs that would otherwise spend their time on sockets, threads and disks.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import unquote, urlsplit

from crmctl.client.crm import Crm
from crmctl.client.session import Session
from crmctl.client.transport import Request, Response
from crmctl.clock import SystemClock
from crmctl.config.credentials import Credential
from crmctl.service.context import Context, ServiceSettings, new_id, open_data
from crmctl.service.http.turns import Work
from crmctl.service.server import create_app, make_first_key

ORIGIN = "http://127.0.0.1:8"
MEMORY = Path("/dev/shm")


def quick_folder() -> tempfile.TemporaryDirectory[str]:
    """Return a scratch folder, in memory if possible, because its contents need not outlive the process."""
    return tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None)


@dataclass
class AppTransport:
    """Passes requests to an application, one at a time."""

    app: Any
    loop: asyncio.AbstractEventLoop

    def send(self, request: Request) -> Response:
        return self.loop.run_until_complete(self._answer(request))

    def upload(self, *upload: object) -> Response:
        raise NotImplementedError

    def close(self) -> None:
        """Nothing is open."""

    async def _answer(self, request: Request) -> Response:
        parts = urlsplit(request.url)
        body = request.body or b""
        headers = [(name.lower().encode(), value.encode()) for name, value in request.headers]
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http", "method": request.method,
            "path": unquote(parts.path), "raw_path": parts.path.encode(), "query_string": parts.query.encode(), "root_path": "",
            "headers": [*headers, (b"host", parts.netloc.encode()), (b"content-length", str(len(body)).encode())],
            "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8),
        }  # fmt: skip
        started: dict[str, Any] = {}
        content = bytearray()

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                started.update(message)
            else:
                content.extend(message.get("body", b""))

        await self.app(scope, receive, send)
        return Response(started["status"], {name.decode(): value.decode() for name, value in started["headers"]}, bytes(content))


async def _at_once(_: Work, work: Callable[[], Any]) -> Any:
    return work()


async def _admit_at_once(_: Work, admit: Callable[[float | None], Any]) -> Any:
    return admit(None)


@contextlib.contextmanager
def answering_app(data_dir: Path, database_url: str | None = None) -> Iterator[Crm]:
    """A client whose requests the application answers in the same thread."""
    clock = SystemClock()
    settings = ServiceSettings(data_dir=data_dir, database_url=database_url, port=8, rate_limit=0)
    engine = open_data(settings, clock, new_id)
    loop = asyncio.new_event_loop()
    try:
        key = make_first_key(engine, clock, new_id)
        transport = AppTransport(create_app(Context(settings, engine, clock, new_id)), loop)
        with patch.object(Work, "admit", _admit_at_once), patch.object(Work, "run", _at_once):
            yield Crm(Session(ORIGIN, Credential(str(key), "test", ORIGIN), transport, timeout=30))
    finally:
        loop.close()
        engine.close()
