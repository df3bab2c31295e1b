"""Webhooks (specification 4.9): the way to the portal, and the event types. Endpoints are managed on the portal's pages."""
# ruff: noqa: N815 - the fields are named as on the wire

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field

from crmctl.models.webhooks import EVENT_TYPES
from crmctl.service.console.links import PORTAL, make_link
from crmctl.service.context import Context
from crmctl.service.http.endpoints import Call, Endpoints
from crmctl.service.store.tx import Tx


class EventType(BaseModel):
    name: str
    description: str


class Webhooks(BaseModel):
    portalUrl: Annotated[str, Field(json_schema_extra={"format": "uri"})]
    eventTypes: list[EventType]


def router(context: Context) -> Endpoints:
    """The one endpoint of webhooks."""
    api = Endpoints(context, "webhooks")

    @api.add("GET", "/webhooks", answers=Webhooks, scope="webhooks:manage")
    def get_webhooks(tx: Tx, call: Call) -> Any:
        """Get a link to the webhook portal, and the event types.

        The link opens a session of its own for ten minutes; the session ends with the API key.
        """
        link = make_link(tx, call.context.settings.address, PORTAL, key_id=call.key.id, now=call.now())
        return {
            "portalUrl": link.url,
            "eventTypes": [{"name": name, "description": description} for name, description in EVENT_TYPES.items()],
        }

    return api
