"""Activities (specification 4.4)."""
# ruff: noqa: N815 - the fields are named as on the wire

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from crmctl.service.context import Context
from crmctl.service.http import schemas
from crmctl.service.http.endpoints import Call, Endpoints
from crmctl.service.http.parameters import Identifier, page_parameters
from crmctl.service.shapes import Body
from crmctl.service.store import activities
from crmctl.service.store.tx import Tx


class LinkedRecord(Body):
    objectId: schemas.Id
    recordId: schemas.Id


class Participant(Body):
    type: Literal["user", "person"]
    id: schemas.Id


class Activity(BaseModel):
    id: schemas.Id
    title: str
    summary: str
    activityDate: schemas.Timestamp
    linkedRecords: list[LinkedRecord]
    participants: list[Participant]
    createdBy: schemas.Person
    createdAt: schemas.Timestamp
    updatedAt: schemas.Timestamp


class ActivityList(BaseModel):
    activities: list[Activity]


Links = Annotated[list[LinkedRecord], Field(max_length=activities.MOST_LINKS)]
Participants = Annotated[list[Participant], Field(max_length=activities.MOST_LINKS)]


class ActivityUpdate(Body):
    title: schemas.Name = Field(default_factory=str)
    summary: schemas.Description | None = None
    activityDate: schemas.Timestamp | None = None
    linkedRecords: Links | None = None
    participants: Participants | None = None


class ActivityCreate(ActivityUpdate):
    title: schemas.Name


_QUERY = (
    *page_parameters(),
    Identifier("recordId", "Only activities linked to this record."),
    Identifier("objectId", "Only activities linked to a record of this object."),
)


def router(context: Context) -> Endpoints:
    """The five endpoints of activities."""
    api = Endpoints(context, "activities")

    @api.add("GET", "/activities", answers=ActivityList, scope="activities:read", query=_QUERY)
    def list_activities(tx: Tx, call: Call) -> Any:
        """List activities, newest first."""
        query = call.query
        found = activities.list_activities(tx, query["recordId"], query["objectId"], query["limit"], query["offset"])
        return {"activities": found}

    @api.add("GET", "/activities/{activityId:uuid}", answers=Activity, scope="activities:read")
    def get_activity(tx: Tx, call: Call) -> Any:
        """Get an activity."""
        return activities.get_activity(tx, call.id("activityId"))

    @api.add("POST", "/activities", answers=Activity, scope="activities:write", status=201, body=ActivityCreate)
    def create_activity(tx: Tx, call: Call) -> Any:
        """Create an activity."""
        return activities.create_activity(tx, call.body, created_by=call.key.created_by, **call.stamp())

    @api.add("PATCH", "/activities/{activityId:uuid}", answers=Activity, scope="activities:write", body=ActivityUpdate)
    def update_activity(tx: Tx, call: Call) -> Any:
        """Update an activity; only the fields given change."""
        return activities.update_activity(tx, call.id("activityId"), call.body, **call.stamp())

    @api.add("DELETE", "/activities/{activityId:uuid}", answers=schemas.Deleted, scope="activities:write")
    def delete_activity(tx: Tx, call: Call) -> Any:
        """Delete an activity."""
        activities.delete_activity(tx, call.id("activityId"), **call.stamp())
        return {"deleted": True}

    return api
