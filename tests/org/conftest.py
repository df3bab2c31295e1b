"""A service for every test, with its address and key in the environment: fresh, or with the organization that `pulled` names."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import crm
from tests.support.inprocess import run_here
from tests.support.organizations import furnish
from tests.support.service import RunningService, running_service

__all__ = ["crm"]


@pytest.fixture(scope="session")
def organization(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make two folders to copy: `service`, the data of a random organization, and `crm`, the organization as pulled."""
    root = tmp_path_factory.mktemp("organization")
    with running_service(root / "service") as running:
        furnish(running, 1)
        env = {"CRMCTL_BASE_URL": running.base_url, "CRMCTL_API_KEY": running.key}
        run_here("org", "pull", "crm", env=env, cwd=root).ok()
    return root


@pytest.fixture
def service(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RunningService]:
    if "furnished" in request.fixturenames:
        shutil.copytree(request.getfixturevalue("organization") / "service", tmp_path / "service")
    with running_service(tmp_path / "service") as running:
        yield running


@pytest.fixture
def furnished(crm: RunningService) -> RunningService:
    """The service, with a random organization."""
    return crm


@pytest.fixture
def pulled(organization: Path, furnished: RunningService) -> Path:
    """The organization of the service, as pulled."""
    return Path(shutil.copytree(organization / "crm", "crm"))
