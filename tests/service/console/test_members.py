"""Members sign in with passwords, and their role limits every page and form, even forms made by hand."""

from __future__ import annotations

import json
import re
import subprocess
from typing import Any

import pytest

from crmctl.clock import SystemClock
from crmctl.service.console.routing import areas
from crmctl.service.context import Context, new_id
from crmctl.service.store import members
from crmctl.service.store.members import MemberRole, role_of
from tests.service.console.conftest import Newcomer, Visitor, cookie_name
from tests.support.patience import PATIENCE
from tests.support.service import RunningService, crmctl_program

pytestmark = pytest.mark.usefixtures("_cheap_passwords")

PASSWORD = "correct horse battery"

OWN_FORMS = {("/sign-out"), ("/account/password"), ("/members/sessions/{id:uuid}/end"), ("/sign-in"), ("/password")}
OWN_FORMS |= {"/records/{slug}/views", "/records/{slug}/views/delete", "/device", "/device/answer"}
"""Forms that only change the visitor's own session and password, or make a key with the visitor's role."""
MEMBER_FORMS = {
    *("/reports/{id:uuid}/run", "/workflows/{id:uuid}/run", "/records/{slug}", "/records/{slug}/{recordId:uuid}/edit"),
    *("/records/{slug}/{recordId:uuid}/delete", "/records/{slug}/{recordId:uuid}/activities", "/files"),
    *("/records/{slug}/selected", "/records/{slug}/changed", "/records/{slug}/deleted"),
    *("/records/{slug}/import", "/records/{slug}/import/columns"),
    *("/activities", "/activities/{id:uuid}", "/activities/{id:uuid}/delete"),
}
"""Forms that members may send in addition."""


def code_of(text: str) -> str:
    [code] = set(re.findall(r"/console/password\?code=([\w-]+)", text))
    return str(code)


def entry_token(visitor: Visitor, path: str) -> str:
    found = re.search(r'name="token" value="([0-9a-f]{64})"', visitor.get(path).text)
    assert found
    return found[1]


def set_password(visitor: Visitor, code: str, password: str = PASSWORD, again: str | None = None) -> Any:
    token = entry_token(visitor, f"/console/password?code={code}")
    return visitor.client.post("/console/password", data={"token": token, "code": code, "password": password, "again": again or password})


def sign_in(visitor: Visitor, email: str, password: str, **fields: str) -> Any:
    form = {"token": entry_token(visitor, "/console/sign-in"), "email": email, "password": password, **fields}
    return visitor.client.post("/console/sign-in", data=form)


def run_service(service: RunningService, *arguments: str) -> Any:
    command = [crmctl_program(), "service", *arguments, "--data", str(service.data_dir), "-o", "json"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_a_member_invited_on_the_command_line_sets_a_password_once_and_signs_in(service: RunningService, newcomer: Newcomer) -> None:
    # The command uses the real clock.
    service.clock.advance(SystemClock().now() - service.clock.now())  # type: ignore[attr-defined]
    invited = run_service(service, "members", "invite", "ada@example.com", "--name", "Ada", "--role", "viewer")
    assert invited["passwordUrl"].startswith(f"{service.base_url}/console/password?code=")
    assert (invited["role"], [row["access"] for row in run_service(service, "members", "list")]) == ("viewer", ["none", "invited"])
    visitor = newcomer(service)
    code = code_of(invited["passwordUrl"])
    assert set_password(visitor, code, "short").status_code == 400
    assert set_password(visitor, code, again="correct horse batterx").status_code == 400
    welcome = visitor.follow(set_password(visitor, code))
    assert "Ada" in welcome.text
    assert "viewer" in welcome.text
    other = newcomer(service)
    assert "was used" in other.get(f"/console/password?code={code}").text
    refused = sign_in(other, "ada@example.com", "wrong horse battery")
    assert (refused.status_code, "wrong" in refused.text) == (403, True)
    answer = sign_in(other, "ADA@example.com", PASSWORD, next="/reports?page=2")
    assert answer.headers["location"] == "/console/reports?page=2"
    assert other.get("/console/account").status_code == 200
    assert PASSWORD not in json.dumps(service.log)
    assert code not in json.dumps(service.log)
    code = code_of(run_service(service, "members", "reset", "ada@example.com")["passwordUrl"])
    assert set_password(newcomer(service), code, "another horse battery").status_code == 303
    assert other.get("/console/account").status_code == 403, "a new password ends older sessions"
    assert sign_in(other, "ada@example.com", PASSWORD).status_code == 403


def test_sign_in_attempts_are_limited_and_foreign_forms_refused(service: RunningService, newcomer: Newcomer) -> None:
    visitor = newcomer(service)
    assert visitor.client.post("/console/sign-in", data={"email": "ada@example.com", "password": "x"}).status_code == 403
    codes = [sign_in(visitor, "nobody@example.com", "x").status_code for _ in range(12)]
    assert codes == [403] * 10 + [429] * 2
    assert "try again in" in sign_in(visitor, "NOBODY@example.com", "x").text
    service.clock.advance(900)  # type: ignore[attr-defined]
    assert sign_in(visitor, "nobody@example.com", "x").status_code == 403
    for strange in ("//evil.example", "https://evil.example", "/x\r\nSet-Cookie: a=b", "javascript:alert(1)"):
        assert 'name="next" value=""' in sign_in(visitor, "else@example.com", "x", next=strange).text


def everything(service: RunningService) -> list[Any]:
    """Return all rows except those of sessions."""

    def read(tx: Any) -> list[Any]:
        names = [name for (name,) in tx.all("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
        return [(name, tx.all(f"SELECT * FROM {name}")) for name in names if name not in ("page_session", "request_log", "sqlite_stat1")]

    return service.engine.read(read)


@pytest.mark.parametrize("role", ["viewer", "member", "admin", "strange"])
def test_forms_made_by_hand_are_limited_by_the_role(service: RunningService, newcomer: Newcomer, role: str) -> None:
    """Send every form of the route table, including future ones, as that role with a valid token."""
    visitor = newcomer(service)
    visitor.enter_as(role)
    token, before = visitor.form_token(), everything(service)
    context = Context(service.settings, service.engine, service.clock, new_id)
    forms = [route for route in areas(context, dict)[0].routes if route.method == "POST"]
    allowed = OWN_FORMS | (MEMBER_FORMS if role in ("member", "admin") else set())
    assert len(forms) > 20
    for route in forms:
        if route.path == "/sign-out" or (role in ("member", "admin") and route.needs <= role_of(role)):
            continue
        path = re.sub(r"\{\w+:uuid\}", new_id(), route.path)
        path = re.sub(r"\{\w+\}", "people", path)
        answer = visitor.client.post(f"/console{path}", data={"token": token if route.needs is not MemberRole.NOBODY else "x"})
        if route.path not in allowed:
            assert (answer.status_code, "needs the role" in answer.text) == (403, True), route
    assert everything(service) == before
    assert {route.path for route in forms if route.needs <= MemberRole.MEMBER} == OWN_FORMS | MEMBER_FORMS


def test_pages_of_administrators_are_closed_to_others(service: RunningService, newcomer: Newcomer) -> None:
    viewer = newcomer(service)
    viewer.enter_as("viewer")
    page = viewer.get("/console").text
    for path in ("/keys", "/webhooks", "/members/sessions", "/members/new"):
        assert viewer.get(f"/console{path}").status_code == 403
        assert f'href="/console{path}"' not in page
    assert viewer.get("/console/members").status_code == 200


def test_only_owners_can_change_owners_and_one_always_remains(service: RunningService, newcomer: Newcomer) -> None:
    admin, owner = newcomer(service), newcomer(service)
    admin.enter_as("admin")
    first = service.engine.read(members.list_members)[0]["id"]
    assert admin.send("/console/members", name="Eve", email="eve@example.com", role="owner").status_code == 403
    assert admin.send(f"/console/members/{first}", name="Eve", role="viewer").status_code == 403
    assert admin.send(f"/console/members/{first}/link").status_code == 403
    owner.enter()
    refused = owner.send(f"/console/members/{first}", name="Eve", role="viewer")
    assert (refused.status_code, "needs an owner" in refused.text) == (409, True)
    invited = admin.send("/console/members", name="<b>Bob", email="bob@example.com", role="member")
    assert "&lt;b&gt;Bob" in invited.text
    bob = newcomer(service)
    assert set_password(bob, code_of(invited.text)).status_code == 303
    bob_id = next(member["id"] for member in service.engine.read(members.list_members) if member["user"]["email"] == "bob@example.com")
    admin.follow(admin.send(f"/console/members/{bob_id}", name="Bob", role="viewer"))
    assert "viewer" in bob.get("/console/account").text, "a new role applies at once"
    admin.follow(admin.send(f"/console/members/{bob_id}/lock"))
    assert bob.get("/console").status_code == 403
    assert sign_in(bob, "bob@example.com", PASSWORD).status_code == 403


def test_sessions_are_listed_limited_and_ended_one_by_one(service: RunningService, newcomer: Newcomer) -> None:
    visitor, other = newcomer(service), newcomer(service)
    ada = visitor.enter_as("member")
    other.enter_as("member", "Bob")
    page = visitor.get("/console/account").text
    assert "Firefox on Linux" in page
    assert page.count("this one") == 1
    [mine] = service.engine.read(lambda tx: members.list_sessions(tx, ada, now=service.clock.now()))
    assert other.send(f"/console/members/sessions/{mine['id']}/end").status_code == 404
    assert visitor.send(f"/console/members/sessions/{mine['id']}/end").status_code == 303
    assert visitor.get("/console").status_code == 403
    operator = newcomer(service)
    for _ in range(members.MOST_SESSIONS + 5):
        operator.enter()
        service.clock.advance(1)  # type: ignore[attr-defined]
    assert service.engine.read(lambda tx: tx.one("SELECT count(*) FROM page_session")[0]) == members.MOST_SESSIONS + 1
    assert operator.get("/console/members/sessions").text.count(">End<") == members.MOST_SESSIONS + 1
    assert cookie_name(service) in operator.client.cookies


def test_the_root_address_redirects_to_the_console(service: RunningService, newcomer: Newcomer) -> None:
    page = newcomer(service).follow(newcomer(service).get("/"))
    assert "Sign in" in page.text
