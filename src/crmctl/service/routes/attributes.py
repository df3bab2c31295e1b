"""Attributes of an object (specification 4.2)."""

from __future__ import annotations

from typing import Any

from crmctl.service.context import Context
from crmctl.service.http import schemas
from crmctl.service.http.endpoints import Call, Endpoints
from crmctl.service.http.parameters import Choice
from crmctl.service.jobs.removals import after_removal
from crmctl.service.store import actors, attributes
from crmctl.service.store.tx import Tx

MANY = "/objects/{objectId:uuid}/attributes"
ONE = MANY + "/{attributeId:uuid}"
INCLUDE_INACTIVE = Choice("includeInactive", "false", ("true", "false"), "With `true`, inactive attributes are listed too.")


def router(context: Context) -> Endpoints:
    """The five endpoints of attributes."""
    api = Endpoints(context, "attributes")

    @api.add("GET", MANY, answers=schemas.AttributeList, scope="attributes:read", query=[INCLUDE_INACTIVE])
    def list_attributes(tx: Tx, call: Call) -> Any:
        """List an object's attributes in display order."""
        inactive = call.query["includeInactive"] == "true"
        return {"attributes": attributes.list_attributes(tx, call.id("objectId"), include_inactive=inactive)}

    @api.add("GET", ONE, answers=schemas.Attribute, scope="attributes:read")
    def get_attribute(tx: Tx, call: Call) -> Any:
        """Get an attribute."""
        return attributes.get_attribute(tx, call.id("objectId"), call.id("attributeId"))

    @api.add(
        "POST",
        MANY,
        answers=schemas.Attribute,
        scope="attributes:write",
        status=201,
        body=schemas.AttributeCreate,
        conflicts=True,
        is_long=True,
        in_transaction=False,
    )
    def create_attribute(call: Call) -> Any:
        """Create an attribute."""
        new = attributes.NewAttribute(**call.fields())

        def create(tx: Tx) -> Any:
            return attributes.create_attribute(tx, call.id("objectId"), new, **call.stamp())

        return after_removal(call.context.engine, create, within=call.within, by=actors.key(call.key.id))

    @api.add("PATCH", ONE, answers=schemas.Attribute, scope="attributes:write", body=schemas.AttributeUpdate)
    def update_attribute(tx: Tx, call: Call) -> Any:
        """Rename an attribute."""
        return attributes.update_attribute(tx, call.id("objectId"), call.id("attributeId"), name=call.body["name"], now=call.now())

    @api.add("DELETE", ONE, answers=schemas.Deleted, scope="attributes:write", conflicts=True, is_long=True)
    def delete_attribute(tx: Tx, call: Call) -> Any:
        """Delete an attribute and its values in all records."""
        attributes.delete_attribute(tx, call.id("objectId"), call.id("attributeId"))
        return {"deleted": True}

    return api
