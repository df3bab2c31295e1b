"""Webhook management and event types (specification 4.9 and 6)."""

from __future__ import annotations

from pydantic import Field

from crmctl.models.base import Resource

EVENT_TYPES: dict[str, str] = {
    "record.created": "A record is created in any object",
    "record.updated": "A record is updated",
    "record.deleted": "A record is deleted",
    "activity.created": "An activity is created",
    "activity.updated": "An activity is updated",
    "activity.deleted": "An activity is deleted",
    "workflow.completed": "A workflow run completed successfully",
    "workflow.failed": "A workflow run failed",
}


class EventType(Resource):
    name: str
    description: str | None = None


class Webhooks(Resource):
    portal_url: str | None = None
    event_types: list[EventType] = Field(default_factory=list)
