"""Objects (specification 4.1)."""

from __future__ import annotations

from typing import Any

from crmctl.service.context import Context
from crmctl.service.http import schemas
from crmctl.service.http.endpoints import Call, Endpoints
from crmctl.service.store import objects
from crmctl.service.store.tx import Tx


def router(context: Context) -> Endpoints:
    """The five endpoints of objects."""
    api = Endpoints(context, "objects")

    @api.add("GET", "/objects", answers=schemas.ObjectList, scope="objects:read")
    def list_objects(tx: Tx, _: Call) -> Any:
        """List the active objects."""
        return {"objects": objects.list_objects(tx)}

    @api.add("GET", "/objects/{objectId:uuid}", answers=schemas.ObjectWithAttributes, scope="objects:read")
    def get_object(tx: Tx, call: Call) -> Any:
        """Get an object with its attributes."""
        return objects.get_object(tx, call.id("objectId"))

    @api.add("POST", "/objects", answers=schemas.Object, scope="objects:write", status=201, body=schemas.ObjectCreate, conflicts=True)
    def create_object(tx: Tx, call: Call) -> Any:
        """Create a custom object."""
        return objects.create_object(tx, objects.NewObject(**call.fields()), **call.stamp())

    @api.add("PATCH", "/objects/{objectId:uuid}", answers=schemas.Object, scope="objects:write", body=schemas.ObjectUpdate)
    def update_object(tx: Tx, call: Call) -> Any:
        """Update a custom object."""
        return objects.update_object(tx, call.id("objectId"), call.body, now=call.now())

    @api.add("DELETE", "/objects/{objectId:uuid}", answers=schemas.Deleted, scope="objects:write", conflicts=True)
    def delete_object(tx: Tx, call: Call) -> Any:
        """Delete a custom object with its attributes and records."""
        objects.delete_object(tx, call.id("objectId"))
        return {"deleted": True}

    return api
