"""Members of the organisation. Read only through the interface; made at set-up and by administration."""

# ruff: noqa: S608 - statements are put together from this package's own names only; values are always parameters

from __future__ import annotations

from typing import Any, NamedTuple, Unpack

from crmctl.models.folded_text import fold
from crmctl.service.faults import BadRequest, Conflict, NotFound
from crmctl.service.store import audit_log
from crmctl.service.store.checks import require_name
from crmctl.service.store.stamp import Stamp
from crmctl.service.store.timestamps import to_micros, to_wire
from crmctl.service.store.tx import Tx, required
from crmctl.service.values.choices import canonical_uuid
from crmctl.service.values.text import Invalid, read_email


class _Row(NamedTuple):
    """The columns of a member."""

    id: str
    user_id: str
    name: str
    email: str
    image: str | None
    role: str
    created_at: int

    def wire(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "role": self.role,
            "createdAt": to_wire(self.created_at),
            "user": {"id": self.user_id, "name": self.name, "email": self.email, "image": self.image},
        }


_COLUMNS = ", ".join(_Row._fields)


def list_members(tx: Tx) -> list[dict[str, Any]]:
    """Oldest first."""
    return [_Row(*row).wire() for row in tx.all(f"SELECT {_COLUMNS} FROM member ORDER BY created_at, id")]


def get_member(tx: Tx, member_id: str) -> dict[str, Any]:
    """Raises NotFound."""
    row = tx.one(f"SELECT {_COLUMNS} FROM member WHERE id = ?", (canonical_uuid(member_id) or "",))
    if row is None:
        raise NotFound(f"there is no member with the id {member_id}")
    return _Row(*row).wire()


def find_member_by_email(tx: Tx, email: str) -> dict[str, Any] | None:
    """Case does not matter."""
    row = tx.one(f"SELECT {_COLUMNS} FROM member WHERE email_key = ?", (fold(email),))
    return None if row is None else _Row(*row).wire()


def author(tx: Tx, member_id: str | None = None) -> dict[str, Any]:
    """Who made something, `{id, name, email}` of the user: the member a key was made by; the owner for keys of nobody in particular."""
    row = tx.one("SELECT user_id, name, email FROM member WHERE id = ?", (member_id,)) if member_id else None
    row = row or tx.one("SELECT user_id, name, email FROM member ORDER BY created_at, id LIMIT 1")
    user_id, name, email = required(row)
    return {"id": user_id, "name": name, "email": email}


def create_member(
    tx: Tx, *, name: str, email: str, role: str = "member", image: str | None = None, **stamp: Unpack[Stamp]
) -> dict[str, Any]:
    """Raises BadRequest, and Conflict when the email address is a member's already."""
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
    audit_log.note(tx, "member.created", row[0], {"name": name, "email": email, "role": role}, now=stamp["now"])
    return _Row(*row).wire()


def update_member(tx: Tx, member_id: str, *, name: str, role: str, image: str | None = None) -> dict[str, Any]:
    """Raises NotFound and BadRequest."""
    known = get_member(tx, member_id)
    row = (require_name(name, "name"), require_name(role, "role"), image, known["id"])
    tx.execute("UPDATE member SET name = ?, role = ?, image = ? WHERE id = ?", row)
    audit_log.note(tx, "member.updated", known["id"], {"name": name, "role": role})
    return get_member(tx, member_id)
