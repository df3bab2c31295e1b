"""A session on a scripted server, with a clock that does not wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from crmctl.client.crm import Crm
from crmctl.client.session import Session
from crmctl.client.transport import HttpTransport
from crmctl.config.credentials import Credential
from tests.support.clock import FakeClock
from tests.support.httpserver import Reply, ScriptedServer

KEY = "crs_9f8e7d6c5b4a_secret/+"


@dataclass
class Scene:
    """The server, the client on it, and the notes and log lines of the client."""

    server: ScriptedServer
    crm: Crm
    clock: FakeClock
    log: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def session(self) -> Session:
        return self.crm.session


@pytest.fixture
def scene() -> Callable[..., Any]:
    """`with scene(Reply(...), ...) as here:` plays the script; `prefix` is a path of the base URL."""

    @contextmanager
    def play(*script: Reply, prefix: str = "", **options: Any) -> Iterator[Scene]:
        clock, log, notes = FakeClock(), list[str](), list[str]()
        with ScriptedServer(*script) as server:
            transport = HttpTransport()
            credential = Credential(KEY, "test", server.origin)
            settings = {"clock": clock, "random": lambda: 0.5, "timeout": 5.0, "log": log.append, "note": notes.append} | options
            session = Session(server.origin + prefix, credential, transport, **settings)
            try:
                yield Scene(server, Crm(session), clock, log, notes)
            finally:
                session.close()

    return play
