"""Members, their passwords and sessions, and the organisation."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Unpack
from uuid import uuid4

from crmctl.models.jsontext import Json
from crmctl.service.faults import BadRequest, Conflict, NotFound
from crmctl.service.roles import MemberRole, role_of
from crmctl.service.store import logs
from crmctl.service.store.attributes import NewAttribute, create_attribute
from crmctl.service.store.objects import STANDARD, NewObject, create_object
from crmctl.service.store.record_tables import require_name
from crmctl.service.store.tx import Stamp, Tx, required, to_micros, to_wire
from crmctl.values.folded_text import fold
from crmctl.values.value_readers import Invalid, canonical_uuid, read_email


class _Row(NamedTuple):
    """The columns of a member."""

    id: str
    user_id: str
    name: str
    email: str
    image: str | None
    role: str
    created_at: int

    def wire(self) -> Json:
        return {
            "id": self.id,
            "role": self.role,
            "createdAt": to_wire(self.created_at),
            "user": {"id": self.user_id, "name": self.name, "email": self.email, "image": self.image},
        }


_COLUMNS = ", ".join(_Row._fields)


def list_members(tx: Tx) -> list[Json]:
    return [_Row(*row).wire() for row in tx.all(f"SELECT {_COLUMNS} FROM member ORDER BY created_at, id")]


def get_member(tx: Tx, member_id: str) -> Json:
    row = tx.one(f"SELECT {_COLUMNS} FROM member WHERE id = ?", (canonical_uuid(member_id) or "",))
    if row is None:
        raise NotFound(f"there is no member with the id {member_id}")
    return _Row(*row).wire()


def find_member_by_email(tx: Tx, email: str) -> Json | None:
    """Return the member with this address in any case."""
    row = tx.one(f"SELECT {_COLUMNS} FROM member WHERE email_key = ?", (fold(email),))
    return None if row is None else _Row(*row).wire()


def author(tx: Tx, member_id: str | None = None) -> Json:
    """Return the author of something as `{id, name, email}`: the member who made the key, else the owner."""
    row = tx.one("SELECT user_id, name, email FROM member WHERE id = ?", (member_id,)) if member_id else None
    row = row or tx.one("SELECT user_id, name, email FROM member ORDER BY created_at, id LIMIT 1")
    user_id, name, email = required(row)
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
    tx.execute(f"INSERT INTO member ({_COLUMNS}, email_key) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (*row, fold(email)))
    logs.note(tx, "member.created", row[0], {"name": name, "email": email, "role": role}, now=stamp["now"])
    return _Row(*row).wire()


def update_member(tx: Tx, member_id: str, *, name: str, role: str, image: str | None = None) -> Json:
    member = get_member(tx, member_id)
    row = (require_name(name, "name"), require_name(role, "role"), image, member["id"])
    tx.execute("UPDATE member SET name = ?, role = ?, image = ? WHERE id = ?", row)
    logs.note(tx, "member.updated", member["id"], {"name": name, "role": role})
    return get_member(tx, member_id)


LINK_SECONDS = 3 * 86400
"""How long a link waits to be used. A new one makes the previous one void."""


def make_code(tx: Tx, member_id: str, *, now: float) -> str:
    """Return the code of a new link for the member. An existing password stays until the link is used."""
    code = secrets.token_urlsafe(32)
    tx.execute(
        "INSERT INTO member_password (member_id, link_hash, link_expires_at) VALUES (?, ?, ?) "
        "ON CONFLICT (member_id) DO UPDATE SET link_hash = excluded.link_hash, link_expires_at = excluded.link_expires_at",
        (member_id, _hash(code), to_micros(now + LINK_SECONDS)),
    )
    logs.note(tx, "member.link_made", member_id, {"name": get_member(tx, member_id)["user"]["name"]}, now=now)
    return code


def find_by_code(tx: Tx, code: str, *, now: float) -> str | None:
    """Return the id of the member whose link this is, unless it was used, replaced, or expired."""
    row = tx.one("SELECT member_id FROM member_password WHERE link_hash = ? AND link_expires_at > ?", (_hash(code), to_micros(now)))
    return None if row is None else str(row[0])


def put_password(tx: Tx, member_id: str, hashed: str) -> None:
    """Set the member's password; an open link becomes void."""
    tx.execute(
        "INSERT INTO member_password (member_id, hash) VALUES (?, ?) "
        "ON CONFLICT (member_id) DO UPDATE SET hash = excluded.hash, link_hash = NULL, link_expires_at = NULL",
        (member_id, hashed),
    )


def get_password(tx: Tx, member_id: str) -> str | None:
    row = tx.one("SELECT hash FROM member_password WHERE member_id = ?", (member_id,))
    return None if row is None else row[0]


def drop_password(tx: Tx, member_id: str) -> None:
    """Lock the member out until there is another link."""
    tx.execute("DELETE FROM member_password WHERE member_id = ?", (member_id,))
    logs.note(tx, "member.access_taken_away", member_id, {"name": get_member(tx, member_id)["user"]["name"]})


def access_of_members(tx: Tx, *, now: float) -> dict[str, str]:
    """Return by member `active` with a password, `invited` with a valid link; others are left out."""
    rows = tx.all("SELECT member_id, hash, link_expires_at FROM member_password")
    states = {member: "active" if hashed else "invited" if until and until > to_micros(now) else "" for member, hashed, until in rows}
    return {member: state for member, state in states.items() if state}


def _hash(code: str) -> str:
    return hashlib.sha256(code.encode(errors="replace")).hexdigest()


SESSION_SECONDS = 8 * 3600

MOST_SESSIONS = 20
"""Most open sessions of one member, one API key, or the operator; a further one ends the oldest."""


@dataclass(frozen=True)
class SessionOwner:
    """The owner of a session: a member, an API key (the portal), or neither for the operator. `address` and `agent` tell where it was
    opened."""

    member_id: str | None = None
    key_id: str | None = None
    address: str = ""
    agent: str = ""


@dataclass(frozen=True)
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


def open_session(tx: Tx, area: str, owner: SessionOwner, *, now: float) -> str:
    """Return the token of a new session for an area's pages. Deletes expired sessions, and the owner's oldest beyond the limit."""
    tx.execute("DELETE FROM page_session WHERE expires_at <= ?", (to_micros(now),))
    whose, keys = _whose(owner)
    tx.execute(
        f"DELETE FROM page_session WHERE token_hash IN (SELECT token_hash FROM page_session WHERE {whose} "
        "ORDER BY created_at DESC, id LIMIT 100000 OFFSET ?)",
        (*keys, MOST_SESSIONS - 1),
    )
    token = new_token()
    tx.execute(
        "INSERT INTO page_session (token_hash, id, area, member_id, key_id, address, agent, created_at, expires_at) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            _session_hash(token),
            str(uuid4()),
            area,
            owner.member_id,
            owner.key_id,
            owner.address,
            owner.agent[:300],
            to_micros(now),
            to_micros(now + SESSION_SECONDS),
        ),
    )
    return token


def find_session(tx: Tx, area: str, token: str, *, now: float) -> ConsoleSession | None:
    """Return the session with this token, unless it is over, its key is revoked or expired, or its member is gone."""
    at = to_micros(now)
    row = tx.one(
        "SELECT s.id, s.key_id, m.id, m.name, m.role FROM page_session AS s LEFT JOIN api_key AS k ON k.id = s.key_id "
        "LEFT JOIN member AS m ON m.id = s.member_id WHERE s.token_hash = ? AND s.area = ? AND s.expires_at > ? "
        "AND (s.member_id IS NULL OR m.id IS NOT NULL) AND (s.key_id IS NULL OR "
        "(k.id IS NOT NULL AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > ?)))",
        (_session_hash(token), area, at, at),
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
    rows = tx.all(
        "SELECT s.id, s.area, s.member_id, m.name, s.address, s.agent, s.created_at, s.expires_at FROM page_session AS s "
        f"LEFT JOIN member AS m ON m.id = s.member_id WHERE s.expires_at > ? {mine}ORDER BY s.created_at DESC, s.id LIMIT 200",
        (to_micros(now), *keys),
    )
    names = ("id", "area", "memberId", "name", "address", "agent")
    return [dict(zip(names, row, strict=False)) | {"createdAt": to_wire(row[6]), "expiresAt": to_wire(row[7])} for row in rows]


def end_session(tx: Tx, session_id: str, member_id: str | None = None) -> bool:
    """End a session, with `member_id` only if it is that member's. Returns whether it existed."""
    if member_id is None:
        return tx.execute("DELETE FROM page_session WHERE id = ?", (session_id,)) > 0
    return tx.execute("DELETE FROM page_session WHERE id = ? AND member_id = ?", (session_id, member_id)) > 0


def end_sessions_of(tx: Tx, member_id: str, *, but: str = "") -> None:
    """End the member's sessions except the one with this id."""
    tx.execute("DELETE FROM page_session WHERE member_id = ? AND id <> ?", (member_id, but))


def close_all_sessions(tx: Tx) -> None:
    """Sign out every browser of the console and of the portal."""
    tx.execute("DELETE FROM page_session")


def count_sessions(tx: Tx, *, now: float) -> int:
    row = tx.one("SELECT count(*) FROM page_session WHERE expires_at > ?", (to_micros(now),))
    return 0 if row is None else int(row[0])


def _whose(owner: SessionOwner) -> tuple[str, tuple[str, ...]]:
    """Return the condition for sessions of the same owner, with its parameters."""
    if owner.member_id:
        return "member_id = ?", (owner.member_id,)
    if owner.key_id:
        return "key_id = ?", (owner.key_id,)
    return "member_id IS NULL AND key_id IS NULL", ()


def _session_hash(token: str) -> str:
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()


@dataclass(frozen=True)
class StandardAttribute:
    """`options` for a select, `target` (the slug of a standard object) for a reference."""

    name: str
    slug: str
    type: str
    is_required: bool = False
    is_unique: bool = False
    is_list: bool = False
    options: tuple[str, ...] = ()
    target: str | None = None

    def new(self, object_ids: Mapping[str, str]) -> NewAttribute:
        config: Json | None = None
        if self.options:
            config = {"options": list(self.options)}
        elif self.target:
            config = {"allowed_object_id": object_ids[self.target]}
        return NewAttribute(self.name, self.type, self.slug, self.is_required, self.is_unique, self.is_list, config)


@dataclass(frozen=True)
class StandardObject:
    plural_name: str
    singular_name: str
    description: str
    attributes: tuple[StandardAttribute, ...]


_PEOPLE = StandardObject(
    "People",
    "Person",
    "Everybody the organization knows",
    (
        StandardAttribute("Name", "name", "name"),
        StandardAttribute("Email", "email", "email", is_unique=True),
        StandardAttribute("Phone", "phone", "phone_number"),
        StandardAttribute("Company", "company", "reference", target="companies"),
        StandardAttribute("Job title", "job_title", "text"),
        StandardAttribute("Birthday", "birthday", "date"),
        StandardAttribute("Address", "address", "address"),
        StandardAttribute("Tags", "tags", "list"),
        StandardAttribute("Subscribed", "subscribed", "checkbox"),
        StandardAttribute("Status", "status", "select", options=("new", "contacted", "qualified", "customer", "inactive")),
        StandardAttribute("Score", "score", "number"),
        StandardAttribute("Notes", "notes", "text"),
    ),
)

_COMPANIES = StandardObject(
    "Companies",
    "Company",
    "Organizations that people work for and deals are made with",
    (
        StandardAttribute("Name", "name", "text", is_required=True),
        StandardAttribute("Domain", "domain", "text", is_unique=True),
        StandardAttribute(
            "Industry",
            "industry",
            "select",
            options=(
                "agriculture",
                "education",
                "energy",
                "finance",
                "healthcare",
                "manufacturing",
                "public",
                "retail",
                "services",
                "technology",
                "other",
            ),
        ),
        StandardAttribute("Employees", "employees", "number"),
        StandardAttribute("Annual revenue", "annual_revenue", "currency"),
        StandardAttribute("Headquarters", "headquarters", "address"),
        StandardAttribute("Phone", "phone", "phone_number"),
        StandardAttribute("Founded", "founded", "date"),
        StandardAttribute("Customer", "is_customer", "checkbox"),
        StandardAttribute("Tags", "tags", "list"),
        StandardAttribute("Notes", "notes", "text"),
    ),
)

_DEALS = StandardObject(
    "Deals",
    "Deal",
    "Business that may be won",
    (
        StandardAttribute("Name", "name", "text", is_required=True),
        StandardAttribute("Amount", "amount", "currency"),
        StandardAttribute("Stage", "stage", "select", options=("lead", "qualified", "proposal", "negotiation", "won", "lost")),
        StandardAttribute("Close date", "close_date", "date"),
        StandardAttribute("Company", "company", "reference", target="companies"),
        StandardAttribute("Contact", "contact", "reference", target="people"),
        StandardAttribute("Probability", "probability", "number"),
        StandardAttribute("Won", "won", "checkbox"),
        StandardAttribute("Tags", "tags", "list"),
        StandardAttribute("Notes", "notes", "text"),
    ),
)

STANDARD_OBJECTS: dict[str, StandardObject] = {"people": _PEOPLE, "companies": _COMPANIES, "deals": _DEALS}


def get_organisation(tx: Tx) -> Json | None:
    """Return `{id, name, createdAt}`, None before the set-up."""
    row = tx.one("SELECT id, name, created_at FROM organisation")
    return None if row is None else {"id": row[0], "name": row[1], "createdAt": to_wire(row[2])}


def hold_organisation(tx: Tx) -> None:
    """Lock the organisation until the transaction ends."""
    tx.one(f"SELECT id FROM organisation{tx.dialect.for_update}")


def organisation_id(tx: Tx) -> str:
    """Return the id alone, for events. Raises LookupError before the set-up."""
    known_id: str = required(tx.one("SELECT id FROM organisation"))[0]
    return known_id


def initialise(tx: Tx, ids: Callable[[], str], now: float) -> Json | None:
    """Set up an empty database. Returns the organisation with its `owner` (a member), None if it was set up before."""
    if get_organisation(tx) is not None:
        return None
    tx.execute("INSERT INTO organisation (singleton, id, name, created_at) VALUES (1, ?, ?, ?)", (ids(), "My organization", to_micros(now)))
    made = create_member(tx, name="Owner", email="owner@localhost", role="owner", ids=ids, now=now)
    object_ids: dict[str, str] = {}
    # All objects first, so that references may point to any of them.
    for slug, definition in STANDARD_OBJECTS.items():
        new = NewObject(definition.plural_name, definition.singular_name, definition.description, slug, STANDARD)
        object_ids[slug] = create_object(tx, new, ids=ids, now=now)["id"]
    for slug, definition in STANDARD_OBJECTS.items():
        for attribute in definition.attributes:
            create_attribute(tx, object_ids[slug], attribute.new(object_ids), ids=ids, now=now)
    organisation = get_organisation(tx)
    return None if organisation is None else organisation | {"owner": made}
