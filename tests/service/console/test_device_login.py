"""Device login (RFC 8628): codes that work once and briefly, bounded attempts and polling, a key with the member's role."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from crmctl.models.scopes import SCOPES
from crmctl.service.oidc.token_endpoint import DEVICE, MOST_LOGINS
from crmctl.service.store import members, short_lived_keys
from tests.service.console.conftest import Newcomer, Visitor
from tests.support.cli import run_crmctl, start_crmctl
from tests.support.clock import FakeClock
from tests.support.httpserver import Reply, ScriptedServer
from tests.support.patience import PATIENCE
from tests.support.service import RunningService, running_service

READS = {name for name in SCOPES if name.endswith(":read")}
KEPT = {"records:write", "activities:write", "files:write", "reports:run", "workflows:run"}


def start(service: RunningService, **form: str) -> dict[str, Any]:
    answer = service.client.post("/oauth/device_authorization", data={"client_id": "test", "host": "build-7", **form})
    assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store")
    return dict(answer.json())


def poll(service: RunningService, login: dict[str, Any], wait: float = 6.0) -> dict[str, Any]:
    service.clock.advance(wait)  # type: ignore[attr-defined]
    form = {"grant_type": DEVICE, "client_id": "test", "device_code": login["device_code"]}
    answer = service.client.post("/oauth/token", data=form)
    assert (answer.status_code == 200) is ("access_token" in answer.json())
    return dict(answer.json())


def visitor_with_role(newcomer: Newcomer, service: RunningService, role: str) -> Visitor:
    visitor = newcomer(service)
    visitor.enter_as(role)
    return visitor


def answer(visitor: Visitor, login: dict[str, Any], word: str = "approve") -> httpx.Response:
    return visitor.send("/console/device/answer", code=login["user_code"], answer=word)


def shown(page: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))


@pytest.mark.parametrize(("role", "scopes"), [("viewer", READS), ("member", READS | KEPT), ("admin", set(SCOPES)), ("owner", set(SCOPES))])
def test_a_key_has_the_members_role_and_lasts_twelve_hours(
    newcomer: Newcomer, service: RunningService, role: str, scopes: set[str]
) -> None:
    login, visitor = start(service), visitor_with_role(newcomer, service, role)
    assert login["verification_uri_complete"] == f"{service.base_url}/console/device?code={login['user_code']}"
    assert re.fullmatch("[BCDFGHJKLMNPQRSTVWXZ]{4}-[BCDFGHJKLMNPQRSTVWXZ]{4}", login["user_code"])
    assert poll(service, login) == {"error": "authorization_pending"}
    assert f'value="{login["user_code"]}"' in visitor.get(login["verification_uri_complete"]).text
    page = shown(visitor.send("/console/device", code=login["user_code"]).text)
    assert "Host build-7 Asked from 127.0.0.1" in page
    assert login["user_code"] in page
    assert ("Full access" in page) if scopes == set(SCOPES) else all(name in page for name in scopes)
    assert visitor.follow(answer(visitor, login)).status_code == 200
    given = poll(service, login)
    assert (set(given["scope"].split()), given["expires_in"], given["token_type"]) == (scopes, 12 * 3600, "Bearer")
    assert poll(service, login) == {"error": "invalid_grant"}, "a device code works once"
    [key] = [key for key in run_keys(service) if key["name"] == "Ada on build-7"]
    assert set(key["scopes"]) == scopes
    with service.client_with(given["access_token"]) as client:
        assert client.get("/api/v1/objects").status_code == 200
        assert (client.get("/api/v1/webhooks").status_code == 403) is (role in ("viewer", "member"))
        service.clock.advance(12 * 3600)  # type: ignore[attr-defined]
        assert client.get("/api/v1/objects").status_code == 401


def run_keys(service: RunningService) -> list[dict[str, Any]]:
    return list(run_crmctl("service", "keys", "list", "--data", service.data_dir).ok().json())


def test_the_role_at_the_moment_of_issue_counts(newcomer: Newcomer, service: RunningService) -> None:
    visitor = newcomer(service)
    member_id = visitor.enter_as("admin")
    demoted, removed = start(service), start(service)
    assert [answer(visitor, login).status_code for login in (demoted, removed)] == [303, 303]
    service.engine.write(lambda tx: members.update_member(tx, member_id, name="Ada", role="viewer"))
    assert set(poll(service, demoted)["scope"].split()) == READS
    service.engine.write(lambda tx: members.remove_member(tx, member_id, now=service.clock.now()))
    assert poll(service, removed) == {"error": "access_denied"}
    assert len([key for key in run_keys(service) if "on build-7" in key["name"]]) == 1


def test_a_member_whose_access_was_removed_gives_no_key(newcomer: Newcomer, service: RunningService) -> None:
    login, visitor, owner = start(service), newcomer(service), visitor_with_role(newcomer, service, "owner")
    member_id = visitor.enter_as("admin")
    assert answer(visitor, login).status_code == 303
    assert "approved for a device" in owner.get(f"/console/members/{member_id}/lock").text
    assert owner.send(f"/console/members/{member_id}/lock").status_code == 303
    assert poll(service, login) == {"error": "access_denied"}


def test_denied_expired_and_unknown_logins_give_no_key(newcomer: Newcomer, service: RunningService) -> None:
    visitor, before = visitor_with_role(newcomer, service, "owner"), run_keys(service)
    denied, late = start(service), start(service)
    assert answer(visitor, denied, "deny").status_code == 303
    assert answer(visitor, denied).status_code == 404, "a login can be answered once"
    assert poll(service, denied) == {"error": "access_denied"}
    assert poll(service, denied) == {"error": "invalid_grant"}
    service.clock.advance(600)  # type: ignore[attr-defined]
    assert answer(visitor, late).status_code == 404
    assert poll(service, late) == {"error": "expired_token"}
    for code in ("", "x", late["user_code"], "\ud800".encode("utf-8", "surrogatepass").decode("latin-1")):
        assert poll(service, {"device_code": code}) == {"error": "invalid_grant"}
    service.clock.advance(short_lived_keys.KEPT_SECONDS)  # type: ignore[attr-defined]
    start(service)
    assert service.engine.read(lambda tx: tx.one("SELECT count(*) FROM device_login")) == (1,)
    assert run_keys(service) == before


def test_a_device_that_polls_too_often_is_slowed_down(newcomer: Newcomer, service: RunningService) -> None:
    login, visitor = start(service), visitor_with_role(newcomer, service, "owner")
    waited = [(0, "authorization_pending"), (4.9, "slow_down"), (10, "authorization_pending"), (0, "slow_down"), (14.9, "slow_down")]
    assert [(wait, poll(service, login, wait)["error"]) for wait, _ in waited] == waited
    answer(visitor, login)
    assert poll(service, login, 19.9) == {"error": "slow_down"}
    assert "access_token" in poll(service, login, 25)


def test_guessing_codes_is_limited(newcomer: Newcomer, service: RunningService) -> None:
    login, visitor, other = start(service), visitor_with_role(newcomer, service, "member"), visitor_with_role(newcomer, service, "member")
    guesses = [visitor.send("/console/device", code="BBBB-BBBB") for _ in range(5)]
    guesses += [visitor.send("/console/device/answer", code="BBBB-BBBB", answer="approve") for _ in range(5)]
    assert {guess.status_code for guess in guesses} == {404}
    refused = answer(visitor, login)
    assert (refused.status_code, "too many attempts" in refused.text) == (429, True)
    assert int(refused.headers["retry-after"]) <= 900
    assert answer(other, login).status_code == 303


def test_logins_from_one_address_are_limited(service: RunningService) -> None:
    for _ in range(MOST_LOGINS):
        start(service)
    refused = service.client.post("/oauth/device_authorization", data={"client_id": "test"})
    assert (refused.status_code, refused.json()["error"]) == (429, "rate_limited")
    elsewhere = {"X-Forwarded-For": "192.0.2.7"}
    assert service.client.post("/oauth/device_authorization", data={"client_id": "test"}, headers=elsewhere).status_code == 200


def test_codes_are_accepted_in_any_notation(newcomer: Newcomer, service: RunningService) -> None:
    login, visitor = start(service, host="<b>evil</b>"), visitor_with_role(newcomer, service, "viewer")
    page = visitor.send("/console/device", code=f" {login['user_code'].lower().replace('-', ' ')} ")
    assert (page.status_code, "Log in on unknown?" in page.text, "evil" in page.text) == (200, True, False)


def test_only_members_can_approve_with_the_token_of_their_session(newcomer: Newcomer, service: RunningService) -> None:
    login, operator, stranger = start(service), newcomer(service), newcomer(service)
    operator.enter()
    assert "belongs to no member" in answer(operator, login).text
    page = stranger.get(f"/console/device?code={login['user_code']}")
    assert (page.status_code, f"/device?code={login['user_code']}" in page.text) == (403, True), "signing in returns to this page"
    member, code = visitor_with_role(newcomer, service, "owner"), login["user_code"]
    assert member.client.post("/console/device/answer", data={"code": code, "answer": "approve"}).status_code == 403
    assert poll(service, login) == {"error": "authorization_pending"}
    assert answer(member, login, "yes").status_code == 303, "any other word denies the login"
    audit = run_crmctl("service", "audit", "--data", service.data_dir).ok().json()
    assert "key.approved" not in {entry["action"] for entry in audit}


def test_a_request_without_a_client_is_refused(service: RunningService) -> None:
    refused = service.client.post("/oauth/device_authorization", data={"host": "x"})
    assert (refused.status_code, refused.json()) == (400, {"error": "invalid_request"})
    metadata = service.client.get("/.well-known/oauth-authorization-server").json()
    assert metadata["device_authorization_endpoint"] == f"{service.base_url}/oauth/device_authorization"
    assert DEVICE in metadata["grant_types_supported"]


@pytest.fixture
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningService]:
    """A service that lets devices poll at any rate."""
    monkeypatch.setattr(short_lived_keys, "INTERVAL", 0)
    with running_service(tmp_path / "data", background=False) as running:
        yield running


@pytest.mark.parametrize(("word", "code", "expected"), [("approve", 0, '"profile": "mine"'), ("deny", 4, "the login was denied")])
def test_crmctl_logs_in(newcomer: Newcomer, quick: RunningService, word: str, code: int, expected: str) -> None:
    words = ("auth", "login", "--device", "--insecure-storage", "--base-url", quick.base_url, "--profile", "mine")
    with start_crmctl(*words) as process:
        assert process.stderr is not None
        asked = process.stderr.readline()
        found = re.search(rf"open ({quick.base_url}/console/device\?code=(\S+)) and approve the code (\S+)", asked)
        assert found, asked
        assert found[2] == found[3]
        visitor = visitor_with_role(newcomer, quick, "viewer")
        assert answer(visitor, {"user_code": found[2]}, word).status_code == 303
        out, err = process.communicate(timeout=PATIENCE)
        assert (process.returncode, expected in out + err) == (code, True), out + err
    listed = run_crmctl("auth", "list", "-o", "json").ok().json()
    assert [profile["profile"] for profile in listed] == (["mine"] if code == 0 else [])
    if code == 0:
        assert run_crmctl("records", "count", "people").ok().json() == {"count": 0}
        assert run_crmctl("auth", "can-i", "records:write").exits(4).out == "no\n"


def test_a_service_without_device_logins_is_refused_by_name(tmp_path: Path) -> None:
    with ScriptedServer(Reply(404, text="not here")) as server:
        words = ("auth", "login", "--device", "--insecure-storage", "--base-url", server.origin, "-o", "json")
        refused = run_crmctl(*words).exits(9)
    assert refused.error()["message"] == f"{server.origin} has no device logins"
    for extra in ("--with-key", "--oidc"):
        assert run_crmctl("auth", "login", "--device", extra, "--base-url", server.origin, "-o", "json").exits(2).error()["code"] == "usage"


@pytest.mark.needs("initdb", "postgres")
def test_device_login_works_on_postgresql(newcomer: Newcomer, postgres: Any, tmp_path: Path) -> None:
    with running_service(tmp_path / "data", database_url=postgres.create_database(), clock=FakeClock(), background=False) as service:
        login, visitor = start(service), visitor_with_role(newcomer, service, "member")
        assert poll(service, login) == {"error": "authorization_pending"}
        assert poll(service, login, 0) == {"error": "slow_down"}
        assert answer(visitor, login).status_code == 303
        assert "access_token" in poll(service, login, 20)
        assert poll(service, login) == {"error": "invalid_grant"}
