"""Members of the organisation, and the short form in which other resources name a person (specification 2.5)."""

from __future__ import annotations

from crmctl.models.base import Resource


class Person(Resource):
    """Who created something: `{id, name, email}`."""

    id: str | None = None
    name: str | None = None
    email: str | None = None


class User(Person):
    image: str | None = None


class Member(Resource):
    id: str
    role: str | None = None
    created_at: str | None = None
    user: User | None = None
