"""One request for a page, and what a page's function may answer: a page, a way on, a file, a session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from crmctl.service.console.uploads import UploadedFile
from crmctl.service.context import Context
from crmctl.service.roles import MemberRole
from crmctl.service.store import actors
from crmctl.service.store.sessions import ConsoleSession
from crmctl.service.store.stamp import Stamp


@dataclass(frozen=True)
class ConsolePage:
    """A template and its values; `refresh` asks the browser to look again after that many seconds."""

    template: str
    values: Mapping[str, Any] = field(default_factory=dict)
    status: int = 200
    refresh: int | None = None


@dataclass(frozen=True)
class Redirect:
    """Go on to a page of the same area; `notice` is the name of a sentence that page shows."""

    path: str
    notice: str | None = None


@dataclass(frozen=True)
class SignedIn:
    """The browser gets the session with this token, and goes on to a page."""

    token: str
    path: str = ""


@dataclass(frozen=True)
class Download:
    """A file, or with no name an answer to a script of ours."""

    body: bytes
    media_type: str
    name: str = ""


Outcome = ConsolePage | Redirect | SignedIn | Download


@dataclass(frozen=True)
class Visit:
    """One request for a page. `objects` are those of the navigation; `address` and `agent` say where it came from."""

    context: Context
    area: str
    session: ConsoleSession
    path: Mapping[str, Any]
    queries: Mapping[str, list[str]]
    form: Mapping[str, list[str]]
    objects: Sequence[Mapping[str, Any]] = ()
    address: str = ""
    agent: str = ""
    files: Mapping[str, UploadedFile] = field(default_factory=dict)

    def may(self, role: MemberRole) -> bool:
        return self.session.role >= role

    @property
    def actor(self) -> str:
        """Who acts, as changes are written down."""
        if self.session.member_id:
            return actors.member(self.session.member_id)
        return actors.key(self.session.key_id) if self.session.key_id else actors.OPERATOR

    @property
    def may_write(self) -> bool:
        return self.may(MemberRole.MEMBER)

    @property
    def may_administer(self) -> bool:
        return self.may(MemberRole.ADMIN)

    @property
    def query(self) -> Mapping[str, str]:
        """The first value of each parameter."""
        return {name: values[0] for name, values in self.queries.items()}

    def id(self, name: str) -> str:
        """A UUID of the path."""
        return str(self.path[name])

    def raw(self, name: str) -> str:
        """A field of the form as it was typed; the empty string where it was not sent."""
        return self.form.get(name, [""])[0]

    def text(self, name: str) -> str:
        """A field of the form without surrounding blanks."""
        return self.raw(name).strip()

    def chosen(self, name: str) -> list[str]:
        """The boxes ticked under one name."""
        return self.form.get(name, [])

    def number(self, name: str, default: int) -> int:
        """A positive whole number of the query, the default for anything else."""
        text = self.query.get(name, "")
        return max(1, int(text)) if text.isascii() and text.isdigit() and len(text) < 10 else default

    def now(self) -> float:
        return self.context.clock.now()

    def stamp(self) -> Stamp:
        return {"ids": self.context.ids, "now": self.now()}


class TurnedBack(Exception):
    """Nothing of the form is carried out, whatever was written already; this page is shown instead."""

    def __init__(self, page: ConsolePage) -> None:
        super().__init__(page.template)
        self.page = page
