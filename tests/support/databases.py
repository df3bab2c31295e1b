"""The storage engines that the same tests hold on, and a fresh database of each.

@pytest.fixture(params=ENGINES)
def store(request, tmp_path):
    with fresh_database(request, tmp_path) as url: ...
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

ENGINES = ("sqlite", pytest.param("postgresql", marks=pytest.mark.needs("initdb", "postgres")))
"""The one place that names the engines. PostgreSQL's server programs may be absent."""


@contextlib.contextmanager
def fresh_database(request: pytest.FixtureRequest, folder: Path, *, is_empty: bool = False) -> Iterator[str]:
    """The address of a database of the engine `request.param`, gone afterwards. Its organisation may be there already."""
    if request.param == "sqlite":
        yield f"sqlite:///{folder / 'service.db'}"
        return
    server = request.getfixturevalue("postgres")
    url = server.create_database() if is_empty else server.create_database(request.getfixturevalue("postgres_template"))
    try:
        yield url
    finally:
        server.drop_database(url)
