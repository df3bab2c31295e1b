"""Slow, numerous or unfinished clients on real sockets must not block others."""

from __future__ import annotations

import asyncio
import json
import resource
import select
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Event

import pytest

from crmctl.service.http.connections import HEAD, HEAD_LIMIT, RESERVED_FILES, Connection, Connections, raise_file_limit
from tests.support.patience import PATIENCE
from tests.support.service import RunningService, running_service, service_process
from tests.support.wire import Wire

MOST = 20
RATE_HEADERS = {"x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"}


@pytest.fixture
def hasty(tmp_path: Path) -> Iterator[RunningService]:
    """A service with short timeouts."""
    with running_service(tmp_path, head_timeout=1.0, body_timeout=1.0, background=False) as running:
        yield running


@pytest.fixture
def small(tmp_path: Path) -> Iterator[RunningService]:
    """A service with room for few connections."""
    with running_service(tmp_path, connections=MOST, background=False) as running:
        yield running


def send_slowly(wire: Wire, text: bytes) -> None:
    """Send single bytes with pauses until the service answers."""
    for byte in text:
        wire.send(bytes([byte]))
        if select.select([wire.socket], [], [], 0.02)[0]:
            return
    raise AssertionError("the service read everything without an answer")


def test_an_incomplete_head_times_out(hasty: RunningService) -> None:
    with Wire(hasty.base_url) as wire:
        wire.send("GET /healthz HTTP/1.1\r\nHost: x\r\n")
        status, headers, body = wire.answer()
        assert (status, json.loads(body)["error"], headers["connection"]) == (408, "request_timeout", "close")
        assert set(headers) >= RATE_HEADERS
        assert wire.is_ended()


def test_a_client_that_keeps_a_refused_connection_open_is_disconnected(hasty: RunningService, monkeypatch: pytest.MonkeyPatch) -> None:
    lost, lose = Event(), Connection.connection_lost

    def note(connection: Connection, error: Exception | None) -> None:
        lose(connection, error)
        lost.set()

    monkeypatch.setattr("crmctl.service.http.connections.REST_SECONDS", 0.1)
    monkeypatch.setattr(Connection, "connection_lost", note)
    with Wire(hasty.base_url) as wire:
        wire.send("GET /healthz HTTP/1.1\r\nHost: x\r\n")
        assert wire.answer()[0] == 408
        assert lost.wait(PATIENCE)


def test_a_client_that_does_not_take_its_answer_is_disconnected(small: RunningService, monkeypatch: pytest.MonkeyPatch) -> None:
    lost, lose = Event(), Connection.connection_lost

    def note(connection: Connection, error: Exception | None) -> None:
        lose(connection, error)
        lost.set()

    people = f"/api/v1/objects/{small.object_id('people')}/records"
    for _ in range(2):
        records = [{"data": {"notes": "x" * 100_000}}] * 90
        assert small.client.post(f"{people}/bulk", json={"records": records}).json()["failed"] == []
    monkeypatch.setattr("crmctl.service.http.connections.STALLED_SECONDS", 0.1)
    monkeypatch.setattr(Connection, "connection_lost", note)
    with Wire(small.base_url, small.key) as wire:
        wire.send(f"GET {people}?limit=100 HTTP/1.1\r\n{wire.headers}\r\n")
        assert lost.wait(PATIENCE)


def test_sending_slowly_does_not_extend_the_timeout(hasty: RunningService) -> None:
    with Wire(hasty.base_url) as wire:
        send_slowly(wire, b"GET /healthz HTTP/1.1\r\nX-Slow: " + b"a" * 3000)
        assert wire.answer()[0] == 408
    with Wire(hasty.base_url, hasty.key) as wire:
        wire.send(f"GET /healthz HTTP/1.1\r\n{wire.headers}\r\n")
        assert wire.answer()[0] == 200
        send_slowly(wire, b"GET /healthz HTTP/1.1\r\nX-Slow: " + b"a" * 3000)
        assert wire.answer()[0] == 408


def test_a_silent_connection_is_closed_without_an_answer(hasty: RunningService) -> None:
    with Wire(hasty.base_url) as wire:
        assert wire.is_ended()


def test_a_missing_body_times_out(hasty: RunningService) -> None:
    with Wire(hasty.base_url, hasty.key) as wire:
        wire.send(f"POST /api/v1/objects HTTP/1.1\r\n{wire.headers}Content-Length: 100\r\n\r\n{{")
        status, headers, body = wire.answer()
        assert (status, json.loads(body)["error"], headers["connection"]) == (408, "request_timeout", "close")


def test_a_slow_body_in_small_pieces_times_out(hasty: RunningService) -> None:
    with Wire(hasty.base_url, hasty.key) as wire:
        wire.send(f"POST /api/v1/objects HTTP/1.1\r\n{wire.headers}Content-Length: 100000\r\n\r\n")
        send_slowly(wire, b" " * 3000)
        assert wire.answer()[0] == 408


def test_idle_connections_make_room(small: RunningService) -> None:
    with ExitStack() as opened:
        under_way = opened.enter_context(Wire(small.base_url, small.key))
        body = b'{"pluralName": "Plans"}'
        under_way.send(f"POST /api/v1/objects HTTP/1.1\r\n{under_way.headers}Content-Length: {len(body)}\r\n\r\n")
        under_way.send(body[:5])
        crowd = [opened.enter_context(Wire(small.base_url)) for _ in range(3 * MOST)]
        for wire in crowd[:MOST]:
            wire.send("GET /healthz HTTP/1.1\r\n")
        for _ in range(3):
            with Wire(small.base_url) as newcomer:
                newcomer.send(f"GET /healthz HTTP/1.1\r\n{newcomer.headers}\r\n")
                assert newcomer.answer()[0] == 200
        under_way.send(body[5:])
        assert under_way.answer()[0] == 201
        assert crowd[0].is_ended()


def test_among_busy_connections_one_that_awaits_a_body_makes_room(small: RunningService) -> None:
    with ExitStack() as opened:
        for _ in range(MOST):
            wire = opened.enter_context(Wire(small.base_url, small.key))
            wire.send(f"POST /api/v1/objects HTTP/1.1\r\n{wire.headers}Content-Length: 10\r\nExpect: 100-continue\r\n\r\n")
            assert wire.answer()[0] == 100
        with Wire(small.base_url) as newcomer:
            newcomer.send(f"GET /healthz HTTP/1.1\r\n{newcomer.headers}\r\n")
            assert newcomer.answer()[0] == 200


def test_the_file_limit_is_raised_as_far_as_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"now": (256, 1024)}
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits["now"])
    monkeypatch.setattr(resource, "setrlimit", lambda _, wanted: limits.update(now=wanted))
    assert raise_file_limit(20) == 20
    assert raise_file_limit(500) == 500
    assert limits["now"] == (500 + RESERVED_FILES, 1024)
    assert raise_file_limit(4096) == 1024 - RESERVED_FILES
    limits["now"] = (300, 300)
    assert raise_file_limit(4096) == 150


class Waiting(Connection):
    """A connection that has not sent anything yet."""

    phase = HEAD

    def __init__(self) -> None:
        self.is_aborted = False

    def abort(self) -> None:
        self.is_aborted = True


def test_without_descriptors_the_oldest_connections_make_room() -> None:
    registry, waiting = Connections(1000, 10.0, list), [Waiting() for _ in range(30)]
    registry.open.update(dict.fromkeys(waiting))
    registry.evict()
    assert [connection.is_aborted for connection in waiting] == [True] * 15 + [False] * 15
    for _ in range(5):
        registry.evict()
    assert not registry.open


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lowers the limit of a running process")
def test_running_out_of_descriptors_is_reported_once_and_passes(tmp_path: Path) -> None:
    with service_process(tmp_path / "data") as service, ExitStack() as opened:
        hard = resource.prlimit(service.process.pid, resource.RLIMIT_NOFILE)[1]
        in_use = len(list(Path(f"/proc/{service.process.pid}/fd").iterdir()))
        known = opened.enter_context(Wire(service.base_url))
        known.send(f"GET /healthz HTTP/1.1\r\n{known.headers}\r\n")
        assert known.answer()[0] == 200
        # Background jobs may open the database at any moment; each of its eight readers uses three files.
        resource.prlimit(service.process.pid, resource.RLIMIT_NOFILE, (in_use + 40, hard))
        for _ in range(100):
            opened.enter_context(Wire(service.base_url))
        known.send(f"GET /healthz HTTP/1.1\r\n{known.headers}\r\n")
        assert known.answer()[0] == 200
        with service.client() as client:
            assert client.get("/healthz").status_code == 200
        resource.prlimit(service.process.pid, resource.RLIMIT_NOFILE, (hard, hard))
        assert service.stop() == 0
        # Once for connections and once for each background job that opened a file meanwhile, not for each of the 100.
        assert 1 <= service.stderr.count("Too many open files") <= 4


def test_a_connection_made_while_the_service_stops_gets_its_answer(small: RunningService, monkeypatch: pytest.MonkeyPatch) -> None:
    make = Connection.connection_made

    def stop_accepting(connection: Connection, transport: asyncio.BaseTransport) -> None:
        make(connection, transport)
        [accepting] = [task for task in asyncio.all_tasks() if "_accept" in str(task.get_coro())]
        accepting.cancel()

    monkeypatch.setattr(Connection, "connection_made", stop_accepting)
    with Wire(small.base_url) as wire:
        wire.send(f"GET /healthz HTTP/1.1\r\n{wire.headers}\r\n")
        assert wire.answer()[0] == 200


def test_a_client_that_sends_everything_first_reads_the_refusal(tmp_path: Path) -> None:
    with running_service(tmp_path, body_limit=50_000, background=False) as service:
        for more in ("", "Connection: close\r\n"):
            for length in ("Content-Length: 8000000\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n7a1200\r\n"):
                with Wire(service.base_url, service.key) as wire:
                    wire.send(f"POST /api/v1/objects HTTP/1.1\r\n{wire.headers}{more}{length}")
                    wire.send(b" " * 8_000_000)
                    wire.send("\r\n0\r\n\r\n" if "chunked" in length else "")
                    assert wire.answer()[0] == 413
                    if more:
                        assert wire.is_ended()
                    else:
                        wire.send(f"GET /healthz HTTP/1.1\r\n{wire.headers}\r\n")
                        assert wire.answer()[0] == 200


@pytest.mark.parametrize(("version", "status"), [("0.9", 400), ("1.0", 200), ("1.1", 200), ("2.0", 400)])
def test_another_http_than_the_first_is_refused_and_its_connection_closed(small: RunningService, version: str, status: int) -> None:
    with Wire(small.base_url, small.key) as wire:
        wire.send(f"GET /api/v1/members HTTP/{version}\r\n{wire.headers}\r\n")
        answered, headers, body = wire.answer()
        assert answered == status
        if status == 400:
            assert (json.loads(body)["message"], headers["connection"]) == (f"this connection speaks HTTP/1.1, not HTTP/{version}", "close")
            assert wire.is_ended()


@pytest.mark.parametrize("version", ["1.1", "1.0"])
def test_a_request_with_two_lengths_is_refused_and_its_connection_closed(small: RunningService, version: str) -> None:
    with Wire(small.base_url, small.key) as wire:
        smuggled = f"GET /api/v1/members HTTP/1.1\r\n{wire.headers}\r\n"
        lengths = "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n"
        wire.send(f"POST /api/v1/objects HTTP/{version}\r\n{wire.headers}{lengths}\r\n0\r\n\r\n{smuggled}")
        status, headers, body = wire.answer()
        assert (status, json.loads(body)["error"], headers["connection"]) == (400, "bad_request", "close")
        assert "Transfer-Encoding" in json.loads(body)["message"]
        assert wire.is_ended()
    assert not any(entry["path"] == "/api/v1/members" for entry in small.log)


@pytest.mark.parametrize(
    "head", ["GET /healthz?{long} HTTP/1.1\r\nHost: x\r\n\r\n", "GET /healthz HTTP/1.1\r\nHost: x\r\nX-Long: {long}\r\n\r\n"]
)
@pytest.mark.parametrize("times", [1.1, 20])
def test_an_address_or_headers_over_the_limit_are_refused(small: RunningService, head: str, times: float) -> None:
    with Wire(small.base_url) as wire:
        wire.send(head.format(long="a" * int(times * HEAD_LIMIT)))
        status, headers, body = wire.answer()
    assert (status, json.loads(body)["error"]) == (431, "request_head_too_large")
    assert json.loads(body)["details"] == {"limit": HEAD_LIMIT}
    assert set(headers) >= RATE_HEADERS
