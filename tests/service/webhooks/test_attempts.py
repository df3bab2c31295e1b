"""One attempt with every kind of receiver: with and without TLS, one deadline for everything, a bound on the stored answer."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from crmctl.service.background import LOOPBACK
from crmctl.service.context import new_id
from crmctl.service.outbound.caller import Caller
from crmctl.service.outbound.guard import CallFailedError, TargetGuard
from crmctl.service.store import webhooks
from crmctl.service.store.engine import open_engine
from tests.support.authority import Authority
from tests.support.deliveries import Bench
from tests.support.patience import PATIENCE, wait_until
from tests.support.receiver import SLOW_HANDSHAKE, ByteReceiver, Receiver, drip
from tests.support.service import service_process

Speak = Callable[[socket.socket, threading.Event], None]

NAME = "hooks.example.com"


def resolve_to_loopback(host: str, port: int) -> list[str]:
    return ["127.0.0.1"]


def caller(authority: Authority | None = None, seconds: float = 10.0) -> Caller:
    guard = TargetGuard(LOOPBACK, resolver=resolve_to_loopback)
    return Caller(guard, seconds) if authority is None else Caller(guard, seconds, authority.trusted)


def silent(connection: socket.socket, stopping: threading.Event) -> None:
    stopping.wait(PATIENCE)


def slow_reader(connection: socket.socket, stopping: threading.Event) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    for _ in range(500):
        if stopping.wait(0.02):
            return
        connection.recv(256)
    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")


OK_HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n"
SLOW: dict[str, Speak] = {
    "is silent": silent,
    "drips the status line": drip(b"", b"H"),
    "drips a header": drip(b"HTTP/1.1 200 OK\r\nx-long: ", b"a"),
    "drips headers": drip(b"HTTP/1.1 200 OK\r\n", b"a: b\r\n"),
    "sends interim answers for ever": drip(b"", b"HTTP/1.1 102 Processing\r\n\r\n"),
    "drips the body": drip(OK_HEAD + b"\r\n", b"a"),
    "drips chunks": drip(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", b"1\r\na\r\n"),
    "does not end a body without a length": drip(b"HTTP/1.1 200 OK\r\n\r\n", b"a"),
}


@pytest.mark.parametrize("kind", SLOW)
def test_one_deadline_ends_every_slow_receiver(kind: str) -> None:
    with ByteReceiver(SLOW[kind]) as receiver, pytest.raises(CallFailedError, match=r"(Connect|Read)Timeout: not done within 0\.3 seconds"):
        caller(seconds=0.3).post(receiver.url, {}, b"{}")


def test_the_deadline_covers_sending(tmp_path: Path) -> None:
    with ByteReceiver(slow_reader) as receiver, pytest.raises(CallFailedError, match=r"(Connect|Write)Timeout: not done within 0\.3 s"):
        caller(seconds=0.3).post(receiver.url, {}, b"x" * 20_000_000)


@pytest.mark.parametrize("speak", [silent, drip(*SLOW_HANDSHAKE)])
def test_the_deadline_covers_the_tls_handshake(authority: Authority, speak: Speak) -> None:
    with ByteReceiver(speak) as receiver, pytest.raises(CallFailedError, match=r"ConnectTimeout: not done within 0\.3 seconds"):
        caller(authority, seconds=0.3).post(receiver.url.replace("http:", "https:"), {}, b"{}")


def test_the_deadline_covers_name_resolution() -> None:
    answered = threading.Event()

    def slow(host: str, port: int) -> list[str]:
        answered.wait(PATIENCE)
        return ["127.0.0.1"]

    with pytest.raises(CallFailedError, match="could not be looked up in time"):
        Caller(TargetGuard(LOOPBACK, resolver=slow), 0.3).post(f"http://{NAME}/", {}, b"{}")
    answered.set()


@pytest.mark.parametrize("speak", [SLOW["drips a header"], SLOW["drips the body"], silent])
def test_a_dripping_receiver_is_retried_like_any_failure(tmp_path: Path, database: str, speak: Speak) -> None:
    bench = Bench(tmp_path, database, caller(seconds=0.3))
    with ByteReceiver(speak) as receiver:
        endpoint = bench.endpoint(receiver.url)
        bench.event()
        bench.deliver()
        assert bench.history(endpoint)[0]["state"] == "pending"
        [attempt] = bench.attempts(endpoint)
        assert attempt["status"] is None
        assert attempt["error"].endswith("Timeout: not done within 0.3 seconds")
        bench.clock.advance(5)
        bench.deliver()
        assert receiver.accepted == len(bench.attempts(endpoint)) == 2
    bench.engine.close()


def test_tls_uses_the_name_and_connects_to_the_vetted_address(tmp_path: Path, database: str, authority: Authority) -> None:
    bench = Bench(tmp_path, database, caller(authority))
    with Receiver(tls=authority.server(NAME)) as receiver:
        endpoint = bench.endpoint(f"https://{NAME}:{receiver.port}/hook?a=1")
        bench.event(name="Ådå")
        bench.deliver()
    assert bench.history(endpoint)[0]["state"] == "succeeded", bench.attempts(endpoint)
    [request] = receiver.received
    assert (receiver.names, request.headers["host"], request.path) == ([NAME], f"{NAME}:{receiver.port}", "/hook?a=1")
    assert request.body == '{"name":"Ådå"}'.encode()
    bench.engine.close()


def test_an_ip_address_needs_a_certificate_for_itself(authority: Authority) -> None:
    with Receiver(tls=authority.server("127.0.0.1")) as receiver:
        assert caller(authority).post(receiver.url, {}, b"{}")[0] == 200
    assert receiver.names == [None]
    with Receiver(tls=authority.server(NAME)) as receiver, pytest.raises(CallFailedError, match="IP address mismatch"):
        caller(authority).post(receiver.url, {}, b"{}")


REFUSED = {
    "for another name": ("other.example.com", {}, "Hostname mismatch"),
    "for a subdomain": (f"a.{NAME}", {}, "Hostname mismatch"),
    "expired": (NAME, {"is_expired": True}, "certificate has expired"),
    "self-signed": (NAME, {"is_self_signed": True}, "self-signed certificate"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_an_invalid_certificate_is_refused_with_a_reason_in_the_history(
    tmp_path: Path, database: str, authority: Authority, kind: str
) -> None:
    name, options, reason = REFUSED[kind]
    bench = Bench(tmp_path, database, caller(authority))
    with Receiver(tls=authority.server(name, **options)) as receiver:
        endpoint = bench.endpoint(f"https://{NAME}:{receiver.port}/hook")
        bench.event(secret="not for strangers")
        bench.deliver()
        assert receiver.received == []
    [attempt] = bench.attempts(endpoint)
    assert attempt["status"] is None
    assert attempt["error"].startswith("ConnectError: the certificate is refused: ")
    assert reason in attempt["error"]
    assert bench.history(endpoint)[0]["state"] == "pending"
    bench.engine.close()


def test_an_unknown_authority_is_not_trusted(authority: Authority) -> None:
    with Receiver(tls=authority.server(NAME)) as receiver, pytest.raises(CallFailedError, match="certificate is refused: unable to get"):
        caller().post(f"https://{NAME}:{receiver.port}/", {}, b"{}")
    assert receiver.received == []


@pytest.mark.parametrize("is_named", [True, False])
def test_the_program_trusts_the_authority_in_the_environment(tmp_path: Path, authority: Authority, is_named: bool) -> None:
    data, env = tmp_path / "data", {"SSL_CERT_FILE": str(authority.bundle)} if is_named else {}
    with Receiver(tls=authority.server("127.0.0.1")) as receiver, service_process(data, "--dev", env=env) as service:
        with closing(open_engine(data / "service.db")) as engine:
            endpoint = engine.write(lambda tx: webhooks.create_endpoint(tx, url=receiver.url, ids=new_id, now=time.time()))["id"]
            engine.write(lambda tx: webhooks.send_test(tx, endpoint, ids=new_id, now=time.time()))
            wait_until(lambda: engine.read(lambda tx: webhooks.get_endpoint(tx, endpoint))["health"] != "untried")
            found = engine.read(lambda tx: webhooks.get_endpoint(tx, endpoint))
        assert service.stop() == 0
    if is_named:
        assert (found["health"], len(receiver.received)) == ("working", 1)
    else:
        assert (found["health"], receiver.received) == ("failing", [])
        assert found["problem"].startswith("ConnectError: the certificate is refused")


def test_plain_http_instead_of_tls_is_a_failure(authority: Authority) -> None:
    with Receiver() as receiver, pytest.raises(CallFailedError, match="ConnectError"):
        caller(authority).post(receiver.url.replace("http:", "https:"), {}, b"{}")
    assert receiver.received == []


@pytest.mark.parametrize(("sent", "kept"), [(0, 0), (16_383, 16_383), (16_384, 16_384), (16_385, 16_384), (3_000_000, 16_384)])
def test_the_history_keeps_the_first_16_kib_of_an_answer(bench: Bench, sent: int, kept: int) -> None:
    with Receiver(body=b"a" * sent) as receiver:
        endpoint = bench.endpoint(receiver.url)
        bench.event()
        bench.deliver()
    [attempt] = bench.attempts(endpoint)
    assert (attempt["status"], len(attempt["responseBody"])) == (200, kept)


def test_an_endless_answer_is_read_only_in_part() -> None:
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    with ByteReceiver(drip(head + b"4000\r\n" + b"a" * 0x4000 + b"\r\n", b"")) as receiver:
        status, _, body = caller(seconds=30).post(receiver.url, {}, b"{}")
    assert (status, body) == (200, "a" * 16_384)


def test_endless_headers_are_a_failure() -> None:
    endless = drip(b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 40_000, b"")
    with ByteReceiver(endless) as receiver, pytest.raises(CallFailedError, match="Protocol"):
        caller(seconds=30).post(receiver.url, {}, b"{}")


def test_endless_interim_answers_fail_before_the_deadline() -> None:
    endless = drip(b"HTTP/1.1 100 Continue\r\n\r\n" * 40_000, b"")
    with ByteReceiver(endless) as receiver, pytest.raises(CallFailedError, match="bytes came before the body of an answer"):
        caller(seconds=30).post(receiver.url, {}, b"{}")


def test_interim_answers_are_skipped() -> None:
    answer = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 204 No Content\r\nX-Kind: final\r\n\r\n"
    with ByteReceiver(drip(answer, b"")) as receiver:
        status, headers, _ = caller(seconds=30).post(receiver.url, {}, b"{}")
    assert (status, headers["x-kind"]) == (204, "final")


def test_an_invalid_header_is_a_failure_and_sends_nothing() -> None:
    with Receiver() as receiver:
        for headers in ({"x": "a\r\nb: c"}, {"x": "ü"}, {"x y": "z"}):
            with pytest.raises(CallFailedError):
                caller().post(receiver.url, headers, b"{}")
    assert receiver.received == []
