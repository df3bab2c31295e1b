"""The page where a member approves the login of a device (RFC 8628)."""

from __future__ import annotations

from crmctl.service.console.noun_pages import NounField
from crmctl.service.console.pages import Pages
from crmctl.service.console.sign_in import ATTEMPTS_SECONDS, FOR_ONE_MEMBER
from crmctl.service.console.visits import ConsolePage, Redirect, Visit
from crmctl.service.faults import BadRequest, Forbidden
from crmctl.service.http.json_answers import rate_limited
from crmctl.service.store import device_logins
from crmctl.service.store.members import MemberRole
from crmctl.service.store.tx import Tx

CODE = NounField("code", "Code", "mono", is_required=True, longest=20, placeholder="BCDF-GHJK")
ABOUT = "Enter the code that crmctl auth login --device shows on the machine that you log in from. Approve no code that someone sent you."


def add_pages(pages: Pages) -> None:
    @pages.get("/device")
    def ask_for_code(_tx: Tx, visit: Visit) -> ConsolePage:
        values = {"title": "Log in on a device", "text": ABOUT, "action": "/device", "button": "Continue", "back": "", "is_primary": True}
        return ConsolePage("confirm.html", values | {"fields": [(CODE, {}, visit.query.get("code", "")[: CODE.longest])]})

    @pages.post("/device", needs=MemberRole.VIEWER, in_transaction=False)
    def show_login(visit: Visit) -> ConsolePage:
        _count_attempt(visit)
        scopes = device_logins.scopes_of(visit.session.role)
        login = visit.context.engine.read(lambda tx: device_logins.find_login(tx, visit.text("code"), now=visit.now()))
        values = {
            "login": login,
            "scopes": scopes and sorted(scopes),
            "hours": device_logins.KEY_SECONDS // 3600,
            "code": visit.text("code"),
        }
        return ConsolePage("device.html", values)

    @pages.post("/device/answer", needs=MemberRole.VIEWER, in_transaction=False)
    def answer_login(visit: Visit) -> Redirect:
        member_id = _count_attempt(visit)
        answer, code = visit.text("answer"), visit.text("code")
        if answer not in ("approve", "deny"):
            raise BadRequest("approve or deny the login", {"field": "answer"})

        def store(tx: Tx) -> None:
            device_logins.answer_login(tx, code, member_id, is_approved=answer == "approve", now=visit.now())

        visit.context.engine.write(store, by=visit.actor)
        return Redirect("", "device-approved" if answer == "approve" else "device-denied")


def _count_attempt(visit: Visit) -> str:
    """Return the visitor's member. Raises Forbidden without one, and a 429 for one that guesses codes."""
    member_id = visit.session.member_id
    if member_id is None:
        raise Forbidden("the operator's session belongs to no member, whose role the key could have; invite yourself on the page Members")
    windows = visit.context.engine.rate_windows()
    state = windows.take(f"device code of {member_id}", FOR_ONE_MEMBER, ATTEMPTS_SECONDS, visit.now())
    if not state.allowed:
        raise rate_limited(state.reset - visit.now(), "there were too many attempts")
    return member_id
