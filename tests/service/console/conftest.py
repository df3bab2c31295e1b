"""A service, and browsers without scripts that sign in to its console."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from argon2 import PasswordHasher

from crmctl.service.console import sign_in
from crmctl.service.console.visits import CONSOLE, make_link
from crmctl.service.context import new_id
from crmctl.service.store import members
from crmctl.service.store.tx import Tx
from tests.support.browser import Browser, open_browser
from tests.support.clock import FakeClock
from tests.support.plainpages import PlainReader
from tests.support.service import RunningService, make_client, running_service


class Visitor:
    """A user with a browser that has neither scripts nor styles, but follows links and sends forms."""

    def __init__(self, service: RunningService) -> None:
        self.service = service
        self.client = make_client(service.base_url, None)

    def enter(self, area: str = CONSOLE) -> httpx.Response:
        return self.client.get(link_to(self.service, area))

    def get(self, path: str) -> httpx.Response:
        return self.client.get(path)

    def form_token(self) -> str:
        """Return the form token of this session."""
        page = self.get("/console").text + self.get("/portal/webhooks").text
        found = re.search(r'/sign-out"><input type="hidden" name="token" value="([0-9a-f]{64})"', page)
        assert found, page
        return found[1]

    def send(self, path: str, **fields: Any) -> httpx.Response:
        """Send a form, by default with the session's token."""
        return self.client.post(path, data={"token": self.form_token(), **fields})

    def reader(self) -> PlainReader:
        """Return a reader of this session. A second passes before each of its requests, as undo needs."""
        self.client.event_hooks["request"].append(lambda _: self.service.clock.advance(1))  # type: ignore[attr-defined]
        return PlainReader(self.client)

    def follow(self, answer: httpx.Response) -> httpx.Response:
        assert answer.status_code == 303, answer.text
        return self.get(answer.headers["location"])

    def enter_as(self, role: str, name: str = "Ada") -> str:
        """Start a session of a new member with this role, without hashing a password. Return the member's id."""
        service = self.service
        now = service.clock.now()

        def open_one(tx: Tx) -> tuple[str, str]:
            email = f"{role}.{new_id()[-12:]}@example.com"
            made = members.create_member(tx, name=name, email=email, role=role, ids=new_id, now=now)
            return made["id"], members.open_session(tx, CONSOLE, member_id=made["id"], agent="Firefox/1 Linux", now=now)

        member_id, token = service.engine.write(open_one)
        self.client.cookies.set(cookie_name(service), token, path="/console")
        return str(member_id)


def cookie_name(service: RunningService, area: str = CONSOLE) -> str:
    return f"crm_{area}_{hashlib.sha256(service.settings.address.encode()).hexdigest()[:8]}"


def link_to(service: RunningService, area: str = CONSOLE) -> str:
    return service.engine.read(lambda tx: make_link(tx, service.base_url, area, now=service.clock.now())).url


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with open_browser(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@pytest.fixture
def service(tmp_path: Path) -> Iterator[RunningService]:
    """A service without jobs, whose clock stands still."""
    with running_service(tmp_path / "data", clock=FakeClock(), background=False, development=True) as running:
        yield running


@pytest.fixture
def _cheap_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make hashing fast; other tests cover its cost."""
    cheap = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
    monkeypatch.setattr(sign_in, "_hasher", lambda: cheap)


Newcomer = Callable[[RunningService], Visitor]


@pytest.fixture
def newcomer() -> Iterator[Newcomer]:
    """Return a function that creates visitors who have not signed in."""
    with contextlib.ExitStack() as stack:

        def make(service: RunningService) -> Visitor:
            made = Visitor(service)
            stack.enter_context(made.client)
            return made

        yield make


@pytest.fixture
def visitor(service: RunningService, newcomer: Newcomer) -> Visitor:
    """A visitor who has signed in to the console."""
    made = newcomer(service)
    assert made.enter().status_code == 200
    return made
