"""The installed program without its start: a process that has imported crmctl, and becomes it in a copy of itself for each run.

Most of a short run is imports, and the tests make thousands of runs. Each is still a process of its own, with its own arguments,
environment, folder and streams; only what was imported is there already. `python -m tests.support.warm_program SOCKET` is the process;
it ends when its stdin does.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import pkgutil
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).parents[2]
PACKAGES = ("cli", "client", "bulk", "schema", "output", "config", "models", "api")
LIBRARIES = (
    "httpx",
    "httpcore",
    "encodings.idna",
    "rich.table",
    "keyring",
    "yaml",
    "tomlkit",
    "jmespath",
    "charset_normalizer",
    "phonenumbers",
    "sqlite3",
)
READY = b"ready\n"
STREAMS = (("stdin", "r", "surrogateescape"), ("stdout", "w", "surrogateescape"), ("stderr", "w", "backslashreplace"))


class WarmProgram:
    """The process, as the tests ask it."""

    def __init__(self, program: str) -> None:
        self.program = program
        self._socket = str(Path(tempfile.mkdtemp(prefix="crmctl-warm-"), "socket"))
        command = [sys.executable, "-m", "tests.support.warm_program", self._socket]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == READY
        atexit.register(self.close)

    def close(self) -> None:
        """Let it end, and wait until it has: coverage writes down at the end what was imported."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        shutil.rmtree(Path(self._socket).parent)

    def run(
        self, arguments: Sequence[str], environment: Mapping[str, str], cwd: Path, given: bytes, timeout: float
    ) -> subprocess.CompletedProcess[bytes]:
        """One run with pipes for its streams, as subprocess.run would make it. Raises TimeoutExpired."""
        request = {"arguments": [self.program, *arguments], "environment": dict(environment), "cwd": str(cwd), "umask": _umask()}
        ends = [os.pipe() for _ in range(3)]
        (its_in, ours_in), (ours_out, its_out), (ours_err, its_err) = ends
        texts: dict[int, bytes] = {}
        threads = [threading.Thread(target=_feed, args=[ours_in, given], daemon=True)]
        threads += [threading.Thread(target=_read, args=[end, texts], daemon=True) for end in (ours_out, ours_err)]
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(self._socket)
            connection.settimeout(timeout)
            socket.send_fds(connection, [b"-"], [its_in, its_out, its_err])
            for end in (its_in, its_out, its_err):
                os.close(end)
            connection.sendall(json.dumps(request).encode("utf-8", "surrogateescape"))
            connection.shutdown(socket.SHUT_WR)
            for thread in threads:
                thread.start()
            pid = 0
            with connection.makefile() as said:
                try:
                    pid = int(said.readline())
                    code = int(said.readline())
                except TimeoutError:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL) if pid else None
                    raise subprocess.TimeoutExpired([self.program, *arguments], timeout) from None
        for thread in threads[1:]:
            thread.join()
        return subprocess.CompletedProcess([self.program, *arguments], code, texts[ours_out], texts[ours_err])


@cache
def warm_program(program: str) -> WarmProgram:
    """The one of this process, started when it is first asked; it ends with this process."""
    return WarmProgram(program)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _feed(end: int, given: bytes) -> None:
    with contextlib.suppress(BrokenPipeError), open(end, "wb") as stream:
        stream.write(given)


def _read(end: int, texts: dict[int, bytes]) -> None:
    with open(end, "rb") as stream:
        texts[end] = stream.read()


# -- the process ----------------------------------------------------------------------------------------------------------------------


def preload() -> None:
    """Import what commands import, except the service: it has processes of its own."""
    os.environ["PYDANTIC_DISABLE_PLUGINS"] = "__all__"
    for name in LIBRARIES:
        importlib.import_module(name)
    for package in PACKAGES:
        root = importlib.import_module(f"crmctl.{package}")
        for found in pkgutil.walk_packages(root.__path__, f"crmctl.{package}."):
            importlib.import_module(found.name)


def serve(path: str) -> None:
    """Fork for each request. Returns in the copy that is to run the program."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(64)
        os.write(1, READY)
        while True:
            readable, _, _ = select.select([listener, 0], [], [])
            if 0 in readable:
                sys.exit()
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _handle(connection)
                return
            connection.close()


def _handle(connection: socket.socket) -> None:
    """Fork once more, tell number and exit code of the copy, and end; returns in the copy."""
    _, ends, _, _ = socket.recv_fds(connection, 1, 3)
    request = json.loads(b"".join(iter(lambda: connection.recv(65536), b"")).decode("utf-8", "surrogateescape"))
    if pid := os.fork():
        for end in ends:
            os.close(end)
        with contextlib.suppress(OSError):
            connection.sendall(b"%d\n" % pid)
            _, status = os.waitpid(pid, 0)
            connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
        os._exit(0)
    connection.close()
    _become(request, ends)


def _become(request: dict[str, Any], ends: list[int]) -> None:
    """Take over what makes a run: streams, environment, folder, arguments."""
    for number, end in enumerate(ends):
        os.dup2(end, number)
        os.close(end)
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    os.umask(request["umask"])
    os.chdir(request["cwd"])
    sys.path.remove(str(ROOT))
    sys.argv = request["arguments"]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, (name, mode, errors) in enumerate(STREAMS):
        stream = open(number, mode, 1 if name == "stderr" else -1, encoding="utf-8", errors=errors, closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def main() -> NoReturn:
    import gc

    preload()
    gc.freeze()
    serve(sys.argv[1])
    from crmctl.main import main as run

    run()
    raise AssertionError("main does not return")


if __name__ == "__main__":
    main()
