"""A delivery bench on each storage engine, and a certificate authority for https."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.authority import Authority
from tests.support.databases import ENGINES, fresh_database
from tests.support.deliveries import Bench


@pytest.fixture(params=ENGINES)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with fresh_database(request, tmp_path) as url:
        yield url


@pytest.fixture
def bench(tmp_path: Path, database: str) -> Iterator[Bench]:
    made = Bench(tmp_path, database)
    yield made
    made.engine.close()


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))
