"""Create and read single records of a running service."""

from __future__ import annotations

from typing import Any

from tests.support.service import RunningService


def add(service: RunningService, slug: str, **data: Any) -> str:
    """Create a record and return its id."""
    answer = service.client.post(f"/api/v1/objects/{service.object_id(slug)}/records", json={"data": data})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def read(service: RunningService, slug: str, record_id: str) -> Any:
    """Return the values of a record."""
    return service.client.get(f"/api/v1/objects/{service.object_id(slug)}/records/{record_id}").json()["data"]
