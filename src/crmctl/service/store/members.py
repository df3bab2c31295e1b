"""Members with their roles, passwords and sessions, and the organisation."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import replace
from enum import IntEnum
from typing import Unpack
from uuid import uuid4

from crmctl.frozen import frozen
from crmctl.models.jsontext import Json
from crmctl.service.faults import BadRequest, Conflict, Forbidden
from crmctl.service.store import logs
from crmctl.service.store.keys import secret_hash
from crmctl.service.store.objects import STANDARD, NewAttribute, NewObject, create_attribute, create_object
from crmctl.service.store.record_tables import require_name
from crmctl.service.store.tx import Ids, Rows, Stamp, Tx, insert, required, to_micros, update
from crmctl.values.folded_text import fold
from crmctl.values.value_readers import Invalid, read_email


class MemberRole(IntEnum):
    """NOBODY stands for visitors before they sign in."""

    NOBODY = 0
    VIEWER = 1
    MEMBER = 2
    ADMIN = 3
    OWNER = 4

    @property
    def label(self) -> str:
        return self.name.lower()


MEANINGS = {
    MemberRole.OWNER: "everything, owners included",
    MemberRole.ADMIN: "schema, members, API keys, webhooks, reports, workflows, logs",
    MemberRole.MEMBER: "read and write records, activities and files; run reports and workflows",
    MemberRole.VIEWER: "read everything except the administration pages; change nothing",
}
"""The roles of members, the most powerful first."""


_ROLES = {role.label: role for role in MEANINGS}


def role_of(text: str) -> MemberRole:
    """Return the role of a stored text. An unknown one may only read."""
    return _ROLES.get(text, MemberRole.VIEWER)


_MEMBERS = Rows("member", "member", "id, user_id, name, email, image, role, created_at")


def _member(row: Json) -> Json:
    user = {"id": row["userId"], "name": row["name"], "email": row["email"], "image": row["image"]}
    return {"id": row["id"], "role": row["role"], "createdAt": row["createdAt"], "user": user}


def list_members(tx: Tx) -> list[Json]:
    return [_member(row) for row in _MEMBERS.all(tx, "ORDER BY created_at, email_key")]


def get_member(tx: Tx, member_id: str) -> Json:
    return _member(_MEMBERS.get(tx, member_id))


def find_member_by_email(tx: Tx, email: str) -> Json | None:
    row = _MEMBERS.find(tx, "email_key = ?", fold(email))
    return None if row is None else _member(row)


def author(tx: Tx, member_id: str | None = None) -> Json:
    """Return the author of something as `{id, name, email}`: the member who made the key, else the owner."""
    order = "CASE WHEN id = ? THEN 0 WHEN role = 'owner' THEN 1 ELSE 2 END, created_at, id"
    user_id, name, email = required(tx.one(f"SELECT user_id, name, email FROM member ORDER BY {order} LIMIT 1", (member_id or "",)))
    return {"id": user_id, "name": name, "email": email}


def create_member(tx: Tx, *, name: str, email: str, role: str = "member", image: str | None = None, **stamp: Unpack[Stamp]) -> Json:
    """Create a member. Raises BadRequest, and Conflict when the email address is in use."""
    require_name(name, "name")
    require_name(role, "role")
    try:
        known_email = read_email(email)
    except Invalid as error:
        raise BadRequest(f"email {error}", {"field": "email"}) from None
    if not known_email:
        raise BadRequest("email must not be empty", {"field": "email"})
    if find_member_by_email(tx, email) is not None:
        raise Conflict(f"{email} is a member already", {"field": "email"})
    row = (stamp["ids"](), stamp["ids"](), name, email, image, role, to_micros(stamp["now"]))
    tx.execute(f"INSERT INTO member ({_MEMBERS.columns}, email_key) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (*row, fold(email)))
    logs.note(tx, "member.created", row[0], {"name": name, "email": email, "role": role}, now=stamp["now"])
    return get_member(tx, row[0])


def update_member(tx: Tx, member_id: str, *, name: str, role: str, image: str | None = None) -> Json:
    member = get_member(tx, member_id)
    values = {"name": require_name(name, "name"), "role": require_name(role, "role"), "image": image}
    changed = logs.differences({"name": member["user"]["name"], "role": member["role"]}, {"name": name, "role": role})
    update(tx, "member", values, "id = ?", member["id"])
    logs.note(tx, "member.updated", member["id"], {"name": name, "role": role} | changed)
    return get_member(tx, member_id)


def role_named(text: str) -> MemberRole:
    if text not in _ROLES:
        raise BadRequest(f"choose a role: {', '.join(_ROLES)}", {"field": "role", "valid": list(_ROLES)})
    return _ROLES[text]


def check_change(tx: Tx, member: Json, by: MemberRole, becomes: MemberRole = MemberRole.NOBODY) -> None:
    """Check that `by` may give the member this role, or remove it (NOBODY). Raises Forbidden, and Conflict for the last owner."""
    was = role_of(member["role"])
    if by < MemberRole.ADMIN:
        raise Forbidden("only admins and owners change members")
    if MemberRole.OWNER in (was, becomes) and by is not MemberRole.OWNER:
        raise Forbidden("only an owner changes an owner" if was is MemberRole.OWNER else "only an owner makes an owner")
    # Locks the row: of two requests that each demote one of two owners, the second sees the first.
    tx.execute("UPDATE organisation SET name = name")
    owners = [other["id"] for other in list_members(tx) if role_of(other["role"]) is MemberRole.OWNER]
    if becomes is not MemberRole.OWNER and owners == [member["id"]]:
        raise Conflict("the organization needs an owner; make another member an owner first", {"field": "role"})


def remove_member(tx: Tx, member_id: str, *, now: float) -> list[Json]:
    """Delete a member with its password and sessions. Returns the API keys it made that still work, as `{id, name}`: they belong to the
    organization. Raises NotFound."""
    member = get_member(tx, member_id)
    end_sessions_of(tx, member["id"])
    tx.execute("DELETE FROM member_password WHERE member_id = ?", (member["id"],))
    tx.execute("DELETE FROM member WHERE id = ?", (member["id"],))
    about = {"name": member["user"]["name"], "email": member["user"]["email"], "role": member["role"]}
    logs.note(tx, "member.removed", member["id"], about, now=now)
    working = "created_by = ? AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > ?)"
    keys = tx.all(f"SELECT id, name FROM api_key WHERE {working} ORDER BY created_at, id", (member["id"], to_micros(now)))
    return [{"id": key_id, "name": name} for key_id, name in keys]


LINK_SECONDS = 3 * 86400
"""How long a link waits to be used. A new one makes the previous one void."""


def make_code(tx: Tx, member_id: str, *, now: float) -> str:
    """Return the code of a new link for the member. An existing password stays until the link is used."""
    code = secrets.token_urlsafe(32)
    tx.execute(
        "INSERT INTO member_password (member_id, link_hash, link_expires_at) VALUES (?, ?, ?) "
        "ON CONFLICT (member_id) DO UPDATE SET link_hash = excluded.link_hash, link_expires_at = excluded.link_expires_at",
        (member_id, secret_hash(code), to_micros(now + LINK_SECONDS)),
    )
    logs.note(tx, "member.link_made", member_id, {"name": get_member(tx, member_id)["user"]["name"]}, now=now)
    return code


def find_by_code(tx: Tx, code: str, *, now: float) -> str | None:
    """Return the id of the member whose link this is, unless it was used, replaced, or expired."""
    row = tx.one("SELECT member_id FROM member_password WHERE link_hash = ? AND link_expires_at > ?", (secret_hash(code), to_micros(now)))
    return None if row is None else str(row[0])


def put_password(tx: Tx, member_id: str, hashed: str) -> None:
    tx.execute(
        "INSERT INTO member_password (member_id, hash) VALUES (?, ?) "
        "ON CONFLICT (member_id) DO UPDATE SET hash = excluded.hash, link_hash = NULL, link_expires_at = NULL",
        (member_id, hashed),
    )


def get_password(tx: Tx, member_id: str) -> str | None:
    row = tx.one("SELECT hash FROM member_password WHERE member_id = ?", (member_id,))
    return None if row is None else row[0]


def drop_password(tx: Tx, member_id: str) -> None:
    tx.execute("DELETE FROM member_password WHERE member_id = ?", (member_id,))
    tx.execute("UPDATE device_login SET state = 'denied' WHERE member_id = ?", (member_id,))
    logs.note(tx, "member.access_taken_away", member_id, {"name": get_member(tx, member_id)["user"]["name"]})


def access_of_members(tx: Tx, *, now: float) -> dict[str, str]:
    """Return by member `active` with a password, `invited` with a valid link; others are left out."""
    state = "CASE WHEN hash IS NULL THEN 'invited' ELSE 'active' END"
    sql = f"SELECT member_id, {state} FROM member_password WHERE hash IS NOT NULL OR link_expires_at > ?"
    return dict(tx.all(sql, (to_micros(now),)))


SESSION_SECONDS = 8 * 3600

MOST_SESSIONS = 20
"""Most open sessions of one member, one API key, or the operator; a further one ends the oldest."""


@frozen
class ConsoleSession:
    """`token` is the cookie's value; `form_token` in every form proves that a page of this session sent it.

    `name` is the member's, empty for the operator and the portal. Without an `id` the visitor has not signed in.
    """

    token: str
    id: str = ""
    role: MemberRole = MemberRole.NOBODY
    member_id: str | None = None
    name: str = ""
    key_id: str | None = None

    @property
    def form_token(self) -> str:
        return hmac.new(self.token.encode(), b"form", hashlib.sha256).hexdigest()

    def owns(self, form_token: str) -> bool:
        return hmac.compare_digest(self.form_token.encode(), form_token.encode(errors="replace"))


def new_token() -> str:
    return secrets.token_urlsafe(32)


def open_session(
    tx: Tx, area: str, *, member_id: str | None = None, key_id: str | None = None, address: str = "", agent: str = "", now: float
) -> str:
    """Return the token of a new session for an area's pages: of a member, an API key (the portal), or neither for the operator. `address`
    and `agent` tell where it was opened. Deletes expired sessions, and the owner's oldest beyond the limit."""
    tx.execute("DELETE FROM page_session WHERE expires_at <= ?", (to_micros(now),))
    tx.execute(
        "DELETE FROM page_session WHERE token_hash IN (SELECT token_hash FROM page_session WHERE coalesce(member_id, '') = ? "
        "AND coalesce(key_id, '') = ? ORDER BY created_at DESC, id LIMIT 100000 OFFSET ?)",
        (member_id or "", key_id or "", MOST_SESSIONS - 1),
    )
    token = new_token()
    session = {"token_hash": secret_hash(token), "id": str(uuid4()), "area": area, "member_id": member_id, "key_id": key_id}
    session |= {"address": address, "agent": agent[:300]}
    insert(tx, "page_session", session | {"created_at": to_micros(now), "expires_at": to_micros(now + SESSION_SECONDS)})
    return token


def find_session(tx: Tx, area: str, token: str, *, now: float) -> ConsoleSession | None:
    """Return the session with this token, unless it is over, its key is revoked or expired, or its member is gone."""
    at = to_micros(now)
    row = tx.one(
        "SELECT s.id, s.key_id, m.id, m.name, m.role FROM page_session AS s LEFT JOIN api_key AS k ON k.id = s.key_id "
        "LEFT JOIN member AS m ON m.id = s.member_id WHERE s.token_hash = ? AND s.area = ? AND s.expires_at > ? "
        "AND (s.member_id IS NULL OR m.id IS NOT NULL) AND (s.key_id IS NULL OR "
        "(k.id IS NOT NULL AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > ?)))",
        (secret_hash(token), area, at, at),
    )
    if row is None:
        return None
    session_id, key_id, member_id, name, role = row
    if member_id is None:
        return ConsoleSession(token, session_id, MemberRole.OWNER, key_id=key_id)
    return ConsoleSession(token, session_id, role_of(role), member_id, name)


def list_sessions(tx: Tx, member_id: str | None = None, *, now: float) -> list[Json]:
    """Return the open sessions of one member or all, newest first: `{id, area, memberId, name, address, agent, createdAt, expiresAt}`."""
    mine, keys = ("AND s.member_id = ? ", (member_id,)) if member_id else ("", ())
    return _SESSIONS.all(tx, f"WHERE s.expires_at > ? {mine}ORDER BY s.created_at DESC, s.id LIMIT 200", (to_micros(now), *keys))


_SESSIONS = Rows(
    "page_session AS s LEFT JOIN member AS m ON m.id = s.member_id",
    "session",
    "s.id, s.area, s.member_id, m.name, s.address, s.agent, s.created_at, s.expires_at",
)


def end_session(tx: Tx, session_id: str, member_id: str | None = None) -> bool:
    """End a session, with `member_id` only if it is that member's. Returns whether it existed."""
    mine, keys = (" AND member_id = ?", (member_id,)) if member_id else ("", ())
    return tx.execute(f"DELETE FROM page_session WHERE id = ?{mine}", (session_id, *keys)) > 0


def end_sessions_of(tx: Tx, member_id: str, *, but: str = "") -> None:
    tx.execute("DELETE FROM page_session WHERE member_id = ? AND id <> ?", (member_id, but))


_INDUSTRIES = [
    *("agriculture", "education", "energy", "finance", "healthcare", "manufacturing", "public", "retail", "services", "technology"),
    "other",
]
STANDARD_OBJECTS: dict[str, tuple[NewObject, tuple[NewAttribute, ...]]] = {
    "people": (
        NewObject("People", "Person", "Everybody the organization knows", "people", STANDARD),
        (
            NewAttribute("Name", "name", "name"),
            NewAttribute("Email", "email", "email", is_unique=True),
            NewAttribute("Phone", "phone_number", "phone"),
            NewAttribute("Company", "reference", "company", config={"allowed_object": "companies"}),
            NewAttribute("Job title", "text", "job_title"),
            NewAttribute("Birthday", "date", "birthday"),
            NewAttribute("Address", "address", "address"),
            NewAttribute("Tags", "list", "tags"),
            NewAttribute("Subscribed", "checkbox", "subscribed"),
            NewAttribute("Status", "select", "status", config={"options": ["new", "contacted", "qualified", "customer", "inactive"]}),
            NewAttribute("Score", "number", "score"),
            NewAttribute("Notes", "text", "notes"),
        ),
    ),
    "companies": (
        NewObject("Companies", "Company", "Organizations that people work for and deals are made with", "companies", STANDARD),
        (
            NewAttribute("Name", "text", "name", is_required=True),
            NewAttribute("Domain", "text", "domain", is_unique=True),
            NewAttribute("Industry", "select", "industry", config={"options": _INDUSTRIES}),
            NewAttribute("Employees", "number", "employees"),
            NewAttribute("Annual revenue", "currency", "annual_revenue"),
            NewAttribute("Headquarters", "address", "headquarters"),
            NewAttribute("Phone", "phone_number", "phone"),
            NewAttribute("Founded", "date", "founded"),
            NewAttribute("Customer", "checkbox", "is_customer"),
            NewAttribute("Tags", "list", "tags"),
            NewAttribute("Notes", "text", "notes"),
        ),
    ),
    "deals": (
        NewObject("Deals", "Deal", "Business that may be won", "deals", STANDARD),
        (
            NewAttribute("Name", "text", "name", is_required=True),
            NewAttribute("Amount", "currency", "amount"),
            NewAttribute("Stage", "select", "stage", config={"options": ["lead", "qualified", "proposal", "negotiation", "won", "lost"]}),
            NewAttribute("Close date", "date", "close_date"),
            NewAttribute("Company", "reference", "company", config={"allowed_object": "companies"}),
            NewAttribute("Contact", "reference", "contact", config={"allowed_object": "people"}),
            NewAttribute("Probability", "number", "probability"),
            NewAttribute("Won", "checkbox", "won"),
            NewAttribute("Tags", "list", "tags"),
            NewAttribute("Notes", "text", "notes"),
        ),
    ),
}
"""The objects of a new service. A reference names its object by slug as `allowed_object`."""


_ORGANISATION = Rows("organisation", "organisation", "id, name, created_at")


def get_organisation(tx: Tx) -> Json | None:
    """Return `{id, name, createdAt}`, None before the set-up."""
    return _ORGANISATION.find(tx, "singleton = 1")


def organisation_id(tx: Tx) -> str:
    """Return the id alone, for events. Raises LookupError before the set-up."""
    known_id: str = required(tx.one("SELECT id FROM organisation"))[0]
    return known_id


def initialise(tx: Tx, ids: Ids, now: float) -> bool:
    """Set up an empty database. Returns False if it was set up before."""
    if get_organisation(tx) is not None:
        return False
    tx.execute("INSERT INTO organisation (singleton, id, name, created_at) VALUES (1, ?, ?, ?)", (ids(), "My organization", to_micros(now)))
    create_member(tx, name="Owner", email="owner@localhost", role="owner", ids=ids, now=now)
    # All objects first, so that references may point to any of them.
    object_ids = {slug: create_object(tx, new, ids=ids, now=now)["id"] for slug, (new, _) in STANDARD_OBJECTS.items()}
    for slug, (_, fields) in STANDARD_OBJECTS.items():
        for new in fields:
            if new.config and "allowed_object" in new.config:
                new = replace(new, config={"allowed_object_id": object_ids[new.config["allowed_object"]]})
            create_attribute(tx, object_ids[slug], new, ids=ids, now=now)
    return True
