"""Members of the organisation, read only (specification 4.5)."""

from __future__ import annotations

from typing import Any

from crmctl.service.context import Context
from crmctl.service.http import schemas
from crmctl.service.http.answers import present
from crmctl.service.http.endpoints import Call, Endpoints
from crmctl.service.store import members
from crmctl.service.store.tx import Tx


def router(context: Context) -> Endpoints:
    """The one endpoint of members."""
    api = Endpoints(context, "members")

    @api.add("GET", "/members", answers=schemas.MemberList, scope="members:read")
    def list_members(tx: Tx, _: Call) -> Any:
        """List the members of the organization."""
        return {"members": [member | {"user": present(member["user"], "image")} for member in members.list_members(tx)]}

    return api
