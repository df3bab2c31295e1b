"""The installed program without its start: a process that has imported crmctl and forks for each run.

Most of a short run is imports, and the tests make thousands of runs. Each run is still a separate process with its own arguments,
environment, folder and streams; only the imported modules are shared. `python -m tests.support.warm_program SOCKET [PACKAGE...]` is the
process; it ends when its stdin does. Modules of the tests start in the same way, and so does the `crmctl` of a shell (put_shim).
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import pkgutil
import runpy
import select
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import IO, Any, NoReturn, Self

from tests.support.own_folder import own_folder
from tests.support.patience import PATIENCE

ROOT = Path(__file__).parents[2]
CRMCTL = str(Path(sysconfig.get_path("scripts"), "crmctl"))
PACKAGES = (
    *("cli", "client", "config", "dedupe", "files", "match", "mirror", "models"),
    *("org", "output", "plan", "read", "schema", "values", "write"),
)
MODULES = ("api", "bulk_context")
LIBRARIES = (
    *("httpcore", "encodings.idna", "encodings.utf_8_sig", "rich.table", "keyring.backends.null", "yaml", "tomlkit", "tomllib"),
    *("jmespath", "charset_normalizer", "platformdirs.unix", "phonenumbers", "sqlite3", "typer._click.decorators"),
)
COLD_COMMANDS = ("demo", "serve", "listen")
"""Commands that a shell stops itself, with their child processes."""

READY = b"ready\n"
PID_LENGTH = 12
SHIM = """#!{python} -IS
import json, os, socket, sys
mask = os.umask(0)
words = [{program!r}, *sys.argv[1:]]
if not set(sys.argv[1:3]).isdisjoint({apart!r}):
    os.execv(words[0], words)
request = {{"arguments": words, "module": "", "environment": dict(os.environ), "cwd": os.getcwd(), "umask": mask}}
connection = socket.socket(socket.AF_UNIX)
connection.connect({socket!r})
socket.send_fds(connection, [b"-"], [0, 1, 2])
connection.sendall(json.dumps(request).encode())
connection.shutdown(socket.SHUT_WR)
nothing = os.open(os.devnull, os.O_RDWR)
for stream in range(3):
    os.dup2(nothing, stream)
connection.recv({length}, socket.MSG_WAITALL)
os._exit(int(connection.recv(16)) & 255)
"""
"""Lets a shell run the program through this process; holds none of the streams itself. Uses only what Python starts in 10 ms."""
STREAMS = (("stdin", "r", "surrogateescape"), ("stdout", "w", "surrogateescape"), ("stderr", "w", "backslashreplace"))


@dataclass
class WarmProcess:
    """One run, like `subprocess.Popen`; the warm process waits for it and reports its exit code."""

    args: Sequence[str]
    pid: int
    _connection: socket.socket
    stdin: IO[str] | None = None
    stdout: IO[str] | None = None
    stderr: IO[str] | None = None
    returncode: int | None = None

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code, negative for a signal. Raises TimeoutExpired."""
        if self.returncode is None:
            if timeout is not None and not select.select([self._connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout)
            self.returncode = int(self._connection.recv(16))
            self._connection.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Close its stdin and return its output until its end. Raises TimeoutExpired."""
        texts = {"stdout": "", "stderr": ""}
        readers = [threading.Thread(target=self._read, args=[name, texts], daemon=True) for name in texts]
        for reader in readers:
            reader.start()
        if self.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.stdin.close()
        self.wait(timeout)
        for reader in readers:
            reader.join()
        return texts["stdout"], texts["stderr"]

    def _read(self, name: str, texts: dict[str, str]) -> None:
        stream: IO[str] | None = getattr(self, name)
        if stream is not None:
            with stream:
                texts[name] = stream.read()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close its streams and wait for it."""
        for stream in (self.stdout, self.stderr, self.stdin):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        self.wait()


class WarmProgram:
    """The warm process, as the tests use it."""

    def __init__(self, program: str, *packages: str) -> None:
        self.program = program
        self.socket = str(own_folder("warm") / "socket")
        command = [sys.executable, "-m", "tests.support.warm_program", self.socket, *packages]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == READY
        atexit.register(self.close)

    def close(self) -> None:
        """Let it end, and wait for it: coverage writes its data at the end."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        shutil.rmtree(Path(self.socket).parent)

    def start(
        self, arguments: Sequence[str], streams: Sequence[int], environment: Mapping[str, str], cwd: Path, module: str = ""
    ) -> WarmProcess:
        """Start the program, or a module of the tests, on these three streams."""
        words = [module or self.program, *arguments]
        request = {"arguments": words, "module": module, "environment": dict(environment), "cwd": str(cwd), "umask": _umask()}
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(self.socket)
        socket.send_fds(connection, [b"-"], streams)
        connection.sendall(json.dumps(request).encode("utf-8", "surrogateescape"))
        connection.shutdown(socket.SHUT_WR)
        return WarmProcess(words, int(connection.recv(PID_LENGTH, socket.MSG_WAITALL)), connection)

    def open(
        self, arguments: Sequence[str], environment: Mapping[str, str], cwd: Path, module: str = "", **streams: int | IO[str]
    ) -> WarmProcess:
        """Start a run with pipes for its streams, or with those in `streams`."""
        ours: dict[str, IO[str]] = {}
        its = []
        for name in ("stdin", "stdout", "stderr"):
            wanted = streams.get(name, subprocess.PIPE)
            if wanted == subprocess.PIPE:
                read, write = os.pipe()
                end, mine, mode = (read, write, "w") if name == "stdin" else (write, read, "r")
                ours[name] = os.fdopen(mine, mode, encoding="utf-8")
            elif wanted == subprocess.DEVNULL:
                end = os.open(os.devnull, os.O_RDWR)
            else:
                end = os.dup(wanted if isinstance(wanted, int) else wanted.fileno())
            its.append(end)
        try:
            process = self.start(arguments, its, environment, cwd, module)
        finally:
            for end in its:
                os.close(end)
        process.stdin, process.stdout, process.stderr = (ours.get(name) for name in ("stdin", "stdout", "stderr"))
        return process

    def put_shim(self, folder: Path) -> None:
        """Write a `crmctl` into the folder, for the PATH of a shell."""
        folder.mkdir(exist_ok=True)
        text = SHIM.format(python=sys.executable, program=self.program, socket=self.socket, length=PID_LENGTH, apart=COLD_COMMANDS)
        (folder / "crmctl").write_text(text, encoding="utf-8")
        (folder / "crmctl").chmod(0o755)

    def run(
        self, arguments: Sequence[str], environment: Mapping[str, str], cwd: Path, given: bytes, timeout: float
    ) -> subprocess.CompletedProcess[bytes]:
        """Run to the end with pipes for all streams, like subprocess.run. Raises TimeoutExpired."""
        ends = [os.pipe() for _ in range(3)]
        (its_in, ours_in), (ours_out, its_out), (ours_err, its_err) = ends
        process = self.start(arguments, [its_in, its_out, its_err], environment, cwd)
        for end in (its_in, its_out, its_err):
            os.close(end)
        texts: dict[int, bytes] = {}
        threads = [threading.Thread(target=_feed, args=[ours_in, given], daemon=True)]
        threads += [threading.Thread(target=_read, args=[end, texts], daemon=True) for end in (ours_out, ours_err)]
        for thread in threads:
            thread.start()
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        for thread in threads[1:]:
            thread.join()
        return subprocess.CompletedProcess(process.args, code, texts[ours_out], texts[ours_err])


_starting = threading.Lock()
_make_once = cache(WarmProgram)


def warm_program(program: str, *packages: str) -> WarmProgram:
    """Return this process's warm program with these packages imported; it starts on first use and ends with this process."""
    with _starting:
        return _make_once(program, *packages)


def run_module(module: str, *arguments: object, packages: Sequence[str] = ()) -> int:
    """Run a module of the tests as a process. Return its exit code."""
    with start_module(module, *arguments, packages=packages) as process:
        return process.wait(PATIENCE)


def start_module(module: str, *arguments: object, packages: Sequence[str] = (), **streams: int | IO[str]) -> WarmProcess:
    """Start a module like run_module, without waiting; it inherits the test's streams except those named."""
    words = [str(argument) for argument in arguments]
    inherited: dict[str, int | IO[str]] = {"stdin": subprocess.DEVNULL, "stdout": 1, "stderr": 2}
    return warm_program(CRMCTL, *packages).open(words, os.environ, ROOT, module, **(inherited | streams))


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


def preload(*packages: str) -> None:
    """Import the modules that commands use, and these packages; build commands and models, as every run would."""
    os.environ["PYDANTIC_DISABLE_PLUGINS"] = "__all__"
    for name in LIBRARIES:
        importlib.import_module(name)
    for module in MODULES:
        importlib.import_module(f"crmctl.{module}")
    for package in (*PACKAGES, *packages):
        root = importlib.import_module(f"crmctl.{package}")
        for found in pkgutil.walk_packages(root.__path__, f"crmctl.{package}."):
            importlib.import_module(found.name)
    from crmctl.cli import app
    from crmctl.models.resources import Resource

    for entry in app.BY_NAME.values():
        _build_once(entry.load().builders)
    for model in Resource.__subclasses__():
        model.fields()
    ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # lets OpenSSL read its configuration and build its tables


def _build_once(builders: dict[str, Any]) -> None:
    """Build these commands, and keep them for every run."""
    for name, build in builders.items():
        command = build()
        _build_once(getattr(command, "builders", {}))
        builders[name] = partial(_same, command)


def _same(command: Any) -> Any:
    return command


def serve(path: str) -> str:
    """Fork for each request. Returns in the copy, with the name of the module to run, empty for the program."""
    asked: dict[int, socket.socket] = {}
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(64)
        os.write(1, READY)
        while True:
            readable, _, _ = select.select([listener, woken, 0], [], [])
            if 0 in readable:
                sys.exit()
            if woken in readable:
                os.read(woken, 4096)
                _report_ended(asked)
            if listener not in readable:
                continue
            connection, _ = listener.accept()
            request, ends = _read_request(connection)
            pid = os.fork()
            if pid == 0:
                break
            asked[pid] = connection
            with contextlib.suppress(OSError):
                connection.sendall(b"%*d" % (PID_LENGTH, pid))
            for end in ends:
                os.close(end)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for other in (connection, *asked.values()):
        other.close()
    os.close(woken)
    os.close(wake)
    return _become(request, ends)


def _read_request(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    _, ends, _, _ = socket.recv_fds(connection, 1, 3)
    return json.loads(b"".join(iter(lambda: connection.recv(65536), b"")).decode("utf-8", "surrogateescape")), ends


def _report_ended(asked: dict[int, socket.socket]) -> None:
    """Send the exit codes of ended copies to their callers."""
    while asked:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        with contextlib.suppress(OSError), asked.pop(pid) as connection:
            connection.sendall(b"%d" % os.waitstatus_to_exitcode(status))


def _become(request: dict[str, Any], ends: list[int]) -> str:
    """Take over streams, environment, folder and arguments of a run. Return the module to run, empty for the program."""
    for number, end in enumerate(ends):
        os.dup2(end, number)
        os.close(end)
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    os.umask(request["umask"])
    os.chdir(request["cwd"])
    if not request["module"]:
        sys.path.remove(str(ROOT))
    sys.argv = request["arguments"]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, (name, mode, errors) in enumerate(STREAMS):
        stream = open(number, mode, 1 if name == "stderr" else -1, encoding="utf-8", errors=errors, closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    return str(request["module"])


def _end(code: int) -> NoReturn:
    """End like Python, but without dismantling every module, which is half of the time of a short run."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except OSError:
        code = 120
    os._exit(code)


def main() -> NoReturn:
    import gc

    preload(*sys.argv[2:])
    from crmctl.main import main as run

    gc.freeze()
    module = serve(sys.argv[1])
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True) if module else run()
    except SystemExit as ended:
        _end(int(ended.code or 0))
    _end(0)


if __name__ == "__main__":
    main()
