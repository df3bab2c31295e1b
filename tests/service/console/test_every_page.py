"""Every page of the route tables is small, works without scripts, and offers each role only what it may do. New pages are included."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

import pytest
from starlette.routing import compile_path

from crmctl.service.console.pages import PageRoute
from crmctl.service.console.visits import PORTAL
from crmctl.service.context import new_id
from crmctl.service.store.members import MemberRole
from tests.service.console.conftest import Newcomer, Visitor
from tests.service.console.test_members import everything
from tests.support.clock import FakeClock
from tests.support.consolepages import FurnishedPages, furnish, page_tables, unknown_pages
from tests.support.service import RunningService, running_service

ROLES = {"viewer": MemberRole.VIEWER, "member": MemberRole.MEMBER, "admin": MemberRole.ADMIN, "owner": MemberRole.OWNER}
MOST_BYTES = 40_000
REFUSED = {"/nowhere": 404, "/records/people?where=score&op=greaterThan&value=x": 400}
"""Pages that show an error; so does the deletion of a standard object."""


@pytest.fixture(scope="module")
def crm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    folder = tmp_path_factory.mktemp("pages")
    with running_service(folder, clock=FakeClock(), background=False, development=True) as running:
        yield running


@pytest.fixture(scope="module")
def furnished(crm: RunningService) -> FurnishedPages:
    return furnish(crm)


def visitor_of(newcomer: Newcomer, service: RunningService, role: str) -> Visitor:
    made = newcomer(service)
    made.enter_as(role)
    return made


def route_for(routes: list[PageRoute], method: str, path: str) -> PageRoute:
    """Return the first matching route, as the router does."""
    return next(route for route in routes if route.method == method and compile_path(route.path)[0].match(path))


def test_every_page_is_tested(crm: RunningService, furnished: FurnishedPages) -> None:
    assert unknown_pages(crm, furnished) == set()


def test_every_page_is_small_and_works_without_scripts(crm: RunningService, furnished: FurnishedPages, newcomer: Newcomer) -> None:
    operator, stranger, guest = newcomer(crm), newcomer(crm), newcomer(crm)
    operator.enter()
    guest.enter(PORTAL)
    shown = [(operator, f"/console{path}") for path in furnished.console()]
    shown += [(stranger, f"/console{path}") for path in furnished.signed_out] + [(guest, f"/portal{path}") for path in furnished.portal]
    for visitor, path in shown:
        answer = visitor.get(path)
        page = answer.text
        assert len(answer.content) <= MOST_BYTES, path
        assert answer.status_code in (200, 400, 403, 404), path
        assert (answer.status_code == 200) is (path.removeprefix("/console") not in REFUSED and 'class="code"' not in page), path
        assert re.findall(r"<h1", page) == ["<h1"], path
        assert not re.search(r'<[^>]* on\w+=|<[^>]* style=|href="javascript:|<script(?! src=)', page), path
        assert re.findall(r'href="[^"]*[?&](?:amp;)?"', page) == [], path
        for label, options in re.findall(r"<label for[^>]*>((?:(?!</label>).)*)</label>\s*<select[^>]*>(.*?)</select>", page, re.DOTALL):
            assert 'value=""' in options or "(optional)" not in label, (path, label)
        # Every form can be sent, and every button works without scripts.
        for form in re.findall(r"<form.*?</form>", page, re.DOTALL):
            assert re.search(r"<button(?! type=.button.)", form), (path, form)
            assert ('method="post"' in form) is ('name="token"' in form), (path, form)
        for button in re.findall(r'<button[^>]*type="button"[^>]*>', page):
            assert "popovertarget" in button or (button.endswith(" hidden>") and "data-copy" in button), (path, button)


@pytest.mark.parametrize("role", ["viewer", "member", "admin"])
def test_pages_open_for_their_roles_and_offer_only_permitted_actions(
    crm: RunningService, furnished: FurnishedPages, newcomer: Newcomer, role: str
) -> None:
    visitor, routes, mine = visitor_of(newcomer, crm, role), page_tables(crm)[0].routes, ROLES[role]
    for template, paths in furnished.paths.items():
        needs = next(route for route in routes if (route.method, route.path) == ("GET", template)).needs
        for path in paths:
            answer = visitor.get(f"/console{path}")
            assert (answer.status_code == 403 and "needs the role" in answer.text) is (needs > mine), (path, needs)
            page = html.unescape(answer.text)
            offered = [("GET", where) for where in re.findall(r'<a [^>]*href="/console([^"?#]*)', page)]
            for attributes in re.findall(r"<form([^>]*)>", page):
                [action] = re.findall(r'action="/console([^"?#]*)', attributes)
                offered.append(("POST" if 'method="post"' in attributes else "GET", action))
            for method, where in offered:
                route = route_for(routes, method, where)
                assert route.needs <= mine, (path, method, where)
                assert route.path != "/{rest:path}" or path == "/nowhere", (path, method, where)


@pytest.mark.parametrize("area", ["console", "portal"])
def test_forms_need_the_token_of_their_session(crm: RunningService, furnished: FurnishedPages, newcomer: Newcomer, area: str) -> None:
    """Send every form of the route tables as owner: without a token, with another session's token, and from another site."""
    visitor, other = newcomer(crm), newcomer(crm)
    visitor.enter(area)
    other.enter(area)
    stolen, before = other.form_token(), everything(crm)
    assert furnished.paths
    forms = [route for route in page_tables(crm)[area == PORTAL].routes if route.method == "POST"]
    assert len(forms) > 8
    for route in forms:
        path = f"/{area}" + re.sub(r"\{\w+\}", "people", re.sub(r"\{\w+:uuid\}", new_id(), route.path))
        for fields in ({}, {"token": stolen}, {"token": ""}, {"token": "x" * 64}):
            assert visitor.client.post(path, data=fields).status_code == 403, (path, fields)
    assert everything(crm) == before


def test_an_internal_error_is_a_page_with_the_request_id(
    crm: RunningService, newcomer: Newcomer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from crmctl.service.store import reports

    visitor = newcomer(crm)
    visitor.enter()

    def fail(_tx: object) -> None:
        raise ZeroDivisionError("inside")

    monkeypatch.setattr(reports, "list_reports", fail)
    answer = visitor.client.get("/console/reports", headers={"X-Request-Id": "of-the-proxy"})
    assert (answer.status_code, answer.headers["content-type"].partition(";")[0]) == (500, "text/html")
    assert "under request of-the-proxy" in answer.text
    assert "inside" not in answer.text
    output = capsys.readouterr().err
    assert "request of-the-proxy" in output
    assert "ZeroDivisionError: inside" in output


def test_a_standard_object_is_not_offered_for_deletion(crm: RunningService, newcomer: Newcomer) -> None:
    visitor = newcomer(crm)
    visitor.enter()
    assert "cannot be deleted" in visitor.get(f"/console/objects/{crm.object_id('people')}/delete").text
