"""Sign in and out, sessions, passwords, and logins of devices (RFC 8628)."""

from __future__ import annotations

import hashlib
import math
import re
import threading
import unicodedata
from collections.abc import Mapping
from functools import cache, partial
from http import HTTPStatus
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from crmctl.models.jsontext import Json
from crmctl.service.console import administration
from crmctl.service.console.noun_pages import NounField, table_rows
from crmctl.service.console.nouns import SESSIONS
from crmctl.service.console.pages import HEADERS
from crmctl.service.console.visits import CONSOLE, STATIC, ConsolePage, Outcome, Redirect, Visit, static_file
from crmctl.service.context import Context
from crmctl.service.faults import BadRequest, Forbidden, NotFound
from crmctl.service.http.endpoint import NamedRoute
from crmctl.service.http.json_answers import rate_limited
from crmctl.service.store import members, short_lived_keys
from crmctl.service.store.members import MEANINGS, MemberRole
from crmctl.service.store.tx import Tx

if TYPE_CHECKING:
    from argon2 import PasswordHasher

SHORTEST, LONGEST = 10, 500

_AT_ONCE = threading.BoundedSemaphore(2)
"""A hash takes 64 MiB and a tenth of a second of a processor."""


def check_new(password: str, again: str, email: str) -> None:
    """Raise BadRequest for a password that is too short, too long, equal to the email address, or repeated differently."""
    if len(password) < SHORTEST or len(password) > LONGEST:
        raise BadRequest(f"a password must have {SHORTEST} to {LONGEST} characters", {"field": "password"})
    if password.casefold() == email.casefold() or len(set(password)) < 4:
        raise BadRequest("this password is too easy to guess", {"field": "password"})
    if password != again:
        raise BadRequest("the two passwords are not the same", {"field": "again"})


def hash_password(password: str) -> str:
    with _AT_ONCE:
        return _hasher().hash(_bytes(password))


def is_right(hashed: str | None, password: str) -> bool:
    """Whether this is the password. It takes the same time for a member without one, so that timing reveals nothing."""
    from argon2.exceptions import InvalidHashError, VerificationError

    with _AT_ONCE:
        try:
            return _hasher().verify(hashed or _nobodys(), _bytes(password)) and hashed is not None
        except (VerificationError, InvalidHashError):
            return False


@cache
def _hasher() -> PasswordHasher:
    from argon2 import PasswordHasher

    return PasswordHasher()


@cache
def _nobodys() -> str:
    return _hasher().hash(b"nobody's")


def _bytes(password: str) -> bytes:
    """Return the password in composed form, because keyboards compose letters in different ways."""
    return unicodedata.normalize("NFC", password[:LONGEST]).encode(errors="replace")


ATTEMPTS_SECONDS = 900
"""Attempts to sign in are counted over this time."""
FOR_ONE_MEMBER, FROM_ONE_ADDRESS = 10, 100

_FOR_GOOD = "public, max-age=31536000, immutable"
_NEXT = re.compile(r"(/(?!/)[A-Za-z0-9/_.~%?&=+:,\[\]-]*)?")


def sign_out(tx: Tx, visit: Visit) -> ConsolePage | Redirect:
    members.end_session(tx, visit.session.id)
    return Redirect("")


def nowhere(_tx: Tx, _visit: Visit) -> Outcome:
    raise NotFound("there is no page at this address")


def show_sign_in(_tx: Tx, visit: Visit) -> ConsolePage | Redirect:
    return Redirect("") if visit.may(MemberRole.VIEWER) else ConsolePage("welcome.html", {"next": "", "email": ""})


def sign_in(visit: Visit) -> ConsolePage | Redirect:
    email, next_path = visit.text("email"), visit.raw("next")
    values = {"next": next_path if _NEXT.fullmatch(next_path) else "", "email": email}
    named = hashlib.sha256(email.casefold().encode(errors="replace")).hexdigest()[:32]
    attempts = {f"sign-in from {visit.address}": FROM_ONE_ADDRESS, f"sign-in as {named}": FOR_ONE_MEMBER}
    if minutes := math.ceil(_seconds_to_wait(visit, attempts) / 60):
        problem = f"there were too many attempts to sign in; try again in {minutes} minute{'' if minutes == 1 else 's'}"
        return ConsolePage("welcome.html", values | {"error": problem}, HTTPStatus.TOO_MANY_REQUESTS)
    engine = visit.context.engine
    member_id, hashed = engine.read(lambda tx: _stored(tx, email))
    # Outside of a transaction: it takes a tenth of a second.
    if not is_right(hashed, visit.raw("password")) or member_id is None:
        problem = "the email address or the password is wrong"
        return ConsolePage("welcome.html", values | {"error": problem}, HTTPStatus.FORBIDDEN)
    return engine.write(lambda tx: _enter(tx, visit, member_id, values["next"]))


def show_password(tx: Tx, visit: Visit) -> ConsolePage:
    return ConsolePage("password.html", {"code": _code(visit), "email": _invited(tx, visit)["user"]["email"], "shortest": SHORTEST})


def set_password(visit: Visit) -> Redirect:
    engine = visit.context.engine
    check_new(visit.raw("password"), visit.raw("again"), engine.read(lambda tx: _invited(tx, visit))["user"]["email"])
    hashed = hash_password(visit.raw("password"))

    def store(tx: Tx) -> Redirect:
        member = _invited(tx, visit)
        members.put_password(tx, member["id"], hashed)
        members.end_sessions_of(tx, member["id"])
        return _enter(tx, visit, member["id"], "")

    return engine.write(store)


def front_door(context: Context) -> list[NamedRoute]:
    """Return the routes that lead from the address of the service to the console, and serve the static files without a session."""

    def lead_to_console(_request: Request) -> Response:
        return RedirectResponse(f"{context.settings.address}/{CONSOLE}", HTTPStatus.SEE_OTHER, HEADERS)

    def show_static(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in STATIC:
            raise NotFound("there is nothing at this path")
        headers = {"Cache-Control": _FOR_GOOD, "X-Content-Type-Options": "nosniff"}
        return Response(static_file(name), media_type=STATIC[name], headers=headers)

    return [NamedRoute("/", lead_to_console), NamedRoute("/console/static/{name}", show_static)]


def _stored(tx: Tx, email: str) -> tuple[str | None, str | None]:
    """Return the id and the password hash of the member with this address."""
    member = members.find_member_by_email(tx, email)
    return (None, None) if member is None else (member["id"], members.get_password(tx, member["id"]))


def _enter(tx: Tx, visit: Visit, member_id: str, path: str) -> Redirect:
    about = {"member_id": member_id, "address": visit.address, "agent": visit.agent}
    return Redirect(path, token=members.open_session(tx, visit.area, **about, now=visit.now()))


def _seconds_to_wait(visit: Visit, attempts: Mapping[str, int]) -> float:
    """Count an attempt under each name up to its limit. Return the seconds to wait, 0 if it may go on."""
    windows, now = visit.context.engine.rate_windows(), visit.now()
    states = (windows.take(name, limit, ATTEMPTS_SECONDS, now) for name, limit in attempts.items())
    return next((state.reset - now for state in states if not state.allowed), 0.0)


def _invited(tx: Tx, visit: Visit) -> Json:
    """Return the member that the link in the address or the form was made for. Raises Forbidden."""
    member_id = members.find_by_code(tx, _code(visit), now=visit.now())
    if member_id is None:
        raise Forbidden("this link was used, replaced, or is too old; ask for another one")
    return members.get_member(tx, member_id)


def _code(visit: Visit) -> str:
    return visit.text("code") or visit.query.get("code", "")


def change_password(visit: Visit) -> Redirect:
    engine, member_id = visit.context.engine, visit.session.member_id
    if member_id is None:
        raise Forbidden("the operator's session belongs to no member and has no password")
    email, hashed = engine.read(lambda tx: (members.get_member(tx, member_id)["user"]["email"], members.get_password(tx, member_id)))
    if not is_right(hashed, visit.raw("present")):
        raise BadRequest("the current password is wrong", {"field": "present"})
    check_new(visit.raw("password"), visit.raw("again"), email)
    fresh = hash_password(visit.raw("password"))

    def store(tx: Tx) -> Redirect:
        members.put_password(tx, member_id, fresh)
        members.end_sessions_of(tx, member_id, but=visit.session.id)
        return Redirect("/account", "password-changed")

    return engine.write(store)


def show_account(tx: Tx, visit: Visit) -> ConsolePage:
    mine = visit.session.member_id
    sessions = administration.sessions(tx, visit, mine) if mine else []
    values = {
        "member": members.get_member(tx, mine) if mine else None,
        "meaning": MEANINGS[visit.session.role],
        "noun": SESSIONS,
        "rows": table_rows(visit, SESSIONS, sessions),
        "shortest": SHORTEST,
    }
    return ConsolePage("account.html", values)


CODE = NounField("code", "Code", "mono", is_required=True, longest=20, placeholder="BCDF-GHJK")
ABOUT = "Enter the code that crmctl auth login --device shows on the machine that you log in from. Approve no code that someone sent you."


def ask_for_code(_tx: Tx, visit: Visit) -> ConsolePage:
    values = {"title": "Log in on a device", "text": ABOUT, "action": "/device", "button": "Continue", "back": "", "is_primary": True}
    return ConsolePage("confirm.html", values | {"fields": [(CODE, {}, visit.query.get("code", "")[: CODE.longest])]})


def show_login(visit: Visit) -> ConsolePage:
    _count_attempt(visit)
    scopes = short_lived_keys.scopes_of(visit.session.role)
    login = visit.context.engine.read(lambda tx: short_lived_keys.find_login(tx, visit.text("code"), now=visit.now()))
    values = {"login": login, "scopes": scopes and sorted(scopes), "hours": short_lived_keys.KEY_SECONDS // 3600}
    return ConsolePage("device.html", values)


def answer_login(visit: Visit) -> Redirect:
    member_id = _count_attempt(visit)
    state = short_lived_keys.APPROVED if visit.text("answer") == "approve" else short_lived_keys.DENIED
    answering = partial(short_lived_keys.answer_login, user_code=visit.text("code"), member_id=member_id, state=state, now=visit.now())
    visit.context.engine.write(answering, by=visit.actor)
    return Redirect("", f"device-{state}")


def _count_attempt(visit: Visit) -> str:
    """Return the visitor's member. Raises Forbidden without one, and a 429 for one that guesses codes."""
    member_id = visit.session.member_id
    if member_id is None:
        raise Forbidden("the operator's session belongs to no member, whose role the key could have; invite yourself on the page Members")
    if seconds := _seconds_to_wait(visit, {f"device code of {member_id}": FOR_ONE_MEMBER}):
        raise rate_limited(seconds, "there were too many attempts")
    return member_id
