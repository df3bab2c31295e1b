"""The pytest plugin: the fixture `crm`, a test double of the service. Imports nothing of crmctl until a test uses it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from crmctl.double_client import TestService, TestServices

MARKER = "crm(fixture=DIR, rate_limit=N): settings of the fixture crm for this test"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)


@pytest.fixture(scope="session")
def _crm_services() -> Iterator[TestServices]:
    from crmctl.double_client import TestServices

    services = TestServices()
    try:
        yield services
    finally:
        services.close()


@pytest.fixture
def crm(request: pytest.FixtureRequest, _crm_services: TestServices) -> TestService:
    """A Customer Records Service for this test, with the data of its fixture and nothing else."""
    marker = request.node.get_closest_marker("crm")
    options = {} if marker is None else dict(marker.kwargs)
    if unknown := [*(marker.args if marker else ()), *(options.keys() - {"fixture", "rate_limit"})]:
        pytest.fail(f"the marker crm takes fixture=DIR and rate_limit=N, not {unknown[0]!r}")
    folder = options.get("fixture")
    return _crm_services.get(None if folder is None else request.path.parent / folder, options.get("rate_limit", 0))
