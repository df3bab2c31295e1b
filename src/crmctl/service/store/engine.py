"""The seam between store functions and a database, and the one way to open it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from crmctl.errors import ConfigError
from crmctl.service.store.migrations import migrate
from crmctl.service.store.sqlite import SqliteEngine
from crmctl.service.store.tx import Tx

__all__ = ["Engine", "Tx", "open_engine"]

T = TypeVar("T")


class Engine(Protocol):
    """Runs functions in transactions; thread-safe.

    `fn` may run more than once before it takes effect (an engine may have to repeat a transaction), so it must touch nothing but `tx`,
    and it asks the clock inside. What it raises rolls back and reaches the caller.
    """

    def read(self, fn: Callable[[Tx], T]) -> T:
        """Run `fn` on one consistent snapshot."""
        ...

    def write(self, fn: Callable[[Tx], T]) -> T:
        """Run `fn` alone with respect to other writes of the same rows; durable when this returns."""
        ...

    def close(self) -> None: ...


def open_engine(database_url_or_path: str | Path) -> Engine:
    """Open a SQLite file (a path, or `sqlite:///path`), create or upgrade what is in it.

    Raises ConfigError for an address that is not SQLite and for a database of a newer version.
    """
    engine = SqliteEngine(_sqlite_path(database_url_or_path))
    try:
        migrate(engine)
    except BaseException:
        engine.close()
        raise
    return engine


def _sqlite_path(address: str | Path) -> Path:
    if isinstance(address, Path):
        return address
    scheme, separator, rest = address.partition("://")
    if not separator:
        return Path(address)
    if scheme != "sqlite" or not rest.startswith("/") or rest == "/":
        raise ConfigError(f"cannot open a database at {scheme}://", hint="use a path or sqlite:///PATH (four slashes for an absolute one)")
    return Path(rest[1:])
