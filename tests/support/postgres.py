"""One private PostgreSQL for a whole test session, shared by its workers, with a fresh database for every test that asks for one.

The machine's server programs run in a separate folder. A supervisor (this file run as a program) stops the server when the last process
that uses it has ended, in whatever way.

with shared_server(folder) as server:
    url = server.create_database()
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import psycopg

from tests.support.database_copies import Contents, read_contents, reset_copy
from tests.support.own_folder import own_folder
from tests.support.programs import find_program

START_SECONDS = 60
EMPTY = "template0"
SETTINGS = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "autovacuum": "off",
    "max_connections": "150",
    "shared_buffers": "32MB",
    "listen_addresses": "127.0.0.1",
    "timezone": "Asia/Kathmandu",
    "log_min_messages": "fatal",
    "log_min_error_statement": "panic",
}
"""Fast, because nothing has to outlive the session. The time zone is unusual, so that no test depends on it."""


@dataclass
class Server:
    """A running cluster. As on most real machines, its default collation does not compare by code point.

    `_contents` are the contents of templates, `_copied` the template of each copy, `_spare` the copies that are free.
    """

    port: int
    _contents: dict[str, Contents] = field(default_factory=dict, init=False)
    _copied: dict[str, str] = field(default_factory=dict, init=False)
    _spare: dict[str, list[str]] = field(default_factory=dict, init=False)

    def url(self, database: str) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def create_database(self, template: str = EMPTY) -> str:
        """Return the address of a new database: empty, or a copy of a template."""
        if spare := self._spare.get(template):
            return spare.pop()
        url = self.url(f"t{uuid.uuid4().hex}")
        self._administer(f"CREATE DATABASE {database_of(url)} TEMPLATE {template} STRATEGY FILE_COPY")
        if template != EMPTY:
            self._copied[url] = template
            if template not in self._contents:
                with psycopg.connect(url, autocommit=True) as connection:
                    self._contents[template] = read_contents(connection)
        return url

    def drop_database(self, url: str) -> None:
        """Drop a database and end its connections. A copy is kept under another name for the next test."""
        if (template := self._copied.pop(url, None)) and (renewed := self._renewed(url, self._contents[template])):
            self._copied[renewed] = template
            self._spare.setdefault(template, []).append(renewed)
        else:
            self._administer(f"DROP DATABASE IF EXISTS {database_of(url)} WITH (FORCE)")

    def _renewed(self, url: str, contents: Contents) -> str | None:
        """Return the new address, or None if the database must be dropped: more than rows changed, it is gone, or a client keeps connecting
        to it.
        """
        renamed = self.url(f"t{uuid.uuid4().hex}")
        try:
            with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
                connection.execute(f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = '{database_of(url)}'")
                connection.execute(f"ALTER DATABASE {database_of(url)} RENAME TO {database_of(renamed)}")
        except psycopg.Error:
            return None
        with psycopg.connect(renamed, autocommit=True) as connection:
            if reset_copy(connection, contents):
                return renamed
        self._administer(f"DROP DATABASE {database_of(renamed)} WITH (FORCE)")
        return None

    def end_connections(self, url: str) -> None:
        """End its connections, as an administrator or a failing network would."""
        self._administer(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{database_of(url)}'")

    def _administer(self, statement: str) -> None:
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(statement)  # type: ignore[call-overload]


def database_of(url: str) -> str:
    return url.rpartition("/")[2]


@dataclass
class PrivateServer(Server):
    """A cluster that belongs to one test, which may stop, kill and restart it. It keeps committed data."""

    folder: Path
    settings: dict[str, str]
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.process = _start(
            self.folder, self.port, SETTINGS | {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"} | self.settings
        )

    def stop(self, number: int = signal.SIGINT) -> None:
        """Stop the server. SIGINT ends all connections at once and cleanly; SIGQUIT is a crash, after which the log must be read."""
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(timeout=START_SECONDS)
            self.process = None


@contextlib.contextmanager
def private_server(**settings: str) -> Iterator[PrivateServer]:
    folder = _make_cluster()
    server = PrivateServer(_free_port(), folder, settings)
    try:
        server.start()
        yield server
    finally:
        server.stop(signal.SIGQUIT)
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def shared_server(folder: Path) -> Iterator[Server]:
    """Return the server of the session whose workers share this folder; the first caller starts it."""
    with (folder / "postgres.users").open("w") as users:
        with (folder / "postgres.start").open("w") as starting:
            fcntl.flock(starting, fcntl.LOCK_EX)
            # Waits while a supervisor is stopping the server of earlier processes.
            fcntl.flock(users, fcntl.LOCK_SH)
            ready = folder / "postgres.json"
            if not ready.exists():
                _start_supervisor(folder)
            port = json.loads(ready.read_text())["port"]
        yield Server(port)


def _start_supervisor(folder: Path) -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "tests.support.postgres", str(folder)]
    process = subprocess.Popen(command, cwd=root, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True, text=True)
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == "ready\n", "PostgreSQL did not start"
    # Not waited for: it ends after this process. Popen must not complain about that.
    process.returncode = 0


def supervise(folder: Path) -> None:
    """Run a server until no process holds the folder's lock."""
    ready = folder / "postgres.json"
    with private_cluster() as port, (folder / "postgres.users").open("w") as users:
        ready.write_text(json.dumps({"port": port}))
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        fcntl.flock(users, fcntl.LOCK_EX)
        ready.unlink(missing_ok=True)


@contextlib.contextmanager
def private_cluster() -> Iterator[int]:
    folder = _make_cluster()
    port = _free_port()
    process = _start(folder, port, SETTINGS)
    try:
        yield port
    finally:
        process.send_signal(signal.SIGQUIT)
        process.wait(timeout=START_SECONDS)
        shutil.rmtree(folder, ignore_errors=True)


def _make_cluster() -> Path:
    """Return a folder that does not belong to root, with an empty cluster in it."""
    folder = own_folder("postgres")
    if os.geteuid() == 0:
        account = pwd.getpwnam(_account())
        os.chown(folder, account.pw_uid, account.pw_gid)
    command = [_program("initdb"), "--pgdata", folder / "data", "--username", "postgres", "--auth", "trust", "--encoding", "UTF8"]
    _run([*command, "--locale-provider", "icu", "--icu-locale", "en-US", "--locale", "C.UTF-8", "--no-sync"], folder)
    return folder


def _start(folder: Path, port: int, settings: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start the server and return once it accepts connections."""
    options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    command = [_program("postgres"), "-D", folder / "data", "-p", str(port), "-k", folder, *options]
    log: IO[bytes]
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **_identity())
    for _ in range(START_SECONDS * 20):
        with contextlib.suppress(psycopg.OperationalError):
            psycopg.connect(f"postgresql://postgres@127.0.0.1:{port}/postgres").close()
            return process
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
        break
    process.kill()
    process.wait()
    raise AssertionError(f"PostgreSQL did not start: {(folder / 'log').read_text()}")


def _run(command: list[Any], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, **_identity())
    assert done.returncode == 0, done.stderr


def _program(name: str) -> Path:
    found = find_program(name)
    assert found is not None, f"not installed: {name}"
    return found


def _identity() -> dict[str, Any]:
    """Return the account to run as: the server refuses to run as root."""
    return {"user": _account(), "group": pwd.getpwnam(_account()).pw_gid, "extra_groups": []} if os.geteuid() == 0 else {}


def _account() -> str:
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    supervise(Path(sys.argv[1]))
