"""A service on a real socket that limits requests in real time. It counts the records of each object but does not store them.

`asked` lists all requests: their time, whether they write, and whether they were accepted.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from tests.client.ratesim import Limiter, TokenBucket
from tests.support.bulkserver import OBJECT_ID

OBJECTS = [
    {"id": OBJECT_ID, "slug": "people", "singularName": "Person", "pluralName": "People", "isActive": True, "type": "standard"},
    {"id": f"{OBJECT_ID[:-1]}f", "slug": "leads", "singularName": "Lead", "pluralName": "Leads", "isActive": True, "type": "custom"},
]
COLUMNS = {"email": "email", "score": "number"}


class SinkRequest(NamedTuple):
    """One request; `at` in Unix seconds."""

    at: float
    writes: bool
    accepted: bool


class LimitedSink:
    """`with LimitedSink(limiter) as sink:` serves at `sink.origin` until the block ends."""

    def __init__(self, limiter: Limiter, columns: Mapping[str, str] = COLUMNS) -> None:
        self.limiter = limiter
        self._attributes = [
            {"id": f"{OBJECT_ID[:-2]}{number}0", "objectId": OBJECT_ID, "slug": slug, "name": slug, "type": kind, "isActive": True}
            for number, (slug, kind) in enumerate(columns.items())
        ]
        if isinstance(limiter, TokenBucket):
            limiter.at = time.time()
        self.asked: list[SinkRequest] = []
        self._created: Counter[bytes] = Counter()
        self.connections: set[asyncio.Transport] = set()
        self._loop = asyncio.new_event_loop()
        self._server = self._loop.run_until_complete(self._loop.create_server(lambda: _Connection(self), "127.0.0.1", 0))
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    @property
    def refused(self) -> int:
        return sum(not request.accepted for request in self.asked)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._server.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._leave())
        self._loop.close()

    async def _leave(self) -> None:
        """Abort open connections and wait for closing ones."""
        while self.connections:
            for connection in list(self.connections):
                connection.abort()
            await asyncio.sleep(0)

    def answer(self, method: bytes, path: bytes, body: bytes) -> bytes:
        now = time.time()
        accepted, remaining, reset = self.limiter.ask(now)
        self.asked.append(SinkRequest(now, method == b"POST", accepted))
        headers = {"X-RateLimit-Limit": self.limiter.limit, "X-RateLimit-Remaining": remaining, "X-RateLimit-Reset": int(reset)}
        if not accepted:
            headers["Retry-After"] = max(1, int(reset - now + 1))
            return _http(429, {"error": "rate_limited", "message": "slow down"}, headers)
        if path.endswith(b"/records/bulk"):
            created = body.count(b'"data":')
            self._created[path.removesuffix(b"/bulk")] += created
            return _http(200, {"created": created, "updated": 0, "failed": []}, headers)
        if path.endswith(b"/records"):
            return _http(200, {"records": [], "pagination": {"total": self._created[path], "limit": 50, "offset": 0}}, headers)
        if path.endswith(b"/attributes"):
            return _http(200, {"attributes": self._attributes}, headers)
        return _http(200, {"objects": OBJECTS}, headers)


class _Connection(asyncio.Protocol):
    def __init__(self, sink: LimitedSink) -> None:
        self._sink = sink
        self._buffer = bytearray()
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._sink.connections.add(self._transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._sink.connections.discard(self._transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._buffer[:end])
            length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0] or 0)
            if len(self._buffer) < end + 4 + length:
                return
            body = bytes(self._buffer[end + 4 : end + 4 + length])
            del self._buffer[: end + 4 + length]
            method, target, _ = head.split(b" ", 2)
            self._transport.write(self._sink.answer(method, target.partition(b"?")[0], body))


def _http(status: int, document: Any, headers: dict[str, Any]) -> bytes:
    content = json.dumps(document).encode()
    lines = {"Content-Type": "application/json", "Content-Length": len(content), **headers}
    return "".join([f"HTTP/1.1 {status} X\r\n", *(f"{name}: {value}\r\n" for name, value in lines.items()), "\r\n"]).encode() + content
