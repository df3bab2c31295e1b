"""`crmctl members`: the organization's members. The service offers no more than reading them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from crmctl.cli.framework import CommandApp

if TYPE_CHECKING:
    from crmctl.cli.runtime import Runtime

app = CommandApp("List the members of the organization.")


@app.command("list", examples=["crmctl members list", "crmctl members list -q '[].user.email'"])
def list_members(ctx: typer.Context) -> None:
    """List the members of the organization."""
    from crmctl.output.views import MEMBERS

    runtime: Runtime = ctx.obj
    runtime.emitter.emit_items(runtime.crm.list_members(), MEMBERS)
