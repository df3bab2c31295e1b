"""The request log and the audit log in the browser."""

from __future__ import annotations

import html
import re

from crmctl.service.console.visits import CONSOLE
from crmctl.service.store import keys, logs
from crmctl.service.store.logs import LoggedRequest
from tests.service.console.conftest import Newcomer, Visitor
from tests.support.service import RunningService


def test_the_audit_log_shows_actions_and_actors(service: RunningService, visitor: Visitor, newcomer: Newcomer) -> None:
    admin = newcomer(service)
    admin.enter_as("admin", "Eve")
    path = admin.send("/console/objects", plural="Projects").headers["location"].partition("?")[0]
    admin.send(f"{path}/attributes", name="Title", type="text")
    service.client.delete(f"/api/v1{path.removeprefix('/console')}")
    value = visitor.send("/console/keys", name="ci", access="full").text
    entries = service.engine.read(lambda tx: logs.list_entries(tx, 4))
    assert [(entry["action"], entry["by"]["type"]) for entry in entries] == [
        ("key.created", "operator"),
        ("object.deleted", "key"),
        ("attribute.created", "member"),
        ("object.created", "member"),
    ]
    page = visitor.get(f"/{CONSOLE}/audit").text
    assert "Eve" in page
    assert not set(re.findall(r"crs_[\w-]{43}", value)) & set(re.findall(r"crs_[\w-]{43}", page))
    only = visitor.get("/console/audit?about=key").text
    assert "Key created" in only
    assert "Object created" not in only


def test_requests_are_found_by_key_status_and_id(service: RunningService, visitor: Visitor) -> None:
    key = service.engine.read(keys.list_keys)[0].id
    rows = [
        LoggedRequest(at, f"request-{at}", key if at < 3 else None, "GET", "/api/v1/objects", status, 1500, "::1")
        for at, status in ((1, 200), (2, 404), (3, 503))
    ]
    service.engine.write(lambda tx: logs.append(tx, rows))

    def shown(question: str) -> list[str]:
        return re.findall(r"(request-\d)</small>", visitor.get(f"/console/requests?{question}").text)

    assert shown("") == ["request-3", "request-2", "request-1"]
    assert shown(f"key={key}") == ["request-2", "request-1"]
    assert shown("status=500") == ["request-3"]
    assert shown("id=request-2&status=nonsense") == ["request-2"]
    assert "No matches." in visitor.get("/console/requests?id=request-0").text


def test_the_audit_log_shows_old_and_new_values(visitor: Visitor) -> None:
    path = visitor.send("/console/objects", plural="Projects").headers["location"].partition("?")[0]
    visitor.send(f"{path}/edit", plural="<Works>", description="")
    member = re.findall(
        r"/console/members/([\w-]{36})", visitor.send("/console/members", name="Eve", email="eve@example.com", role="member").text
    )
    visitor.send(f"/console/members/{member[0]}", name="Eve", role="viewer") if member else None
    page = html.unescape(re.sub(r"<[^>]+>", " ", visitor.get("/console/audit").text))
    assert "pluralName: Projects → <Works>" in page
    assert not member or "role: member → viewer" in page
