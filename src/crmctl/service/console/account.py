"""Pages about oneself and about who is signed in: one's sessions and password, and for administrators all sessions."""

from __future__ import annotations

from http import HTTPStatus

from crmctl.service.console import passwords as hashing
from crmctl.service.console.pages import ConsolePage, Pages, Redirect, Visit
from crmctl.service.faults import BadRequest, Forbidden, NotFound
from crmctl.service.roles import MEANINGS, MemberRole
from crmctl.service.store import members, passwords, sessions
from crmctl.service.store.tx import Tx


def add_pages(pages: Pages) -> None:
    """One's account, and the sessions of all."""
    _add_account(pages)
    _add_sessions(pages)


def _add_account(pages: Pages) -> None:
    @pages.get("/account")
    def show_account(tx: Tx, visit: Visit) -> ConsolePage:
        return _account(tx, visit)

    @pages.post("/account/password", needs=MemberRole.VIEWER, in_transaction=False)
    def change_password(visit: Visit) -> ConsolePage | Redirect:
        engine, member_id = visit.context.engine, visit.session.member_id
        if member_id is None:
            raise Forbidden("the operator's session belongs to no member and has no password")
        email, hashed = engine.read(lambda tx: (members.get_member(tx, member_id)["user"]["email"], passwords.get_password(tx, member_id)))
        try:
            if not hashing.is_right(hashed, visit.raw("present")):
                raise BadRequest("the present password is wrong", {"field": "present"})
            hashing.check_new(visit.raw("password"), visit.raw("again"), email)
        except BadRequest as error:
            problem = error.message
            return engine.read(lambda tx: _account(tx, visit, problem))
        fresh = hashing.hash_password(visit.raw("password"))

        def store(tx: Tx) -> Redirect:
            passwords.put_password(tx, member_id, fresh)
            sessions.end_sessions_of(tx, member_id, but=visit.session.id)
            return Redirect("/account", "password-changed")

        return engine.write(store)


def _add_sessions(pages: Pages) -> None:
    @pages.get("/sessions", needs=MemberRole.ADMIN)
    def list_sessions(tx: Tx, visit: Visit) -> ConsolePage:
        found = sessions.list_sessions(tx, now=visit.now())
        return ConsolePage("sessions.html", {"section": "members", "sessions": found})

    @pages.post("/sessions/{sessionId:uuid}/end", needs=MemberRole.VIEWER)
    def end_session(tx: Tx, visit: Visit) -> Redirect:
        """One's own; an administrator ends anybody's."""
        of_all = visit.may_administer
        if not of_all and visit.session.member_id is None:
            raise Forbidden("this session belongs to no member")
        if not sessions.end_session(tx, visit.id("sessionId"), None if of_all else visit.session.member_id):
            raise NotFound("there is no such session any more")
        return Redirect("/sessions" if of_all and visit.text("from") == "all" else "/account", "session-ended")


def _account(tx: Tx, visit: Visit, error: str | None = None) -> ConsolePage:
    mine = visit.session.member_id
    values = {
        "section": "account",
        "member": members.get_member(tx, mine) if mine else None,
        "meaning": MEANINGS[visit.session.role],
        "sessions": sessions.list_sessions(tx, mine, now=visit.now()) if mine else [],
        "shortest": hashing.SHORTEST,
        "error": error,
    }
    return ConsolePage("account.html", values, HTTPStatus.BAD_REQUEST if error else HTTPStatus.OK)
