"""A service for all tests of a module, and a test double."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from crmctl import Client
from crmctl.client.crm import Crm
from crmctl.double_client import TestService
from tests.support.answeringapp import answering_app, quick_folder
from tests.support.service import RunningService, opened, running_service


@pytest.fixture(scope="module")
def app_crm() -> Iterator[Crm]:
    with quick_folder() as folder, answering_app(Path(folder) / "service") as client:
        yield client


@pytest.fixture
def double(crm: TestService, monkeypatch: pytest.MonkeyPatch) -> TestService:
    """Start a test double for the processes of a test."""
    for name, value in crm.env.items():
        monkeypatch.setenv(name, value)
    return crm


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with running_service(tmp_path_factory.mktemp("service") / "service") as running:
        yield running


@pytest.fixture
def client(service: RunningService) -> Iterator[Client]:
    with opened(service) as made:
        yield made
        made.bulk.delete("people", filter="score>=0", backup=False)
