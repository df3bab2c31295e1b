"""The service every contract scenario runs against, once per storage engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.clock import FakeClock
from tests.support.service import RunningService, running_service

ENGINES = ("sqlite",)
"""The one place that names the engines the contract holds on."""


def database_url(engine: str, folder: Path) -> str:
    return {"sqlite": f"sqlite:///{folder / 'contract.db'}"}[engine]


@pytest.fixture(params=ENGINES)
def crm(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RunningService]:
    """Fresh data, no rate limit, a clock that stands still at 2027-01-15T08:00:00Z until a test moves it."""
    with running_service(tmp_path, database_url=database_url(request.param, tmp_path), clock=FakeClock(), background=False) as service:
        yield service
