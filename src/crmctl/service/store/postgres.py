"""The PostgreSQL engine: any number of writers in any number of processes. The only importer of psycopg.

Writers wait for each other only when both touch the same rows; other collisions repeat the transaction.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import random
import re
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

from crmctl.errors import ConfigError, RejectedError, ServiceError, UsageError, reason
from crmctl.models.jsontext import Json
from crmctl.service.faults import Busy, Held, OutcomeUnknown, Unavailable
from crmctl.service.store import record_tables
from crmctl.service.store.keys import RateWindows
from crmctl.service.store.record_tables import load_schema
from crmctl.service.store.tx import Params, PostgresDialect, Row, Tx, several_at_once

# psycopg logs the pipeline of every failed transaction, also of those that are repeated, and its pool every failed connection.
for name in ("psycopg", "psycopg.pool"):
    logging.getLogger(name).disabled = True

_COPY_TRIES = 5
_TABLES = (
    "SELECT c.relname, c.oid::bigint FROM pg_class AS c WHERE c.relnamespace = current_schema()::regnamespace "
    "AND c.relkind = 'r' AND c.relpersistence = 'p' ORDER BY c.relname"
)
_COLUMNS = (
    "SELECT a.attname, a.attidentity <> '' FROM pg_attribute AS a WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped "
    "ORDER BY a.attnum"
)
_COUNTS = "SELECT (SELECT max(version) FROM schema_version), (SELECT coalesce(sum(total), 0)::bigint FROM record_total)"
_NAME = re.compile(r"[a-z_][a-z0-9_]*")


def _copy_table(connection: Any, name: str, oid: int, folder: Path) -> Json:
    columns = connection.execute(_COLUMNS, (oid,)).fetchall()
    names = [column for column, _ in columns]
    identity = next((column for column, is_identity in columns if is_identity), None)
    described: Json = {"name": name, "columns": names}
    if identity is not None:
        sequence = connection.execute("SELECT pg_get_serial_sequence(CAST($1 AS text), CAST($2 AS text))", (name, identity)).fetchone()[0]
        last, is_called = connection.execute(f"SELECT last_value, is_called FROM {sequence}").fetchone()
        described |= {"identity": identity, "next": last + 1 if is_called else last}
    with (
        open(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file,  # noqa: PTH123
        connection.cursor().copy(f"COPY {name} ({', '.join(names)}) TO STDOUT") as rows,
    ):
        for piece in rows:
            file.write(piece)
    return described


def copy_in(connection: Any, tx: Tx, folder: Path, described: Mapping[str, Any], migrate: Callable[[Tx, int], None]) -> None:
    """Load a copy into an empty database in the open transaction; `migrate` creates the tables of the copied version."""
    if connection.execute(_TABLES).fetchall():
        raise UsageError("there is data in this database already", hint="--database-url of an empty one")
    migrate(tx, described["schemaVersion"])
    for name in ("organisation", "service_value", "schema_version"):
        connection.execute(f"DELETE FROM {name}")
    for table in described["tables"]:
        _check_names(table["name"], *table["columns"])
        if table["name"].startswith("record_") and table["name"].removeprefix("record_").isdigit():
            record_tables.create_table(tx, int(table["name"].removeprefix("record_")))
            for column in table["columns"]:
                if re.fullmatch(r"[cx][0-9]+", column):
                    tx.execute(f"ALTER TABLE {table['name']} ADD COLUMN {column} {tx.dialect.text}")
    for table in described["tables"]:
        with (
            (folder / table["name"]).open("rb") as file,
            connection.cursor().copy(f"COPY {table['name']} ({', '.join(table['columns'])}) FROM STDIN") as rows,
        ):
            while piece := file.read(256 * 1024):
                rows.write(piece)
        if "identity" in table:
            _check_names(table["identity"])
            connection.execute(f"ALTER TABLE {table['name']} ALTER COLUMN {table['identity']} RESTART WITH {int(table['next'])}")
    _make_indexes(connection, tx)


def _make_indexes(connection: Any, tx: Tx) -> None:
    """Create the indexes of attributes after the records, which is quicker than growing them row by row."""
    for (object_id,) in connection.execute("SELECT id FROM crm_object ORDER BY number").fetchall():
        schema = load_schema(tx, object_id)
        for attribute in schema.every.values():
            record_tables.index_attribute(tx, schema.number, attribute)


def _check_names(*names: str) -> None:
    if not all(_NAME.fullmatch(name) for name in names):
        raise RejectedError("the backup names a table or column that no service has", code="damaged_backup")


T = TypeVar("T")
Connection = psycopg.Connection[Row]

_OLDEST = 14
"""The first version with client_connection_check_interval, which releases the locks of a killed process while its statement waits."""

_MOST_CONNECTIONS = 24
"""More than the places of requests (http/connections.py), so that jobs and the console get one, too."""

_CONNECT_SECONDS = 5
_POOL_SECONDS = 5.0
_LOCK_SECONDS = 15
_STATEMENT_SECONDS = 120
"""Longer than any request takes; a change of attributes may go through a million records."""

_TRIES = 12
_LONGEST_PAUSE = 0.25

_READ: tuple[str, ...] = ("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",)
_READ_ALONE = (*_READ, "SET LOCAL max_parallel_workers_per_gather = 0")
# Each statement must see the latest commits: data read before getting a lock may be out of date.
_WRITE = ("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE",)

_LIMITS = "SELECT set_config('statement_timeout', $1, true), set_config('lock_timeout', $2, true)"
_TOO_LONG = "the request took too long and was given up; nothing was done"

_COLLISIONS = (
    errors.SerializationFailure,
    errors.DeadlockDetected,
    # Another transaction took the value first: the repetition finds it taken and names it.
    errors.UniqueViolation,
    # The object or attribute is gone since the schema was read: the repetition reads it again.
    errors.UndefinedTable,
    errors.UndefinedColumn,
    # A prepared statement met a table that has changed since.
    errors.FeatureNotSupported,
)


class _Lost(Exception):
    """The connection broke before the commit; nothing of the transaction remains."""


class PostgresTx:
    """A transaction. In a pipeline, statements without a result are sent along with the next one that has one, or with the commit.

    After `end`, on the monotonic clock, no statement runs.
    """

    dialect = PostgresDialect()

    def __init__(
        self, connection: Connection, pipeline: psycopg.Pipeline | None = None, end: float = math.inf, by: str | None = None
    ) -> None:
        self._connection = connection
        self._pipeline = pipeline
        self._end = end
        self.by = by

    def execute(self, sql: str, params: Params = ()) -> int:
        self._look_at_the_clock()
        cursor = self._connection.execute(_native(sql), params)
        if self._pipeline is not None:
            self._pipeline.sync()
        return cursor.rowcount

    def execute_many(self, sql: str, rows: Iterable[Params]) -> None:
        self._look_at_the_clock()
        for statement, some in several_at_once(sql, rows):
            self._connection.cursor().executemany(_native(statement), some)

    def remembered(self, key: str, read: Callable[[], T]) -> T:
        del key  # Nothing tells cheaply whether anybody has written.
        return read()

    def one(self, sql: str, params: Params = ()) -> Row | None:
        self._look_at_the_clock()
        return self._connection.execute(_native(sql), params).fetchone()

    def all(self, sql: str, params: Params = ()) -> list[Row]:
        self._look_at_the_clock()
        return self._connection.execute(_native(sql), params).fetchall()

    def _look_at_the_clock(self) -> None:
        if time.monotonic() > self._end:
            raise Busy(_TOO_LONG)


class PostgresEngine:
    """Thread-safe. `read` sees one snapshot; `write` is all or nothing, and durable when it returns.

    Raises ConfigError for a database that cannot be opened; Unavailable when it is away, or gives no connection within `pool_seconds`.
    """

    reads_at_once = False

    def __init__(self, url: str, *, pool_seconds: float = _POOL_SECONDS) -> None:
        self._pool_seconds = pool_seconds
        arguments = _connection_arguments(url)
        _check_server(arguments)
        self._pool: ConnectionPool[Connection] = ConnectionPool(
            "",
            kwargs=arguments,
            configure=lambda connection: connection.adapters.register_dumper(int, Int8Dumper),
            min_size=1,
            max_size=_MOST_CONNECTIONS,
            timeout=pool_seconds,
            # Attempts end soon, because the next request starts another one: the service recovers as soon as the database does.
            reconnect_timeout=1.0,
            open=True,
        )

    def read(self, fn: Callable[[PostgresTx], T], *, within: float | None = None, single: bool = False, helped: bool = True) -> T:
        return self._repeat(_READ if helped else _READ_ALONE, fn, within)

    def write(self, fn: Callable[[PostgresTx], T], *, within: float | None = None, single: bool = False, by: str | None = None) -> T:
        return self._repeat(_WRITE, fn, within, by)

    def rate_windows(self) -> RateWindows:
        return RateWindows(self.write)

    def figures(self) -> dict[str, float]:
        pool = self._pool.get_stats()
        size = self.read(lambda tx: tx.all("SELECT pg_database_size(current_database())"))[0][0]
        open_, free = float(pool.get("pool_size", 0)), float(pool.get("pool_available", 0))
        waiting = float(pool.get("requests_waiting", 0))
        used = {"database_connections": open_, "database_connections_used": open_ - free, "database_requests_waiting": waiting}
        return {"database_bytes": float(size)} | used

    def copy_out(self, folder: Path) -> Json:
        """Copy all tables as of one moment, each into a file of its own. Returns what is needed to load them."""
        with _telling_what_failed(), self._pool.connection() as connection:
            for _ in range(_COPY_TRIES):
                tables = connection.execute(_TABLES).fetchall()
                with connection.transaction():
                    connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
                    connection.execute("SET LOCAL statement_timeout = 0")
                    # Locks before the first look at the data, so that the tables hold what is seen.
                    connection.execute(f"LOCK TABLE {', '.join(name for name, _ in tables)} IN ACCESS SHARE MODE")
                    if connection.execute(_TABLES).fetchall() != tables:
                        continue
                    described = [_copy_table(connection, name, oid, folder) for name, oid in tables]
                    version, records = cast(Row, connection.execute(_COUNTS).fetchone())
                    return {"engine": "postgresql", "schemaVersion": version, "records": records, "tables": described}
            raise RejectedError("objects are made and deleted faster than they can be copied", hint="try again when the schema is at rest")

    def has_tables(self) -> bool:
        with _telling_what_failed(), self._pool.connection() as connection:
            return bool(connection.execute(_TABLES).fetchall())

    def copy_in(self, folder: Path, described: Mapping[str, Any], migrate: Callable[[Tx, int], None]) -> None:
        """Fill an empty database from a copy in one transaction; `migrate` brings it to a version."""
        xid = ""
        with _telling_what_failed():
            try:
                with self._pool.connection() as connection, connection.transaction():
                    connection.execute("SET LOCAL statement_timeout = 0")
                    copy_in(connection, PostgresTx(connection), folder, described, migrate)
                    xid = str(cast(Row, connection.execute("SELECT pg_current_xact_id()::text").fetchone())[0])
            except psycopg.OperationalError:
                if not xid or not self._has_committed(xid):
                    raise

    def close(self) -> None:
        """Close idle connections now and the others when they return."""
        self._pool.close()

    def _repeat(self, begin: tuple[str, ...], fn: Callable[[PostgresTx], T], within: float | None, by: str | None = None) -> T:
        end = math.inf if within is None else time.monotonic() + within
        for tries in count(1):
            if time.monotonic() > end:
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
                # Permanent: trying again does not help.
                raise
            except psycopg.OperationalError as error:
                raise Unavailable("the database is not available; try again") from error
        raise AssertionError("unreachable")

    def _attempt(self, begin: tuple[str, ...], fn: Callable[[PostgresTx], T], end: float, by: str | None) -> T:
        seconds_left = max(0.001, end - time.monotonic())
        connection = self._pool.getconn(min(seconds_left, self._pool_seconds))
        xid: str | None = None
        try:
            with connection.pipeline() as pipeline:
                for statement in begin:
                    connection.execute(statement)
                if end < math.inf:
                    limits = (seconds_left, min(seconds_left, _LOCK_SECONDS))
                    connection.execute(_LIMITS, [f"{max(1, int(seconds * 1000))}ms" for seconds in limits])
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
            elif connection.closed or _is_lost(error):
                connection.close()
                if xid is None or not self._has_committed(xid):
                    raise _Lost from error
                return result
            raise
        finally:
            _leave(connection)
            self._pool.putconn(connection)

    def _has_committed(self, xid: str) -> bool:
        """Whether a transaction whose commit was not answered has committed. Raises OutcomeUnknown."""
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
        raise OutcomeUnknown("the database went away while it committed; the change may have happened, so look before you send it again")


@contextlib.contextmanager
def _telling_what_failed() -> Iterator[None]:
    """Raise ServiceError when the database goes away, is full, or may not be written."""
    hint = "give the command again when the database answers"
    try:
        yield
    except psycopg.OperationalError as error:
        raise ServiceError(f"the database failed: {reason(error)}", hint=hint) from error
    except OutcomeUnknown as error:
        message = "the database went away while it committed: it may hold all of it or nothing"
        raise ServiceError(message, hint=hint, outcome_unknown=True) from error


def _is_lost(error: psycopg.Error) -> bool:
    """Whether an error ends the connection, which psycopg may notice later: it has no code, or that of a server shutting down."""
    return isinstance(error, psycopg.OperationalError) and (error.sqlstate is None or error.sqlstate.startswith("57P"))


def _leave(connection: Connection) -> None:
    if connection.closed or connection.info.transaction_status is TransactionStatus.IDLE:
        return
    try:
        connection.rollback()
    except psycopg.Error:
        connection.close()


def _short(error: psycopg.Error) -> str:
    return (error.diag.message_primary or type(error).__name__).strip()


@lru_cache(1024)
def _native(sql: str) -> str:
    """Return the SQL with `?` as `$1`, `$2` and so on."""
    first, *rest = sql.split("?")
    return first + "".join(f"${number}{part}" for number, part in enumerate(rest, start=1))


def _connection_arguments(url: str) -> Json:
    try:
        arguments: Json = conninfo_to_dict(url)
    except psycopg.Error:
        # psycopg's own message repeats the address with its password.
        raise ConfigError(
            "the address of the database is not valid",
            hint="postgresql://USER:PASSWORD@HOST:PORT/DATABASE; write reserved characters in USER and PASSWORD as %40 and so on",
        ) from None
    ours = {
        "lock_timeout": f"{_LOCK_SECONDS}s",
        "statement_timeout": f"{_STATEMENT_SECONDS}s",
        "idle_in_transaction_session_timeout": "60s",
        "client_connection_check_interval": "1s",
        # Plan for the actual values: how many rows a filter matches decides how to find them.
        "plan_cache_mode": "force_custom_plan",
        # Compiling takes longer than it saves on a page of a large list.
        "jit": "off",
        "timezone": "UTC",
    }
    options = [f"-c {name}={value}" for name, value in ours.items()]
    defaults = {"connect_timeout": _CONNECT_SECONDS, "application_name": "crmctl", "keepalives_idle": 30, "tcp_user_timeout": 30_000}
    fixed = {"options": " ".join([*options, arguments.get("options", "")]).strip(), "client_encoding": "UTF8"}
    return defaults | arguments | fixed | {"autocommit": True, "cursor_factory": psycopg.RawCursor}


def _check_server(arguments: Json) -> None:
    """Try one connection before the pool, which would not say what is wrong."""
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
