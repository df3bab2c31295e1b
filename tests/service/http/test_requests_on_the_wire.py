"""Requests as bytes: pieces, pipelines, upgrades, trailers and bytes that are not HTTP. On uvloop, and on asyncio as on Windows."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
from uvicorn.server import ServerState

from crmctl.service.http.connections import HEAD_LIMIT, REQUEST, Connection, Connections
from tests.support.service import RunningService, running_service
from tests.support.wire import Wire


@pytest.fixture(params=["uvloop", "asyncio"])
def service(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningService]:
    if request.param == "asyncio":
        monkeypatch.setitem(sys.modules, "uvloop", None)
    with running_service(tmp_path, background=False, rate_limit=0) as running:
        yield running


def creation(wire: Wire, name: str, *, chunked: bool = False, more: str = "") -> str:
    """Return a request that creates an object."""
    body = json.dumps({"pluralName": name, "singularName": name})
    start = f"POST /api/v1/objects HTTP/1.1\r\n{wire.headers}{more}"
    if chunked:
        chunks = f"5;note=x\r\n{body[:5]}\r\n{len(body) - 5:x}\r\n{body[5:]}\r\n0\r\n"
        return f"{start}Transfer-Encoding: chunked\r\n\r\n{chunks}X-Trailer: x\r\n\r\n"
    return f"{start}Content-Length: {len(body)}\r\n\r\n{body}"


def names(service: RunningService) -> set[str]:
    return {crm_object["pluralName"] for crm_object in service.client.get("/api/v1/objects").json()["objects"]}


@pytest.mark.parametrize("seed", range(5))
def test_requests_in_pieces_of_any_size_are_answered_in_order(service: RunningService, seed: int) -> None:
    chance = random.Random(seed)
    with Wire(service.base_url, service.key) as wire:
        expected, text = [], ""
        for number in range(40):
            kind = chance.choice(["created", "chunked", "health", "absent"])
            expected.append({"health": 200, "absent": 404}.get(kind, 201))
            path = "/healthz" if kind == "health" else "/absent"
            is_creation = kind in ("created", "chunked")
            text += creation(wire, f"P{number}", chunked=kind == "chunked") if is_creation else f"GET {path} HTTP/1.1\r\n{wire.headers}\r\n"
            text += "\r\n" * chance.randrange(2)
        while text:
            size = chance.choice([1, 2, 7, 100, 4000])
            wire.send(text[:size])
            text = text[size:]
        answers = [wire.answer() for _ in expected]
    assert [status for status, _, _ in answers] == expected
    created = [json.loads(body)["pluralName"] for status, _, body in answers if status == 201]
    assert created == sorted(created, key=lambda name: int(name[1:]))
    assert names(service) >= set(created)


def test_a_long_pipeline_is_answered_completely(service: RunningService) -> None:
    with Wire(service.base_url, service.key) as wire:
        wire.send(creation(wire, "First") + f"GET /healthz HTTP/1.1\r\n{wire.headers}\r\n" * 2000)
        assert [wire.answer()[0] for _ in range(2001)] == [201] + [200] * 2000


def test_bytes_that_are_not_http_are_refused_after_earlier_answers(service: RunningService) -> None:
    with Wire(service.base_url, service.key) as wire:
        wire.send(creation(wire, "First") + creation(wire, "Second") + "no HTTP at all\r\n\r\n")
        assert [wire.answer()[0] for _ in range(3)] == [201, 201, 400]
        assert wire.is_ended()
    assert names(service) >= {"First", "Second"}


class Silent(asyncio.Transport):
    """A transport that takes everything and sends nothing."""

    def is_closing(self) -> bool:
        return False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def pause_reading(self) -> None: ...


def connection_with(data: bytes) -> Connection:
    """Return a connection that received these bytes, and whose requests are never answered. For a running event loop."""

    async def endless(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.Event().wait()

    config = uvicorn.Config(endless, http=Connection, lifespan="off", log_config=None)
    config.load()
    connection = Connection(Connections(1, 15.0, list), config, ServerState())
    connection.connection_made(Silent())
    connection.data_received(data)
    return connection


def test_a_request_under_way_keeps_its_time_when_bytes_after_it_are_not_http() -> None:
    async def run() -> None:
        connection = connection_with(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + b"\0" * 2 * HEAD_LIMIT)
        assert connection.phase == REQUEST
        connection.connection_lost(None)

    asyncio.run(run())


def test_requests_that_wait_for_their_turn_take_little_memory() -> None:
    async def run() -> None:
        connection = connection_with(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 10_000)
        assert sum(isinstance(item, RequestResponseCycle) for item in gc.get_objects()) < 400
        connection.connection_lost(None)

    asyncio.run(run())


def test_a_broken_body_is_refused_and_nothing_done(service: RunningService) -> None:
    with Wire(service.base_url, service.key) as wire:
        wire.send(creation(wire, "First") + creation(wire, "Second", chunked=True).replace("\r\n0\r\n", "\r\nzzz\r\n"))
        assert [wire.answer()[0] for _ in range(2)] == [201, 400]
        assert wire.is_ended()
    assert "First" in names(service)
    assert "Second" not in names(service)


@pytest.mark.parametrize("chunked", [False, True])
def test_a_request_to_upgrade_is_answered_as_any_other(service: RunningService, chunked: bool) -> None:
    upgrade = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n"
    with Wire(service.base_url, service.key) as wire:
        wire.send(creation(wire, "First", chunked=chunked, more=upgrade) + creation(wire, "Second"))
        assert [wire.answer()[0] for _ in range(2)] == [201, 201]
    assert names(service) >= {"First", "Second"}


def test_a_tunnel_is_refused(service: RunningService) -> None:
    with Wire(service.base_url) as wire:
        wire.send("CONNECT example.com:443 HTTP/1.1\r\nHost: example.com\r\n\r\n")
        assert wire.answer()[0] == 400
        assert wire.is_ended()


def test_fields_after_a_body_are_no_headers(service: RunningService) -> None:
    people = next(
        crm_object["id"] for crm_object in service.client.get("/api/v1/objects").json()["objects"] if crm_object["slug"] == "people"
    )
    records = f"/api/v1/objects/{people}/records"
    record = service.client.post(records, json={"data": {"email": "ada@acme.com"}}).json()
    change = '{"data":{"email":"eve@acme.com"}}'
    with Wire(service.base_url, service.key) as wire:
        head = f"PATCH {records}/{record['id']} HTTP/1.1\r\n{wire.headers}Transfer-Encoding: chunked\r\n\r\n"
        wire.send(f'{head}{len(change):x}\r\n{change}\r\n0\r\nIf-Match: "another"\r\n\r\n')
        assert wire.answer()[0] == 200


@pytest.mark.parametrize("part", ["head", "extension", "trailer", "lines"])
def test_endless_heads_and_trailers_are_refused(service: RunningService, part: str) -> None:
    with Wire(service.base_url, service.key) as wire:
        start = f"POST /api/v1/objects HTTP/1.1\r\n{wire.headers}"
        chunk = f"{start}Transfer-Encoding: chunked\r\n\r\n1"
        starts = {"head": f"{start}X-Long: ", "extension": f"{chunk};", "trailer": f"{chunk}\r\n{{\r\n0\r\nX-Long: ", "lines": ""}
        wire.send(starts[part] + ("\r\n" if part == "lines" else "aa") * HEAD_LIMIT)
        status, _, body = wire.answer()
        assert (status, json.loads(body)["error"]) == (431, "request_head_too_large")
        assert wire.is_ended()


@pytest.mark.parametrize("head", ["X-A: b\r\n c\r\n", "X-A : b\r\n", "X-A: \x01\r\n", "Content-Length: 1\r\nContent-Length: 1\r\n"])
def test_ambiguous_headers_are_refused(service: RunningService, head: str) -> None:
    with Wire(service.base_url, service.key) as wire:
        wire.send(f"GET /healthz HTTP/1.1\r\n{wire.headers}{head}\r\n")
        status, headers, body = wire.answer()
        assert (status, headers["connection"]) == (400, "close")
        assert json.loads(body)["message"].startswith("the request is not valid HTTP: ")
        assert wire.is_ended()


@pytest.mark.parametrize(
    ("version", "hosts", "status"), [("1.1", 0, 400), ("1.1", 1, 200), ("1.1", 2, 400), ("1.0", 0, 200), ("1.0", 2, 400)]
)
def test_a_request_names_one_host(service: RunningService, version: str, hosts: int, status: int) -> None:
    with Wire(service.base_url) as wire:
        lines = "".join(f"Host: {host}\r\n" for host in ["x", "y"][:hosts])
        wire.send(f"GET /healthz HTTP/{version}\r\n{lines}\r\n")
        assert wire.answer()[0] == status
