"""The overview names failing endpoints with time and reason; the health page makes backups."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import httpx

from crmctl.service.backup.backup import restore_backup
from crmctl.service.context import new_id
from crmctl.service.store import webhooks
from crmctl.service.store.tx import Tx
from crmctl.service.store.webhooks import PROVEN, UNPROVEN, Attempt
from tests.service.console.conftest import Newcomer, Visitor
from tests.service.console.test_pages import add_endpoint, advance
from tests.support.service import RunningService


def try_once(service: RunningService, endpoint: str, status: int | None) -> None:
    """Make a test event and one try of it that got this status, or no answer."""
    advance(service, 60)
    now = service.clock.now()
    error = None if status else "ConnectError: <b>refused</b>"

    def send(tx: Tx) -> None:
        webhooks.send_test(tx, endpoint, ids=new_id, now=now)
        for lane in (PROVEN, UNPROVEN):
            for due in webhooks.claim(tx, lane, 9, now=now):
                again = None if status == 200 else now + 24 * 3600
                webhooks.settle(tx, [Attempt(due, now, 0.1, status, error, {}, {}, "", again)], new_id)

    service.engine.write(send)


def test_failing_endpoints_are_named_on_the_overview(service: RunningService, visitor: Visitor) -> None:
    outcomes: dict[str, list[int | None]] = {"never": [None], "since": [200, 503], "works": [503, 200], "untried": [], "off": [503]}
    for name, statuses in outcomes.items():
        endpoint = add_endpoint(service, f"http://127.0.0.1:9/{name}")
        for status in statuses:
            try_once(service, endpoint, status)
    service.engine.write(lambda tx: webhooks.update_endpoint(tx, endpoint, {"enabled": False}, now=service.clock.now()))
    overview = visitor.get("/console").text
    attention = overview.partition("Needs attention")[2].partition("</section>")[0]
    assert re.findall(r"127\.0\.0\.1:9/(\w+)", attention) == ["never", "since"]
    assert "ConnectError: &lt;b&gt;refused" in attention
    assert "answered with status 503" in attention
    listed = visitor.get("/console/webhooks").text
    assert re.findall(r'class="badge (\w+)"', listed) == ["failing", "failing", "working", "untried", "disabled"]
    assert "never succeeded" in listed
    assert re.findall(r"of [12] tr(?:y|ies)", listed) == ["of 1 try", "of 2 tries", "of 2 tries", "of 1 try"]
    [path] = re.findall(r'href="([^"]+)">http://127.0.0.1:9/never', listed)
    assert "it has never succeeded. Last reason: ConnectError" in visitor.get(path).text
    [path] = re.findall(r'href="([^"]+)">http://127.0.0.1:9/works', listed)
    assert "Failing since" not in visitor.get(path).text


def test_an_overview_without_trouble_needs_no_attention(service: RunningService, visitor: Visitor) -> None:
    try_once(service, add_endpoint(service), 204)
    page = visitor.get("/console").text
    assert "Needs attention" not in page


def test_the_health_page_makes_a_backup_that_restores(
    service: RunningService, visitor: Visitor, newcomer: Newcomer, tmp_path: Path
) -> None:
    page = visitor.get("/console/health").text
    assert re.search(r"Database</dt><dd>\d[^<]*B<", page)
    assert visitor.get("/console/health/backup").status_code == 404
    assert "The backup is made" in visitor.follow(visitor.send("/console/health/backup")).text
    file = visitor.get("/console/health/backup")
    assert re.fullmatch(r'attachment; filename="crmctl-[\d-]+T[\d-]+\.backup"', file.headers["content-disposition"])
    (tmp_path / "file").write_bytes(file.content)
    restored = restore_backup(tmp_path / "file", replace(service.settings, data_dir=tmp_path / "restored", database_url=None))
    assert restored["records"] == 0
    assert "Backup made" in visitor.get("/console/audit").text
    member = newcomer(service)
    member.enter_as("member")
    assert member.get("/console/health").status_code == member.get("/console/health/backup").status_code == 403


def test_the_old_and_the_rotated_key_both_work_until_the_chosen_time(service: RunningService, visitor: Visitor) -> None:
    made = visitor.send("/console/keys", name="ci", access="scopes", scope="objects:read").text
    [old] = re.findall(r"crs_[\w-]{43}", made)
    [path] = re.findall(r'/console(/keys/[\w-]{36})/rotate">Rotate…<span class="hidden"> ci', visitor.get("/console/keys").text)
    assert visitor.send(f"/console{path}/rotate", hours="9999").status_code == 400
    [new] = set(re.findall(r"crs_[\w-]{43}", visitor.send(f"/console{path}/rotate", hours="1").text))

    def statuses() -> list[int]:
        return [
            httpx.get(f"{service.base_url}/api/v1/objects", headers={"Authorization": f"Bearer {key}"}).status_code for key in (old, new)
        ]

    assert statuses() == [200, 200]
    advance(service, 3601)
    assert statuses() == [401, 200]
    assert visitor.send(f"/console{path}/rotate", hours="1").status_code == 400
