"""Answers of any size: crmctl reads a bounded part, also of compressed ones, and its memory stays bounded."""

from __future__ import annotations

import gzip
import json
import socket
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache

import pytest

from crmctl.client.transport import read_body
from crmctl.errors import ServiceError
from tests.support.cli import CRMCTL, environment

MIB = 1 << 20
BLANKS = b" " * MIB
PLAIN = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


def chunked(pieces: Iterator[bytes]) -> Iterator[bytes]:
    for piece in pieces:
        yield b"%x\r\n%s\r\n" % (len(piece), piece)
    yield b"0\r\n\r\n"


@lru_cache
def packed(times: int) -> bytes:
    """Return 300 MB of blanks, compressed `times` times, without holding them: a child's memory counts this process's, too."""
    packer = zlib.compressobj(9, wbits=31)
    body = b"".join([*(packer.compress(BLANKS) for _ in range(300)), packer.flush()])
    return body if times == 1 else gzip.compress(body, 9)


def stated() -> Iterator[bytes]:
    yield f"{PLAIN}Content-Length: {300 * MIB}\r\n\r\n".encode()
    yield from (BLANKS for _ in range(300))


def streamed() -> Iterator[bytes]:
    yield f"{PLAIN}Transfer-Encoding: chunked\r\n\r\n".encode()
    yield from chunked(BLANKS for _ in range(300))


def bomb() -> Iterator[bytes]:
    body = packed(1)
    yield f"{PLAIN}Content-Encoding: gzip\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def nested() -> Iterator[bytes]:
    body = packed(2)
    yield f"{PLAIN}Content-Encoding: gzip, gzip\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


@contextmanager
def serving(answer: Callable[[], Iterator[bytes]]) -> Iterator[str]:
    """Serve this answer on every connection; return the address."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            with suppress(OSError):
                connection, _ = listener.accept()
                with connection:
                    if not connection.recv(65536):
                        return
                    for piece in answer():
                        connection.sendall(piece)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        with socket.create_connection(listener.getsockname()) as last:
            last.shutdown(socket.SHUT_WR)
            thread.join(10)
        listener.close()


MEASURED = """
import resource, subprocess, sys
run = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL)
print(run.returncode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024)
"""
"""A small process in between: a forked child counts its parent's memory as its own."""


def ask(origin: str, **env: str) -> tuple[int, str, int]:
    """Return exit code, stderr and peak memory in MB of one `crmctl members list`."""
    command = [sys.executable, "-c", MEASURED, str(CRMCTL), "members", "list", "--max-wait", "5"]
    given = environment({"CRMCTL_BASE_URL": origin, "CRMCTL_API_KEY": "key", **env})
    run = subprocess.run(command, capture_output=True, env=given, text=True, check=True)
    code, used = map(int, run.stdout.split())
    return code, run.stderr, used


@pytest.mark.campaign
@pytest.mark.parametrize(("answer", "most"), [(stated, 160), (streamed, 280), (bomb, 280), (nested, 160)])
def test_an_answer_of_300_mb_is_an_error_with_its_bound_and_costs_no_300_mb(answer: Callable[[], Iterator[bytes]], most: int) -> None:
    packed(2 if answer is nested else 1)  # on a busy machine that takes longer than the client waits
    with serving(answer) as origin:
        code, said, used = ask(origin)
        error = json.loads(said)["error"]
        assert (code, error["exitCode"]) == (7, 7)
        if answer is nested:
            assert "gzip, gzip" in error["message"]
        else:
            assert error["code"] == "answer_too_large"
            assert "128 MB" in error["message"]
        assert used < most


def read(pieces: list[bytes], encoding: str = "", bound: int = MIB) -> bytes:
    return read_body(pieces, {"content-encoding": encoding}, 200, bound)


def members(body: bytes) -> bytes:
    """Return a body in two members of gzip and a padding."""
    middle = len(body) // 2
    return gzip.compress(body[:middle]) + gzip.compress(body[middle:]) + bytes(3)


@pytest.mark.parametrize(
    ("encoding", "pack"),
    [("", bytes), ("identity", bytes), ("GZIP", gzip.compress), ("gzip", members)],
)
def test_every_accepted_encoding_is_read_in_pieces_of_any_size(encoding: str, pack: Callable[[bytes], bytes]) -> None:
    for body in (b"", b"{}", bytes(range(256)) * 3000, b" " * MIB):
        wire = pack(body)
        for size in (1, 7, len(wire) + 1) if len(wire) < 50_000 else (997, len(wire)):
            assert read([wire[at : at + size] for at in range(0, len(wire), size)], encoding) == body
    assert read([pack(b" " * MIB)], encoding, MIB) == b" " * MIB
    with pytest.raises(ServiceError) as caught:
        read([pack(b" " * (MIB + 1))], encoding, MIB)
    assert (caught.value.code, caught.value.outcome_unknown) == ("answer_too_large", True)


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("br", b"x"),
        ("gzip", b"not"),
        ("gzip", gzip.compress(b"abc" * 99, mtime=0)[:-9]),
        ("gzip", gzip.compress(b"{}", mtime=0) + gzip.compress(b"{}", mtime=0)[:-9]),
        ("deflate", b"\xff"),
    ],
)
def test_a_body_that_cannot_be_decompressed_is_an_error_of_the_service(encoding: str, body: bytes) -> None:
    with pytest.raises(ServiceError) as caught:
        read([body], encoding)
    assert caught.value.code == "unreadable_answer"
    assert caught.value.message.endswith(" (status 200, no content type)")


def test_an_empty_body_needs_no_decompression() -> None:
    assert read([], "gzip") == b""
