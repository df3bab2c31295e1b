"""The history of a record through HTTP (an addition to the interface), and its life cycle."""

from __future__ import annotations

from typing import Any

import pytest

from crmctl.service.store import records
from tests.support.cli import run_crmctl
from tests.support.service import RunningService, new_id


def history(crm: RunningService, path: str, **query: Any) -> Any:
    answer = crm.client.get(f"{path}/history", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_every_change_shows_time_actor_and_values(crm: RunningService) -> None:
    people = f"/api/v1/objects/{crm.object_id('people')}/records"
    data = {"email": "ada@example.com", "name": {"first": "Ada", "last": "Byron"}, "score": 1}
    made = crm.client.post(people, json={"data": data}).json()
    path = f"{people}/{made['id']}"
    crm.clock.sleep(60)
    changes = {"name": {"first": "Ada", "last": "Lovelace"}, "score": 1.0, "job_title": "Countess", "email": "ada@example.com"}
    crm.client.patch(path, json={"data": changes})
    crm.clock.sleep(60)
    upsert = {"mode": "upsert", "records": [{"id": made["id"], "data": {"job_title": None}}, {"id": made["id"], "data": {"score": 2}}]}
    assert crm.client.post(f"{people}/bulk", json=upsert).json()["updated"] == 2
    found = history(crm, path)
    assert found["pagination"] == {"total": 4, "limit": 50, "offset": 0}
    assert "knownSince" not in found
    assert {change["by"]["type"] for change in found["changes"]} == {"key"}
    assert {change["by"]["name"] for change in found["changes"]} == {"First key"}
    assert [(change["at"], change["type"]) for change in found["changes"]] == [
        ("2027-01-15T08:02:00.000000Z", "record.updated"),
        ("2027-01-15T08:02:00.000000Z", "record.updated"),
        ("2027-01-15T08:01:00.000000Z", "record.updated"),
        ("2027-01-15T08:00:00.000000Z", "record.created"),
    ]
    values = [{value["attributeSlug"]: (value["old"], value["new"]) for value in change["changes"]} for change in found["changes"]]
    assert values == [
        {"score": (1.0, 2)},
        {"job_title": ("Countess", None)},
        {"name": ({"first": "Ada", "last": "Byron"}, changes["name"]), "score": (1, 1.0), "job_title": (None, "Countess")},
        {slug: (None, value) for slug, value in data.items()},
    ]
    page = history(crm, path, limit=2, offset=1)
    assert page["changes"] == found["changes"][1:3]


def test_a_deleted_record_keeps_its_history(crm: RunningService) -> None:
    people = f"/api/v1/objects/{crm.object_id('people')}/records"
    deals = crm.object_id("deals")
    made = crm.client.post(people, json={"data": {"email": "ada@example.com"}}).json()
    path = f"{people}/{made['id']}"
    crm.clock.sleep(60)
    crm.client.delete(path)
    found = history(crm, path)["changes"]
    assert [change["type"] for change in found] == ["record.deleted", "record.created"]
    assert found[0]["changes"] == [{"attributeSlug": "email", "old": "ada@example.com", "new": None}]
    for elsewhere in (f"{people}/{'0' * 8}-0000-4000-8000-{'0' * 12}", f"/api/v1/objects/{deals}/records/{made['id']}"):
        assert crm.client.get(f"{elsewhere}/history").status_code == 404
    narrow = crm.client_with(crm.key_for(["records:write"]))
    with narrow:
        assert narrow.get(f"{path}/history").status_code == 403


def test_changes_without_a_key_show_their_actor(crm: RunningService) -> None:
    people = crm.object_id("people")
    made = crm.engine.write(lambda tx: records.create_record(tx, people, {"score": 1}, ids=new_id, now=crm.clock.now()), by="operator")
    crm.engine.write(lambda tx: records.update_record(tx, people, made["id"], {"score": 2}, ids=new_id, now=crm.clock.now()))
    changes = history(crm, f"/api/v1/objects/{people}/records/{made['id']}")["changes"]
    assert [change["by"] for change in changes] == [None, {"type": "operator"}]


def test_the_command_line_shows_a_history_and_restores_an_object(crm: RunningService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRMCTL_BASE_URL", crm.base_url)
    monkeypatch.setenv("CRMCTL_API_KEY", crm.key)
    people = crm.object_id("people")
    before, after = ({"ids": new_id, "now": moment} for moment in (1_767_225_600.0, 1_767_225_700.0))
    made = crm.engine.write(lambda tx: records.create_record(tx, people, {"email": "ada@example.com", "score": 1}, **before))
    crm.engine.write(lambda tx: records.update_record(tx, people, made["id"], {"score": 2}, **after), by="operator")
    shown = run_crmctl("records", "history", "people", made["id"], "-o", "jsonl").ok().lines()
    assert shown[0] == {"at": shown[0]["at"], "by": "operator", "change": "updated", "attribute": "score", "old": 1, "new": 2}
    assert {line["attribute"] for line in shown[1:]} == {"email", "score"}
    run_crmctl("records", "history", "people", new_id()).exits(3)
    where = ["--data", str(crm.data_dir)]
    where += ["--database-url", crm.settings.database_url] if crm.settings.database_url else []
    back = ["service", "restore", "people", "--as-of", "2026-01-01T00:00:50Z", *where, "-o", "json"]
    assert run_crmctl(*back, "--dry-run").ok().json()["updated"] == 1
    assert crm.client.get(f"/api/v1/objects/{people}/records/{made['id']}").json()["data"]["score"] == 2
    assert run_crmctl(*back).exits(2).error()["hint"] == "pass --yes"
    assert run_crmctl(*back, "--yes").ok().json()["updated"] == 1
    assert crm.client.get(f"/api/v1/objects/{people}/records/{made['id']}").json()["data"]["score"] == 1
    assert run_crmctl(*back, "--yes").ok().json()["unchanged"] == 1
    run_crmctl("service", "restore", "nothing", "--as-of", "-1h", *where).exits(3)
