"""The SQLite engine: WAL, one writer at a time (also across processes), any number of readers. Only importer of sqlite3 in the service."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from crmctl.errors import ConfigError
from crmctl.service.faults import Unavailable
from crmctl.service.store.dialect import SqliteDialect
from crmctl.service.store.rates import LocalRateWindows, RateWindows
from crmctl.service.store.tx import Params, Row

T = TypeVar("T")

_OLDEST = (3, 38, 0)
"""With JSON functions always built in; RETURNING and DROP COLUMN came earlier."""

_BUSY_SECONDS = 30.0
_IDLE_READERS = 8
PRAGMAS = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    "PRAGMA fullfsync = ON",
    "PRAGMA foreign_keys = ON",
    "PRAGMA temp_store = MEMORY",
    "PRAGMA cache_size = -32000",
    # Index pages are written again and again by small commits: folding the log in more rarely writes each of them once for many.
    "PRAGMA wal_autocheckpoint = 8000",
    "PRAGMA journal_size_limit = 67108864",
)


class SqliteTx:
    """One transaction on one connection."""

    dialect = SqliteDialect()

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def execute(self, sql: str, params: Params = ()) -> int:
        return self._connection.execute(sql, params).rowcount

    def execute_many(self, sql: str, rows: Iterable[Params]) -> None:
        self._connection.executemany(sql, rows)

    def one(self, sql: str, params: Params = ()) -> Row | None:
        rows: list[Row] = self._connection.execute(sql, params).fetchmany(1)
        return rows[0] if rows else None

    def all(self, sql: str, params: Params = ()) -> list[Row]:
        return self._connection.execute(sql, params).fetchall()


class SqliteEngine:
    """Thread-safe. `read` sees one snapshot; `write` is all or nothing and on disk when it returns.

    Raises ConfigError for a file that cannot be opened, Unavailable when another process keeps the write lock for longer than
    `busy_seconds`.
    """

    def __init__(self, path: Path | str, *, busy_seconds: float = _BUSY_SECONDS) -> None:
        if sqlite3.sqlite_version_info < _OLDEST:
            raise ConfigError(f"SQLite {sqlite3.sqlite_version} is too old, the service needs {'.'.join(map(str, _OLDEST))} or newer")
        self.path = Path(path)
        self._busy_seconds = busy_seconds
        self._closed = False
        self._writing = threading.Lock()
        self._pooling = threading.Lock()
        self._idle: list[sqlite3.Connection] = []
        try:
            self._create_private_file()
            self._writer = self._connect()
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(f"cannot open the database {self.path}: {error}") from error

    def read(self, fn: Callable[[SqliteTx], T]) -> T:
        connection = self._take_reader()
        try:
            return self._run(connection, "BEGIN", fn)
        finally:
            self._give_back(connection)

    def write(self, fn: Callable[[SqliteTx], T]) -> T:
        if not self._writing.acquire(timeout=self._busy_seconds):
            raise Unavailable("the service is busy writing; try again")
        try:
            if self._closed:
                raise Unavailable("the service is shutting down")
            return self._run(self._writer, "BEGIN IMMEDIATE", fn)
        finally:
            self._writing.release()

    def rate_windows(self) -> RateWindows:
        """Of this process: one process serves from a file."""
        return LocalRateWindows()

    def close(self) -> None:
        """Waits for a running write, folds the log into the database file."""
        with self._writing, self._pooling:
            self._closed = True
            for connection in (*self._idle, self._writer):
                connection.close()
            self._idle.clear()

    def _run(self, connection: sqlite3.Connection, begin: str, fn: Callable[[SqliteTx], T]) -> T:
        try:
            connection.execute(begin)
            try:
                result = fn(SqliteTx(connection))
                connection.execute("COMMIT")
            except BaseException:
                # A failure such as a full disk may have ended the transaction already.
                if connection.in_transaction:
                    with contextlib.suppress(sqlite3.Error):
                        connection.execute("ROLLBACK")
                raise
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise Unavailable("the database is in use by another process; try again") from error
            raise
        return result

    def _create_private_file(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # SQLite gives its log files the mode of the database file.
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path, timeout=self._busy_seconds, isolation_level=None, check_same_thread=False, cached_statements=256
        )
        try:
            for pragma in PRAGMAS:
                connection.execute(pragma)
        except BaseException:
            connection.close()
            raise
        return connection

    def _take_reader(self) -> sqlite3.Connection:
        with self._pooling:
            if self._closed:
                raise Unavailable("the service is shutting down")
            if self._idle:
                return self._idle.pop()
        connection = self._connect()
        connection.execute("PRAGMA query_only = ON")
        return connection

    def _give_back(self, connection: sqlite3.Connection) -> None:
        with self._pooling:
            # One that could not end its transaction would keep an old snapshot, and the log from being folded in.
            if not self._closed and not connection.in_transaction and len(self._idle) < _IDLE_READERS:
                self._idle.append(connection)
                return
        connection.close()
