"""Activities: notes, meetings, calls linked to records (specification 2.4)."""

from __future__ import annotations

from crmctl.models.base import Resource
from crmctl.models.members import Person


class LinkedRecord(Resource):
    object_id: str | None = None
    record_id: str | None = None


class Participant(Resource):
    """`type` is `user` (a member, by user id) or `person` (a record)."""

    type: str | None = None
    id: str | None = None


class Activity(Resource):
    id: str
    title: str | None = None
    summary: str | None = None
    activity_date: str | None = None
    linked_records: list[LinkedRecord] | None = None
    participants: list[Participant] | None = None
    created_by: Person | None = None
    created_at: str | None = None
    updated_at: str | None = None
