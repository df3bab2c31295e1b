"""The seam between store functions and a database, and the one way to open it. Which engine it is, nobody else needs to know."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

from crmctl.errors import ConfigError, RejectedError
from crmctl.service.store.migrations import MIGRATIONS, migrate, upgrade
from crmctl.service.store.rates import RateWindows
from crmctl.service.store.sqlite import SqliteEngine, place_file
from crmctl.service.store.tx import Tx

__all__ = ["Engine", "Tx", "open_engine", "rehearse"]

T = TypeVar("T")


class Engine(Protocol):
    """Runs functions in transactions; thread-safe.

    `fn` may run more than once before it takes effect (an engine may have to repeat a transaction), so it must touch nothing but `tx`,
    and it asks the clock inside. What it raises rolls back and reaches the caller. `single` says that `fn` runs one statement only: an
    engine may save itself the transaction around it.
    """

    def read(self, fn: Callable[[Tx], T], *, within: float | None = None, single: bool = False, helped: bool = True) -> T:
        """Run `fn` on one consistent snapshot; unless `helped`, on one processor at a time, however the engine would share the work.

        Raises Busy, and stops what the database is doing for it, when that takes longer than `within` seconds.
        """
        ...

    def write(self, fn: Callable[[Tx], T], *, within: float | None = None, single: bool = False, by: str | None = None) -> T:
        """Run `fn` alone with respect to other writes of the same rows; durable when this returns. `by` is who acts: see actors.

        Raises Busy as `read` does, and Unavailable when the database cannot be written: nothing has been written then.
        """
        ...

    def rate_windows(self) -> RateWindows:
        """The request counts of keys, shared by all processes that may serve from this database."""
        ...

    def figures(self) -> dict[str, float]:
        """What the engine itself can say: see store/figures.py."""
        ...

    def copy_out(self, folder: Path) -> dict[str, Any]:
        """Copy the database as of one moment into files in the folder, while others read and write.

        `{engine, schemaVersion, records, ...}`: what `load_copy` has to know.
        """
        ...

    def close(self) -> None: ...


def rehearse(engine: Engine, fn: Callable[[Tx], T], *, by: str | None = None) -> T:
    """What `engine.write(fn)` would return or raise; nothing of it stays."""

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
    """Open a database, create or upgrade what is in it: a path or `sqlite:///path`, or `postgresql://...`.

    Raises ConfigError for any other address, for a database that cannot be opened, and for one of a newer version.
    """
    scheme, separator, _ = str(database_url_or_path).partition("://")
    open_at = _OPENERS.get(scheme, _refuse) if separator else _open_sqlite
    engine = open_at(str(database_url_or_path))
    try:
        migrate(engine)
    except BaseException:
        engine.close()
        raise
    return engine


def has_data(address: str) -> bool:
    """Whether there is a service's database, at any version. Nothing is created. Raises ConfigError."""
    if address.startswith("sqlite:"):
        return Path(address.removeprefix("sqlite:///")).exists()
    engine = _OPENERS["postgresql"](address)
    try:
        return engine.has_tables()  # type: ignore[attr-defined, no-any-return]
    finally:
        engine.close()


def load_copy(address: str, folder: Path, described: Mapping[str, Any]) -> None:
    """Make a database of what `copy_out` gave, all or nothing, and bring it to the newest version.

    Raises RejectedError for a copy of the other engine or of a newer version, and where there is a database already.
    """
    wanted = "sqlite" if address.startswith("sqlite:") else "postgresql"
    if described["engine"] != wanted:
        names = {"sqlite": "SQLite", "postgresql": "PostgreSQL"}
        hint = "--database-url URL" if wanted == "sqlite" else "leave out --database-url"
        raise RejectedError(f"this is a backup of a service on {names[described['engine']]}, not {names[wanted]}", hint=hint)
    if described["schemaVersion"] > len(MIGRATIONS):
        raise RejectedError("this backup was made by a newer crmctl", hint="upgrade crmctl")
    if wanted == "sqlite":
        place_file(folder, Path(address.removeprefix("sqlite:///")))
    else:
        engine = _OPENERS[wanted](address)
        try:
            engine.copy_in(folder, described, lambda tx, version: upgrade(tx, MIGRATIONS[:version]))  # type: ignore[attr-defined]
        finally:
            engine.close()
    open_engine(address).close()


def _open_sqlite(address: str) -> Engine:
    path = address.removeprefix("sqlite://")
    if path != address:
        if not path.startswith("/") or path == "/":
            raise _refusal(address)
        path = path[1:]
    return SqliteEngine(path)


def _open_postgres(address: str) -> Engine:
    try:
        from crmctl.service.store.postgres import PostgresEngine
    except ImportError as error:
        raise ConfigError("PostgreSQL needs a library that is not installed", hint="pip install 'crmctl[postgres]'") from error
    return PostgresEngine(address)


def _refuse(address: str) -> Engine:
    raise _refusal(address)


def _refusal(address: str) -> ConfigError:
    # Only the scheme: the rest may hold a password.
    return ConfigError(
        f"cannot open a database at {address.partition('://')[0]}://",
        hint="use a path, sqlite:///PATH (four slashes for an absolute one) or postgresql://USER:PASSWORD@HOST/DATABASE",
    )


_OPENERS: dict[str, Callable[[str], Engine]] = {"sqlite": _open_sqlite, "postgresql": _open_postgres, "postgres": _open_postgres}
