"""Connections, TLS, proxies and bodies over real sockets, and the outcome after each failure."""

from __future__ import annotations

import datetime
import ipaddress
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from crmctl.client.transport import HttpTransport, Request, Response
from crmctl.errors import ConfigError, CrmctlError, NetworkError, ServiceError, UsageError
from tests.support.cli import without_coverage
from tests.support.httpserver import Drop, Hang, Reply, ScriptedServer
from tests.support.patience import PATIENCE
from tests.support.receiver import ByteReceiver, drip

Speak = Callable[[socket.socket, threading.Event], None]


@pytest.fixture
def transport() -> Iterator[HttpTransport]:
    made = HttpTransport()
    yield made
    made.close()


def ask(transport: HttpTransport, server: ScriptedServer, method: str = "GET", body: bytes | None = None, timeout: float = 5.0) -> Response:
    return transport.send(Request(method, f"{server.origin}/x", (), body, timeout))


def failure(transport: HttpTransport, url: str, method: str = "POST", timeout: float = 5.0, header: str = "v") -> CrmctlError:
    with pytest.raises(CrmctlError) as caught:
        transport.send(Request(method, url, (("X-Header", header),), b"{}", timeout))
    return caught.value


def test_a_connection_is_used_again(transport: HttpTransport) -> None:
    with ScriptedServer(Reply(json=1), Reply(json=2), Reply(204)) as server:
        assert [ask(transport, server).body for _ in range(3)] == [b"1", b"2", b""]
        assert {request.connection for request in server.requests} == {0}


def test_a_connection_that_the_server_closed_meanwhile_is_not_used_for_a_post(transport: HttpTransport) -> None:
    with ScriptedServer(Reply(json=1, close=True), Reply(json=2)) as server:
        ask(transport, server)
        server.wait_closed(0)
        assert ask(transport, server, "POST", b"{}").body == b"2"
        assert [request.connection for request in server.requests] == [0, 1]


@pytest.mark.parametrize(
    "reply", [Reply(json={"a": 1}, compress=True), Reply(json={"a": 1}, chunked=True), Reply(json={"a": 1}, compress=True, chunked=True)]
)
def test_bodies_in_every_encoding(transport: HttpTransport, reply: Reply) -> None:
    with ScriptedServer(reply) as server:
        response = ask(transport, server)
    assert response.body == b'{"a": 1}'
    assert response.headers["content-type"] == "application/json"


def test_no_cookie_is_kept(transport: HttpTransport) -> None:
    with ScriptedServer(Reply(headers={"Set-Cookie": "session=1"}), Reply()) as server:
        ask(transport, server)
        ask(transport, server)
        assert "cookie" not in server.requests[1].headers


def test_redirects_are_not_followed(transport: HttpTransport) -> None:
    with ScriptedServer(Reply(302, headers={"Location": "/elsewhere"})) as server:
        assert ask(transport, server).status == 302


@pytest.mark.parametrize(
    ("step", "kind", "code"),
    [
        (Drop(), NetworkError, "connection_lost"),
        (Drop(reset=True), NetworkError, "connection_lost"),
        (Reply(json={"a": "b" * 50}, cut=20), NetworkError, "connection_lost"),
        (Reply(json={"a": "b" * 50}, cut=110), NetworkError, "connection_lost"),
        (Reply(json={"a": "b" * 50}, chunked=True, cut=110), NetworkError, "connection_lost"),
        (Hang(), NetworkError, "timeout"),
        (Reply(json={"a": "b" * 50}, cut=110, hold=True), NetworkError, "timeout"),
        (Reply(raw=b"SSH-2.0-OpenSSH_9.6\r\n\r\n", close=True), ServiceError, "unreadable_answer"),
        (Reply(raw=b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", close=True), ServiceError, "unreadable_answer"),
        (Reply(body=b"not gzip", headers={"Content-Encoding": "gzip"}), ServiceError, "unreadable_answer"),
    ],
)
def test_once_bytes_have_left_the_outcome_is_unknown(transport: HttpTransport, step: Reply, kind: type[CrmctlError], code: str) -> None:
    with ScriptedServer(step) as server:
        error = failure(transport, f"{server.origin}/x?signature=hush", timeout=0.3 if code == "timeout" else PATIENCE)
    assert (type(error), error.code, error.outcome_unknown) == (kind, code, True)
    assert "hush" not in error.message


@pytest.mark.parametrize(
    "speak",
    [
        drip(b"", b"H"),
        drip(b"HTTP/1.1 200 OK\r\nx-long: ", b"a"),
        drip(b"HTTP/1.1 200 OK\r\n", b"a: b\r\n"),
        drip(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        drip(b"HTTP/1.1 200 OK\r\ncontent-length: 900\r\n\r\n", b"a"),
        drip(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", b"1\r\na\r\n"),
        drip(b"HTTP/1.1 200 OK\r\n\r\n", b"a"),
    ],
    ids=["status line", "a header", "headers", "interim answers", "body", "chunks", "a body without length"],
)
def test_an_answer_that_drips_meets_a_deadline(transport: HttpTransport, speak: Speak) -> None:
    with ByteReceiver(speak) as server:
        error = failure(transport, server.url, timeout=0.3)
    assert (error.code, error.outcome_unknown) == ("timeout", True)


def test_a_proxy_that_drips_meets_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    with ByteReceiver(drip(b"HTTP/1.1 200 OK\r\nx-long: ", b"a")) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        transport = HttpTransport()
        error = failure(transport, "https://crm.example/x", timeout=0.3)
        transport.close()
    assert (error.code, error.outcome_unknown) == ("timeout", False)


def test_each_answer_on_a_connection_has_its_own_deadline(transport: HttpTransport, monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedServer(Reply(json=1), Reply(json=2)) as server:
        assert ask(transport, server, timeout=PATIENCE).body == b"1"
        passed = time.monotonic() + 2 * PATIENCE
        monkeypatch.setattr("crmctl.client.http_exchange.time.monotonic", lambda: passed)
        assert ask(transport, server, timeout=PATIENCE).body == b"2"


def test_refused_is_known_not_to_have_arrived(transport: HttpTransport) -> None:
    with ScriptedServer() as server:
        pass
    error = failure(transport, f"{server.origin}/x")
    assert (error.code, error.outcome_unknown, error.retryable) == ("connection_failed", False, True)


def test_an_unknown_host_is_not_tried_again(transport: HttpTransport, monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    error = failure(transport, "http://nowhere.invalid/x")
    assert (error.code, error.outcome_unknown, error.retryable) == ("dns", False, False)


@pytest.mark.parametrize("url", ["ftp://127.0.0.1/x", "http://[::1/x", "http:///x", "http://127.0.0.1:port/x", "/x"])
def test_an_invalid_address_is_refused(transport: HttpTransport, url: str) -> None:
    assert isinstance(failure(transport, url), ConfigError)


def test_a_header_that_http_does_not_allow_is_not_quoted(transport: HttpTransport) -> None:
    with ScriptedServer() as server:
        error = failure(transport, f"{server.origin}/x", header="secret\nkey")
    assert isinstance(error, UsageError)
    assert "secret" not in error.message


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return one file with a self-signed certificate for 127.0.0.1 and its key."""
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
    )
    builder = builder.not_valid_before(now - datetime.timedelta(days=1)).not_valid_after(now + datetime.timedelta(days=1))
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
    signed = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True).sign(key, hashes.SHA256())
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(private + signed.public_bytes(serialization.Encoding.PEM))
    return path


@pytest.fixture
def tls(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


def test_a_certificate_must_be_trusted(tls: ssl.SSLContext, certificate: Path) -> None:
    with ScriptedServer(Reply(json=1), Reply(json=2), tls=tls) as server:
        stranger = HttpTransport()
        error = failure(stranger, f"{server.origin}/x")
        assert (error.code, error.outcome_unknown, error.retryable) == ("tls", False, False)
        assert "--ca-bundle" in (error.hint or "")
        for known in (HttpTransport(ca_bundle=certificate), HttpTransport(environ={"SSL_CERT_FILE": str(certificate)})):
            assert ask(known, server).status == 200
            known.close()
        stranger.close()


def test_a_certificate_of_another_host_name_says_so(tls: ssl.SSLContext, certificate: Path) -> None:
    with ScriptedServer(tls=tls) as server:
        error = failure(HttpTransport(ca_bundle=certificate), f"{server.origin.replace('127.0.0.1', 'localhost')}/x")
    assert error.message.endswith(" is not trusted: Hostname mismatch, certificate is not valid for 'localhost'")
    assert error.hint == "the base URL must use a host name of the certificate"


def test_plain_http_where_tls_was_expected(transport: HttpTransport) -> None:
    # The answer is plain HTTP, whatever the random bytes of the greeting are.
    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as answering:
        answered = answering.submit(_answer_plainly, listening)
        error = failure(transport, f"https://127.0.0.1:{listening.getsockname()[1]}/x")
        answered.result(timeout=PATIENCE)
    assert (error.code, error.outcome_unknown) in (("tls", False), ("connection_failed", False))


def _answer_plainly(listening: socket.socket) -> None:
    listening.settimeout(PATIENCE)
    connection, _ = listening.accept()
    with connection:
        connection.recv(4096)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")


@pytest.mark.parametrize("scheme", ["https", "http"])
@pytest.mark.parametrize("content", [None, "not a certificate"])
def test_an_unreadable_ca_bundle_is_a_configuration_error(tmp_path: Path, content: str | None, scheme: str) -> None:
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content)
    error = failure(HttpTransport(ca_bundle=path), f"{scheme}://127.0.0.1:1/x")
    assert isinstance(error, ConfigError)
    assert str(path) in error.message
    by_variable = failure(HttpTransport(environ={"SSL_CERT_FILE": str(path)}), "https://127.0.0.1:1/x")
    assert by_variable.hint == "SSL_CERT_FILE takes a PEM file or a directory"


def test_the_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedServer(Reply(json=1)) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.origin)
        transport = HttpTransport()
        transport.send(Request("GET", "http://crm.example/api/v1/objects"))
        transport.close()
        assert proxy.requests[0].target == "http://crm.example/api/v1/objects"


@pytest.mark.parametrize("name", ["127.0.0.1", "*", "127.0.0.1:PORT"])
def test_places_of_no_proxy_are_called_directly(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    with ScriptedServer(Reply(json=1)) as server:
        monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
        monkeypatch.setenv("NO_PROXY", name.replace("PORT", server.origin.rpartition(":")[2]))
        transport = HttpTransport()
        assert ask(transport, server).status == 200
        transport.close()


def test_the_name_of_a_proxy_is_sent_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedServer(Reply(json=1)) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.origin.replace("://", "://ann:p%40ss@"))
        transport = HttpTransport()
        transport.send(Request("GET", "http://crm.example/x"))
        transport.close()
        assert proxy.requests[0].headers["proxy-authorization"] == "Basic YW5uOnBAc3M="


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:1", "http://127.0.0.1:port"])
def test_a_proxy_that_cannot_be_used_is_a_configuration_error(monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    monkeypatch.setenv("HTTP_PROXY", proxy)
    error = failure(HttpTransport(), "http://crm.example/x")
    assert (type(error), error.code) == (ConfigError, "proxy")


def test_addresses_with_letters_beyond_ascii_are_encoded(transport: HttpTransport) -> None:
    with ScriptedServer(Reply(json=1)) as server:
        transport.send(Request("GET", f"{server.origin}/ä b?c=%2F|ü"))
        assert server.requests[0].target == "/%C3%A4%20b?c=%2F|%C3%BC"


def test_a_proxy_that_refuses_the_tunnel_never_saw_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedServer(Reply(407)) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.origin)
        transport = HttpTransport()
        error = failure(transport, "https://crm.example/x")
        transport.close()
        assert proxy.requests[0].method == "CONNECT"
    assert (error.code, error.outcome_unknown) == ("proxy", False)


def test_httpx_comes_with_the_first_request_and_without_its_optional_imports() -> None:
    program = """
import sys
import crmctl.client.crm, crmctl.client.directory
from crmctl.client.transport import HttpTransport
HttpTransport()
assert not {"httpx", "httpcore", "ssl", "sqlite3"} & set(sys.modules), sorted(sys.modules)
import crmctl.client.http_exchange
assert "httpx" in sys.modules
assert not {"httpx._main", "click", "rich", "anyio", "trio"} & set(sys.modules), sorted(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], env=without_coverage(os.environ), check=True)
