"""The interface of databases, and how to open one. Callers need not know which engine it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

from crmctl.errors import ConfigError, RejectedError, install_command
from crmctl.models.jsontext import Json
from crmctl.service.store.keys import RateWindows
from crmctl.service.store.sqlite import SqliteEngine, place_file
from crmctl.service.store.tables import FIRST, MIGRATIONS, migrate, newest_version, upgrade
from crmctl.service.store.tx import Tx

__all__ = ["Engine", "Tx", "open_engine", "rehearse"]

T = TypeVar("T")


class Engine(Protocol):
    """Runs functions in transactions; thread-safe.

    An engine may run `fn` more than once before it takes effect, so that `fn` touches only `tx` and asks the clock itself. Its errors roll
    back and reach the caller. `single` says that `fn` runs one statement, which may need no transaction.
    """

    reads_at_once: bool
    """Whether a read never waits for another machine or for a writer."""

    def read(self, fn: Callable[[Tx], T], *, within: float | None = None, single: bool = False, helped: bool = True) -> T:
        """Run `fn` on one consistent snapshot; unless `helped`, on one processor. Raises Busy, and stops the database's work, after
        `within` seconds."""
        ...

    def write(self, fn: Callable[[Tx], T], *, within: float | None = None, single: bool = False, by: str | None = None) -> T:
        """Run `fn` isolated from other writes of the same rows; durable when this returns. `by` is the actor (see logs).

        Raises Busy as `read` does, and Unavailable when the database cannot be written: then nothing has been written.
        """
        ...

    def rate_windows(self) -> RateWindows:
        """Return the request counts of keys, which all processes share that serve from PostgreSQL."""
        ...

    def figures(self) -> dict[str, float]: ...

    def copy_out(self, folder: Path) -> Json:
        """Copy the database as of one moment into files in the folder, while others read and write. Returns `{engine, schemaVersion,
        records, ...}` for `load_copy`."""
        ...

    def close(self) -> None: ...


def rehearse(engine: Engine, fn: Callable[[Tx], T], *, by: str | None = None) -> T:
    """Return or raise what `engine.write(fn)` would, and roll back."""

    def do_and_undo(tx: Tx) -> T:
        raise _Rehearsed(fn(tx))

    try:
        return engine.write(do_and_undo, by=by)
    except _Rehearsed as rehearsed:
        return cast("T", rehearsed.outcome)


class _Rehearsed(Exception):
    def __init__(self, outcome: object) -> None:
        self.outcome = outcome


def open_engine(database_url_or_path: str | Path) -> Engine:
    """Open a database, creating or upgrading it: a path, `sqlite:///path` or `postgresql://...`.

    Raises ConfigError for any other address, for a database that cannot be opened, and for one of a newer version.
    """
    engine = _open(str(database_url_or_path))
    try:
        migrate(engine)
    except BaseException:
        engine.close()
        raise
    return engine


def has_data(address: str) -> bool:
    """Whether a service's database exists, at any version. Creates nothing. Raises ConfigError."""
    if address.startswith("sqlite:"):
        return Path(address.removeprefix("sqlite:///")).exists()
    engine = _open(address)
    try:
        return engine.has_tables()  # type: ignore[attr-defined, no-any-return]
    finally:
        engine.close()


def load_copy(address: str, folder: Path, described: Mapping[str, Any]) -> None:
    """Create a database from a copy that `copy_out` made, and bring it to the newest version.

    Raises RejectedError for a copy of the other engine or of a newer version, and where a database exists.
    """
    kind = "sqlite" if address.startswith("sqlite:") else "postgresql"
    if described["engine"] != kind:
        names = {"sqlite": "SQLite", "postgresql": "PostgreSQL"}
        hint = "--database-url URL" if kind == "sqlite" else "leave out --database-url"
        raise RejectedError(f"this is a backup of a service on {names[described['engine']]}, not {names[kind]}", hint=hint)
    if described["schemaVersion"] < FIRST:
        raise RejectedError("this backup was made before the first release of crmctl", hint="restore it with the crmctl that made it")
    if described["schemaVersion"] > newest_version():
        raise RejectedError("this backup was made by a newer crmctl", hint="upgrade crmctl")
    if kind == "sqlite":
        place_file(folder, Path(address.removeprefix("sqlite:///")))
    else:
        engine = _open(address)
        try:
            engine.copy_in(folder, described, lambda tx, version: upgrade(tx, MIGRATIONS[: version - FIRST + 1]))  # type: ignore[attr-defined]
        finally:
            engine.close()
    open_engine(address).close()


def _open(address: str) -> Engine:
    scheme, separator, path = address.partition("://")
    if not separator:
        return SqliteEngine(address)
    if scheme == "sqlite" and path.startswith("/") and path != "/":
        return SqliteEngine(path[1:])
    if scheme not in ("postgresql", "postgres"):
        # Only the scheme: the rest may hold a password.
        raise ConfigError(
            f"cannot open a database at {scheme}://",
            hint="use a path, sqlite:///PATH (four slashes for an absolute one) or postgresql://USER:PASSWORD@HOST/DATABASE",
        )
    try:
        from crmctl.service.store.postgres import PostgresEngine
    except ImportError as error:
        raise ConfigError("PostgreSQL needs a library that is not installed", hint=install_command("postgres")) from error
    return PostgresEngine(address)
