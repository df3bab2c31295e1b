"""Pages of the members: who there is and what each may do, inviting, a new link, another role, taking access away."""

from __future__ import annotations

from typing import Any

from crmctl.service.console.edits import form_status, form_values, refuse_if_saved_meanwhile
from crmctl.service.console.links import make_password_link
from crmctl.service.console.pages import ConsolePage, Pages, Redirect, Visit
from crmctl.service.faults import BadRequest, Conflict, Fault, Forbidden
from crmctl.service.roles import MEANINGS, MemberRole, role_of
from crmctl.service.store import members, passwords, sessions
from crmctl.service.store.tx import Tx


def add_pages(pages: Pages) -> None:
    """All pages of the members."""
    _add_list(pages)
    _add_inviting(pages)
    _add_changes(pages)


def _add_list(pages: Pages) -> None:
    @pages.get("/members")
    def list_members(tx: Tx, visit: Visit) -> ConsolePage:
        access = passwords.access_of_members(tx, now=visit.now())
        found = [member | {"access": access.get(member["id"], "")} for member in members.list_members(tx)]
        return ConsolePage("members.html", {"section": "members", "members": found, "meanings": MEANINGS})


def _add_inviting(pages: Pages) -> None:
    @pages.get("/members/new", needs=MemberRole.ADMIN)
    def new_member(_tx: Tx, visit: Visit) -> ConsolePage:
        return _form(visit)

    @pages.post("/members", needs=MemberRole.ADMIN)
    def invite(tx: Tx, visit: Visit) -> ConsolePage:
        try:
            role = _role(visit)
            made = members.create_member(tx, name=visit.text("name"), email=visit.text("email"), role=role.label, **visit.stamp())
        except (BadRequest, Conflict) as error:
            return _form(visit, error)
        return _link_page(tx, visit, made)


def _add_changes(pages: Pages) -> None:
    @pages.get("/members/{memberId:uuid}", needs=MemberRole.ADMIN)
    def show_member(tx: Tx, visit: Visit) -> ConsolePage:
        return _member(tx, visit)

    @pages.post("/members/{memberId:uuid}", needs=MemberRole.ADMIN)
    def change_member(tx: Tx, visit: Visit) -> ConsolePage | Redirect:
        known = _changeable(tx, visit)
        try:
            refuse_if_saved_meanwhile(visit, _own(known))
            role = _role(visit)
            if role is not MemberRole.OWNER:
                _keep_an_owner(tx, known)
            members.update_member(tx, known["id"], name=visit.text("name"), role=role.label, image=known["user"]["image"])
        except (BadRequest, Conflict) as error:
            return _member(tx, visit, error)
        return Redirect("/members", "saved")

    @pages.post("/members/{memberId:uuid}/link", needs=MemberRole.ADMIN)
    def make_link(tx: Tx, visit: Visit) -> ConsolePage:
        return _link_page(tx, visit, _changeable(tx, visit))

    @pages.get("/members/{memberId:uuid}/lock", needs=MemberRole.ADMIN)
    def confirm_lock(tx: Tx, visit: Visit) -> ConsolePage:
        known = _changeable(tx, visit)
        values = {
            "section": "members",
            "title": "Take access away",
            "about": known["user"]["email"],
            "text": "The password and open links become void and every session ends. The member stays in the list, and so does what they "
            "made. A new link gives access again.",
            "action": f"/members/{known['id']}/lock",
            "button": "Take access away",
            "back": f"/members/{known['id']}",
        }
        return ConsolePage("confirm.html", values)

    @pages.post("/members/{memberId:uuid}/lock", needs=MemberRole.ADMIN)
    def lock(tx: Tx, visit: Visit) -> Redirect:
        known = _changeable(tx, visit)
        passwords.drop_password(tx, known["id"])
        sessions.end_sessions_of(tx, known["id"])
        return Redirect("/members", "locked")


def _changeable(tx: Tx, visit: Visit) -> dict[str, Any]:
    """The member of the path. Raises Forbidden where only an owner may change who they are, or what they may."""
    known = members.get_member(tx, visit.id("memberId"))
    if role_of(known["role"]) is MemberRole.OWNER and not visit.may(MemberRole.OWNER):
        raise Forbidden("only an owner changes an owner")
    return known


def _role(visit: Visit) -> MemberRole:
    """The role that the form names. Raises BadRequest for none, Forbidden for more than the visitor's own."""
    role = next((each for each in MEANINGS if each.label == visit.text("role")), None)
    if role is None:
        raise BadRequest("choose a role", {"field": "role"})
    if not visit.may(role):
        raise Forbidden("only an owner makes an owner")
    return role


def _keep_an_owner(tx: Tx, known: dict[str, Any]) -> None:
    owners = [member["id"] for member in members.list_members(tx) if role_of(member["role"]) is MemberRole.OWNER]
    if owners == [known["id"]]:
        raise Conflict("the organization needs an owner; make another member one first", {"field": "role"})


def _form(visit: Visit, error: Fault | None = None) -> ConsolePage:
    fields = {name: visit.text(name) for name in ("name", "email", "role")}
    roles = {role.label: meaning for role, meaning in MEANINGS.items() if visit.may(role)}
    values = {"section": "members", "known": None, "fields": fields, "roles": roles}
    return ConsolePage("member_form.html", values | form_values(None, error), form_status(error))


def _own(known: dict[str, Any]) -> dict[str, Any]:
    return {"name": known["user"]["name"], "role": role_of(known["role"]).label}


def _member(tx: Tx, visit: Visit, error: Fault | None = None) -> ConsolePage:
    known = _changeable(tx, visit)
    typed = {name: visit.text(name) for name in ("name", "role")} if error else {}
    fields = {"email": known["user"]["email"]} | _own(known) | typed
    roles = {role.label: meaning for role, meaning in MEANINGS.items() if visit.may(role)}
    access = passwords.access_of_members(tx, now=visit.now()).get(known["id"], "")
    values = {"section": "members", "known": known | {"access": access}, "fields": fields, "roles": roles}
    return ConsolePage("member_form.html", values | form_values(_own(known), error), form_status(error))


def _link_page(tx: Tx, visit: Visit, member: dict[str, Any]) -> ConsolePage:
    link = make_password_link(tx, visit.context.settings.address, member["id"], now=visit.now())
    return ConsolePage("member_link.html", {"section": "members", "member": member, "link": link.url, "until": link.expires_at})
