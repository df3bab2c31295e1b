"""The pytest plugin: the fixture `crm`, a test double of the service. Imports nothing of crmctl until a test uses it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from crmctl.double_client import TestService


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "crm(fixture=DIR, rate_limit=N): settings of the fixture crm for this test")


@pytest.fixture(scope="session")
def _crm_services() -> Iterator[dict[tuple[str, ...], TestService]]:
    """The test doubles of this session by their options."""
    services: dict[tuple[str, ...], TestService] = {}
    yield services
    for service in services.values():
        service.close()


@pytest.fixture
def crm(request: pytest.FixtureRequest, _crm_services: dict[tuple[str, ...], TestService]) -> TestService:
    """A Customer Records Service for this test, with the data of its fixture and nothing else."""
    marker = request.node.get_closest_marker("crm")
    settings = {} if marker is None else dict(marker.kwargs)
    if unknown := [*(marker.args if marker else ()), *(settings.keys() - {"fixture", "rate_limit"})]:
        pytest.fail(f"the marker crm takes fixture=DIR and rate_limit=N, not {unknown[0]!r}")
    fixture = ("--fixture", str(request.path.parent / settings["fixture"])) if "fixture" in settings else ()
    options = ("--rate-limit", str(settings.get("rate_limit", 0)), *fixture)
    if options in _crm_services:
        _crm_services[options].reset()
    else:
        from crmctl.double_client import TestService

        _crm_services[options] = TestService(*options)
    return _crm_services[options]
