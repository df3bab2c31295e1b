"""States of a test double while requests come."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from crmctl.service.testdouble import double as doubles

NO_EVENTS = SimpleNamespace(read=lambda _: False)
"""An engine without events that wait."""


async def call(double: doubles.TestDouble, method: str, path: str, query: bytes = b"") -> int:
    scope = {"type": "http", "method": method, "path": path, "query_string": query, "headers": []}
    statuses = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        statuses.append(message.get("status"))

    await double(scope, receive, send)
    return int(statuses[0])


def test_requests_wait_while_a_state_is_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    double, events = doubles.TestDouble(), []

    async def app(scope: Scope, _receive: Receive, send: Send) -> None:
        if scope["path"] == "/first":
            await release.wait()
        events.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    def save() -> doubles.State:
        events.append("saved")
        return doubles.State(None, {}, 0.0)  # type: ignore[arg-type]

    monkeypatch.setattr(double, "_app", app, raising=False)
    monkeypatch.setattr(double, "_engine", NO_EVENTS, raising=False)
    monkeypatch.setattr(double, "_save", save)

    async def run() -> list[int]:
        tasks = []
        for method, path in (("GET", "/first"), ("PUT", "/_test/snapshots/a"), ("GET", "/second")):
            tasks.append(asyncio.ensure_future(call(double, method, path)))
            for _ in range(10):
                await asyncio.sleep(0)
        release.set()
        return await asyncio.gather(*tasks)

    release = asyncio.Event()
    assert asyncio.run(run()) == [200, 200, 200]
    assert events == ["/first", "saved", "/second"]


def test_waits_for_deliveries_do_not_hold_up_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    double, deliveries = doubles.TestDouble(), list[Any]()
    tx = SimpleNamespace(one=lambda *_: (len(deliveries),), all=lambda *_: list(deliveries))
    monkeypatch.setattr(double, "_engine", SimpleNamespace(read=lambda read: read(tx)), raising=False)
    monkeypatch.setattr(doubles.change_log, "is_waiting", lambda _: False)
    monkeypatch.setattr(double, "_save", lambda: doubles.State(None, {}, 0.0))  # type: ignore[arg-type]

    async def run() -> list[int]:
        waits = [asyncio.ensure_future(call(double, "GET", "/_test/deliveries", b"count=1&timeout=600")) for _ in range(100)]
        saved = await call(double, "PUT", "/_test/snapshots/a")
        assert not any(wait.done() for wait in waits)
        deliveries.append(("record.created", "http://localhost/hook", 200, "{}", "{}"))
        return [saved, *await asyncio.gather(*waits)]

    assert asyncio.run(run()) == [200] * 101
