"""What a member may do on the pages: each role may do what the one before may, and more. API keys have scopes instead."""

from __future__ import annotations

from enum import IntEnum


class MemberRole(IntEnum):
    """NOBODY is a visitor who has not signed in."""

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
"""The roles that members have, the one that may most first."""


def role_of(text: str) -> MemberRole:
    """The role of a member as it is stored; what is not known may only look."""
    return next((role for role in MEANINGS if role.label == text), MemberRole.VIEWER)
