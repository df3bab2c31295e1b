"""The pages without a browser: access, secrets shown once, escaping, and logs without secrets."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from crmctl.service.console.visits import PORTAL
from crmctl.service.context import new_id
from crmctl.service.definitions.definitions_file import load_document, parse_document
from crmctl.service.store import keys, webhooks, workflows
from tests.service.console.conftest import Newcomer, Visitor, link_to
from tests.support.patience import PATIENCE
from tests.support.service import RunningService, crmctl_program, make_client, running_service

NASTY = '<script>alert("1")</script>&amp;\'"><img src=x onerror=alert(1)>'

CONSOLE_PAGES = [
    *("", "/keys", "/keys/new", "/webhooks", "/webhooks/new", "/objects", "/reports", "/workflows"),
    *("/members", "/members/new", "/members/sessions", "/account"),
]


def advance(service: RunningService, seconds: float) -> None:
    service.clock.advance(seconds)  # type: ignore[attr-defined]


def value_of(page: httpx.Response) -> str:
    [value] = set(re.findall(r"crs_[\w-]{43}", page.text))
    return str(value)


def add_endpoint(service: RunningService, url: str = "http://127.0.0.1:9/hook", description: str = "") -> str:
    now = service.clock.now()
    made = service.engine.write(lambda tx: webhooks.create_endpoint(tx, url=url, description=description, ids=new_id, now=now))
    return str(made["id"])


def test_pages_need_a_link_and_explain_how_to_get_one(service: RunningService) -> None:
    with make_client(service.base_url, service.key) as client:
        for path in CONSOLE_PAGES:
            answer = client.get(f"/console{path}")
            assert answer.status_code == 403
            assert "crmctl service console" in answer.text
            assert re.findall(r'<form[^>]* action="([^"]+)"', answer.text) == ["/console/sign-in"]
        assert client.post("/console/keys", data={"name": "x", "access": "full"}).status_code == 403
    assert len(service.engine.read(keys.list_keys)) == 1


def test_every_page_has_security_headers(visitor: Visitor) -> None:
    for path in [*CONSOLE_PAGES, "/nowhere"]:
        answer = visitor.get(f"/console{path}")
        assert answer.status_code == (404 if path == "/nowhere" else 200)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert not re.search(r"<style|<script(?! src)|style=|onclick|https?://(?!127\.0\.0\.1|example\.com)", answer.text)


def test_the_session_cookie_is_hidden_from_scripts_and_other_sites(service: RunningService, newcomer: Newcomer) -> None:
    cookie = newcomer(service).enter().headers["set-cookie"]
    assert re.fullmatch(r"crm_console_[0-9a-f]{8}=[\w-]{43}; HttpOnly; Max-Age=28800; Path=/console; SameSite=lax", cookie)


def test_a_session_expires_and_ends_by_signing_out(service: RunningService, visitor: Visitor) -> None:
    advance(service, 8 * 3600 - 1)
    assert visitor.get("/console").status_code == 200
    advance(service, 1)
    assert visitor.get("/console").status_code == 403
    visitor.enter()
    kept = dict(visitor.client.cookies)
    assert visitor.follow(visitor.send("/console/sign-out")).status_code == 403
    visitor.client.cookies.update(kept)
    assert visitor.get("/console").status_code == 403


def test_links_are_valid_for_one_area_and_a_short_time(service: RunningService, newcomer: Newcomer) -> None:
    visitor = newcomer(service)
    assert visitor.client.get(link_to(service, PORTAL).replace("/portal", "/console")).status_code == 403
    link = link_to(service)
    advance(service, 599)
    assert newcomer(service).client.get(link).status_code == 200
    advance(service, 1)
    answer = visitor.client.get(link)
    assert answer.status_code == 403
    assert "expired" in answer.text
    assert "set-cookie" not in answer.headers


def test_the_operators_link_works_once_not_counting_head_requests(service: RunningService, newcomer: Newcomer) -> None:
    link, other = link_to(service), link_to(service)
    assert newcomer(service).client.head(link).status_code == 403
    assert newcomer(service).client.get(link).status_code == 200
    again = newcomer(service).client.get(link)
    assert (again.status_code, "set-cookie" in again.headers) == (403, False)
    assert "crmctl service console" in again.text
    assert newcomer(service).client.get(other).status_code == 200


def test_a_form_needs_the_token_of_its_session(service: RunningService, visitor: Visitor, newcomer: Newcomer) -> None:
    other = newcomer(service)
    other.enter()
    for token in ("", "x", "é", other.form_token()):
        answer = visitor.client.post("/console/keys", data={"token": token, "name": "stolen", "access": "full"})
        assert answer.status_code == 403
        assert "crs_" not in answer.text
    assert [key.name for key in service.engine.read(keys.list_keys)] == ["First key"]


def test_a_key_is_shown_once_and_works(service: RunningService, visitor: Visitor) -> None:
    fields = {"id": str(uuid4()), "name": NASTY, "access": "scopes", "scope": ["records:read", "objects:read"], "expires": "2027-06-01"}
    answer = visitor.send("/console/keys", **fields)
    assert answer.status_code == 201
    value = value_of(answer)
    assert value not in str(answer.headers)
    with service.client_with(value) as client:
        assert client.get("/api/v1/objects").status_code == 200
        assert client.post("/api/v1/objects", json={}).status_code == 403
    again = visitor.follow(visitor.send("/console/keys", **fields))
    assert "created its key" in again.text
    for page in (again, visitor.get("/console/keys"), visitor.get("/console")):
        assert value not in page.text
        assert "<script>alert" not in page.text
    (made,) = [key for key in service.engine.read(keys.list_keys) if key.id == fields["id"]]
    assert (made.name, made.scopes) == (NASTY, {"records:read", "objects:read"})
    assert made.wire()["expiresAt"] == "2027-06-01T00:00:00.000000Z"
    assert value not in repr(service.log)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"name": " ", "access": "full"}, "name"),
        ({"name": "x", "access": "scopes"}, "at least one scope"),
        ({"name": "x"}, "at least one scope, or full access"),
        ({"name": "x", "access": "everything"}, "at least one scope, or full access"),
        ({"name": "x", "access": "full", "scope": "records:read"}, "both full access and single ones"),
        ({"name": "x", "access": ["scopes", "full"], "scope": "records:read"}, "both full access and single ones"),
        ({"name": "x", "access": ["scopes", "full"]}, "both full access and single ones"),
        ({"name": "x", "access": "scopes", "scope": "everything"}, "unknown scope"),
        ({"name": "x", "access": "full", "expires": "2020-01-01"}, "past"),
        ({"name": "x", "access": "full", "expires": NASTY}, "date"),
    ],
)
def test_a_form_with_a_mistake_comes_back_filled_in(visitor: Visitor, fields: dict[str, Any], complaint: str) -> None:
    answer = visitor.send("/console/keys", **fields)
    assert answer.status_code == 400
    [problem] = re.findall(r'role="alert"[^>]*>(.*?)</p>', answer.text, re.DOTALL)
    assert complaint in problem.lower()
    assert f'value="{fields["name"].strip()}"' in answer.text
    assert [key.name for key in visitor.service.engine.read(keys.list_keys)] == ["First key"]
    if "scope" in fields:
        assert not re.search(r'value="full"[^>]* checked', answer.text)
    assert "<script>alert" not in answer.text


def test_forms_preselect_nothing_and_grant_only_ticked_rights(service: RunningService, visitor: Visitor) -> None:
    for path in ("/console/keys/new", "/console/webhooks/new"):
        page = visitor.get(path).text
        assert re.search(r'type="radio"', page)
        assert " checked" not in page
    assert visitor.send("/console/keys", name="ticked", scope=["records:read"]).status_code == 201
    (made,) = [key for key in service.engine.read(keys.list_keys) if key.name == "ticked"]
    assert made.scopes == {"records:read"}
    fields: dict[str, Any] = {"url": "https://example.com/hook", "type": ["record.created"]}
    for refused in ({"url": fields["url"]}, fields | {"types": "all"}, {"url": fields["url"], "types": "some"}):
        answer = visitor.send("/console/webhooks", **refused)
        assert (answer.status_code, service.engine.read(webhooks.list_endpoints)) == (400, [])
        assert len(re.findall(r'type="checkbox"[^>]* checked', answer.text)) == len(refused.get("type", []))
    path = visitor.send("/console/webhooks", **fields).headers["location"].partition("?")[0]
    [endpoint] = service.engine.read(webhooks.list_endpoints)
    assert endpoint["eventTypes"] == ["record.created"]
    # The endpoint receives every event type and its form shows that, so ticking a single type as well is ambiguous and refused.
    visitor.follow(visitor.send(f"{path}/edit", url="https://example.com/hook", types="all"))
    assert re.search(r'value="all"[^>]* checked', visitor.get(f"{path}/edit").text)
    assert visitor.send(f"{path}/edit", **fields, types="all").status_code == 400
    [endpoint] = service.engine.read(webhooks.list_endpoints)
    assert endpoint["eventTypes"] is None


def test_revoking_asks_for_confirmation_and_takes_effect_at_once(service: RunningService, visitor: Visitor) -> None:
    value = value_of(visitor.send("/console/keys", name="ci", access="full"))
    (key_id,) = [key.id for key in service.engine.read(keys.list_keys) if key.name == "ci"]
    assert "Revoke ci?" in visitor.get(f"/console/keys/{key_id}/revoke").text
    with service.client_with(value) as client:
        assert client.get("/api/v1/objects").status_code == 200
        assert "is revoked" in visitor.follow(visitor.send(f"/console/keys/{key_id}/revoke")).text
        assert client.get("/api/v1/objects").status_code == 401
    assert visitor.send(f"/console/keys/{uuid4()}/revoke").status_code == 404


@pytest.mark.parametrize("area", ["console", "portal"])
def test_an_endpoint_is_added_changed_and_deleted(service: RunningService, area: str, newcomer: Newcomer) -> None:
    visitor, home = newcomer(service), f"/{area}"
    visitor.enter(area)
    fields = {"url": "https://example.com/hook", "description": NASTY, "types": "some", "type": ["record.created", "workflow.failed"]}
    made = visitor.send(f"{home}/webhooks", **fields)
    page = visitor.follow(made)
    assert "<script>alert" not in page.text
    path = made.headers["location"].partition("?")[0]
    [endpoint] = service.engine.read(webhooks.list_endpoints)
    assert (endpoint["eventTypes"], endpoint["description"], endpoint["enabled"]) == (fields["type"], NASTY, True)
    edit = visitor.get(f"{path}/edit").text
    assert len(re.findall(r'type="checkbox"[^>]* checked', edit)) == 2
    visitor.follow(visitor.send(f"{path}/edit", url="https://example.com/other", types="all"))
    visitor.follow(visitor.send(f"{path}/enabled", enabled="false"))
    [endpoint] = service.engine.read(webhooks.list_endpoints)
    assert (endpoint["url"], endpoint["eventTypes"], endpoint["enabled"]) == ("https://example.com/other", None, False)
    visitor.follow(visitor.send(f"{path}/delete"))
    assert service.engine.read(webhooks.list_endpoints) == []
    assert visitor.get(path).status_code == 404


def test_addresses_and_types_are_checked(tmp_path: Path, newcomer: Newcomer) -> None:
    with running_service(tmp_path, background=False) as service:
        visitor = newcomer(service)
        visitor.enter()
        blanks = [f"https://example.com/{blank}x" for blank in (" ", "\t", "\n", "\r\n", "\u2028", "\u00a0")]
        private = ["http://127.0.0.1/x", "http://169.254.169.254/", "http://[::1]/", "http://192.0.0.192/", "http://168.63.129.16/"]
        for url in ("", "ftp://example.com", "https://u:p@example.com/", "https://exa mple.com", *private, *blanks):
            answer = visitor.send("/console/webhooks", url=url, types="all")
            assert (answer.status_code, 'role="alert"' in answer.text) == (400, True), url
        assert "at least one event type" in visitor.send("/console/webhooks", url="https://example.com", types="some").text
        assert service.engine.read(webhooks.list_endpoints) == []


def test_a_secret_is_shown_only_on_demand(service: RunningService, visitor: Visitor) -> None:
    path = f"/console/webhooks/{(endpoint := add_endpoint(service))}"
    secret = service.engine.read(lambda tx: webhooks.reveal_secret(tx, endpoint))
    assert secret not in visitor.get(path).text + visitor.get(f"{path}/edit").text + visitor.get(f"{path}/rotate").text
    assert visitor.client.get(f"{path}/secret").status_code == 404
    assert secret in visitor.send(f"{path}/secret").text
    rotated = visitor.follow(visitor.send(f"{path}/rotate"))
    fresh = service.engine.read(lambda tx: webhooks.reveal_secret(tx, endpoint))
    assert fresh != secret
    assert fresh not in rotated.text


def test_deliveries_are_paged_filtered_and_replayed(service: RunningService, visitor: Visitor) -> None:
    endpoint = add_endpoint(service)
    path, stamp = f"/console/webhooks/{endpoint}", {"ids": new_id, "now": service.clock.now()}
    made = [service.engine.write(lambda tx: webhooks.send_test(tx, endpoint, **stamp)) for _ in range(27)]
    first, second = visitor.get(path).text, visitor.get(f"{path}?page=2").text
    assert len(re.findall(r"/deliveries/[0-9a-f-]{36}", first)) == 25
    assert len(re.findall(r"/deliveries/[0-9a-f-]{36}", second)) == 2
    assert made[0] in second
    assert "No delivery is failed" in visitor.get(f"{path}?state=failed").text
    assert "/deliveries/" in visitor.get(f"{path}?state=%27&page=x").text
    again = visitor.send(f"{path}/deliveries/{made[0]}/replay")
    assert again.headers["location"].partition("?")[0].endswith(made[0])
    assert "tried now" in visitor.follow(again).text
    form = {"token": visitor.form_token(), "which": "all", "until": "2030-01-01T00:00", "count": "yes"}
    counted = service.engine.write(lambda _: visitor.client.post(f"{path}/replay", data=form).text)  # A count waits for no writer.
    assert "27 events in this range" in counted
    assert "Replay 27" in counted
    assert "sent again" in visitor.follow(visitor.send(f"{path}/replay", which="all", until="2030-01-01T00:00")).text
    counted = service.engine.read(lambda tx: webhooks.count_deliveries(tx, endpoint))
    assert counted == {"pending": 27, "succeeded": 0, "failed": 0}
    assert "No deliveries in this range" in visitor.follow(visitor.send(f"{path}/replay", which="all", until="2020-01-01T00:00:00")).text
    for fields in ({"since": "yesterday"}, {"since": "2027-01-02", "until": "2027-01-01"}):
        assert visitor.send(f"{path}/replay", **fields).status_code == 400
    assert visitor.get(f"/console/webhooks/{add_endpoint(service)}/deliveries/{made[0]}").status_code == 404


DEFINITIONS = """
reports: [{name: "R <b>", object: people, columns: [email]}]
workflows: [{name: "W <b>", object: people, trigger: record/created, enabled: false, actions: [{type: createActivity, title: Hi}]}]
"""


def test_reports_and_workflows_are_run(service: RunningService, visitor: Visitor) -> None:
    load_document(service.engine, parse_document(DEFINITIONS), clock=service.clock, ids=new_id)
    service.client.post(f"/api/v1/objects/{service.object_id('people')}/records", json={"data": {"email": "ada@example.com"}})
    report = service.client.get("/api/v1/reports").json()["reports"][0]["id"]
    assert "R &lt;b&gt;" in visitor.get("/console/reports").text
    ran = visitor.follow(visitor.send(f"/console/reports/{report}/run"))
    assert "ada@example.com" in ran.text
    assert "completed" in visitor.get(f"/console/reports/{report}").text
    workflow = service.client.get("/api/v1/workflows").json()["workflows"][0]["id"]
    path = f"/console/workflows/{workflow}"
    assert "W &lt;b&gt;" in visitor.get("/console/workflows").text
    assert "disabled" in visitor.send(f"{path}/run").text
    visitor.follow(visitor.send(f"{path}/enabled", enabled="true"))
    assert visitor.send(f"{path}/run", data="[1]").status_code == 400
    assert visitor.follow(visitor.send(f"{path}/run", data='{"email": "x"}')).status_code == 200
    [run] = service.engine.read(lambda tx: workflows.list_runs(tx, workflow))
    assert visitor.get(f"{path}/runs/{run['id']}").status_code == 200
    assert visitor.get(f"{path}/runs/{uuid4()}").status_code == 404


def test_an_attribute_is_deactivated_and_activated(service: RunningService, visitor: Visitor) -> None:
    people = service.object_id("people")
    path = f"/api/v1/objects/{people}/attributes"
    attribute = service.client.get(path).json()["attributes"][0]
    assert attribute["name"] in visitor.get(f"/console/objects/{people}").text
    switch = f"/console/objects/{people}/attributes/{attribute['id']}/active"
    assert "The attribute is inactive" in visitor.follow(visitor.send(switch, active="false")).text
    assert attribute["id"] not in [attribute["id"] for attribute in service.client.get(path).json()["attributes"]]
    assert service.client.get(f"{path}/{attribute['id']}").json()["isActive"] is False
    assert "The attribute is active" in visitor.follow(visitor.send(switch, active="true")).text
    assert service.client.get(path).json()["attributes"][0]["id"] == attribute["id"]
    assert visitor.send(f"/console/objects/{people}/attributes/{uuid4()}/active", active="false").status_code == 404


def test_the_portal_shows_only_webhooks(service: RunningService, newcomer: Newcomer) -> None:
    visitor = newcomer(service)
    visitor.enter(PORTAL)
    assert visitor.get("/portal/webhooks").status_code == 200
    for path in ("/keys", "/keys/new", "/objects", "/reports", "/workflows"):
        assert visitor.get(f"/portal{path}").status_code == 404
        assert visitor.get(f"/console{path}").status_code == 403
    assert visitor.client.post("/portal/keys", data={"token": visitor.form_token()}).status_code == 405


def test_behind_a_proxy_addresses_and_the_cookie_follow_the_public_url(tmp_path: Path) -> None:
    public_url = "https://crm.example.com/api-host"
    with (
        running_service(tmp_path, background=False, public_url=f"{public_url}/") as service,
        make_client(f"http://127.0.0.1:{service.port}", service.key) as client,
    ):
        link = client.get("/api/v1/webhooks").json()["portalUrl"]
        assert link.startswith(f"{public_url}/portal?link=")
        answer = client.get(f"/portal?{link.partition('?')[2]}")
        assert "Path=/api-host/portal; SameSite=lax; Secure" in answer.headers["set-cookie"]
        assert answer.headers["refresh"] == "0; url=/api-host/portal"
        assert set(re.findall(r'(?:href|src|action)="(/[\w-]*)', answer.text)) == {"/api-host"}


def test_static_files_are_cached_by_content(visitor: Visitor) -> None:
    page = visitor.get("/console").text
    for path in re.findall(r'/console/static/[^"]+', page):
        answer = visitor.get(path)
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
    assert visitor.get("/console/static/../pages.py").status_code == 404
    assert visitor.get("/console/static/pages.py").status_code == 404


def test_the_request_log_has_no_query_strings_and_no_bodies(service: RunningService, visitor: Visitor) -> None:
    visitor.send("/console/keys?secret=1", name="hidden-name", access="full")
    paths = [entry["path"] for entry in service.log]
    assert "/console/keys" in paths
    assert not re.search("link|secret|hidden|token", json.dumps(service.log))


def test_the_command_prints_a_link_while_the_service_runs(service: RunningService) -> None:
    arguments = [crmctl_program(), "service", "console", "--data", str(service.data_dir), "-o", "json"]
    run = subprocess.run(arguments, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert run.returncode == 0, run.stderr
    link = json.loads(run.stdout)["consoleUrl"]
    assert link.startswith(f"{service.base_url}/console?link=")
    advance(service, json_moment(json.loads(run.stdout)["expiresAt"]) - service.clock.now() - 1)
    with make_client(service.base_url, None) as client:
        assert client.get(link).status_code == 200
        assert client.get("/console").status_code == 200


def json_moment(wire: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(wire).timestamp()


def test_the_command_fails_without_a_service(tmp_path: Path) -> None:
    arguments = [crmctl_program(), "service", "console", "--data", str(tmp_path)]
    run = subprocess.run(arguments, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert run.returncode == 2
    assert "no service's data" in run.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_nul_character_is_refused_on_every_page(service: RunningService, visitor: Visitor) -> None:
    visitor.enter()
    answers = [visitor.client.get(f"/console/{path}") for path in ("search?q=a%00b", "records/people?q=%00", "requests?key=%00")]
    answers += [visitor.send("/console/records/deals", **{"f:company": "\0"}), visitor.send("/console/webhooks", url="https://x.org/\0")]
    assert {answer.status_code for answer in answers} == {400}
    assert all("NUL character is not allowed" in answer.text for answer in answers)
