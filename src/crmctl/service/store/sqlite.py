"""The SQLite engine: WAL, one writer at a time across processes, any number of readers. The service's only importer of sqlite3."""

from __future__ import annotations

import contextlib
import math
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from crmctl.errors import ConfigError, StorageError, reason, storage_error
from crmctl.models.jsontext import Json
from crmctl.service.faults import Busy, Fault, OutcomeUnknown, Unavailable
from crmctl.service.store.keys import RateWindows
from crmctl.service.store.tx import Params, Row, SqliteDialect, several_at_once
from crmctl.values.folded_text import fold
from crmctl.write_ahead_log import begin_log

T = TypeVar("T")

_OLDEST = (3, 38, 0)
"""The first version with JSON functions always built in."""

_BUSY_SECONDS = 30.0
_IDLE_READERS = 8
_MOST_REMEMBERED = 64
_STEPS = 200_000
"""Steps of SQLite's machine between two looks at the clock, some ten milliseconds. Each look waits for the interpreter lock, up to 5 ms."""

PRAGMAS = (
    "PRAGMA synchronous = FULL",
    "PRAGMA fullfsync = ON",
    "PRAGMA foreign_keys = ON",
    # For every build: with ON, as on Debian, a dropped index of a million entries is overwritten, 22 to 50 MB of zeros.
    "PRAGMA secure_delete = FAST",
    "PRAGMA temp_store = MEMORY",
    "PRAGMA cache_size = -32000",
    # Small commits write the same index pages again and again; rare checkpoints fold many of them into one write.
    "PRAGMA wal_autocheckpoint = 8000",
    "PRAGMA journal_size_limit = 67108864",
)
_READING = ("PRAGMA query_only = ON", "PRAGMA mmap_size = 2147418112")
"""Settings of readers. Mapping the file halves the time of a full scan, and all readers share one copy."""

_CANNOT_WRITE = {
    sqlite3.SQLITE_FULL: "the disk of the service is full",
    sqlite3.SQLITE_IOERR_WRITE: "the disk of the service cannot be written",
    sqlite3.SQLITE_READONLY: "the database of the service cannot be written",
    sqlite3.SQLITE_CANTOPEN: "the database of the service cannot be opened",
}
"""Errors that leave nothing written."""

_TOO_LONG = "the request took too long and was given up; nothing was done"


class _Connection(sqlite3.Connection):
    """Remembers its lock timeout, because setting it costs as much as a short transaction, and what readers found in its database."""

    _milliseconds: int | None = None
    _version: int | None = None
    _memory: dict[str, Any]

    def memory(self) -> dict[str, Any]:
        """Return what transactions have read since the last commit of anybody. For readers only: a connection does not notice its own."""
        # Within a transaction, this is the version of its snapshot.
        version: int = self.execute("PRAGMA data_version").fetchone()[0]
        if version != self._version or len(self._memory) > _MOST_REMEMBERED:
            self._version, self._memory = version, {}
        return self._memory

    def wait_for_locks(self, seconds: float) -> None:
        """Wait at most this long for locks, in whole seconds from one on."""
        milliseconds = 1000 * math.ceil(seconds) if seconds >= 1 else max(1, int(1000 * seconds))
        if milliseconds != self._milliseconds:
            self.execute(f"PRAGMA busy_timeout = {milliseconds}")
            self._milliseconds = milliseconds


class SqliteTx:
    dialect = SqliteDialect()

    def __init__(self, connection: _Connection, by: str | None = None, end: float = math.inf, memory: dict[str, Any] | None = None) -> None:
        self._connection = connection
        self._end = end
        self._memory = memory
        self.by = by

    def execute(self, sql: str, params: Params = ()) -> int:
        return self._connection.execute(sql, params).rowcount

    def execute_many(self, sql: str, rows: Iterable[Params]) -> None:
        # A violation ends the whole transaction: being able to roll back a single statement is expensive.
        for statement, some in several_at_once(sql, rows):
            self._connection.executemany(statement.replace("INSERT INTO", "INSERT OR FAIL INTO", 1), some)

    def remembered(self, key: str, read: Callable[[], T]) -> T:
        if self._memory is None:
            return read()
        if key not in self._memory:
            self._memory[key] = read()
        known: T = self._memory[key]
        return known

    def one(self, sql: str, params: Params = ()) -> Row | None:
        rows: list[Row] = self._connection.execute(sql, params).fetchmany(1)
        return rows[0] if rows else None

    def all(self, sql: str, params: Params = ()) -> list[Row]:
        rows = self._connection.execute(sql, params).fetchall()
        if time.monotonic() > self._end:  # SQLite interrupts long searches only; long rows take their time here and in the caller
            raise Busy(_TOO_LONG)
        return rows


Snapshot = sqlite3.Connection
"""A copy of a database in memory."""


class SqliteEngine:
    """Thread-safe. `read` sees one snapshot; `write` is all or nothing, and on disk when it returns.

    Raises ConfigError for a file that cannot be opened, Unavailable when another process holds the write lock longer than `busy_seconds`.
    """

    reads_at_once = True

    def __init__(self, path: Path | str, *, busy_seconds: float = _BUSY_SECONDS) -> None:
        if sqlite3.sqlite_version_info < _OLDEST:
            raise ConfigError(f"SQLite {sqlite3.sqlite_version} is too old, the service needs {'.'.join(map(str, _OLDEST))} or newer")
        self.path = Path(path)
        self._busy_seconds = busy_seconds
        self._rates = RateWindows()
        self._closed = False
        self._writing = threading.Lock()
        self._pooling = threading.Lock()
        self._idle: list[_Connection] = []
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # SQLite gives its log files the mode of the database file.
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
            self._writer = self._connect()
        except (OSError, sqlite3.Error) as error:
            if isinstance(full := storage_error(error, self.path), StorageError) and full.code == "no_space":
                raise full from error
            raise ConfigError(f"cannot open the database {self.path}: {reason(error)}") from error

    def read(self, fn: Callable[[SqliteTx], T], *, within: float | None = None, single: bool = False, helped: bool = True) -> T:
        connection = self._take_reader(self._busy_seconds if within is None else min(within, self._busy_seconds))
        try:
            end = self._limit(connection, within)
            return self._run(connection, None if single else "BEGIN", lambda: fn(SqliteTx(connection, end=end, memory=connection.memory())))
        finally:
            self._give_back(connection)

    def write(self, fn: Callable[[SqliteTx], T], *, within: float | None = None, single: bool = False, by: str | None = None) -> T:
        started = time.monotonic()
        if not self._writing.acquire(timeout=min(self._busy_seconds, self._busy_seconds if within is None else within)):
            raise Busy("the service is busy writing; nothing was done, try again")
        try:
            if self._closed:
                raise Unavailable("the service is shutting down")
            self._limit(self._writer, None if within is None else within - (time.monotonic() - started))
            return self._run(self._writer, None if single else "BEGIN IMMEDIATE", lambda: fn(SqliteTx(self._writer, by)))
        finally:
            self._writing.release()

    def rate_windows(self) -> RateWindows:
        return self._rates

    def figures(self) -> dict[str, float]:
        parts = (self.path, self.path.with_name(f"{self.path.name}-wal"))
        return {"database_bytes": float(sum(part.stat().st_size for part in parts if part.exists()))}

    def copy_out(self, folder: Path) -> Json:
        """Copy with SQLite's backup in one step: one snapshot, and no writer waits. Checks the copy."""
        place = folder / self.path.name
        os.close(os.open(place, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        source = self._connect("PRAGMA query_only = ON")
        copy = sqlite3.connect(place, isolation_level=None)
        with contextlib.closing(source), contextlib.closing(copy):
            source.backup(copy)
            # Everything goes into one file.
            copy.execute("PRAGMA journal_mode = DELETE")
            problem = copy.execute("PRAGMA integrity_check(1)").fetchone()[0]
            if problem != "ok":
                raise Unavailable(f"the database is damaged: {problem}")
            version = copy.execute("SELECT max(version) FROM schema_version").fetchone()[0]
            records = copy.execute("SELECT coalesce(sum(total), 0) FROM record_total").fetchone()[0]
        return {"engine": "sqlite", "schemaVersion": version, "records": records, "file": place.name}

    def forget_safety(self) -> None:
        """Stop waiting for the disk: the data may be lost with the machine."""
        self.write(lambda tx: tx.execute("PRAGMA synchronous = OFF"), single=True)

    def snapshot(self) -> Snapshot:
        copy = sqlite3.connect(":memory:", check_same_thread=False)
        with self._writing:
            self._writer.backup(copy)
        return copy

    def restore(self, snapshot: Snapshot) -> None:
        """Replace all data in one step, in 5 ms for 1,000 records, and forget the rate windows. Readers need not close."""
        with self._writing:
            snapshot.backup(self._writer)
        self._rates.forget()

    def close(self) -> None:
        """Wait for a running write, then checkpoint the log."""
        with self._writing, self._pooling:
            self._closed = True
            for connection in (*self._idle, self._writer):
                connection.close()
            self._idle.clear()

    def _run(self, connection: _Connection, begin: str | None, fn: Callable[[], T]) -> T:
        """Run `fn` in a transaction. Without `begin` its one statement is a transaction by itself."""
        try:
            if begin is None:
                return fn()
            connection.execute(begin)
            try:
                result = fn()
                connection.execute("COMMIT")
            except BaseException:
                # A failure such as a full disk may have ended the transaction.
                if connection.in_transaction:
                    with contextlib.suppress(sqlite3.Error):
                        connection.execute("ROLLBACK")
                raise
        except sqlite3.OperationalError as error:
            fault = _fault(error, is_writing=connection is self._writer)
            if fault is None:
                raise
            raise fault from error
        return result

    def _limit(self, connection: _Connection, within: float | None) -> float:
        """Limit the waits for locks and the statements of the next transaction. Returns their end on the monotonic clock."""
        connection.wait_for_locks(self._busy_seconds if within is None else min(within, self._busy_seconds))
        if within is None:
            connection.set_progress_handler(None, 0)
            return math.inf
        end = time.monotonic() + within
        connection.set_progress_handler(lambda: time.monotonic() > end, _STEPS)
        return end

    def _connect(self, *more: str, seconds: float | None = None) -> _Connection:
        """Open the file. Waits for locks at most this long, by default `busy_seconds`."""
        patience = self._busy_seconds if seconds is None else seconds
        connection = sqlite3.connect(
            self.path,
            timeout=patience,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=256,
            factory=_Connection,
        )
        try:
            begin_log(connection, patience)
            connection.create_function("fold", 1, lambda text: None if text is None else fold(str(text)), deterministic=True)
            for pragma in (*PRAGMAS, *more):
                connection.execute(pragma)
        except BaseException:
            connection.close()
            raise
        return connection

    def _take_reader(self, seconds: float) -> _Connection:
        with self._pooling:
            if self._closed:
                raise Unavailable("the service is shutting down")
            if self._idle:
                return self._idle.pop()
        try:
            return self._connect(*_READING, seconds=seconds)
        except sqlite3.OperationalError as error:
            raise _fault(error, is_writing=False) or error from error

    def _give_back(self, connection: _Connection) -> None:
        with self._pooling:
            # An open transaction would keep an old snapshot, and the log from being checkpointed.
            if not self._closed and not connection.in_transaction and len(self._idle) < _IDLE_READERS:
                self._idle.append(connection)
                return
        connection.close()


def _fault(error: sqlite3.OperationalError, *, is_writing: bool) -> Fault | None:
    """Return the fault for an error that callers can act on, else None."""
    code: int = error.sqlite_errorcode
    if code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return Busy("the database is in use by another process; nothing was done, try again")
    if code == sqlite3.SQLITE_INTERRUPT:
        return Busy(_TOO_LONG)
    if code == sqlite3.SQLITE_IOERR_FSYNC and is_writing:
        return OutcomeUnknown("the disk failed while the database committed; the change may have happened")
    problem = _CANNOT_WRITE.get(code) or _CANNOT_WRITE.get(code & 0xFF)
    return Unavailable(f"{problem}; nothing was written") if problem and is_writing else None


def place_file(folder: Path, target: Path) -> None:
    """Move the one file that `copy_out` left in the folder to the database's place. Raises ConfigError where one exists."""
    [copy] = folder.iterdir()
    if target.exists():
        raise ConfigError(f"there is a database at {target} already")
    for leftover in ("-wal", "-shm", "-journal"):
        target.with_name(target.name + leftover).unlink(missing_ok=True)
    copy.replace(target)
