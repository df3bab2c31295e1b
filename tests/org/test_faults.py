"""An apply to a service that loses requests, lists late or repeats requests: every record exists once, or is named."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from crmctl.write.jobs import JobStore
from tests.support.campaigns import rest_in_campaigns
from tests.support.cli import Result
from tests.support.clock import HastyClock
from tests.support.fakecrm import Answer, FakeRequest
from tests.support.inprocess import run_here
from tests.support.plainservice import PlainService


class FaultyService(PlainService):
    """Loses the next `lost` bulk requests, carries each other one out `times`, and shows old lists at the next `old_reads`: those
    before the last bulk request. `late`: current and old reads after each bulk request."""

    lost = current_reads = old_reads = 0
    late = (0, 0)
    times = 1

    def __init__(self) -> None:
        super().__init__()
        self._old: dict[str, dict[str, Any]] = {}

    def _answer(self, asked: FakeRequest, inside: bool) -> Answer:
        if not (asked.method == "POST" and asked.path.endswith("/bulk")):
            return super()._answer(asked, inside)
        if self.lost:
            self.lost -= 1
            return Answer(cut=True)
        self._old = {object_id: dict(records) for object_id, records in self.records.items()}
        if self.late != (0, 0):
            self.current_reads, self.old_reads = self.late
        return [super(FaultyService, self)._answer(asked, inside) for _ in range(self.times)][-1]

    def _page(self, object_id: str, query: Any) -> dict[str, Any]:
        if self.current_reads or not self.old_reads:
            self.current_reads = max(0, self.current_reads - 1)
            return super()._page(object_id, query)
        self.old_reads -= 1
        now, self.records = self.records, self._old
        try:
            return super()._page(object_id, query)
        finally:
            self.records = now

    def names(self, slug: str) -> list[str]:
        return sorted(record["data"]["name"] for record in self.records[self.object_id(slug)].values())


Apply = Callable[..., Result]
COMPANIES = ["Acme", "Acme", "Hooli", "Initech"]


@pytest.fixture
def apply(monkeypatch: pytest.MonkeyPatch) -> Apply:
    """Pull four companies, two of them alike, with two deals each, into `crm`. Return the call that applies the folder."""
    with PlainService() as source:
        companies, deals = source.object_id("companies"), source.object_id("deals")
        target = {"name": "Company", "type": "reference", "config": {"allowed_object_id": companies}}
        source.client.post(f"/api/v1/objects/{deals}/attributes", json=target)
        for name in COMPANIES:
            row = source.client.post(f"/api/v1/objects/{companies}/records", json={"data": {"name": name}}).json()
            for number in range(2):
                data = {"name": f"{name} {number}", "company": row["id"]}
                source.client.post(f"/api/v1/objects/{deals}/records", json={"data": data})
        monkeypatch.setenv("CRMCTL_STATE_DIR", "source")
        run_here("org", "pull", "crm", "--with", "", env=_env(source)).ok()
    monkeypatch.setenv("CRMCTL_STATE_DIR", "target")
    clock = HastyClock()
    return lambda service, *options: run_here("org", "apply", "crm", *options, clock=clock, env=_env(service))


def _env(service: PlainService) -> dict[str, str]:
    return {"CRMCTL_BASE_URL": service.origin, "CRMCTL_API_KEY": service.key}


def _assert_whole(service: FaultyService) -> None:
    assert service.names("companies") == COMPANIES
    assert service.names("deals") == sorted(f"{name} {number}" for name in COMPANIES for number in range(2))
    companies = service.records[service.object_id("companies")]
    for record in service.records[service.object_id("deals")].values():
        assert companies[record["data"]["company"]]["data"]["name"] == record["data"]["name"][:-2]


@pytest.mark.parametrize("old_reads", rest_in_campaigns([6, 2, 20]))
def test_records_that_late_lists_hide_are_not_created_again(apply: Apply, old_reads: int) -> None:
    with FaultyService() as service:
        apply(service).ok()
        service.old_reads = old_reads
        again = apply(service).ok().json()
        assert (again["job"], again["changes"], again["left"]) == (None, 0, [])
        _assert_whole(service)


def test_an_import_by_key_knows_what_an_apply_has_just_sent(apply: Apply) -> None:
    with FaultyService() as service:
        apply(service).ok()
        folders = [folder for folder, _ in JobStore(Path("target"), HastyClock()).sent_since(time.time() - 3600)]
        assert sorted(folder.parts[-3].split("-", 1)[1] for folder in folders) == ["create-companies", "create-deals"]


def test_a_deleted_record_is_created_again(apply: Apply) -> None:
    with FaultyService() as service:
        apply(service).ok()
        path = f"/api/v1/objects/{service.object_id('companies')}/records"
        [hooli] = [row["id"] for row in service.client.get(path).json()["records"] if row["data"]["name"] == "Hooli"]
        service.client.delete(f"{path}/{hooli}")
        assert apply(service).ok().json()["records"]["companies"]["create"] == 1
        _assert_whole(service)


@pytest.mark.parametrize(("current", "old"), rest_in_campaigns([(1, 2), (0, 3), (1, 1), (1, 8), (2, 1)], 2))
def test_created_records_are_named_once_the_lists_show_them(apply: Apply, current: int, old: int) -> None:
    with FaultyService() as service:
        service.late = (current, old)
        apply(service).ok()
        _assert_whole(service)
        assert apply(service).ok().json()["changes"] == 0


def test_records_that_an_apply_did_not_find_are_named_by_a_later_one(apply: Apply) -> None:
    with FaultyService() as service:
        service.late = (1, 100)
        apply(service)
        service.late, service.old_reads = (0, 0), 0
        apply(service).ok()
        _assert_whole(service)
        assert apply(service).ok().json()["changes"] == 0


@pytest.mark.parametrize("lost", [1, 3])
def test_a_lost_creation_that_nothing_proves_absent_is_repeated_only_if_asked_for(apply: Apply, lost: int) -> None:
    with FaultyService() as service:
        service.lost = lost
        for _ in range(2):
            error = apply(service).exits(10).error()
            assert "in doubt" in error["message"]
            assert "--new" in error["hint"]
            assert service.names("companies") == []
        while service.lost:
            apply(service, "--new").exits(10)
        apply(service, "--new").ok()
        _assert_whole(service)
        assert apply(service).ok().json()["changes"] == 0


def test_records_in_doubt_are_not_created_by_an_apply_of_another_folder(apply: Apply) -> None:
    with FaultyService() as service:
        service.lost = 1
        apply(service).exits(10)
        Path("crm").rename("moved")
        left = run_here("org", "apply", "moved", clock=HastyClock(), env=_env(service)).exits(10).json()["left"]
        assert sum("may exist" in entry["problem"] for entry in left) == len(COMPANIES)
        assert service.names("companies") == []
        Path("moved").rename("crm")
        apply(service, "--new").ok()
        _assert_whole(service)


def test_second_records_of_repeated_requests_are_named_until_they_are_deleted(apply: Apply) -> None:
    with FaultyService() as service:
        service.times = 2
        left = apply(service).exits(10).json()["left"]
        assert len(service.names("companies")) == 2 * len(COMPANIES)
        assert len(left) == len(COMPANIES) + 2 * len(COMPANIES)
        assert sorted(map(json.dumps, apply(service).exits(10).json()["left"])) == sorted(map(json.dumps, left))
        for entry in left:
            slug, record_id = entry["problem"].split("crmctl records delete ")[1].split()[:2]
            service.client.delete(f"/api/v1/objects/{service.object_id(slug)}/records/{record_id}")
        assert apply(service).ok().json()["left"] == []
        _assert_whole(service)
