"""Roles of members on the pages. Each role includes the rights of the one before; API keys have scopes instead."""

from __future__ import annotations

from enum import IntEnum


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
    MemberRole.VIEWER: "look at everything but what is an admin's, change nothing",
}
"""The roles of members, the most powerful first."""


def role_of(text: str) -> MemberRole:
    """Return the role of a stored text. An unknown one may only read."""
    return next((role for role in MEANINGS if role.label == text), MemberRole.VIEWER)
