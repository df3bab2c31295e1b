"""Serve one object, its attributes and bulk writes as fast as Python can, keeping only a count and the newest records.

Runs as a process of its own and prints its address as the first line. Knows just enough HTTP for httpx.
"""

from __future__ import annotations

import asyncio
import json
import time

created = 0
newest = b""
"""The body of the last bulk request: its rows are the newest records."""
OBJECT_ID = "0b7ecf00-0000-4000-8000-000000000001"
COLUMNS = {
    "name": "text",
    "email": "email",
    "job_title": "text",
    "score": "number",
    "birthday": "date",
    "subscribed": "checkbox",
    "website": "url",
    "notes": "text",
}
OBJECT = {"id": OBJECT_ID, "slug": "people", "singularName": "Person", "pluralName": "People", "isActive": True, "isStandard": True}
ATTRIBUTES = [
    {
        "id": f"0b7ecf00-0000-4000-8000-0000000001{number:02}",
        "objectId": OBJECT_ID,
        "slug": slug,
        "name": slug.replace("_", " ").title(),
        "type": kind,
        "isRequired": False,
        "isUnique": False,
        "isActive": True,
        "displayOrder": number,
        "config": {},
    }
    for number, (slug, kind) in enumerate(COLUMNS.items())
]


class Sink(asyncio.Protocol):
    """One connection; answers requests in order, counts bodies and forgets them."""

    def __init__(self) -> None:
        self.buffer = bytearray()
        self.transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            head = bytes(self.buffer[:end]).lower()
            length = int(head.partition(b"content-length:")[2].split(b"\r\n", 1)[0] or 0)
            if len(self.buffer) < end + 4 + length:
                return
            body = bytes(self.buffer[end + 4 : end + 4 + length])
            del self.buffer[: end + 4 + length]
            assert self.transport is not None
            self.transport.write(answer(head, body))


def answer(head: bytes, body: bytes) -> bytes:
    """Return the whole HTTP answer to one request."""
    global created, newest  # noqa: PLW0603 - one service a process
    path = head.split(b" ", 2)[1].partition(b"?")[0]
    document: object
    if path.endswith(b"/records/bulk"):
        rows = body.count(b'"data":')
        created += rows
        newest = body
        document = {"created": rows, "updated": 0, "failed": []}
    elif path.endswith((b"/records", b"/search")):
        document = {"records": newest_records(), "pagination": {"total": created, "limit": 100, "offset": 0}}
    elif path.endswith(b"/attributes"):
        document = {"attributes": ATTRIBUTES}
    elif path.endswith(b"/objects"):
        document = {"objects": [OBJECT]}
    else:
        document = {**OBJECT, "attributes": ATTRIBUTES}
    content = json.dumps(document).encode()
    headers = (
        f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n"
        f"X-RateLimit-Limit: 1000000\r\nX-RateLimit-Remaining: 999999\r\nX-RateLimit-Reset: {int(time.time()) + 60}\r\n\r\n"
    )
    return headers.encode() + content


def newest_records() -> list[dict[str, object]]:
    """Return the rows of the last bulk request as records, newest first."""
    rows = json.loads(newest)["records"] if newest else []
    moment = "2026-01-01T00:00:00.000Z"
    return [
        {"id": f"0b7ecf00-0000-4000-8000-{created - number:012}", "createdAt": moment, "updatedAt": moment, **row}
        for number, row in enumerate(reversed(rows))
    ]


async def serve() -> None:
    """Listen on a free port of this machine until the process ends."""
    server = await asyncio.get_running_loop().create_server(Sink, "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve())
