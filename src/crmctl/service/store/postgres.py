"""The PostgreSQL engine: any number of writers in any number of processes. Only importer of psycopg.

A writer waits for another only where both touch the same rows; what they cannot settle by waiting is repeated.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Any, TypeVar, cast

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus
from psycopg.types.numeric import Int8Dumper
from psycopg_pool import ConnectionPool, PoolTimeout

from crmctl.errors import ConfigError, ServiceError, reason
from crmctl.service.faults import Busy, Held, Unavailable
from crmctl.service.store import postgres_copy
from crmctl.service.store.dialect import PostgresDialect
from crmctl.service.store.rates import DatabaseRateWindows, RateWindows
from crmctl.service.store.tx import Params, Row, Tx, several_at_once

T = TypeVar("T")
Connection = psycopg.Connection[Row]

_OLDEST = 14
"""With client_connection_check_interval, by which locks of a killed process are released while its statement waits."""

_MOST_CONNECTIONS = 24
"""More than the places for requests (http/concurrency.py), so that jobs and the console find one too."""

_CONNECT_SECONDS = 5
_POOL_SECONDS = 5.0
_LOCK_SECONDS = 15
_STATEMENT_SECONDS = 120
"""Longer than any request should take, but a change of attributes may have a million records to go through."""

_TRIES = 12
_LONGEST_PAUSE = 0.25

_READ: tuple[str, ...] = ("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",)
_READ_ALONE = (*_READ, "SET LOCAL max_parallel_workers_per_gather = 0")
# Each statement must see what is committed by then: what a writer read before it got a lock may be out of date.
_WRITE = ("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE",)

_LIMITS = "SELECT set_config('statement_timeout', $1, true), set_config('lock_timeout', $2, true)"
_TOO_LONG = "the request took too long and was given up; nothing was done"

_COLLISIONS = (
    errors.SerializationFailure,
    errors.DeadlockDetected,
    # Found free and taken by somebody else since: the repetition finds it taken, and says which.
    errors.UniqueViolation,
    # An object or attribute that was there when the schema was read: the repetition reads it again.
    errors.UndefinedTable,
    errors.UndefinedColumn,
    # A prepared statement met a table that has changed since.
    errors.FeatureNotSupported,
)


class _Lost(Exception):
    """The connection broke; nothing of the transaction is left."""


class CommitUnknownError(Exception):
    """The connection broke while committing and the database does not say what became of it: the write may have taken effect."""


class _NoPipeline:
    """In place of one, where COPY is to be used too, which knows none."""

    def sync(self) -> None:
        """Everything has been sent."""


class PostgresTx:
    """One transaction. Statements without a result are sent along with the next one that has a result, or with the commit."""

    dialect = PostgresDialect()

    def __init__(
        self, connection: Connection, pipeline: psycopg.Pipeline | _NoPipeline, end: float | None = None, by: str | None = None
    ) -> None:
        """`end` is the moment, on the monotonic clock, after which no further statement is run."""
        self._connection = connection
        self._pipeline = pipeline
        self._end = end
        self.by = by

    def execute(self, sql: str, params: Params = ()) -> int:
        self._look_at_the_clock()
        cursor = self._connection.execute(_native(sql), params)
        self._pipeline.sync()
        return cursor.rowcount

    def execute_many(self, sql: str, rows: Iterable[Params]) -> None:
        self._look_at_the_clock()
        for statement, some in several_at_once(sql, rows):
            self._connection.cursor().executemany(_native(statement), some)

    def one(self, sql: str, params: Params = ()) -> Row | None:
        self._look_at_the_clock()
        return self._connection.execute(_native(sql), params).fetchone()

    def all(self, sql: str, params: Params = ()) -> list[Row]:
        self._look_at_the_clock()
        return self._connection.execute(_native(sql), params).fetchall()

    def _look_at_the_clock(self) -> None:
        if self._end is not None and time.monotonic() > self._end:
            raise Busy(_TOO_LONG)


class PostgresEngine:
    """Thread-safe. `read` sees one snapshot; `write` is all or nothing and durable when it returns.

    Raises ConfigError for a database that cannot be opened; Unavailable when it is away, or gives no connection within `pool_seconds`.
    """

    def __init__(self, url: str, *, pool_seconds: float = _POOL_SECONDS) -> None:
        self._pool_seconds = pool_seconds
        arguments = _connection_arguments(url)
        _check_server(arguments)
        self._pool: ConnectionPool[Connection] = ConnectionPool(
            "",
            kwargs=arguments,
            configure=_configure,
            min_size=1,
            max_size=_MOST_CONNECTIONS,
            timeout=pool_seconds,
            # Attempts end soon, because the next request makes a new one at once: the service is back as soon as the database is.
            reconnect_timeout=1.0,
            open=True,
        )

    def read(self, fn: Callable[[PostgresTx], T], *, within: float | None = None, single: bool = False, helped: bool = True) -> T:
        return self._repeat(_READ if helped else _READ_ALONE, fn, _end(within))

    def write(self, fn: Callable[[PostgresTx], T], *, within: float | None = None, single: bool = False, by: str | None = None) -> T:
        return self._repeat(_WRITE, fn, _end(within), by)

    def rate_windows(self) -> RateWindows:
        """Shared by all processes on this database."""
        return DatabaseRateWindows(self)

    def figures(self) -> dict[str, float]:
        pool = self._pool.get_stats()
        size = self.read(lambda tx: tx.all("SELECT pg_database_size(current_database())"))[0][0]
        open_, free = float(pool.get("pool_size", 0)), float(pool.get("pool_available", 0))
        waiting = float(pool.get("requests_waiting", 0))
        used = {"database_connections": open_, "database_connections_used": open_ - free, "database_requests_waiting": waiting}
        return {"database_bytes": float(size)} | used

    def copy_out(self, folder: Path) -> dict[str, Any]:
        with _telling_what_failed(), self._pool.connection() as connection:
            return postgres_copy.copy_out(connection, folder)

    def has_tables(self) -> bool:
        with _telling_what_failed(), self._pool.connection() as connection:
            return postgres_copy.has_tables(connection)

    def copy_in(self, folder: Path, described: Mapping[str, Any], migrate: Callable[[Tx, int], None]) -> None:
        """Fill an empty database with what `copy_out` gave, in one transaction; `migrate` brings it to a version."""
        xid = ""
        with _telling_what_failed():
            try:
                with self._pool.connection() as connection, connection.transaction():
                    connection.execute("SET LOCAL statement_timeout = 0")
                    postgres_copy.copy_in(connection, PostgresTx(connection, _NoPipeline()), folder, described, migrate)
                    xid = str(cast(Row, connection.execute("SELECT pg_current_xact_id()::text").fetchone())[0])
            except psycopg.OperationalError:
                if not xid or not self._has_committed(xid):
                    raise

    def close(self) -> None:
        """Connections in use are closed when they come back."""
        self._pool.close()

    def _repeat(self, begin: tuple[str, ...], fn: Callable[[PostgresTx], T], end: float | None, by: str | None = None) -> T:
        for tries in count(1):
            if end is not None and time.monotonic() > end:
                raise Busy(_TOO_LONG)
            try:
                return self._attempt(begin, fn, end, by)
            except _COLLISIONS as error:
                if tries >= _TRIES and isinstance(error, (errors.SerializationFailure, errors.DeadlockDetected)):
                    raise Busy("too many requests change the same data; nothing was done, try again") from error
                if tries >= _TRIES:
                    raise
                time.sleep(random.uniform(0, min(_LONGEST_PAUSE, 0.002 * 2**tries)))
            except _Lost as error:
                if tries > 2:
                    raise Unavailable("the connection to the database was lost; try again") from error
                self._pool.check()
            except errors.LockNotAvailable as error:
                raise Held("the database is busy; nothing was done, try again") from error
            except errors.QueryCanceled as error:
                raise Busy(_TOO_LONG) from error
            except (errors.DiskFull, errors.ReadOnlySqlTransaction) as error:
                if begin is not _WRITE:
                    raise
                raise Unavailable(f"the database cannot be written ({_short(error)}); nothing was written") from error
            except PoolTimeout as error:
                raise Unavailable("the database does not answer; try again") from error
            except (errors.ProgramLimitExceeded, errors.StatementTooComplex):
                # Not for a moment but for ever: no reason to try again.
                raise
            except psycopg.OperationalError as error:
                raise Unavailable("the database is not available; try again") from error
        raise AssertionError("unreachable")

    def _attempt(self, begin: tuple[str, ...], fn: Callable[[PostgresTx], T], end: float | None, by: str | None) -> T:
        left = None if end is None else max(0.001, end - time.monotonic())
        connection = self._pool.getconn(None if left is None else min(left, self._pool_seconds))
        xid: str | None = None
        try:
            with connection.pipeline() as pipeline:
                for statement in begin:
                    connection.execute(statement)
                if left is not None:
                    connection.execute(_LIMITS, [f"{max(1, int(seconds * 1000))}ms" for seconds in (left, min(left, _LOCK_SECONDS))])
                numbered = connection.execute("SELECT pg_current_xact_id()::text") if begin is _WRITE else None
                result = fn(PostgresTx(connection, pipeline, end, by))
                if numbered is not None:
                    xid = str(cast(Row, numbered.fetchone())[0])
                ended = connection.execute("COMMIT")
            if ended.statusmessage != "COMMIT":
                raise psycopg.InternalError(f"the transaction ended with {ended.statusmessage}")
            return result
        except psycopg.Error as error:
            if isinstance(error, errors.FeatureNotSupported):
                connection.close()
            elif connection.closed:
                if xid is None or not self._has_committed(xid):
                    raise _Lost from error
                return result
            raise
        finally:
            _leave(connection)
            self._pool.putconn(connection)

    def _has_committed(self, xid: str) -> bool:
        """What became of a transaction whose commit was not answered. Raises CommitUnknownError."""
        deadline = time.monotonic() + self._pool_seconds
        while time.monotonic() < deadline:
            try:
                self._pool.check()
                with self._pool.connection() as connection:
                    row = connection.execute("SELECT pg_xact_status(CAST($1 AS xid8))", (xid,)).fetchone()
            except psycopg.OperationalError:
                continue
            if row is not None and row[0] in ("committed", "aborted"):
                return bool(row[0] == "committed")
            time.sleep(0.05)
        raise CommitUnknownError("the connection to the database was lost while it committed")


@contextlib.contextmanager
def _telling_what_failed() -> Iterator[None]:
    """Raises ServiceError where the database goes away, is full, or may not be written."""
    hint = "give the command again when the database answers"
    try:
        yield
    except psycopg.OperationalError as error:
        raise ServiceError(f"the database failed: {reason(error)}", hint=hint) from error
    except CommitUnknownError as error:
        raise ServiceError(f"{error}: it may hold all of it or nothing", hint=hint, outcome_unknown=True) from error


def _leave(connection: Connection) -> None:
    """Leave no transaction open behind."""
    if connection.closed or connection.info.transaction_status is TransactionStatus.IDLE:
        return
    try:
        connection.rollback()
    except psycopg.Error:
        connection.close()


def _end(within: float | None) -> float | None:
    return None if within is None else time.monotonic() + within


def _short(error: psycopg.Error) -> str:
    return (error.diag.message_primary or type(error).__name__).strip()


@lru_cache(1024)
def _native(sql: str) -> str:
    """`?` as `$1`, `$2` and so on."""
    first, *rest = sql.split("?")
    return first + "".join(f"${number}{part}" for number, part in enumerate(rest, start=1))


def _connection_arguments(url: str) -> dict[str, Any]:
    try:
        arguments: dict[str, Any] = conninfo_to_dict(url)
    except psycopg.Error:
        # Its own text repeats the address, with the password in it.
        raise ConfigError(
            "the address of the database is not valid",
            hint="postgresql://USER:PASSWORD@HOST:PORT/DATABASE; write reserved characters in USER and PASSWORD as %40 and so on",
        ) from None
    ours = {
        "lock_timeout": f"{_LOCK_SECONDS}s",
        "statement_timeout": f"{_STATEMENT_SECONDS}s",
        "idle_in_transaction_session_timeout": "60s",
        "client_connection_check_interval": "1s",
        # Plans are made for the values given: how many rows a filter finds decides how to find them.
        "plan_cache_mode": "force_custom_plan",
        # Compiling a statement takes longer than it saves where a page of a large list is wanted.
        "jit": "off",
        "timezone": "UTC",
    }
    options = [f"-c {name}={value}" for name, value in ours.items()]
    defaults = {"connect_timeout": _CONNECT_SECONDS, "application_name": "crmctl", "keepalives_idle": 30, "tcp_user_timeout": 30_000}
    fixed = {"options": " ".join([*options, arguments.get("options", "")]).strip(), "client_encoding": "UTF8"}
    return defaults | arguments | fixed | {"autocommit": True, "cursor_factory": psycopg.RawCursor}


def _check_server(arguments: dict[str, Any]) -> None:
    """One connection ahead of the pool, which would not say what is wrong."""
    try:
        with psycopg.connect(**arguments) as connection:
            version = connection.info.server_version // 10_000
            encoding = connection.info.parameter_status("server_encoding")
    except psycopg.Error as error:
        where = f"{arguments.get('host', 'this machine')}, database {arguments.get('dbname', '')}"
        raise ConfigError(f"cannot open the database on {where}: {reason(error)}") from error
    if version < _OLDEST:
        raise ConfigError(f"PostgreSQL {version} is too old, the service needs {_OLDEST} or newer")
    if encoding != "UTF8":
        raise ConfigError(f"the database stores text as {encoding}, the service needs UTF8", hint="CREATE DATABASE ... ENCODING 'UTF8'")


def _configure(connection: Connection) -> None:
    connection.adapters.register_dumper(int, Int8Dumper)
