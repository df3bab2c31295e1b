"""The storage engines of parametrized tests, and a fresh database of each.

@pytest.fixture(params=ENGINES)
def store(request, tmp_path):
    with fresh_database(request, tmp_path) as url: ...
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from crmctl.service.context import new_id
from crmctl.service.store import members
from crmctl.service.store.engine import open_engine

ENGINES = ("sqlite", pytest.param("postgresql", marks=pytest.mark.needs("initdb", "postgres")))
"""The only list of the engines. PostgreSQL's server programs may be missing."""

ANY_ENGINE = pytest.mark.parametrize("database", ["sqlite"], indirect=True)
"""Marks tests of what the service decides before it asks the database."""


@contextlib.contextmanager
def fresh_database(request: pytest.FixtureRequest, folder: Path, *, is_empty: bool = False) -> Iterator[str]:
    """Yield the address of a new database of the engine `request.param`, set up unless `is_empty`. Drop it afterwards."""
    if request.param == "sqlite":
        file = folder / "service.db"
        if not is_empty:
            file.write_bytes(organised_file())
        yield f"sqlite:///{file}"
        return
    server = request.getfixturevalue("postgres")
    url = server.create_database() if is_empty else server.create_database(request.getfixturevalue("postgres_template"))
    try:
        yield url
    finally:
        server.drop_database(url)


def set_up_organisation(url: str) -> None:
    """Set up an empty database, at a time long before any test. Copying it is faster than another set-up."""
    with contextlib.closing(open_engine(url)) as engine:
        engine.write(lambda tx: members.initialise(tx, ids=new_id, now=1_577_836_800.0))


@cache
def organised_file() -> bytes:
    """Return an SQLite database with its organisation set up."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "organised.db"
        set_up_organisation(f"sqlite:///{file}")
        return file.read_bytes()
