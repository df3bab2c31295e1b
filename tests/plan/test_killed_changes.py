"""`bulk update`, `bulk delete` and their undos, killed at every step: each change happens once, and all of it is undone."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.campaigns import rest_in_campaigns
from tests.support.inprocess import run_here
from tests.support.service import RunningService, running_service
from tests.support.warm_program import run_module

PEOPLE = 230
"""Three requests of 100 records."""

COMMANDS = {
    "update": ("bulk", "update", "people", "--filter", "score>=0", "--set", "address.city=Rome", "--yes"),
    "delete": ("bulk", "delete", "people", "--filter", "score>=0", "--yes"),
}
POINTS = ["begun:2", "begin:1", "answered:1", "settled:2"]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with running_service(tmp_path_factory.mktemp("killed")) as running:
        yield running


@pytest.fixture
def crm(service: RunningService, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningService]:
    monkeypatch.setenv("CRMCTL_BASE_URL", service.base_url)
    monkeypatch.setenv("CRMCTL_API_KEY", service.key)
    path = f"/api/v1/objects/{service.object_id('people')}/records"
    rows = [{"data": {"email": f"p{n}@a.com", "score": n, "address": {"city": "Bari", "street": f"{n} Via"}}} for n in range(PEOPLE)]
    for start in range(0, PEOPLE, 100):
        service.client.post(f"{path}/bulk", json={"records": rows[start : start + 100]}).raise_for_status()
    yield service
    while there := service.client.get(path, params={"limit": 100}).json()["records"]:
        service.client.request("DELETE", f"{path}/bulk", json={"ids": [one["id"] for one in there]}).raise_for_status()


def people(crm: RunningService) -> list[dict[str, Any]]:
    path = f"/api/v1/objects/{crm.object_id('people')}/records"
    pages = [crm.client.get(path, params={"limit": 100, "offset": n}).json()["records"] for n in (0, 100, 200, 300)]
    return sorted((one["data"] for page in pages for one in page), key=lambda data: data["score"])


def run_killed(point: str, *words: str) -> int:
    return run_module("tests.support.commandchild", point, *words)


@pytest.mark.parametrize(
    ("kind", "point"),
    rest_in_campaigns([*((kind, point) for point in POINTS for kind in COMMANDS), ("update", "imaged:1"), ("delete", "copied:1")], 2),
)
def test_a_killed_change_is_completed_once_and_undone_completely(crm: RunningService, kind: str, point: str) -> None:
    before = people(crm)
    assert len(before) == PEOPLE
    assert run_killed(point, *COMMANDS[kind]) == -signal.SIGKILL
    run_here("bulk", "resume", "--last", "--yes", "--settle", "1").ok()
    changed = [data | {"address": data["address"] | {"city": "Rome"}} for data in before]
    assert people(crm) == (changed if kind == "update" else [])
    assert run_killed("answered:1", "bulk", "undo", "last", "--yes") in (-signal.SIGKILL, 0)
    ended = run_here("bulk", "undo", "last", "--yes")
    assert people(crm) == before, ended.err
    assert ended.code in (0, 2), ended.err
