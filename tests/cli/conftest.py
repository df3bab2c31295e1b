"""A fresh service for every test, and the environment of a user with a full-access key."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.service import RunningService, running_service


@pytest.fixture
def service(tmp_path: Path) -> Iterator[RunningService]:
    with running_service(tmp_path / "service") as running:
        yield running


@pytest.fixture
def crm(service: RunningService, monkeypatch: pytest.MonkeyPatch) -> RunningService:
    """Start a service; put its address and key into the environment of every process the test starts."""
    monkeypatch.setenv("CRMCTL_BASE_URL", service.base_url)
    monkeypatch.setenv("CRMCTL_API_KEY", service.key)
    return service


@pytest.fixture
def people(crm: RunningService) -> list[str]:
    """Return the ids of 120 people, oldest first."""
    found = add_people(crm)
    crm.log.clear()
    return found


def add_people(service: RunningService) -> list[str]:
    """Create 120 people, person001@acme.com and so on, every third of example.org; return their ids, oldest first."""
    rows = [
        {"data": {"email": f"person{number:03}@{'example.org' if number % 3 == 0 else 'acme.com'}", "score": number}}
        for number in range(1, 121)
    ]
    path = f"/api/v1/objects/{service.object_id('people')}/records"
    for part in (rows[:100], rows[100:]):
        assert service.client.post(f"{path}/bulk", json={"records": part}).json()["created"] == len(part)
    found = []
    for offset in (0, 100):
        found += service.client.get(path, params={"order": "asc", "limit": 100, "offset": offset}).json()["records"]
    return [record["id"] for record in found]


def requests_of(service: RunningService) -> list[tuple[str, str]]:
    """Return method and path of every request the service answered."""
    return [(str(entry["method"]), str(entry["path"])) for entry in service.log]
