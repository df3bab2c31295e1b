"""The service under test, once per storage engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.clock import FakeClock
from tests.support.databases import ENGINES, fresh_database
from tests.support.service import RunningService, running_service


@pytest.fixture(params=ENGINES)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Address of a fresh database."""
    with fresh_database(request, tmp_path) as url:
        yield url


@pytest.fixture
def crm(database: str, tmp_path: Path) -> Iterator[RunningService]:
    """A service with fresh data, no rate limit, and a clock that stands at 2027-01-15T08:00:00Z until a test moves it."""
    with running_service(tmp_path, database_url=database, clock=FakeClock(), background=False) as service:
        service.listen()
        yield service
